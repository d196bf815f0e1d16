"""Trees with the levels of names and of sizes: by hand, and what holds of any text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import count as words
from support.tiers import examples
from support.trees import fields_of, obeys

from qrag_jax.chunking.chunker import ChunkConfig, level_names, make_chunker, make_tree_builder
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.tree.level_ranges import NAMES, LevelRange, nodes_in
from qrag_jax.types import Document, InputError, UsageError

_PIECES = [
    *(
        "One is. ",
        "a b c d ",
        "\u4eca\u5929\u597d\u3002",
        "\U0001f600!",
        "\ud800 x",
        "x" * 30,
        "\n",
        "\n\n",
        "- item\n",
    ),
    *("\n# One\n", "\n## Two\n", "\n### Three\n\n", "\n```\n# code\n\ncode\n```\n", "\n|a|b|\n|-|-|\n|1|2|\n"),
]
TEXTS = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=20).map("".join).filter(str.strip)
BOOK = """\
# Book

Preface one. Preface two.

## A

Text of A. More.

Second paragraph.

### A1

Deep. Deeper.

#### A1x

Very deep.

## B

### B1

Under B1.

The end.
"""


def build(text, max_tokens=None, predict=None, **levels):
    config = ChunkConfig("levels", max_tokens, levels=LevelsConfig(**levels))
    return make_tree_builder(config, words, predict=predict)(Document("d", text))


def shown(text, tree, level, num_levels=5):
    """The nodes that stand for a level, white space as single spaces."""
    nodes = nodes_in(tree, LevelRange(level, level), num_levels)
    return [" ".join(text[slice(*tree.span(node))].split()) for node in nodes.tolist()]


def sentences_of(*sizes):
    """Sentences of so many words."""
    return " ".join(" ".join(["word"] * (size - 1) + ["end."]).capitalize() for size in sizes)


def test_levels_by_names_by_hand():
    tree = build(BOOK)
    preface, a, b = (
        "# Book Preface one. Preface two.",
        "## A Text of A. More. Second paragraph.",
        "## B ### B1 Under B1.",
    )
    a1, a1x = "### A1 Deep. Deeper.", "#### A1x Very deep."
    assert shown(BOOK, tree, 1) == [preface, f"{a} {a1} {a1x}", f"{b} The end."]
    assert shown(BOOK, tree, 2) == [preface, a, a1, a1x, f"{b} The end."]  # deeper headings are subsections too
    paragraphs = [preface, "## A Text of A. More.", "Second paragraph.", a1, a1x, b, "The end."]
    assert shown(BOOK, tree, 3) == paragraphs
    assert shown(BOOK, tree, 4)[:5] == [
        "# Book Preface one.",
        "Preface two.",
        "## A Text of A.",
        "More.",
        paragraphs[2],
    ]


def test_no_heading_stands_alone_but_one_without_anything_under_it():
    text = "## A\n\n## B\n\nText.\n"  # equal levels: B is none of A's parts
    assert shown(text, build(text), 1) == ["## A", "## B Text."]
    text = "# T\n\n## A\n\n### B\n\nText. More.\n"
    assert shown(text, build(text), 4) == ["# T ## A ### B Text.", "More."]


def test_a_text_without_blank_lines_has_lines_for_paragraphs():
    text = "One one. Two.\nThree. Four.\nFive."
    assert shown(text, build(text), 3) == ["One one. Two.", "Three. Four.", "Five."]
    assert shown(text, build(text), 1) == shown(text, build(text), 0)


def test_one_long_block_is_cut_into_paragraphs_of_whole_sentences():
    text = sentences_of(100, 100, 100, 200, 57)
    assert list(map(words, shown(text, build(text, 300), 3))) == [200, 100, 257 - 57, 57]
    text = sentences_of(100, 300, 20)  # a sentence over the cap stands alone
    assert list(map(words, shown(text, build(text, 300), 3))) == [100, 300, 20]
    parted = f"{sentences_of(200, 200)}\n\n{sentences_of(3)}"  # has paragraphs, however long
    assert list(map(words, shown(parted, build(parted), 3))) == [400, 3]
    headed = f"# A\n\n{sentences_of(200, 200)}\n\n# B\n\n{sentences_of(200)}"
    assert list(map(words, shown(headed, build(headed), 3))) == [202, 200, 202]


def test_a_sentence_over_the_size_is_cut_finer():
    text = f"{sentences_of(3)}\n\n{sentences_of(2, 10)}"
    tree = build(text, 4)
    assert list(map(words, shown(text, tree, 3))) == [3, 12]
    assert all(words(text[slice(*tree.span(leaf))]) <= 4 for leaf in tree.leaves.tolist())
    assert int(tree.level.max()) == 5
    assert list(map(words, shown(text, tree, 4))) == [3, 2, 10, 4, 4, 2]  # what is finer counts as a sentence


def test_points_may_be_handed_in_and_deeper_ones_are_subsections():
    text = "One. Two. Three. Four. Five."
    tree = build(text, predict=lambda texts: [[(1, 1), (2, 3), (3, 2)]], points="tagger")
    assert shown(text, tree, 1) == ["One.", "Two. Three. Four. Five."]
    assert shown(text, tree, 2) == ["One.", "Two.", "Three.", "Four. Five."]


def test_levels_by_sizes_by_hand():
    text = sentences_of(3, 3, 2, 6, 1, 1)
    tree = build(text, sizes=(8, 6, 3))
    assert list(map(words, shown(text, tree, 1, 4))) == [8, 8]
    assert list(map(words, shown(text, tree, 2, 4))) == [6, 2, 6, 2]
    assert list(map(words, shown(text, tree, 3, 4))) == [3, 3, 2, 3, 3, 2]
    assert level_names(ChunkConfig("levels", levels=LevelsConfig(sizes=(8, 3)))) == ("document", "8", "3")
    assert level_names(ChunkConfig("levels")) == NAMES
    small = build("Two words.", sizes=(8, 3))
    assert len(small) == 1 and shown("Two words.", small, 2, 3) == ["Two words."]


@pytest.mark.parametrize("sizes", [(8, 8), (4, 8), (8, 0), (-1,)])
def test_sizes_that_do_not_nest(sizes):
    with pytest.raises(
        UsageError, match=re.escape(f"levels.sizes {list(sizes)}: give tokens, each fewer than the one")
    ):
        ChunkConfig("levels", levels=LevelsConfig(sizes=sizes))


@pytest.mark.parametrize("sizes", [(), (4, 2)])
@pytest.mark.parametrize("text", ["", " \n\u3000"])
def test_blank_text_is_refused(text, sizes):
    with pytest.raises(InputError, match="empty document; leave it out"):
        build(text, sizes=sizes)


def test_a_character_over_the_smallest_size_and_a_model_that_is_missing():
    config = ChunkConfig("levels", levels=LevelsConfig(sizes=(4, 2)))
    with pytest.raises(InputError, match="d: character 0: .* but max_tokens is 2"):
        make_tree_builder(config, lambda text: 3 * len(text))(Document("d", "a b"))
    with pytest.raises(UsageError, match="levels.points tagger: needs a model"):
        build("Text.", points="tagger")
    with pytest.raises(UsageError, match="levels.points 'magic': choose one of headings"):
        ChunkConfig("levels", levels=LevelsConfig(points="magic"))  # type: ignore[arg-type]
    build("Text.", points="tagger", sizes=(4, 2))  # which asks for no points
    with pytest.raises(InputError, match="point.* comes after|d: points"):
        build("One. Two.", predict=lambda texts: [[(5, 1)]])


@given(TEXTS, st.sampled_from(["headings", "rule", "paragraphs"]), st.sampled_from([None, 4, 12]))
@examples(80)
def test_trees_by_names_are_whole_keep_the_size_and_have_levels_in_order(text, points, max_tokens):
    document = Document("d", text)
    config = ChunkConfig("levels", max_tokens, levels=LevelsConfig(points=points))
    tree = make_tree_builder(config, words)(document)
    assert obeys(fields_of(tree), text)
    assert int(tree.level.max()) <= len(NAMES)
    assert all(words(text[slice(*tree.span(leaf))]) <= (max_tokens or 256) for leaf in tree.leaves.tolist())
    assert [chunk.spans[0] for chunk in make_chunker(config, words)(document)] == list(
        map(tree.span, tree.leaves.tolist())
    )


@given(TEXTS, st.sampled_from([(16, 8, 4), (30, 9), (7,)]), st.sampled_from([words, len]))
@examples(80)
def test_every_span_of_a_level_keeps_its_size(text, sizes, count):
    if any(count(readable(letter)) > sizes[-1] for letter in text if letter.strip()):
        return
    config = ChunkConfig("levels", levels=LevelsConfig(sizes=sizes))
    tree = make_tree_builder(config, count)(Document("d", text))
    assert obeys(fields_of(tree), text)
    for level, size in enumerate(sizes, start=1):
        for node in nodes_in(tree, LevelRange(level, level), len(sizes) + 1).tolist():
            assert count(readable(text[slice(*tree.span(node))])) <= size
