"""Vectors of sentences and their distances: worked cases, slow readings of the equations, embedders that misbehave."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.chunking.strategies.distances import joint_distances, neighbour_distances, row_blocks, sentence_vectors
from qrag_jax.types import InputError


def unit_vectors(seed, num_sentences, dim=5):
    rng = np.random.default_rng(seed)
    return sentence_vectors(lambda texts: rng.normal(size=(len(texts), dim)), ["x"] * num_sentences)


def test_vectors_have_unit_length_and_zero_stays_zero():
    given_vectors = np.array([[3, 4], [0, 0], [0, -0.5]], np.float32)
    vectors = sentence_vectors(lambda texts: given_vectors, ["a", "b", "c"])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 0], [0, -1]], atol=1e-7)
    np.testing.assert_array_equal(given_vectors[0], [3, 4])  # the embedder's own array is left as it is


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_is_taken(dtype):
    vectors = sentence_vectors(lambda texts: np.array([[3, 4]], dtype), ["a"])
    np.testing.assert_allclose(vectors, [[0.6, 0.8]], atol=1e-7)


@pytest.mark.parametrize("scale", [1e-30, 1e37])
def test_lengths_whose_square_is_no_float32(scale):
    vectors = sentence_vectors(lambda texts: np.array([[3, 4]], np.float32) * np.float32(scale), ["a"])
    np.testing.assert_allclose(vectors, [[0.6, 0.8]], atol=1e-6)


def test_all_texts_go_to_the_embedder_at_once():
    asked = []
    sentence_vectors(lambda texts: asked.append(list(texts)) or np.ones((len(texts), 2)), ["a", "b"])
    assert asked == [["a", "b"]]


def test_no_texts_ask_no_embedder():
    assert len(sentence_vectors(lambda texts: pytest.fail("asked"), [])) == 0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"gave \(\) for 2 texts"),
        ([["a"], ["b"]], "no array of numbers for 2 texts"),
        (np.ones(2), r"gave \(2,\) for 2 texts; return \(2, dim\)"),
        (np.ones((3, 4)), r"gave \(3, 4\) for 2 texts"),
        (np.ones((2, 0)), r"gave \(2, 0\)"),
        (np.ones((1, 2, 3)), r"gave \(1, 2, 3\)"),
        (np.array([[1.0, 0.0], [np.nan, 1.0]]), "vector of 'the second' is not finite, it has nan"),
        (np.array([[-np.inf, 0.0], [np.nan, 1.0]]), "'the first' is not finite, it has -inf"),
        (np.array([[1.0, 0.0], [1e60, 1.0]]), "'the second' is not finite, it has inf"),
    ],
)
def test_an_embedder_that_misbehaves_is_named(returned, message):
    with pytest.raises(InputError, match=message):
        sentence_vectors(lambda texts: returned, ["the first", "the second"])


def test_a_long_text_is_shown_in_part():
    with pytest.raises(InputError) as error:
        sentence_vectors(lambda texts: np.full((1, 2), np.nan), ["y" * 1000])
    assert "y" * 60 in str(error.value) and "y" * 61 not in str(error.value)


def test_neighbours_are_not_clamped():
    vectors = np.array([[1, 0], [-1, 0], [0, 1], [0, 1], [0, 0]], np.float32)
    np.testing.assert_allclose(neighbour_distances(vectors), [2, 1, 0, 1], atol=1e-12)


@pytest.mark.parametrize("num_sentences", [0, 1])
def test_no_neighbours(num_sentences):
    assert neighbour_distances(np.ones((num_sentences, 3), np.float32)).shape == (0,)


def test_equal_neighbours_tie_exactly():
    vectors = np.tile(unit_vectors(0, 2, dim=384), (40, 1))
    distances = neighbour_distances(vectors)
    assert len(set(distances[::2])) == 1
    assert np.abs(neighbour_distances(np.repeat(vectors, 2, axis=0))[::2]).max() < 1e-12


def test_joint_distance_by_hand():
    """n = 8, lambda = 0.25: d(0, 2) = 0.25 * 2 / 8 + 0.75 * (1 - 0.6); a negative cosine counts as 0."""
    vectors = np.array([[1, 0], [0, 1], [0.6, 0.8], [-1, 0]], np.float32)
    distances = joint_distances(vectors, 0.25, 8)
    np.testing.assert_allclose(
        distances(np.array([0]), 0), [[0, 0.25 / 8 + 0.75, 0.0625 + 0.75 * 0.4, 0.25 * 3 / 8 + 0.75]], atol=1e-6
    )


@given(
    seed=st.integers(0, 1000),
    num_sentences=st.integers(1, 12),
    more=st.integers(0, 5),
    lambda_=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    first=st.integers(0, 11),
)
def test_joint_distance_is_the_equation(seed, num_sentences, more, lambda_, first):
    vectors, total = unit_vectors(seed, num_sentences), num_sentences + more
    first = min(first, num_sentences - 1)
    rows = np.random.default_rng(seed).permutation(num_sentences)[: num_sentences // 2 + 1]
    block = joint_distances(vectors, lambda_, total)(rows, first)
    assert block.dtype == np.float32 and block.shape == (len(rows), num_sentences - first)
    for row, a in enumerate(rows):
        for b in range(first, num_sentences):
            cosine = max(float(vectors[a].astype(float) @ vectors[b].astype(float)), 0)
            expected = lambda_ * abs(int(a) - b) / total + (1 - lambda_) * (1 - cosine)
            assert block[row, b - first] == pytest.approx(expected, abs=1e-6)
    assert block.min() >= 0 and block.max() <= 1


@pytest.mark.parametrize("dim", [3, 384])
def test_equal_pairs_tie_wherever_they_stand(dim, monkeypatch):
    """12 different vectors in 300 places: 78 distances in all, 0 for every pair of equal ones."""
    monkeypatch.setattr("qrag_jax.chunking.strategies.distances._BLOCK_ENTRIES", 300 * 7)
    which = np.random.default_rng(1).integers(0, 12, 300)
    rows_from = joint_distances(unit_vectors(0, 12, dim)[which], 0.0, 300)
    found = {}
    for rows in row_blocks(np.arange(300), 300):
        for row, values in zip(rows, rows_from(rows, int(rows[0])), strict=True):
            for other, value in enumerate(values.tolist(), start=int(rows[0])):
                found.setdefault(tuple(sorted((which[row], which[other]))), set()).add(value)
    assert len(found) == 78 and all(len(values) == 1 for values in found.values())
    assert all(values == {0.0} for (a, b), values in found.items() if a == b)


def test_positions_alone_are_the_nearest_float32():
    """What a threshold of k / n is compared with must be that number."""
    distances = joint_distances(np.zeros((10, 2), np.float32), 1.0, 10)(np.array([0]), 0)[0]
    assert [float(value) for value in distances] == [float(np.float32(k / 10)) for k in range(10)]


@pytest.mark.parametrize(("num_rows", "num_columns"), [(5, 2**22), (5, 2**30), (1000, 10_000), (3, 1), (0, 7)])
def test_row_blocks_cover_the_rows_in_bounded_pieces(num_rows, num_columns):
    pieces = list(row_blocks(np.arange(num_rows), num_columns))
    assert [row for piece in pieces for row in piece] == list(range(num_rows))
    assert all(len(piece) == 1 or len(piece) * num_columns <= 2**22 for piece in pieces)
