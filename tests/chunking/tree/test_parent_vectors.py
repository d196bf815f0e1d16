"""Vectors of parents out of children's: by hand, level by level, and what holds of any tree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples
from support.trees import cases, int64

from qrag_jax.chunking.tree.parent_vectors import check_parents, fill_levels_above, fill_parents, mean_of_children
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.names import PARENTS
from qrag_jax.types import InputError, UsageError
from qrag_jax.unit_rows import unit_rows

# A section of two sentences, and a sentence beside it.
TREE = ChunkTree(
    "d", int64(0, 0, 0, 2, 4), int64(6, 4, 2, 4, 6), int64(0, 1, 2, 2, 1), int64(-1, 0, 1, 1, 0), int64(2, 3, 4)
)
LEAVES = np.array([[0, 0], [0, 0], [1, 0], [0, 1], [0, 0]], np.float32)


def test_means_by_hand():
    found = fill_parents(TREE, LEAVES, int64(8, 4, 3, 1, 4), mean_of_children)
    np.testing.assert_allclose(found[1], np.array([3, 1]) / 10**0.5, atol=1e-6)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)  # the sentence beside it has no direction
    np.testing.assert_array_equal(found[2:], LEAVES[2:])
    none = mean_of_children(np.zeros((2, 2), np.float32), int64(0, 5), int64(0, 0))
    assert none.tolist() == [[0, 0]]
    even = mean_of_children(np.eye(2, dtype=np.float32), int64(0, 0), int64(0, 0))  # no token counts as one
    np.testing.assert_allclose(even, [[0.5**0.5, 0.5**0.5]], atol=1e-6)
    assert mean_of_children(np.zeros((0, 2), np.float32), int64(), int64()).shape == (0, 2)


def test_only_wanted_parents_are_made():
    vectors = LEAVES.copy()
    wanted = TREE.level >= 1
    fill_levels_above(TREE.parent, TREE.level, vectors, int64(1, 1, 1, 1, 1), mean_of_children, wanted)
    assert vectors[0].tolist() == [0, 0] and vectors[1].any()


@pytest.mark.parametrize(
    ("value", "width", "message"),
    [
        (np.nan, 2, "a vector made from children is not finite"),
        (1.0, 3, r"made vectors \[1, 3\] from children, expected \[1, 2\]"),
    ],
)
def test_parents_that_are_no_vectors_are_refused(value, width, message):
    def of_children(vectors, num_tokens, parent):
        return np.full((parent.max() + 1, width), value, np.float32)

    with pytest.raises(InputError, match=message):
        fill_parents(TREE, LEAVES, int64(1, 1, 1, 1, 1), of_children)


@given(cases(), st.integers(0, 999))
@examples(60)
def test_means_of_any_tree_are_those_of_a_loop(case, seed):
    _, tree = case
    rng = np.random.default_rng(seed)
    vectors = unit_rows(rng.integers(-2, 3, (len(tree), 3)).astype(np.float32))
    num_tokens = rng.integers(0, 5, len(tree))

    def slow(node):
        children = tree.children(node)
        if not children:
            return vectors[node].astype(np.float64)
        total = sum(max(1, num_tokens[child]) * slow(child) for child in children)
        length = np.linalg.norm(total)
        return total / length if length > 1e-5 else total * 0

    found = fill_parents(tree, vectors, num_tokens, mean_of_children)
    for node in range(len(tree)):
        if np.linalg.norm(slow(node)) and np.linalg.norm(found[node]):  # what cancels out has no direction but noise
            np.testing.assert_allclose(found[node], slow(node), atol=1e-3)
    lengths = np.linalg.norm(found, axis=1)
    assert ((abs(lengths - 1) < 1e-5) | (lengths == 0)).all()


def test_names_of_ways():
    assert PARENTS[:2] == ("best_child", "mean")
    with pytest.raises(UsageError, match="parents 'worst_child': choose one of best_child, mean"):
        check_parents("worst_child")
