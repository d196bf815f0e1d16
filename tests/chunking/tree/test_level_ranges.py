"""Ranges of levels as users write them, and the nodes that stand for a range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples
from support.trees import cases, int64

from qrag_jax.chunking.tree.level_ranges import (
    NAMES,
    LevelRange,
    all_ranges,
    format_levels,
    full_range,
    nodes_in,
    parse_levels,
    size_names,
)
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import UsageError


def make_tree(levels, parents, size=1):
    """Leaves of `size` characters without gaps."""
    inner = set(parents)
    is_leaf = [node not in inner for node in range(len(parents))]
    before = np.concatenate([[0], np.cumsum(is_leaf)]) * size
    stop = [
        max([node, *(m for m in range(len(parents)) if _under(m, node, parents))]) + 1 for node in range(len(parents))
    ]
    leaves = np.flatnonzero(is_leaf).astype(np.int64)
    return ChunkTree("d", int64(*before[:-1]), int64(*before[stop]), int64(*levels), int64(*parents), leaves)


def _under(node, other, parents):
    while node >= 0 and node != other:
        node = parents[node]
    return node == other


def test_ranges_are_written_as_they_are_read():
    assert parse_levels("section:sentence", NAMES) == LevelRange(1, 4)
    assert parse_levels(" 256 : 64 ", size_names()) == LevelRange(3, 5)
    assert parse_levels("paragraph", NAMES) == LevelRange(3, 3)
    assert full_range(NAMES) == LevelRange(0, 4)
    assert len(all_ranges(NAMES)) == 15
    for levels in all_ranges(NAMES):
        assert parse_levels(format_levels(levels, NAMES), NAMES) == levels


@pytest.mark.parametrize(
    "text, message",
    [
        ("chapter", "'chapter' is not a level; choose from document, section"),
        ("section:", "'' is not a level"),
        ("sentence:section", "sentence is finer than section; write section:sentence"),
        ("section:section:sentence", "one level, or two with a colon between"),
    ],
)
def test_what_is_no_range(text, message):
    with pytest.raises(UsageError, match=message):
        parse_levels(text, NAMES)


@pytest.mark.parametrize("least, most", [(-1, 2), (3, 2)])
def test_levels_count_from_the_document_and_the_coarser_comes_first(least, most):
    with pytest.raises(UsageError, match=f"levels {least} to {most}: start at 0"):
        LevelRange(least, most)


def test_nodes_of_a_range_by_hand():
    # a section, with a paragraph of two sentences and one that is a leaf; and a section that is a leaf
    tree = make_tree([0, 1, 3, 4, 4, 3, 1], [-1, 0, 1, 2, 2, 1, 0])
    of = lambda least, most: nodes_in(tree, LevelRange(least, most), 5).tolist()  # noqa: E731
    assert of(0, 0) == [0]
    assert of(1, 1) == of(2, 2) == [1, 6]  # no subsections: the section stands for its own
    assert of(3, 3) == [2, 5, 6]
    assert of(4, 4) == [3, 4, 5, 6]
    assert of(0, 4) == list(range(7))
    assert nodes_in(tree, LevelRange(2, 2), 3).tolist() == [2, 3, 4, 5, 6]  # what is finer counts as the last level
    with pytest.raises(UsageError, match="levels 0 to 5: there are only 5"):
        of(0, 5)


@given(cases(), st.integers(1, 6))
@examples(60)
def test_nodes_of_any_range_cover_the_text_and_those_of_two_are_those_of_both(case, num_levels):
    document, tree = case
    names = range(num_levels)
    for levels in all_ranges(list(map(str, names))):
        nodes = nodes_in(tree, levels, num_levels)
        inside = {place for node in nodes.tolist() for place in range(*tree.span(node))}
        assert all(place in inside for place, letter in enumerate(document.text) if not letter.isspace())
        single = [
            nodes_in(tree, LevelRange(level, level), num_levels) for level in range(levels.least, levels.most + 1)
        ]
        assert nodes.tolist() == np.unique(np.concatenate(single)).tolist()
