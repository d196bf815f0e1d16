import itertools
import random

import pytest

from qrag_jax.llm.judges import Agreement, agreement


def test_two_judges_by_hand():
    """Coincidences of aa, ab, bb, bb: o_aa = 2, o_ab = o_ba = 1, o_bb = 4; n_a = 3, n_b = 5, n = 8."""
    found = agreement([["a", "a"], ["a", "b"], ["b", "b"], ["b", "b"]])
    assert found.raw == pytest.approx(3 / 4) and found.num_items == 4
    assert found.alpha == pytest.approx(1 - 7 * 2 / (2 * 3 * 5))


def test_judges_may_leave_things_out():
    """Krippendorff's example of 12 units, 4 observers and missing data, nominal: alpha = 0.743."""
    observers = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
        [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
    ]
    verdicts = [[None if label is None else str(label) for label in unit] for unit in zip(*observers, strict=True)]
    found = agreement(verdicts)
    assert found.alpha == pytest.approx(0.743, abs=5e-4)
    assert found.num_items == 11  # the last unit has one verdict


def slow_alpha(verdicts):
    """1 - D_o / D_e, over all ordered pairs within units and over all pairs of verdicts at all."""
    units = [[label for label in unit if label is not None] for unit in verdicts]
    units = [unit for unit in units if len(unit) > 1]
    values = [label for unit in units for label in unit]
    observed = sum(
        sum(one != other for one, other in itertools.permutations(unit, 2)) / (len(unit) - 1) for unit in units
    ) / len(values)
    expected = sum(one != other for one, other in itertools.permutations(values, 2)) / (len(values) * (len(values) - 1))
    return 1 - observed / expected


def test_random_verdicts_have_the_alpha_of_a_slow_reading():
    rng = random.Random(0)
    for _ in range(50):
        num_judges = rng.randint(2, 5)
        verdicts = [[rng.choice(["x", "y", "z", None]) for _ in range(num_judges)] for _ in range(12)]
        found = agreement(verdicts)
        assert found.alpha == pytest.approx(slow_alpha(verdicts))
        assert agreement([unit[::-1] for unit in verdicts[::-1]]).alpha == pytest.approx(found.alpha)


def test_extremes():
    assert agreement([["a", "a"], ["b", "b"]]) == Agreement(1.0, 1.0, 2)
    found = agreement([["a", "b"], ["b", "a"]])
    assert found.raw == 0 and found.alpha == pytest.approx(1 - 3 * 4 / 8)
    assert agreement([["a", "a"], ["a", "a"]]) == Agreement(1.0, None, 2)  # chance agrees as well
    assert agreement([["a"], ["b", None]]) == agreement([]) == Agreement(None, None, 0)
