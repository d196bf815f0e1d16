import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.search import dense as module
from qrag_jax.search.dense import search_vectors, top_in_order

EAST, NORTH, BETWEEN = [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]


def rows(*vectors):
    return np.array(vectors, np.float32)


def unit(vectors):
    """Rows of length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def test_by_hand():
    """Of east, between and north, east's question likes them in this order, north's in the other."""
    found = search_vectors(rows(EAST, NORTH), rows(NORTH, EAST, BETWEEN), 2)
    assert [indices.tolist() for indices, _ in found] == [[1, 2], [0, 2]]
    np.testing.assert_allclose([scores for _, scores in found], [[1, 0.6], [1, 0.8]], atol=1e-6)
    assert found[0][0].dtype == np.int64 and found[0][1].dtype == np.float64


def test_ties_go_by_order_and_fewer_chunks_than_k_are_all_found():
    ((indices, scores),) = search_vectors(rows(EAST), rows(NORTH, EAST, NORTH, EAST), 9)
    assert indices.tolist() == [1, 3, 0, 2] and scores.tolist() == [1, 1, 0, 0]


def test_a_chunk_without_direction_is_as_near_as_a_right_angle():
    ((indices, scores),) = search_vectors(rows(EAST), rows([0, 0], [-1, 0], EAST), 3)
    assert indices.tolist() == [2, 0, 1] and scores.tolist() == [1, 0, -1]


def slow(questions, vectors, k, among):
    """Every pair, sorted by falling score, then by index."""
    found = []
    for row, question in enumerate(questions):
        chosen = range(len(vectors)) if among is None else among[row].tolist()
        pairs = sorted((-round(float(sum(question.astype(float) * vectors[i])), 9), i) for i in chosen)
        found.append([(i, -score) for score, i in pairs[:k]])
    return found


@given(st.integers(0, 10_000), st.integers(1, 12), st.booleans(), st.integers(1, 40))
def test_the_same_as_every_pair_sorted_whatever_the_blocks(seed, k, some, elements):
    rng = np.random.default_rng(seed)
    vectors = unit(rng.integers(-1, 2, (rng.integers(1, 15), 3)).astype(np.float32))  # many ties, some zeros
    questions = unit(rng.normal(size=(rng.integers(1, 6), 3)).astype(np.float32))
    among = [np.flatnonzero(rng.random(len(vectors)) < 0.5) for _ in questions] if some else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_ELEMENTS", elements)
        found = search_vectors(questions, vectors, k, among)
    for (indices, scores), pairs in zip(found, slow(questions, vectors, k, among), strict=True):
        assert indices.tolist() == [i for i, _ in pairs]
        np.testing.assert_allclose(scores, [score for _, score in pairs], atol=2e-9)


def test_only_the_named_chunks_compete():
    found = search_vectors(
        rows(EAST, EAST, EAST), rows(EAST, BETWEEN, NORTH), 2, [np.array([1, 2]), np.array([2]), np.array([], int)]
    )
    assert [indices.tolist() for indices, _ in found] == [[1, 2], [2], []]


def test_top_in_order():
    assert top_in_order(np.array([0.1, 0.5, 0.5, 0.9, 0.5]), 3).tolist() == [3, 1, 2]
    then = np.array([9.0, 0, 1, 0, 1])
    assert top_in_order(np.array([0.1, 0.5, 0.5, 0.9, 0.5]), 3, then).tolist() == [3, 2, 4]
    assert top_in_order(np.array([0.1, 0.5, 0.5, 0.9, 0.5]), 9, then).tolist() == [3, 2, 4, 1, 0]
