"""Vectors in parts and in codes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.search import rows
from qrag_jax.search.dense import rough_error, rough_error_of, search_vectors
from qrag_jax.search.rows import RowPart, Rows, code
from qrag_jax.unit_rows import unit_rows


def test_codes_by_hand():
    codes = code(np.array([[1, -0.5], [0, 0]], np.float32), "int8")
    assert codes.codes.tolist() == [[127, -64], [0, 0]] and codes.scales.tolist() == [np.float32(1 / 127), 1]
    assert codes.lost == pytest.approx(64 / 127 - 0.5)
    assert codes.error == pytest.approx(codes.lost + (1 + codes.lost) * 2**0.5 / 254**2)
    assert codes.products(np.array([[0, 1]], np.float32))[0] == pytest.approx([-64 / 127, 0])


@pytest.mark.parametrize("kind", ["int8", "float16"])
@pytest.mark.parametrize("has_kernels", [True, False])
def test_products_with_codes_are_off_by_their_error_at_most(monkeypatch, kind, has_kernels):
    monkeypatch.setattr(rows, "_BLOCK_ROWS", 7)
    if not has_kernels:
        monkeypatch.setattr(rows, "_kernels", lambda: None)
    assert (rows._kernels() is not None) == has_kernels
    rng = np.random.default_rng(0)
    vectors, questions = (unit_rows(rng.normal(size=(size, 33)).astype(np.float32)) for size in (50, 5))
    vectors[3], questions[1] = 0, np.eye(33)[0]  # whose one large component makes a coarse code
    codes = code(vectors, kind)
    for asked in (questions, questions[:1]):
        off = np.abs(codes.products(asked) - asked.astype(np.float64) @ vectors.T)
        assert off.max() <= codes.error + rough_error(33)


@examples(60)
@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 12), st.sampled_from(["int8", "float16", None]))
def test_parts_and_codes_find_what_one_array_finds(seed, size, top_k, kind):
    rng = np.random.default_rng(seed)
    vectors = unit_rows(rng.normal(size=(size, 16)).astype(np.float32))
    vectors[rng.random(size) < 0.3] = vectors[0]
    if rng.random() < 0.3:
        vectors[-1] = 0
    places, cut = rng.permutation(size), int(rng.integers(0, size + 1))
    parts = []
    for some in (slice(0, cut), slice(cut, None)):
        extra = rng.normal(size=(2, 16)).astype(np.float32)  # rows that are not in the pool
        own = np.concatenate([vectors[places][some], unit_rows(extra)])
        parts.append(RowPart(own, np.append(places[some], [-1, -1]), codes=kind and code(own, kind)))
    found = Rows(parts, size, 16)
    assert np.array_equal(found[:], vectors)
    questions = unit_rows(rng.normal(size=(3, 16)).astype(np.float32))
    exact = questions.astype(np.float64) @ vectors.T
    assert (np.abs(found.products(questions) - exact) <= rough_error_of(found)).all()
    for (mine, scores), (theirs, expected) in zip(
        search_vectors(questions, found, top_k), search_vectors(questions, vectors, top_k), strict=True
    ):
        assert np.array_equal(mine, theirs) and np.array_equal(scores, expected)
