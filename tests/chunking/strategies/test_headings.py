"""Sections of Markdown: offsets, depth, what a bare heading joins, titles above, and the same as a tree."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.markdown_text import MARKDOWN, check_cover
from support.tiers import examples

from qrag_jax.chunking.strategies.headings import (
    HeadingsConfig,
    find_sections,
    heading_tree,
    make_headings,
)
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.types import Document, InputError, UsageError

BOOK = """Preface.

# Book

About it.

## One

### Deep

Text of deep.

```
# no heading
```

## Two
Last words. Really.
"""


def sentence_text(text: str) -> SentenceText:
    return SentenceText(text, tuple(split_sentences(text)))


def groups(text: str, **config) -> list[tuple[int, list[str]]]:
    found = make_headings(HeadingsConfig(**config))(sentence_text(text))
    return [(group.level, [text[start:end] for start, end in group.spans]) for group in found]


def sections(text: str, max_level: int = 6) -> list[tuple[int, str]]:
    return [(section.level, text[section.start : section.end]) for section in find_sections(text, max_level)]


def leaves(text: str, **config) -> list[tuple[int, str]]:
    tree = heading_tree(sentence_text(text), "doc", HeadingsConfig(**config))
    tree.check_document(Document("doc", text))
    return [(int(tree.level[leaf]), text[slice(*tree.span(leaf))]) for leaf in tree.leaves.tolist()]


def test_sections_of_a_book():
    assert sections(BOOK) == [
        (1, "Preface."),
        (1, "# Book\n\nAbout it."),
        (2, "## One"),
        (3, "### Deep\n\nText of deep.\n\n```\n# no heading\n```"),
        (2, "## Two\nLast words. Really."),
    ]
    assert [section.title_span for section in find_sections(BOOK)][:2] == [None, (12, 16)]


@pytest.mark.parametrize(
    ("text", "titles"), [("#\nx\n## b\ny", ["", "b"]), ("Two\n  lines\n===\nx", ["Two\n  lines"]), ("x", [None])]
)
def test_titles_are_the_words_of_the_heading(text, titles):
    spans = [section.title_span for section in find_sections(text)]
    assert [span and text[slice(*span)] for span in spans] == titles


def test_groups_of_a_book():
    assert groups(BOOK) == [
        (1, ["Preface."]),
        (1, ["# Book\n\nAbout it."]),
        (3, ["## One\n\n### Deep\n\nText of deep.", "```\n# no heading\n```"]),
        (2, ["## Two\nLast words. Really."]),
    ]


def test_tree_of_a_book():
    tree = heading_tree(sentence_text(BOOK), "doc")
    assert leaves(BOOK) == [
        (1, "Preface."),
        (2, "# Book\n\nAbout it."),
        (2, "## One\n\n### Deep\n\nText of deep.\n\n```\n# no heading\n```"),
        (2, "## Two\nLast words. Really."),
    ]
    assert tree.parent.tolist() == [-1, 0, 0, 2, 2, 2]


@pytest.mark.parametrize(
    "text, levels",
    [
        ("# a\n# b\n# c", [1, 1, 1]),
        ("# a\n### b\n## c\n### d\n# e", [1, 2, 2, 3, 1]),
        ("### a\n## b\n# c\n## d", [1, 1, 1, 2]),
        ("a\n\n### b\n###### c", [1, 1, 2]),
        ("# a\n# b\n###### c\n##### d\n#### e", [1, 1, 2, 2, 2]),
    ],
)
def test_levels_count_depth_not_marks(text, levels):
    assert [section.level for section in find_sections(text)] == levels


def test_deeper_headings_are_text():
    text = "# a\n\nx\n\n### b\n\ny\n\n## c\n\nz"
    assert sections(text, 2) == [(1, "# a\n\nx\n\n### b\n\ny"), (2, "## c\n\nz")]
    assert groups(text, max_level=2) == [(1, ["# a\n\nx", "### b\n\ny"]), (2, ["## c\n\nz"])]
    assert groups("### b\n\ny", max_level=2) == [(1, ["### b\n\ny"])]
    assert [section.title_span for section in find_sections("### b\n\ny", 2)] == [None]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("no heading\n\nat all", [(1, ["no heading", "at all"])]),
        ("# only", [(1, ["# only"])]),
        ("# a\n## b\n# c", [(1, ["# a", "## b", "# c"])]),
        ("# a\n\n***\n\n# b\nx", [(1, ["# a", "***", "# b\nx"])]),
        ("x\n\n# a\n# b", [(1, ["x", "# a", "# b"])]),
        ("# a\nx\n## b\n# c\ny", [(1, ["# a\nx"]), (1, ["## b\n# c\ny"])]),
        ("---\na: b\n---\n# c\nx", [(1, ["---\na: b\n---"]), (1, ["# c\nx"])]),
        ("", []),
        (" \n\u3000\n", []),
    ],
)
def test_headings_with_nothing_under_them(text, expected):
    assert groups(text) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("just text", [(0, "just text")]),
        ("# a\nx", [(0, "# a\nx")]),
        ("# a\n## b\nx\n## c\ny", [(2, "# a\n## b\nx"), (2, "## c\ny")]),
        ("# a\nx\n## b\n# c\ny\n## d\nz", [(1, "# a\nx"), (2, "## b\n# c\ny"), (2, "## d\nz")]),
        ("# a\nx\n# b\ny\n# c", [(1, "# a\nx"), (1, "# b\ny\n# c")]),
    ],
)
def test_leaves_of_trees(text, expected):
    assert leaves(text) == expected


@examples(200)
@given(MARKDOWN, st.integers(1, 6))
@example("# a\r\n\r\n## b\r\ntext", 6)
@example("\ufeff# a\rx\r# b\ry", 1)
def test_groups_and_sections_cover_the_text_in_order(text, max_level):
    found = find_sections(text, max_level)
    check_cover(text, [(section.start, section.end) for section in found])
    made = make_headings(HeadingsConfig(max_level))(sentence_text(text))
    check_cover(text, [span for group in made for span in group.spans])
    assert all(group.spans for group in made)
    levels = [section.level for section in found]
    assert levels[:1] in ([], [1])
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    for section in found:
        if section.title_span is not None:
            start, end = section.title_span
            assert section.start <= start <= end <= section.end
            assert text[start:end] == text[start:end].strip()


@examples(200)
@given(MARKDOWN, st.integers(1, 6))
@example("# a\n## b\n# c\nx\n## d\ny", 6)
def test_the_leaves_of_the_tree_are_the_groups(text, max_level):
    if not text.strip():
        return
    config = HeadingsConfig(max_level)
    made = make_headings(config)(sentence_text(text))
    tree = heading_tree(sentence_text(text), "doc", config)
    tree.check_document(Document("doc", text))
    assert [tree.span(leaf) for leaf in tree.leaves.tolist()] == [(g.spans[0][0], g.spans[-1][1]) for g in made]


@pytest.mark.parametrize("max_level", [0, 7, -1])
def test_levels_that_markdown_does_not_have_are_refused(max_level):
    with pytest.raises(UsageError, match=f"headings.max_level {max_level}: Markdown has levels 1 to 6"):
        make_headings(HeadingsConfig(max_level))
    with pytest.raises(UsageError, match="headings.max_level"):
        heading_tree(sentence_text("x"), "doc", HeadingsConfig(max_level))


def test_a_tree_of_nothing_is_refused():
    with pytest.raises(InputError, match="doc: empty document"):
        heading_tree(sentence_text(" \n"), "doc")
