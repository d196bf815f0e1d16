from itertools import product

import numpy as np
import pytest

from qrag_jax.measures.aggregate import (
    FEWEST_CHANGED,
    Summary,
    constant_interval,
    holm_p_values,
    mean_interval,
    no_harm,
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
    monkeypatch.setattr("qrag_jax.measures.aggregate._BATCH_ELEMENTS", 5_000)
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
    assert (difference.better, difference.worse, difference.changed) == (2, 0, 2)
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


def test_three_changed_questions_that_agree_are_no_difference():
    """The bootstrap leaves 0 out, three signs have p = 1/4; six that agree have 2 / 2^6."""
    three, six = np.zeros(60), np.zeros(60)
    three[:3], six[:6] = 1.0, 1.0
    few, more = paired_difference(three, np.zeros(60)), paired_difference(six, np.zeros(60))
    assert few.low > 0 and few.p_value == pytest.approx(0.25) and not few.is_significant
    assert more.p_value == pytest.approx(2 / 2**FEWEST_CHANGED) and more.is_significant


# --- questions of one document


def test_groups_of_one_question_are_questions():
    rng = np.random.default_rng(4)
    first, second = rng.random(60), rng.random(60)
    alone = [str(i) for i in range(60)]
    mean, grouped = mean_interval(first), mean_interval(first, groups=alone)
    assert (grouped.mean, grouped.n) == (mean.mean, 60)
    assert (grouped.low, grouped.high) == pytest.approx((mean.low, mean.high), abs=0.01)
    one, other = paired_difference(first, second), paired_difference(first, second, groups=alone)
    assert other.p_value == pytest.approx(one.p_value, abs=0.02)
    assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=0.02)


def test_questions_that_all_repeat_their_document_are_as_many_as_documents():
    """Each of 20 documents asked 30 times: the interval is that of 20 values, not of 600."""
    by_document = np.random.default_rng(5).random(20)
    values, groups = np.repeat(by_document, 30), np.repeat([f"d{i}" for i in range(20)], 30).tolist()
    wide, right = mean_interval(values, groups=groups), mean_interval(by_document)
    assert (wide.low, wide.high) == pytest.approx((right.low, right.high), abs=0.02)
    narrow = mean_interval(values)
    assert narrow.high - narrow.low < (wide.high - wide.low) / 3


def test_signs_of_a_document_are_flipped_together():
    """Three documents whose questions all agree: of 2^3 flips two are as extreme, however many questions there are."""
    first, groups = np.ones(30), [f"d{i // 10}" for i in range(30)]
    difference = paired_difference(first, np.zeros(30), groups=groups)
    assert difference.p_value == pytest.approx(2 / 8) and difference.changed == 30
    assert paired_difference(first, np.zeros(30)).p_value < 0.001


def test_a_mean_over_groups_counts_every_question_once():
    summary = mean_interval(np.array([1.0, 0.0, 0.0, 0.0]), groups=["a", "b", "b", "b"])
    assert summary.mean == 0.25 and summary.low < 0.25 < summary.high


@pytest.mark.parametrize(("groups", "message"), [(["a"], "1 for 2 values"), (["a", "a"], "all questions are of 'a'")])
def test_groups_that_are_none_are_refused(groups, message):
    with pytest.raises(InputError, match=message):
        mean_interval(np.array([0.5, 0.6]), groups=groups)


# --- no harm


def changed_by(*changes, n):
    """Two methods on n questions, which differ by these changes."""
    second = np.full(n, 0.5)
    first = second.copy()
    first[: len(changes)] += changes
    return first, second


@pytest.mark.parametrize(
    ("pair", "verdict"),
    [
        (changed_by(n=600), "untested"),  # the interval is within the margin, as no question changed
        (changed_by(*[-0.1] * 5, n=600), "untested"),
        (changed_by(*[0.1, -0.1] * 20, n=600), "none"),
        (changed_by(*[-0.3] * 40, n=600), "harm"),
        (changed_by(*[0.5, -0.5] * 30, n=600), "not excluded"),
    ],
)
def test_verdicts_on_harm(pair, verdict):
    assert no_harm(*pair, margin=0.01).verdict == verdict


def test_harm_is_excluded_by_the_one_sided_limit():
    """It lies above the two-sided one, and the verdict turns where the margin passes it."""
    found = no_harm(*changed_by(*[0.2, -0.25] * 30, n=600), margin=0.01)
    assert found.difference.low < found.lowest < found.difference.mean
    for margin, verdict in ((-found.lowest + 1e-6, "none"), (-found.lowest - 1e-6, "not excluded")):
        assert no_harm(*changed_by(*[0.2, -0.25] * 30, n=600), margin=margin).verdict == verdict


def test_changes_of_one_document_test_no_harm_no_more_than_one_question():
    first, second = changed_by(*[0.1, -0.1, 0.2, -0.1] * 2, n=60)
    assert no_harm(first, second, margin=0.05).verdict == "none"
    assert no_harm(first, second, margin=0.05, groups=[f"d{i // 10}" for i in range(60)]).verdict == "untested"


def test_a_margin_of_nothing_is_refused():
    with pytest.raises(InputError, match=r"margin = 0.0 must be above 0"):
        no_harm(np.ones(3), np.ones(3), margin=0.0)


# --- seeds


def test_one_seed_has_the_interval_of_its_questions():
    found = over_seeds([Summary(0.9, 0.85, 0.93, 200)])
    assert (found.mean, found.low, found.high) == pytest.approx((0.9, 0.85, 0.93))
    assert found.n == 200


def test_over_seeds_by_hand():
    """Ends of .06 and .08 below and .03 above; sd of .90, .96 is .0424, t of 1 degree of freedom 12.706."""
    found = over_seeds([Summary(0.9, 0.84, 0.93, 50), Summary(0.96, 0.88, 0.99, 50)])
    seeds = 12.7062047 * 0.0424264 / np.sqrt(2)
    below, above = np.hypot(np.sqrt((0.06**2 + 0.08**2) / 2), seeds), np.hypot(0.03, seeds)
    assert found.mean == pytest.approx(0.93) and found.n == 50
    assert found.low == pytest.approx(0.93 - below, abs=1e-4) and found.high == 1.0 < 0.93 + above


def test_seeds_that_agree_leave_the_interval_of_the_questions():
    found = over_seeds([Summary(0.49, 0.38, 0.6, 80)] * 3)
    assert (found.low, found.high) == pytest.approx((0.38, 0.6))


def test_an_interval_over_seeds_covers_the_truth():
    """Questions of many difficulties, seeds of many strengths; other questions and seeds are drawn each time."""
    rng = np.random.default_rng(6)
    truth, covered = 0.5, 0
    for _ in range(150):
        hard, seeds = rng.normal(0, 1, 80), rng.normal(0, 0.15, 3)
        found = (hard[None] + seeds[:, None] + rng.normal(0, 0.7, (3, 80)) > 0).astype(np.float64)
        one = over_seeds([mean_interval(run, num_resamples=300) for run in found])
        covered += one.low <= truth <= one.high
    assert covered >= 135  # of 150; the range of the three seeds holds it about half as often


# --- Holm


def test_holm_of_bare_p_values_by_hand():
    """Four hypotheses: .005 * 4, .01 * 3, .03 * 2, and .04 * 1 lifted to what ranks before it; ties stay equal."""
    assert holm_p_values([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_p_values([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm_p_values([0.0, 1.0]) == [0.0, 1.0]
    assert holm_p_values([]) == []


@pytest.mark.parametrize("wrong", [float("nan"), -0.1, 1.1])
def test_what_is_no_p_value_is_refused(wrong):
    with pytest.raises(InputError, match=r"p_values\[1\] = .* is outside \[0, 1\]"):
        holm_p_values([0.5, wrong])


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


def test_pairs_of_other_lengths_are_refused():
    with pytest.raises(InputError, match="same questions twice, got 2 and 1"):
        paired_difference(np.zeros(2), np.zeros(1))


def test_a_mean_outside_of_its_bounds_is_refused():
    with pytest.raises(InputError, match=r"means\[0\] = 50.0 is outside \[0.0, 1.0\]"):
        over_seeds([Summary(50.0, 40.0, 60.0, 9)])


@pytest.mark.parametrize("runs", [[], [Summary(0.5, 0.4, float("nan"), 3)]])
def test_over_seeds_refuses(runs):
    with pytest.raises(InputError, match="finite numbers"):
        over_seeds(runs)


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
