"""Markdown blocks: exact offsets whatever ends the lines, nothing lost, and where a block may be cut."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support.markdown_text import MARKDOWN, check_cover
from support.tiers import examples

from qrag_jax.chunking.size.budget import fit_groups
from qrag_jax.chunking.text.blocks import (
    find_blocks,
    join_heading_units,
    join_headings,
    make_block_splitter,
    make_unit_splitter,
)
from qrag_jax.chunking.text.chunks import Group, SentenceText, check_sentences, count_spans
from qrag_jax.chunking.text.sentences import split_sentences

DOCUMENT = """---
title: A book
---

Words before
the first heading.

Title
=====

One sentence. Two sentences.

- a
- b

  - c

> q
> r

```python
# no heading

x = 1
```

| a | b |
|---|---|
| 1 | 2 |
| 3 | 4 |

[link]: http://example.org

## Part ##
<div>
# in HTML
</div>

***
"""


def pieces(text: str, spans) -> list[str]:
    return [text[start:end] for start, end in spans]


def kinds(text: str) -> list[tuple[str, str]]:
    return [(block.kind, text[block.start : block.end]) for block in find_blocks(text)]


def test_blocks_of_a_document():
    assert kinds(DOCUMENT) == [
        ("front_matter", "---\ntitle: A book\n---"),
        ("paragraph", "Words before\nthe first heading."),
        ("heading", "Title\n====="),
        ("paragraph", "One sentence. Two sentences."),
        ("list", "- a\n- b\n\n  - c"),
        ("quote", "> q\n> r"),
        ("fence", "```python\n# no heading\n\nx = 1\n```"),
        ("table", "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |"),
        ("definitions", "[link]: http://example.org"),
        ("heading", "## Part ##"),
        ("html", "<div>\n# in HTML\n</div>"),
        ("rule", "***"),
    ]


@pytest.mark.parametrize("line_end", ["\r\n", "\r", "\n"])
def test_line_ends_do_not_matter(line_end):
    text = DOCUMENT.replace("\n", line_end)
    assert [(kind, piece.replace(line_end, "\n")) for kind, piece in kinds(text)] == kinds(DOCUMENT)


def test_lines_end_as_in_markdown_only():
    # For str.splitlines a form feed, U+2028 and U+0085 end lines as well.
    text = "a\x0cb\u2028c\x85d\n# Head\n\x0c\n\ttab\n"
    assert kinds(text) == [("paragraph", "a\x0cb\u2028c\x85d"), ("heading", "# Head"), ("paragraph", "tab")]


def test_replaced_characters_keep_their_place():
    text = "\ufeff# A\0b\n\n\0\n\ud800 c"
    (heading, first) = find_blocks(text)
    assert text[heading.start : heading.end] == "\ufeff# A\0b"
    assert text[slice(*heading.title)] == "A\0b"
    assert text[first.start : first.end] == "\0\n\ud800 c"


@pytest.mark.parametrize(
    "line, level, title",
    [
        ("# A", 1, "A"),
        ("   ### A b ###  ", 3, "A b"),
        ("## A#", 2, "A#"),
        ("## A # #", 2, "A #"),
        ("###### A\t#", 6, "A"),
        ("#\tA", 1, "A"),
        ("#", 1, ""),
        ("# ##", 1, ""),
        ("A\nb\n---", 2, "A\nb"),
        ("A\n=", 1, "A"),
        ("\ufeffA\n=", 1, "A"),
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_titles(line, level, title, end):
    text = line.replace("\n", end or "\n") + end
    (block,) = find_blocks(text)
    assert (block.kind, block.level) == ("heading", level)
    assert text[slice(*block.title)].replace("\r\n", "\n") == title


@pytest.mark.parametrize(
    "text", ["#A", "####### A", "    # A", "\\# A", "```\n# A", "<!--\n# A", "- # A", "> # A", "- a\n  ="]
)
def test_what_is_no_heading(text):
    assert "heading" not in [kind for kind, _ in kinds(text)]


@pytest.mark.parametrize(
    "text",
    [
        "---\ntitle: x\n---\n",
        "---\n# comment\ntitle: x\ntags:\n  - a\n\nb: 1\n...\n",
        "+++\ntitle = 'x'\n+++\n",
        "+++\n[params]\nx = 1\n+++\n",
        "\ufeff---\r\ntitle: x\r\n---\r\n",
    ],
)
def test_front_matter_is_one_block(text):
    blocks = find_blocks(text + "Title\n===\n")
    assert [block.kind for block in blocks] == ["front_matter", "heading"]
    assert (blocks[0].start, blocks[0].end) == (0, len(text.rstrip()))


@pytest.mark.parametrize(
    "text",
    [
        "---\ntitle: x\n",  # not closed
        "---\n\ntitle: x\n---\n",
        "---\nJust a paragraph.\n---\n",
        "---\n---\n",
        "\n---\ntitle: x\n---\n",
        "+++\ntitle = 1\n---\n",
        "--- \u00e4\ntitle: x\n---\n",
    ],
)
def test_rules_are_no_front_matter(text):
    assert "front_matter" not in [block.kind for block in find_blocks(text)]


def test_text_without_anything():
    assert find_blocks("") == find_blocks(" \n\t\r\n\u3000\x0c") == []


def test_deep_nesting_does_not_swallow_the_text_behind_it():
    # markdown-it drops everything after a list that is nested deeper than its limit.
    swallowed = MarkdownIt("commonmark").parse("- " * 2000 + "x\n\n# H\n\ntext")
    assert "heading_open" not in [token.type for token in swallowed]
    assert [kind for kind, _ in kinds("- " * 2000 + "x\n\n# H\n\ntext")] == ["list", "heading", "paragraph"]
    assert [kind for kind, _ in kinds(">" * 2000 + "x\n\n# H\n\ntext")] == ["quote", "heading", "paragraph"]
    deep = "".join("  " * depth + "- x\n" for depth in range(100))
    assert [kind for kind, _ in kinds(deep + "\n# H\n")] == ["list", "heading"]


@examples(300)
@given(MARKDOWN)
@example("[a]: b\n[c]: d\n===\n")
@example("- a\n\n\n\n# b\n[x]: y")
def test_nothing_is_lost(text):
    blocks = find_blocks(text)
    check_cover(text, [(block.start, block.end) for block in blocks])
    for block in blocks:
        if block.parts:
            assert len(block.parts) > 1
            shifted = [(start - block.start, end - block.start) for start, end in block.parts]
            check_cover(text[block.start : block.end], shifted)


@examples(200)
@given(MARKDOWN)
def test_headings_are_those_of_the_parser(text):
    """An oracle with all of CommonMark, by level and words; front matter is not Markdown, so it is taken off."""
    blocks = find_blocks(text)
    rest = text[blocks[0].end :] if blocks and blocks[0].kind == "front_matter" else text
    tokens = MarkdownIt("commonmark").enable("table").parse(rest.replace("\ufeff", " ", rest.startswith("\ufeff")))
    expected = [
        (int(token.tag[1:]), "".join(words.content.split()))
        for token, words in zip(tokens, tokens[1:], strict=False)
        if token.type == "heading_open" and token.level == 0
    ]
    found = [(b.level, "".join(text[slice(*b.title)].replace("\0", "\ufffd").split())) for b in blocks if b.title]
    assert found == expected


def test_headings_join_the_paragraph_after_them_only():
    text = "# A\n\n## B\n\nx\n\ny\n\n# C\n\n```\nz\n```\n\nw\n\n# D"
    spans = join_headings(find_blocks(text))
    assert pieces(text, spans) == ["# A\n\n## B\n\nx", "y", "# C", "```\nz\n```", "w", "# D"]
    assert join_headings([]) == []


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a\n\nb", ["a", "b"]),
        ("One here. Two here.", ["One here.", "Two here."]),
        ("# H\nOne here. Two here.", ["# H\nOne here.", "Two here."]),
        ("# H\nOnly one", ["# H", "Only one"]),
        ("```\na. b. c\n\nd\n```", ["```", "a. b. c", "d", "```"]),
        ("|a|\n|-|\n|b|\n|c|", ["|a|\n|-|", "|b|", "|c|"]),
        ("- a\n  b\n- c", ["- a\n  b", "- c"]),
        ("- a\n  b\n\n  - c\n  - d", ["- a\n  b", "- c\n  - d"]),
        ("> a\n> b\n>\n> c", ["> a\n> b\n>", "> c"]),
        ("> One here. Two\n> here.", ["> One here.", "Two\n> here."]),
        ("---\na: b\nc: d\n---", ["---", "a: b", "c: d", "---"]),
        ("[a]: b\n[c]: d", ["[a]: b", "[c]: d"]),
        ("***", ["***"]),
        ("", []),
    ],
)
def test_where_a_long_part_is_cut(text, expected):
    assert pieces(text, make_block_splitter(split_sentences)(text)) == expected


@examples(150)
@given(MARKDOWN, st.integers(1, 12))
def test_parts_that_are_cut_down_to_a_size_cover_the_text(text, most):
    def count(piece):
        return len(piece.split())

    whole = Group(tuple(join_headings(find_blocks(text))))
    fitted = fit_groups(text, [whole], most, count, make_block_splitter(split_sentences))
    check_cover(text, [span for group in fitted for span in group.spans])
    assert all(count_spans(text, group.spans, count) <= most for group in fitted)


def test_a_part_that_fits_stays_whole():
    text = "# Head\n\nOne two. Three four.\n\n```\na b. c d.\ne f\n```\n\n|a|\n|-|\n|b|"

    def cut(most):
        whole = Group(tuple(join_headings(find_blocks(text))))
        fitted = fit_groups(text, [whole], most, lambda piece: len(piece.split()), make_block_splitter(split_sentences))
        return ["\n".join(pieces(text, group.spans)) for group in fitted]

    fence, table = "```\na b. c d.\ne f\n```", "|a|\n|-|\n|b|"
    assert cut(8) == ["# Head\n\nOne two. Three four.", fence, table]
    assert cut(5) == ["# Head\n\nOne two.", "Three four.", "```\na b. c d.", "e f\n```", table]


def units_of(text):
    return SentenceText(text, tuple(make_unit_splitter(split_sentences)(text)))


def test_units_by_hand():
    text = "# A\nOne. Two.\n\nB\n---\n- a. b\n- c\n\n| h |\n|---|\n| 1 |\n\n> One. Two.\n\n---\n"
    assert units_of(text).texts() == [
        "# A", "One.", "Two.", "B\n---", "- a. b", "- c", "| h |\n|---|", "| 1 |", "> One.", "Two.", "---",
    ]  # fmt: skip
    assert join_heading_units(units_of(text)).texts()[:4] == ["# A\nOne.", "Two.", "B\n---\n- a. b", "- c"]
    assert join_heading_units(units_of("Text.\n\n# A\n\n## B\n")).texts() == ["Text.", "# A\n\n## B"]


@examples(100)
@given(MARKDOWN.filter(str.strip))
def test_units_lose_nothing_and_share_none_with_a_heading(text):
    units = units_of(text)
    check_sentences(units)
    heads = {(block.start, block.end) for block in find_blocks(text) if block.kind == "heading"}
    assert heads <= set(units.sentences)
    joined = join_heading_units(units)
    check_sentences(joined)
    assert len(joined) + sum((start, end) in heads for start, end in units.sentences[:-1]) == len(units)
