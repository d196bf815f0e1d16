import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import corpus_of, count, documents, ranked, split_lines
from support.tiers import examples

from qrag_jax.chunking.text.chunks import chunk_text, make_chunk
from qrag_jax.search.context.pack import Budget, cut_passage, fill_context, line_of, make_passage
from qrag_jax.types import Chunk, Document, InputError, UsageError

TWO = documents("one two\nthree four five\nsix\n", "seven eight\nnine\n")
CHUNKS = [chunk for document in TWO for chunk in split_lines(document)]  # of 2, 3, 1, 2 and 1 words
CORPUS = corpus_of(TWO, CHUNKS)


def test_the_best_chunks_that_fit_stand_in_document_order():
    context = fill_context(CORPUS, ranked(3, 1, 0, 4), Budget(7, count))
    assert [(p.number, p.document_id, p.text, p.rank, p.num_tokens) for p in context.passages] == [
        (1, "a.txt", "one two", 3, 2),
        (2, "a.txt", "three four five", 2, 3),
        (3, "b.txt", "seven eight", 1, 2),
    ]
    assert [passage.score for passage in context.passages] == [0.8, 0.9, 1.0]
    assert (context.num_tokens, context.max_tokens, context.num_left_out) == (7, 7, 1)


def test_what_comes_behind_a_chunk_that_does_not_fit_is_left_out_too():
    context = fill_context(CORPUS, ranked(0, 1, 2, 4), Budget(4, count))
    assert [passage.text for passage in context.passages] == ["one two"]
    assert (context.num_tokens, context.num_left_out) == (2, 3)


def test_what_the_prompt_writes_around_a_passage_counts():
    budget = Budget(12, count, overhead=3)
    context = fill_context(CORPUS, ranked(2, 4, 0), budget)
    assert [passage.text for passage in context.passages] == ["six", "nine"]
    assert (context.num_tokens, context.num_left_out) == (8, 1)
    assert len(fill_context(CORPUS, ranked(2, 4, 0), Budget(13, count, overhead=3)).passages) == 3


def test_a_number_of_passages():
    context = fill_context(CORPUS, ranked(0, 1, 2), Budget(100, count, max_passages=2))
    assert ([passage.rank for passage in context.passages], context.num_left_out) == ([1, 2], 0)


def test_chunks_of_several_spans():
    chunk = make_chunk(TWO[0], ((0, 3), (8, 13)), 1, count)
    (passage,) = fill_context(corpus_of(TWO, [chunk]), ranked(0), Budget(9, count)).passages
    assert (passage.text, passage.spans) == ("one\nthree", ((0, 3), (8, 13)))


def test_nothing_ranked_is_an_empty_context():
    context = fill_context(CORPUS, ranked(), Budget(9, count))
    assert (context.passages, context.num_tokens, context.num_left_out) == ((), 0, 0)


@examples(60)
@given(st.permutations(range(5)), st.integers(4, 15), st.integers(0, 1))
def test_a_context_is_the_longest_prefix_within_the_budget(order, most, overhead):
    context = fill_context(CORPUS, ranked(*order), Budget(most, count, overhead))
    texts = {document.id: document.text for document in TWO}
    sizes = [CHUNKS[i].num_tokens + overhead for i in order]
    taken = max(k for k in range(6) if sum(sizes[:k]) <= most)
    assert [p.text for p in context.passages] == [
        chunk_text(texts[CHUNKS[i].document_id], CHUNKS[i].spans) for i in sorted(order[:taken])
    ]
    assert context.num_tokens == sum(sizes[:taken]) <= most
    assert context.num_left_out == 5 - taken
    assert [passage.number for passage in context.passages] == list(range(1, taken + 1))


def test_a_lone_surrogate_is_counted_as_a_character_that_tokenizers_take():
    seen = []
    document = Document("a", "x \ud800")
    chunk = Chunk("i", "a", ((0, 3),), 1, 2)
    context = fill_context(corpus_of([document], [chunk]), ranked(0), Budget(9, lambda text: seen.append(text) or 1))
    assert seen == ["x \ufffd"] and context.passages[0].text == "x \ud800"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_as_editors_count_them(end):
    text = end.join(["a", "", "b\x0cb\u2028b", "c"])
    assert [line_of(text, text.index(x)) for x in ("a", "b", "c")] == [1, 3, 4]
    for start in range(len(text)):
        ends = [match.end() for match in re.finditer(r"\r\n|\r|\n", text)]
        assert line_of(text, start) == 1 + sum(border <= start for border in ends)


def test_refusals():
    with pytest.raises(
        InputError,
        match=r"best passage has 5 tokens, including citation marks, but the context has room for only 4; allow more",
    ):
        fill_context(CORPUS, ranked(1, 2), Budget(4, count, overhead=2))
    with pytest.raises(UsageError, match="max_tokens 0: at least 1"):
        Budget(0, count)
    with pytest.raises(UsageError, match="max_passages 0: at least 1"):
        Budget(1, count, max_passages=0)
    with pytest.raises(UsageError, match="budget: .* has no `count`"):
        Budget(9).tokens("a")


def test_without_a_count_the_nodes_are_as_large_as_the_corpus_counted_them():
    counted = fill_context(CORPUS, ranked(3, 1, 0, 4), Budget(7))
    assert counted == fill_context(CORPUS, ranked(3, 1, 0, 4), Budget(7, count))


def test_a_passage_knows_its_node():
    context = fill_context(CORPUS, ranked(3, 1), Budget(9, count))
    assert [passage.node for passage in context.passages] == [1, 3]
    assert [CORPUS.texts[passage.node] for passage in context.passages] == [p.text for p in context.passages]


def test_the_last_chunk_is_cut_to_the_budget_where_it_says_so():
    cut = Budget(4, count, cut_last=True)
    context = fill_context(CORPUS, ranked(0, 1, 2), cut)
    assert [(p.text, p.spans, p.num_tokens) for p in context.passages] == [
        ("one two", ((0, 7),), 2),
        ("three four", ((8, 18),), 2),
    ]
    assert (context.num_tokens, context.num_left_out) == (4, 1)
    assert [p.text for p in fill_context(CORPUS, ranked(1), Budget(3, count, 1, cut_last=True)).passages] == [
        "three four"
    ]
    assert fill_context(CORPUS, ranked(1), Budget(1, count, 1, cut_last=True)).passages == ()
    with pytest.raises(UsageError, match="budget: .* has no `count`"):
        fill_context(CORPUS, ranked(0, 1), Budget(4, cut_last=True))


@examples(60)
@given(st.integers(0, 14), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_beginning_is_the_longest_that_fits_and_its_spans_prove_it(room, sizes):
    """Spans of some words each, with a word between them that is not of the chunk."""
    spans, text = [], ""
    for number, size in enumerate(sizes):
        text += f"skip{number} "
        words = " ".join(["word"] * size)
        spans.append((len(text), len(text) + len(words)))
        text += f"{words} "
    document = Document("a.txt", text)
    corpus = corpus_of([document], [make_chunk(document, spans, 1, count)])
    whole = make_passage(corpus, 0, 1, 1.0, Budget(99, count))
    found = cut_passage(whole, Budget(99, count), room)
    if found is None:
        assert room == 0
        return
    assert found.num_tokens == count(found.text) == min(room, sum(sizes))
    assert chunk_text(text, found.spans) == found.text == whole.text[: len(found.text)]
