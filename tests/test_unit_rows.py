import numpy as np
import pytest

from qrag_jax.unit_rows import are_unit, unit_rows


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_by_hand(kind):
    found = unit_rows(np.array([[3, 4], [0, 0], [0, -2]], kind))
    assert found.dtype == kind and found.tolist() == [[kind(0.6), kind(0.8)], [0, 0], [0, -1]]
    assert unit_rows(np.zeros((0, 2), kind)).shape == (0, 2)


def test_rows_of_length_1_and_zeros_are_told_from_others():
    rows = np.array([[0.6, 0.8], [0, 0], [0, 1.001], [0, 1.1], [np.nan, 0], [np.inf, 0]], np.float32)
    assert are_unit(rows, 1e-2).tolist() == [True, True, True, False, False, False]
    assert are_unit(rows, 1e-4).tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize("scale", [1e-44, 1e-24, 1e-17, 1e20, 3e37])
def test_a_direction_does_not_hang_on_the_scale(scale):
    rows = np.array([[3, 4], [0, 0], [0, -8]], np.float32) * np.float32(scale)
    tiny = scale < 1e-40  # float32 has one digit left there
    np.testing.assert_allclose(unit_rows(rows), [[0.6, 0.8], [0, 0], [0, -1]], rtol=0.2 if tiny else 1e-6)
    assert are_unit(rows, 1e-3).tolist() == [False, True, False]
    ordinary = np.array([[0.3, 0.1]], np.float32)
    np.testing.assert_array_equal(unit_rows(np.concatenate([rows, ordinary]))[3:], unit_rows(ordinary))


def test_what_is_not_finite_has_no_direction_and_stays_visible():
    with np.errstate(invalid="ignore"):
        found = unit_rows(np.array([[np.nan, 1], [np.inf, 1], [3, 4]], np.float32))
    assert np.isnan(found[:2, 0]).all() and found[2].tolist() == [np.float32(0.6), np.float32(0.8)]
