from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import corpus_of, count, documents, ranked, split_lines

from qrag_jax.search.citations import Cited, cite, make_citation, render
from qrag_jax.search.context.pack import Budget, fill_context
from qrag_jax.types import Document, InputError

TWO = documents("one two\n\nthree\n", "four\n")
BY_ID = {document.id: document for document in TWO}
CHUNKS = [chunk for document in TWO for chunk in split_lines(document)]
CONTEXT = fill_context(corpus_of(TWO, CHUNKS), ranked(2, 1, 0), Budget(9, count))  # [1] one two, [2] three, [3] four


@pytest.mark.parametrize(
    ("answer", "numbers", "unknown"),
    [
        ("Two [2], and one [1].", [2, 1], []),
        ("Two [2] and two [2].", [2], []),
        ("[1][3]", [1, 3], []),
        ("[1, 3] [ 2 ]", [1, 3, 2], []),
        ("[3;1]", [3, 1], []),
        ("[1-3]", [1, 2, 3], []),
        ("[2\u20133, 1]", [2, 3, 1], []),
        ("[3-1]", [3, 1], []),
        ("[4] [0] [2] [4]", [2], [4]),
        ("[1, 9]", [1], [9]),
        ("[1-9]", [1, 2, 3], [4, 5, 6, 7, 8, 9]),
        ("none", [], []),
        ("\u30101\u3011 \uff3b2\uff3d \u30143\u3015", [1, 2, 3], []),
        ("\u30102\u2020source\u3011 [1\u2020L3-L5]", [2, 1], []),
        ("\u3010\u6587\u68632\u3011 [1\u30013] [1\uff0d2]", [2, 1, 3], []),
        ("[^2] [Passage 1] [doc 3]", [2, 1, 3], []),
        ("[Passages 1 and 3] [source: 2]", [1, 3, 2], []),
        ("[passage_3] [#2] **[1]**", [3, 2, 1], []),
        ("[\uff12] [\u0661] [\u0969] [\uff18]", [2, 1, 3], [8]),
        ("\u30105:0\u2020source\u3011 [Section 3] [p. 2] [1", [], []),
        ("(1) 2 [a] [1a] [] [-1] [1.5] \uff081\uff09 [Step 1] [" + "9" * 5000 + "]", [], []),
    ],
)
def test_which_passages_an_answer_names(answer, numbers, unknown):
    cited = cite(answer, CONTEXT, BY_ID)
    assert [citation.number for citation in cited.citations] == numbers
    assert list(cited.unknown) == unknown


def test_what_a_citation_says():
    cited = cite("[2] [3]", CONTEXT, BY_ID)
    assert [(c.place, c.line, c.text) for c in cited.citations] == [
        ("a.txt:9-14", 3, "three"),
        ("b.txt:0-4", 1, "four"),
    ]
    assert [TWO[0].text[start:end] for start, end in cited.citations[0].spans] == ["three"]


def test_several_spans():
    passage = replace(CONTEXT.passages[0], spans=((0, 3), (9, 14)), text="one\nthree")
    assert make_citation(passage, {TWO[0].id: TWO[0]}).place == "a.txt:0-3,9-14"


def test_rendering_shows_places_and_never_a_made_up_citation():
    answer = "So it is [2]. Or not [7, 1], see [x]."
    assert render(answer, cite(answer, CONTEXT, BY_ID)) == (
        "So it is [2 a.txt:9-14]. Or not [7: no such passage][1 a.txt:0-7], see [x]."
    )
    assert render("[1] [1]", cite("[1]", CONTEXT, BY_ID), lambda c: f"{c.line}") == "[1 1] [1 1]"
    assert render("[1]", Cited((), (1,))) == "[1: no such passage]"
    answer = "So\u30102\u2020a\u3011, or [Passage 1, doc 9] (1)."
    cited = cite(answer, CONTEXT, BY_ID)
    assert render(answer, cited) == "So[2 a.txt:9-14], or [1 a.txt:0-7][9: no such passage] (1)."


@given(st.text(alphabet="[]123 ,;-a\n\u3010\u2020\uff12#", max_size=30))
def test_every_number_is_known_or_reported(answer):
    cited = cite(answer, CONTEXT, BY_ID)
    known = [citation.number for citation in cited.citations]
    assert set(known) <= {1, 2, 3} and not set(cited.unknown) & {1, 2, 3}
    assert len(set(known)) == len(known) and len(set(cited.unknown)) == len(cited.unknown)
    if not known and not cited.unknown:
        assert render(answer, cited) == answer


def test_a_passage_that_is_not_where_it_says_is_refused():
    moved = replace(CONTEXT, passages=(replace(CONTEXT.passages[0], spans=((1, 8),)), *CONTEXT.passages[1:]))
    with pytest.raises(InputError, match=r"a.txt: passage at \[\(1, 8\)\]: the document has other text there"):
        cite("[1]", moved, BY_ID)
    assert cite("[2]", moved, BY_ID).citations[0].text == "three"
    with pytest.raises(InputError, match="there is no such document"):
        cite("[3]", CONTEXT, {"a.txt": TWO[0]})
    with pytest.raises(InputError, match="not in its 3 characters"):
        cite("[2]", CONTEXT, {"a.txt": Document("a.txt", "one")})


@pytest.mark.parametrize("text", ["In [2019] array[0] was new.", "[100]", "[1, 2019]", "[0-2]", "[1-900000]"])
def test_numbers_that_cannot_be_meant_as_passages_are_text(text):
    cited = cite(text, CONTEXT, BY_ID)
    assert cited == Cited((), ()) and render(text, cited) == text
    both = f"{text} See [1] and [99]."
    cited = cite(both, CONTEXT, BY_ID)
    assert [citation.number for citation in cited.citations] == [1] and cited.unknown == (99,)
    assert render(both, cited) == f"{text} See [1 a.txt:0-7] and [99: no such passage]."


def test_more_passages_allow_larger_numbers():
    texts = documents("\n".join(f"line {number}" for number in range(30)) + "\n")
    chunks = split_lines(texts[0])
    context = fill_context(corpus_of(texts, chunks), ranked(*range(30)), Budget(1000, count))
    assert cite("[300] [301]", context, {text.id: text for text in texts}).unknown == (300,)
