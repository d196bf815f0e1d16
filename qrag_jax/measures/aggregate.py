"""All statistics of tables: intervals of means, paired differences, Holm's correction, means over seeds, no harm.

Questions about one document resemble each other: `groups` names the document of each question, and then documents are
resampled and their signs flipped, each with all its questions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Num

from qrag_jax.types import InputError

_NUM_RESAMPLES = 9_999
_CONFIDENCE = 0.95
_BATCH_ELEMENTS = 2_000_000  # resampled values held at once: 16 MB
_SAME = 1e-12  # values nearer than this are equal: the same F1 reached by other sums
LEVEL = 0.05  # a difference is called one below this p-value
FEWEST_CHANGED = 6  # fewer questions that change cannot give p < LEVEL, also where all agree: 2 / 2^5 = .0625

Groups = Sequence[str] | None  # the document of each question


@dataclass(frozen=True)
class Summary:
    """A mean over `n` questions and its confidence interval `[low, high]`, which always contains the mean."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean of `first - second` over the same `n` questions, its interval, and a two-sided p-value of no difference.

    `better` and `worse` count the questions that the first method scores higher and lower.
    """

    mean: float
    low: float
    high: float
    p_value: float
    n: int
    better: int
    worse: int

    @property
    def changed(self) -> int:
        """Questions whose two values differ."""
        return self.better + self.worse

    @property
    def is_significant(self) -> bool:
        """True if interval and test agree; with few changed questions, the interval alone excludes 0 too often."""
        return (self.low > 0 or self.high < 0) and self.p_value < LEVEL


@dataclass(frozen=True)
class Harm:
    """A test whether `first` is worse than `second` by more than the margin (`no_harm`), with the one-sided limit
    `lowest`.

    `verdict`: `none`: a loss beyond the margin is excluded; `harm`: the first is significantly below; `not excluded`:
    neither; `untested`: fewer than `FEWEST_CHANGED` questions (or groups of them) change.
    """

    difference: Difference
    lowest: float
    verdict: Literal["none", "harm", "not excluded", "untested"]


def mean_interval(
    values: Float[np.ndarray, " n"],
    *,
    groups: Groups = None,
    seed: int = 0,
    confidence: float = _CONFIDENCE,
    num_resamples: int = _NUM_RESAMPLES,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Summary:
    """Mean of one value a question, with a BCa bootstrap interval over the questions, or over their groups.

    BCa (bias corrected, accelerated) rather than percentile: for shares near 0 or 1, where good retrievers live, its
    coverage stays at or above 95%, while the percentile interval falls to 91% (n = 200, true share .98).

    A sample whose values are all equal gives a bootstrap nothing to resample, yet `n` questions do not prove certainty.
    Its interval is `constant_interval`: at 0 and at 1 exactly Wilson's. So it is of groups whose means are all equal.

    Args:
        values: one measure a question, inside `bounds`.
        groups: the document of each question; None takes questions as independent.
        seed: seed of the resampling; the same seed gives the same interval.
        bounds: smallest and largest value that the measure can take.
    """
    _check_values("values", values, bounds)
    mean = float(np.mean(values))
    if groups is None:
        sample, statistic, num_units, is_constant = (values,), np.mean, len(values), np.ptp(values) < _SAME
    else:
        sums, sizes = _sums_by_group(values, groups)
        sample, statistic, num_units = (sums, sizes), _share_of_sums, len(sums)
        is_constant = np.ptp(sums / sizes) < _SAME
    if is_constant:
        low, high = constant_interval(mean, num_units, confidence=confidence, bounds=bounds)
    else:
        low, high = _bootstrap(sample, statistic, seed, confidence, num_resamples)
    # BCa shifts its percentiles: on tiny skewed samples both can fall on one side of the mean.
    return Summary(mean=mean, low=min(low, mean), high=max(high, mean), n=len(values))


def ratio_interval(
    parts: Num[np.ndarray, " n"],
    wholes: Num[np.ndarray, " m"],
    *,
    seed: int = 0,
) -> Summary:
    """A share of sums, as micro F1 is, with a BCa bootstrap interval over the summed units: documents or questions.

        share = sum_i parts_i / sum_i wholes_i

    A share of nothing is 0. Where every resample has the same share, the interval is `constant_interval`.

    Args:
        parts: one value a document, from 0 to its whole.
        wholes: as many (so m = n), none negative.
    """
    if len(parts) != len(wholes) or not len(parts):
        raise InputError(f"a share of sums needs as many parts as wholes, got {len(parts)} and {len(wholes)}")
    wrong = np.flatnonzero(~((parts >= 0) & (parts <= wholes)))
    if wrong.size:
        raise InputError(f"parts[{wrong[0]}] = {parts[wrong[0]]} is no part of wholes[{wrong[0]}] = {wholes[wrong[0]]}")
    share = float(_share_of_sums(parts, wholes))
    if len(parts) == 1 or not np.ptp(parts * wholes.sum() - parts.sum() * wholes):
        low, high = constant_interval(share, len(parts))
    else:
        low, high = _bootstrap((parts, wholes), _share_of_sums, seed, _CONFIDENCE, _NUM_RESAMPLES)
    return Summary(mean=share, low=min(low, share), high=max(high, share), n=len(parts))


def _bootstrap(
    sample: tuple[np.ndarray, ...], statistic: Callable, seed: int, confidence: float, num_resamples: int
) -> tuple[float, float]:
    """BCa interval of a statistic of one or more values a unit; units are drawn."""
    from scipy import stats  # here, as below: it takes longer to import than what is not measured takes in all

    interval = stats.bootstrap(
        sample,
        statistic,
        n_resamples=num_resamples,
        confidence_level=confidence,
        method="BCa",
        paired=len(sample) > 1,
        batch=max(1, _BATCH_ELEMENTS // len(sample[0])),
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def _share_of_sums(parts: np.ndarray, wholes: np.ndarray, axis: int = -1) -> np.ndarray | np.floating:
    whole = np.sum(wholes, axis=axis)
    return np.sum(parts, axis=axis) / np.where(whole, whole, 1)


def constant_interval(
    value: float, n: int, *, confidence: float = _CONFIDENCE, bounds: tuple[float, float] = (0.0, 1.0)
) -> tuple[float, float]:
    """Interval of a mean when all `n` observed values equal `value`.

        u = z^2 / (n + z^2),   low = value - u * (value - bounds[0]),   high = value + u * (bounds[1] - value)

    `u` is Wilson's upper limit for a share of which 0 of `n` were seen: the share of questions that may yet have
    another value, each of them as far off as `bounds` allow. For 0 of n and n of n this is the Wilson interval.
    """
    from scipy import special

    z = special.ndtri(0.5 + confidence / 2)
    unseen = z**2 / (n + z**2)
    return float(value - unseen * (value - bounds[0])), float(value + unseen * (bounds[1] - value))


def paired_difference(
    first: Float[np.ndarray, " n"],
    second: Float[np.ndarray, " m"],
    *,
    groups: Groups = None,
    seed: int = 0,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Difference:
    """Compare two methods on the same questions, question by question.

    The interval is the bootstrap of the differences (as `mean_interval`); the p-value is the two-sided sign-flip
    permutation test, exact when few questions differ (2^m <= 9,999), else from 9,999 draws. With
    groups the sum of each group's differences is flipped.

    Args:
        first: measure of the first method, one value a question.
        second: measure of the second method, the same questions in the same order (so m = n).
        groups: the document of each question; None takes questions as independent.
        bounds: smallest and largest value that the measure can take.
    """
    if len(first) != len(second):
        raise InputError(f"a paired comparison needs the same questions twice, got {len(first)} and {len(second)}")
    _check_values("first", first, bounds)
    _check_values("second", second, bounds)
    differences = np.asarray(first, np.float64) - second
    width = bounds[1] - bounds[0]
    interval = mean_interval(differences, groups=groups, seed=seed, bounds=(-width, width))
    flipped = differences if groups is None else _sums_by_group(differences, groups)[0]
    return Difference(
        interval.mean,
        interval.low,
        interval.high,
        _sign_flip_p_value(flipped, seed),
        interval.n,
        better=int((differences > _SAME).sum()),
        worse=int((differences < -_SAME).sum()),
    )


def no_harm(
    first: Float[np.ndarray, " n"],
    second: Float[np.ndarray, " m"],
    margin: float,
    *,
    groups: Groups = None,
) -> Harm:
    """Tests whether the first method loses at most `margin` against the second (non-inferiority, at 5%).

    A larger loss is excluded if the lower end of the 90% interval of the paired difference (its one-sided 95% limit)
    is above `-margin`. Unchanged questions carry no evidence: with fewer than `FEWEST_CHANGED` changed ones nothing
    is tested. With groups, groups with a changed sum are counted.

    Args:
        first: the method that may do harm, one value a question.
        second: values of the other method, for the same questions in the same order (so m = n).
        margin: the loss that nobody minds, above 0, in the measure's own unit.
        groups: as of `paired_difference`.

    Returns:
        The paired difference with its 95% interval, the one-sided limit (`lowest`), and the verdict.
    """
    if not margin > 0:
        raise InputError(f"margin = {margin} must be above 0: no test excludes every loss")
    difference = paired_difference(first, second, groups=groups)
    differences = np.asarray(first, np.float64) - second
    limits = mean_interval(differences, groups=groups, confidence=1 - 2 * LEVEL, bounds=(-1.0, 1.0))
    units = differences if groups is None else _sums_by_group(differences, groups)[0]
    changed = int((np.abs(units) > _SAME).sum())
    if changed < FEWEST_CHANGED:
        verdict = "untested"
    elif limits.low > -margin:
        verdict = "none"
    else:
        verdict = "harm" if difference.is_significant and difference.mean < 0 else "not excluded"
    return Harm(difference, limits.low, verdict)


def over_seeds(runs: Sequence[Summary], *, bounds: tuple[float, float] = (0.0, 1.0)) -> Summary:
    """Mean of runs that differ in their seed alone, with an interval for other questions and other seeds.

        m = mean_s m_s
        low = m - sqrt( mean_s (m_s - low_s)^2 + (t * sd_s(m_s) / sqrt(S))^2 ),   high likewise

    `low_s` is the lower end of each run's interval over questions; t is Student's with S - 1 degrees of freedom. The
    first term covers other questions (of one run, so it is at least that of the mean), the second other seeds. With
    one run, the result is its interval; `n` is the number of questions.

    Args:
        runs: mean and 95% interval over questions of each run, all on the same questions.
        bounds: smallest and largest value that the measure can take; ends beyond them are cut.
    """
    found = np.array([(run.mean, run.low, run.high) for run in runs], np.float64).reshape(-1, 3)
    if not len(found) or not np.isfinite(found).all():
        raise InputError(f"a mean over seeds needs runs with finite numbers, got {list(runs)}")
    means, lows, highs = found.T
    _check_values("means", means, bounds)
    mean, num_seeds = float(means.mean()), len(means)
    by_seed = 0.0
    if num_seeds > 1:
        from scipy import special

        t = special.stdtrit(num_seeds - 1, 0.5 + _CONFIDENCE / 2)
        by_seed = t * means.std(ddof=1) / np.sqrt(num_seeds)
    below, above = (float(np.hypot(np.sqrt(np.mean((ends - means) ** 2)), by_seed)) for ends in (lows, highs))
    low, high = max(mean - below, bounds[0]), min(mean + above, bounds[1])
    return Summary(mean, low, high, runs[0].n)


def holm_p_values(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for the number m of p-values, in their order.

    p_holm of the p-value of rank k (from 0, smallest first) = max over ranks j <= k of min(1, (m - j) * p_j)
    """
    for index, p_value in enumerate(p_values):
        if not 0 <= p_value <= 1:
            raise InputError(f"p_values[{index}] = {p_value} is outside [0, 1]")
    largest, corrected = 0.0, [0.0] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def _sign_flip_p_value(differences: Float[np.ndarray, " n"], seed: int) -> float:
    # Equal questions stay equal under every flip: without them the test is the same and often exact.
    changed = differences[np.abs(differences) > _SAME]
    if changed.size < 2:  # no flip at all, or one whose both signs are equally far from 0
        return 1.0
    from scipy import stats

    test = stats.permutation_test(
        (changed,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=_NUM_RESAMPLES,
        batch=max(1, _BATCH_ELEMENTS // changed.size),
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def _sums_by_group(
    values: Float[np.ndarray, " n"], groups: Sequence[str]
) -> tuple[Float[np.ndarray, " g"], Float[np.ndarray, " g"]]:
    """The sum and the number of values of each group."""
    if len(groups) != len(values):
        raise InputError(f"groups: {len(groups)} for {len(values)} values; give the document of each question")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    if len(numbers) < 2:
        raise InputError(
            f"groups: all questions are of {next(iter(numbers))!r}; one document has no interval by document"
        )
    place = np.array([numbers[name] for name in groups])
    return np.bincount(place, weights=values), np.bincount(place).astype(np.float64)


def _check_values(name: str, values: Float[np.ndarray, " n"], bounds: tuple[float, float]) -> None:
    if len(values) == 0:
        raise InputError(f"{name} is empty: a mean needs at least one question")
    wrong = np.flatnonzero(~((values >= bounds[0] - _SAME) & (values <= bounds[1] + _SAME)))
    if wrong.size:
        raise InputError(f"{name}[{wrong[0]}] = {values[wrong[0]]} is outside [{bounds[0]}, {bounds[1]}]")
