import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.models.towers.positions import chunk_positions, relative_positions

pytestmark = pytest.mark.usefixtures("strict_promotion")
relative = jax.jit(relative_positions, static_argnames=("length", "delta", "ell"))
positions = jax.jit(chunk_positions, static_argnames=("mode", "length", "delta", "ell"))


def indices(*values):
    return np.asarray(values, np.int32).reshape(-1)


def numbers(count):
    return np.arange(count, dtype=np.int32)


def map_by_the_definition(num_chunks, taken, delta=10.0, ell=9.0):
    """The relative map, chunk by chunk: find the interval [b_j, b_j+1) that holds i."""
    bounds = [0, *taken, num_chunks]
    positions = []
    for i in range(num_chunks):
        (j,) = [j for j in range(len(bounds) - 1) if bounds[j] <= i < bounds[j + 1]]
        positions.append(j * delta + ell * (i - bounds[j]) / (bounds[j + 1] - bounds[j]))
    return positions


def test_nothing_taken_by_hand():
    # One interval [0, 5): 9 * i / 5.
    np.testing.assert_allclose(relative(numbers(5), indices(), 5), [0, 1.8, 3.6, 5.4, 7.2], rtol=1e-6)


def test_two_taken_by_hand():
    # b = 0, 2, 5, 6: intervals of 2, 3 and 1 chunks start at 0, 10, 20.
    expected = [0, 4.5, 10, 13, 16, 20]
    np.testing.assert_allclose(relative(numbers(6), indices(2, 5), 6), expected, rtol=1e-6)


def test_chunk_0_taken_by_hand():
    # b = 0, 0, 4: interval 0 is empty, all chunks are in interval 1.
    np.testing.assert_allclose(relative(numbers(4), indices(0), 4), [10, 12.25, 14.5, 16.75], rtol=1e-6)
    # b = 0, 0, 1, 4: chunks 0 and 1 were taken.
    np.testing.assert_allclose(relative(numbers(4), indices(0, 1), 4), [10, 20, 23, 26], rtol=1e-6)


def test_last_chunk_taken_by_hand():
    np.testing.assert_allclose(relative(numbers(3), indices(2), 3), [0, 4.5, 10], rtol=1e-6)


def test_other_constants_by_hand():
    found = relative(numbers(4), indices(2), 4, delta=100.0, ell=1.0)
    np.testing.assert_allclose(found, [0, 0.5, 100, 100.5], rtol=1e-6)


def test_a_sample_of_a_longer_document_by_hand():
    # Chunks 3, 10 and 15 of a document of 20; chunk 10 was taken: 9 * 3/10, 10, 10 + 9 * 5/10.
    np.testing.assert_allclose(relative(indices(3, 10, 15), indices(10), 20), [2.7, 10, 14.5], rtol=1e-6)


@given(st.data())
def test_against_the_definition(data):
    num_chunks = data.draw(st.integers(1, 12))
    taken = sorted(data.draw(st.sets(st.integers(0, num_chunks - 1), max_size=min(num_chunks, 4))))
    found = relative(numbers(num_chunks), indices(*taken), num_chunks)
    np.testing.assert_allclose(found, map_by_the_definition(num_chunks, taken), rtol=1e-5, atol=1e-5)


@given(st.data())
def test_order_is_kept_and_intervals_are_apart(data):
    num_chunks = data.draw(st.integers(2, 12))
    taken = sorted(data.draw(st.sets(st.integers(0, num_chunks - 1), min_size=1, max_size=3)))
    found = np.asarray(relative(numbers(num_chunks), indices(*taken), num_chunks))
    assert (np.diff(found) > 0).all()
    for rank, chunk in enumerate(taken):
        assert found[chunk] == 10 * (rank + 1)  # a taken chunk opens its interval
        if chunk > 0:
            assert found[chunk] - found[chunk - 1] > 1  # delta - ell, and more


@pytest.mark.parametrize("taken", [(), (0,), (7, 20_000), (0, 1, 39_999), (13, 19_000, 19_001, 38_000, 39_000)])
def test_neighbours_stay_distinct_in_long_texts(taken):
    """The authors' integer steps give 19 positions an interval; ours must tell 40,000 neighbours apart."""
    found = np.asarray(relative(numbers(40_000), indices(*taken), 40_000))
    assert found.dtype == np.float32
    assert (np.diff(found) > 0).all()


def test_neighbours_stay_distinct_at_400_000_chunks():
    found = np.asarray(relative(numbers(400_000), indices(5, 200_000), 400_000))
    assert (np.diff(found) > 0).all()


def test_padding_is_finite_and_leaves_real_chunks_alone():
    # Document of 4 chunks in 7 slots; also when the last real chunk opens an interval of its own.
    for taken in [(), (1,), (3,), (0, 3)]:
        found = np.asarray(relative(numbers(7), indices(*taken), 4))
        np.testing.assert_allclose(found[:4], map_by_the_definition(4, taken), rtol=1e-6)
        assert np.isfinite(found).all()


def test_taken_entries_beyond_the_document_count_as_not_taken():
    np.testing.assert_array_equal(relative(numbers(6), indices(2, 6, 9), 6), relative(numbers(6), indices(2), 6))
    # Padding then meets an interval of no width at all.
    assert np.isfinite(relative(numbers(12), indices(2, 6, 9), 6)).all()


def test_length_may_be_traced():
    batched = jax.jit(jax.vmap(relative_positions, in_axes=(None, 0, 0)))
    found = batched(numbers(4), indices(1, 2).reshape(2, 1), np.array([4, 3], np.int32))
    found = np.asarray(found)
    np.testing.assert_allclose(found[0], map_by_the_definition(4, [1]), rtol=1e-6)
    np.testing.assert_allclose(found[1, :3], map_by_the_definition(3, [2]), rtol=1e-6)


def test_modes():
    at = np.array([0, 3, 50], np.int32)
    arguments = (at, indices(3), 60, 10.0, 9.0)
    np.testing.assert_allclose(positions("relative", *arguments), relative(at, indices(3), 60))
    np.testing.assert_array_equal(positions("absolute", *arguments), [0.0, 3.0, 50.0])
    np.testing.assert_array_equal(positions("none", *arguments), [0.0, 0.0, 0.0])
    assert all(positions(mode, *arguments).dtype == np.float32 for mode in ("relative", "absolute", "none"))
