from itertools import product

import numpy as np
import pytest

from qrag_jax.eval.measures.aggregate import (
    Summary,
    constant_interval,
    mean_interval,
    over_seeds,
    paired_difference,
    ratio_interval,
)
from qrag_jax.types import InputError


def shares(n, ones):
    return np.array([1.0] * ones + [0.0] * (n - ones))


def wilson(ones, n, z=1.959963984540054):
    share = ones / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return centre - half, centre + half


def test_mean_and_n_are_the_samples():
    summary = mean_interval(np.array([0.0, 0.5, 1.0, 0.5]))
    assert (summary.mean, summary.n) == (0.5, 4)
    assert 0 <= summary.low <= 0.5 <= summary.high <= 1


def test_interval_of_a_share_is_close_to_wilsons():
    for ones in (30, 150, 190, 270, 297):
        summary = mean_interval(shares(300, ones))
        low, high = wilson(ones, 300)
        assert summary.low == pytest.approx(low, abs=0.012)
        assert summary.high == pytest.approx(high, abs=0.012)


def test_same_seed_same_interval_other_seed_other_draws():
    values = np.random.default_rng(0).random(101)
    assert mean_interval(values, seed=3) == mean_interval(values, seed=3)
    assert mean_interval(values, seed=3) != mean_interval(values, seed=4)


def test_does_not_depend_on_the_size_of_the_batches(monkeypatch):
    values = np.random.default_rng(0).random(50)
    whole = mean_interval(values)
    monkeypatch.setattr("qrag_jax.eval.measures.aggregate._BATCH_ELEMENTS", 5_000)
    assert mean_interval(values).mean == whole.mean
    assert mean_interval(values).low == pytest.approx(whole.low, abs=5e-3)


def test_more_questions_narrow_the_interval_and_confidence_widens_it():
    narrow, wide = mean_interval(shares(1000, 900)), mean_interval(shares(100, 90))
    assert narrow.high - narrow.low < wide.high - wide.low
    sure = mean_interval(shares(100, 90), confidence=0.99)
    assert sure.high - sure.low > wide.high - wide.low


def test_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    truth, covered = 0.95, 0
    for _ in range(200):
        summary = mean_interval((rng.random(200) < truth).astype(np.float64), num_resamples=400)
        covered += summary.low <= truth <= summary.high
    assert covered >= 180  # 95% of 200 is 190; fewer than 180 has a chance of 1 in 1,000 at true coverage .95


@pytest.mark.parametrize("ones", [0, 40])
def test_all_equal_shares_get_wilsons_interval(ones):
    summary = mean_interval(shares(40, ones))
    assert (summary.low, summary.high) == pytest.approx(wilson(ones, 40))


def test_all_equal_inside_the_bounds_is_not_certainty():
    summary = mean_interval(np.full(40, 0.8))
    unseen = wilson(0, 40)[1]
    assert summary.low == pytest.approx(0.8 - 0.8 * unseen)
    assert summary.high == pytest.approx(0.8 + 0.2 * unseen)


def test_equal_up_to_rounding_counts_as_equal():
    values = np.full(10, 0.8)
    values[3] = np.nextafter(0.8, 1)
    assert mean_interval(values).low == pytest.approx(constant_interval(0.8, 10)[0])


def test_one_question_and_two_questions():
    one = mean_interval(np.array([1.0]))
    assert one.high == 1.0 and one.low < 0.3
    two = mean_interval(np.array([0.0, 1.0]))
    assert two == Summary(0.5, 0.0, 1.0, 2)


def test_interval_holds_the_mean_on_a_skewed_sample():
    for n in (3, 5, 9):
        summary = mean_interval(shares(n, 1))
        assert summary.low <= summary.mean <= summary.high


def test_paired_difference_by_hand():
    first, second = np.array([1.0, 1.0, 1.0, 0.0]), np.array([0.0, 1.0, 0.0, 0.0])
    difference = paired_difference(first, second)
    assert (difference.mean, difference.n) == (0.5, 4)
    # Two questions differ, both in favour of the first: of the four sign flips ++ and -- are as extreme.
    assert difference.p_value == pytest.approx(0.5)


def test_p_value_equals_the_enumeration_of_all_flips():
    rng = np.random.default_rng(1)
    first, second = rng.random(9), rng.random(9)
    differences = first - second
    sums = np.array([np.dot(signs, differences) for signs in product((-1, 1), repeat=9)])
    share = np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-12)
    assert paired_difference(first, second).p_value == pytest.approx(share)


def test_exchanging_the_methods_flips_the_sign():
    rng = np.random.default_rng(2)
    first, second = (rng.random(80) < 0.9).astype(float), (rng.random(80) < 0.7).astype(float)
    forth, back = paired_difference(first, second), paired_difference(second, first)
    assert forth.mean == -back.mean
    assert forth.p_value == pytest.approx(back.p_value, abs=0.01)
    assert forth.low == pytest.approx(-back.high, abs=0.02)


def test_pairing_sees_what_two_intervals_do_not():
    rng = np.random.default_rng(3)
    hard = (rng.random(200) < 0.5).astype(float)  # both methods fail on the same questions
    second = hard.copy()
    second[np.flatnonzero(hard)[:10]] = 0.0  # and the second on ten more
    difference = paired_difference(hard, second)
    assert difference.low > 0 and difference.p_value < 0.01
    assert mean_interval(hard).low < mean_interval(second).high


def test_the_same_answers_prove_no_difference_and_no_certainty():
    values = shares(50, 45)
    difference = paired_difference(values, values)
    assert (difference.mean, difference.p_value) == (0.0, 1.0)
    assert -0.1 < difference.low < 0 < difference.high < 0.1


def test_one_question_that_differs_proves_nothing():
    """Both signs of a single difference are equally far from 0."""
    difference = paired_difference(np.array([1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0]))
    assert (difference.mean, difference.p_value) == (pytest.approx(1 / 3), 1.0)


def test_over_seeds():
    spread = over_seeds([0.9, 0.96, 0.93])
    assert spread.mean == pytest.approx(0.93)
    assert (spread.low, spread.high, spread.num_seeds) == (0.9, 0.96, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "values is empty"),
        ([0.5, np.nan], r"values\[1\] = nan is outside"),
        ([0.5, 1.5], r"values\[1\] = 1.5 is outside \[0.0, 1.0\]"),
        ([-np.inf, 0.5], r"values\[0\] = -inf"),
    ],
)
def test_bad_values_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        mean_interval(np.array(values, np.float64))


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="confidence = 95"):
        mean_interval(np.array([0.5, 0.6]), confidence=95.0)
    with pytest.raises(InputError, match="num_resamples = 0"):
        mean_interval(np.array([0.5, 0.6]), num_resamples=0)


def test_pairs_of_other_lengths_are_refused():
    with pytest.raises(InputError, match="same questions twice, got 2 and 1"):
        paired_difference(np.zeros(2), np.zeros(1))


@pytest.mark.parametrize("values", [[], [0.5, float("nan")]])
def test_over_seeds_refuses(values):
    with pytest.raises(InputError, match="finite values"):
        over_seeds(values)


def test_a_share_of_sums_by_hand():
    summary = ratio_interval(np.array([1, 0, 4]), np.array([2, 3, 5]))
    assert (summary.mean, summary.n) == (0.5, 3) and summary.low <= 0.5 <= summary.high


def test_a_share_of_equal_wholes_is_a_mean():
    values = np.random.default_rng(0).random(60)
    summary, mean = ratio_interval(3 * values, np.full(60, 3.0)), mean_interval(values)
    assert summary.mean == pytest.approx(mean.mean)
    assert (summary.low, summary.high) == pytest.approx((mean.low, mean.high), abs=0.01)


def test_the_spread_of_a_share_of_sums_is_that_of_the_delta_method():
    rng = np.random.default_rng(0)
    wholes = rng.integers(1, 30, 400)
    parts = rng.binomial(wholes, 0.3)
    summary = ratio_interval(parts, wholes)
    error = np.sqrt(((parts - summary.mean * wholes) ** 2).sum()) / wholes.sum()
    assert (summary.high - summary.low) / 2 == pytest.approx(1.96 * error, rel=0.08)


@pytest.mark.parametrize("parts, wholes, mean", [([0, 0], [3, 1], 0.0), ([1, 2], [2, 4], 0.5), ([0, 0], [0, 0], 0.0)])
def test_a_share_that_every_resample_has_is_not_certain(parts, wholes, mean):
    summary = ratio_interval(np.array(parts), np.array(wholes))
    assert (summary.mean, summary.low, summary.high) == pytest.approx((mean, *constant_interval(mean, 2)))


@pytest.mark.parametrize(
    "parts, wholes, message",
    [([], [], "got 0 and 0"), ([1], [1, 2], "got 1 and 2"), ([1, 3], [1, 2], r"parts\[1\] = 3 is no part of wholes")],
)
def test_parts_that_are_none_are_refused(parts, wholes, message):
    with pytest.raises(InputError, match=message):
        ratio_interval(np.array(parts), np.array(wholes))
