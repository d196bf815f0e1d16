"""Units of a text: what a trained retriever reads, of Markdown and of plain text, with exact offsets."""

import re

import pytest
from hypothesis import example, given
from support.markdown_text import MARKDOWN
from support.tiers import examples

from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.units import find_units, unit_chunks
from qrag_jax.search.context.pack import line_of
from qrag_jax.types import Document, InputError

# What may stand between units: no letter or digit, but for the numbers of lists and what is said of a fence.
MARKS = re.compile(r"(?:[\W_]|(?<!\w)\d{1,3}[.)]|(?:```|~~~)[^\r\n]*)*")
HTML = re.compile(r"</?[a-z]+[^<>]*>|<!--.*?-->", re.S)


def units(text, **flags):
    return [" ".join(text[start:end].split()) for start, end in find_units(text, **flags)]


def lines_and_texts(text):
    return [(line_of(text, start), " ".join(text[start:end].split())) for start, end in find_units(text)]


def check_units(text, spans):
    """In order, disjoint, stripped, with something to read, and all other letters and digits in marks."""
    done = 0
    for start, end in [*spans, (len(text), len(text))]:
        assert done <= start <= end
        assert text[start:end] == text[start:end].strip()
        assert MARKS.fullmatch(HTML.sub(" ", text[done:start])), text[done:start]
        done = end
    assert all(any(map(str.isalnum, text[start:end])) for start, end in spans)


@examples(150)
@given(MARKDOWN)
@example("1.\r\n- 2) a\n> - b\n>   c\n(1) d\n\u2022 e\n1984. f\n= = =\n\x0cg\n| h\ni")
@example("> ```\n> x\n>\n> y\n\n- ```\n\n  z\n" + "- " * 60 + "deep\n" + ">" * 60 + "too")
def test_units_cover_the_text_in_order(text):
    for flags in ({}, {"indented_code": True}):
        check_units(text, find_units(text, **flags))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# It is. One\nIt was. Two.", ["It is. One", "It was.", "Two."]),
        ("## Closed ##", ["Closed"]),
        ("Title\n=====\nText", ["Title", "Text"]),
        ("Wrapped\ntitle\n---\nText", ["Wrapped title", "Text"]),
        ("- a\n  - b. c\n\n    d\n- - e", ["a", "b. c", "d", "e"]),
        ("> One goes\n> on. Two.\n>> Three\n\n> - four", ["One goes > on.", "Two.", "Three", "four"]),
        ("| a. b | c |\n|---|---|\n| 1 | 2 |\n\nText", ["| a. b | c |", "| 1 | 2 |", "Text"]),
        ("a | b\n- | -\nc | d", ["a | b", "c | d"]),
        ("> | a |\n> |---|\n> | 1 |", ["| a |", "| 1 |"]),
        ("Text\n| no | table\n| at all\nText", ["Text", "| no | table", "| at all", "Text"]),
        ("```py\nx = 1. y\n\n  z\n```\nText", ["x = 1. y z", "Text"]),
        ("- a\n  ~~~\n  x\n  y\n  ~~~\n- b", ["a", "x y", "b"]),
        ("> ```\n> x\n> ```", ["x"]),
        (">>> ```\n", []),
        ("```\n>>> x\n```", [">>> x"]),
        ("```not a fence```\n\nText.", ["```not a fence```", "Text."]),
        ("---\ntitle: x\n---\nText", ["title: x", "Text"]),
        ("<div>\nOne. Two\n</div>", ["One.", "Two"]),
        ("<!-- open -->\n\n# Head", ["Head"]),
        ("[a]: http://b.org\n\nText", ["[a]: http://b.org", "Text"]),
        ("- " * 60 + "deep\n\n# Head", ["- " * 40 + "deep", "Head"]),
    ],
)
def test_markdown(text, expected):
    assert units(text) == expected
    assert units(text.replace("\n", "\r\n")) == expected
    check_units(text, find_units(text))


def test_an_indented_block_is_code_in_markdown_and_prose_elsewhere():
    text = "    One comes first. Two goes\non here.\n\n    x = 1. y\n    z\n"
    assert units(text) == ["One comes first.", "Two goes on here.", "x = 1.", "y z"]
    assert units(text, indented_code=True) == ["One comes first. Two goes", "on here.", "x = 1. y z"]
    for name, number in (("a.txt", 4), ("a.md", 3), ("A.MD", 3), ("-", 4)):
        assert len(unit_chunks(Document(name, text), len)) == number


def test_much_code_is_cut_between_its_parts_and_lines():
    lines = [f"value_{i} = {i}" for i in range(30)]
    parts = ["\n".join(lines)] * 3 + ["\n".join(lines * 3)]
    text = "```\n" + "\n\n".join(parts) + "\n```\n"
    found = [text[start:end] for start, end in find_units(text)]
    assert found[:2] == ["\n\n".join(parts[:2]), parts[2]]
    assert all(len(unit) <= 1000 for unit in found)
    assert [line for unit in found for line in unit.split("\n") if line] == lines * 6


def test_marks_of_plain_text():
    assert units("1984. It was cold.\n\n1.\n\nText\n\n12.\r\rEnd") == [
        "1984.",
        "It was cold.",
        "1.",
        "Text",
        "12.",
        "End",
    ]
    assert units("\u2022 a\n\u2022 b\n\n(1) c\n(2) d") == ["a", "b", "c", "d"]
    assert units("As in equation\n(2) we see.") == ["As in equation (2) we see."]
    assert units("=====\nTITLE\n=====\nText") == ["TITLE", "Text"]
    assert units("One\n\x0cTwo") == ["One", "Two"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_offsets_hold_for_every_kind_of_line_end(line_end):
    text = "\ufeff" + line_end.join(["# A\0 b", "", "> Third one", "> goes on. Fourth.", "", "```", "  x", "y", "```"])
    found = [text[start:end].replace(line_end, "\n") for start, end in find_units(text)]
    assert found == ["A\0 b", "Third one\n> goes on.", "Fourth.", "x\ny"]


def test_chunks_have_ids_levels_and_tokens():
    document = Document("d.md", "# Head\n\n- an item\n")
    chunks = unit_chunks(document, lambda text: len(text.split()))
    assert chunks == [make_chunk(document, [span], 1, lambda text: len(text.split())) for span in ((2, 6), (10, 17))]
    assert [chunk.num_tokens for chunk in chunks] == [1, 2]


def test_wrapped_prose_is_cut_by_sentence():
    text = "Mary went to the\ngarden. She took\nthe milk.\n\nJohn slept."
    assert lines_and_texts(text) == [(1, "Mary went to the garden."), (2, "She took the milk."), (5, "John slept.")]
    (start, end), *_ = find_units(text)
    assert text[start:end] == "Mary went to the\ngarden."


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_count_for_every_kind_of_line_end(line_end):
    text = line_end.join(["First one.", "", "Third one is", "longer. Fourth one.", "", "# Sixth", "Seventh."])
    assert lines_and_texts(text) == [
        (1, "First one."),
        (3, "Third one is longer."),
        (4, "Fourth one."),
        (6, "Sixth"),
        (7, "Seventh."),
    ]


def test_form_feeds_and_unicode_separators_are_no_line_ends():
    # str.splitlines would count six lines here.
    text = "Page one.\n\x0cPage two\x0bgoes on.\u2028It ends\x85here.\nLast line."
    assert [line for line, _ in lines_and_texts(text)][0] == 1
    assert lines_and_texts(text)[-1] == (3, "Last line.")
    assert (2, "Page two goes on.") in lines_and_texts(text)


def test_headings_and_list_items_stand_alone():
    text = (
        "# The report\nIntro line\n## Part\n- first item\n- second item. It has two\n  sentences.\n"
        "* starred\n1. one\n2) two\n\n3. three\n"
    )
    assert lines_and_texts(text) == [
        (1, "The report"),
        (2, "Intro line"),
        (3, "Part"),
        (4, "first item"),
        (5, "second item."),
        (5, "It has two sentences."),
        (7, "starred"),
        (8, "one"),
        (9, "two"),
        (11, "three"),
    ]


def test_a_number_at_the_start_of_a_wrapped_line_is_no_list():
    assert lines_and_texts("It happened in the year\n984. Nobody knew.")[-1] == (2, "Nobody knew.")
    assert lines_and_texts("The show lasted from\n7 to 9.") == [(1, "The show lasted from 7 to 9.")]


def test_rules_tables_and_fences():
    text = "Title\n=====\n| a | b |\n|---|---|\n| 1 | 2 |\n---\n```\nx = 1. y\n\n# no heading\n```\nAfter it.\n***"
    assert lines_and_texts(text) == [
        (1, "Title"),
        (3, "| a | b |"),
        (5, "| 1 | 2 |"),
        (8, "x = 1. y # no heading"),
        (12, "After it."),
    ]


@pytest.mark.parametrize("mark", ["-", "1.", "\u2022", "(1)", "- *", "> -", "- > 2)"])
def test_a_table_that_begins_an_item_of_a_list_stands_behind_its_mark(mark):
    within = "".join(sign if sign == ">" else " " for sign in mark)
    text = f"{mark} | -5 | b |\n{within} |---|---|\n{within} | -1. c | d |\n"
    assert [found for _, found in lines_and_texts(text)] == ["| -5 | b |", "| -1. c | d |"]


def test_other_scripts():
    assert lines_and_texts("今天很冷。我们回家。\nВсё хорошо. Ёлка.") == [
        (1, "今天很冷。"),
        (1, "我们回家。"),
        (2, "Всё хорошо."),
        (2, "Ёлка."),
    ]
    assert [text for _, text in lines_and_texts("यह एक वाक्य है। यह दूसरा है।")] == ["यह एक वाक्य है।", "यह दूसरा है।"]


def test_a_document_without_words_is_refused():
    with pytest.raises(InputError, match="b.md: has no sentence to search"):
        unit_chunks(Document("b.md", "---\n\n***\n...\n\n```python\n```\n"), len)


def test_tags_are_no_text():
    text = (
        '<div class="x">\n\n# <a id="t"></a>Title\n\n<p>Hello <b>big</b> world. Second one.</p>\n<br>\nnext line\n'
        "</div>\n\n"
        "> <i>\n> quoted</i> text.\n\n<!-- hidden.\n\nMore. -->\n<script>\nvar a = 1;\n</script>\n"
    )
    found = [text[start:end] for start, end in find_units(text, indented_code=True)]
    assert found == ["Title", "Hello <b>big</b> world.", "Second one.", "next line", "quoted</i> text."]


def test_tags_in_code_are_text():
    text = "Use `<div>` here.\n\n```html\n<div>code</div>\n```\n\n    <b>indented</b>\n"
    found = [text[start:end] for start, end in find_units(text, indented_code=True)]
    assert found == ["Use `<div>` here.", "<div>code</div>", "<b>indented</b>"]


def test_a_fence_is_one_unit_up_to_the_window():
    lines = [f"word {number}" for number in range(10)]
    document = Document("a.md", "```\n" + "\n".join(lines) + "\n```\n")
    count = lambda text: len(text.split())  # noqa: E731
    for window, sizes in ((None, [20]), (22, [20]), (10, [8, 8, 4]), (3, [2] * 10)):  # no line is cut
        chunks = unit_chunks(document, count, window=window)
        assert [chunk.num_tokens for chunk in chunks] == sizes
