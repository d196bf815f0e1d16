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
