import numpy as np
import pytest

from qrag_jax.unit_rows import unit_rows


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_by_hand(kind):
    found = unit_rows(np.array([[3, 4], [0, 0], [0, -2]], kind))
    assert found.dtype == kind and found.tolist() == [[kind(0.6), kind(0.8)], [0, 0], [0, -1]]
    assert unit_rows(np.zeros((0, 2), kind)).shape == (0, 2)
