"""Stop protocols: how many picks of a retrieval count, and the calibration of a threshold on Q (Q-RAG, appendix B).

A retriever plays all T steps; a protocol keeps the first few picks of every question:

    fixed       all T
    threshold continues while Q_t >= threshold, which was calibrated on other questions
    stop stops at the learned STOP of the retriever (`pickers.Picked`)
    oracle stops when the gold set is complete: it reads the labels, so it is a bound, not a method

Rows of different protocols are never mixed: fact F1 rewards a short answer, so it says little without the protocol.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.measures.facts import NOT_TAKEN, FactScores, score_facts
from qrag_jax.types import InputError, UsageError

_LARGEST = 1e100  # a larger score is no Q value, and sums of two would overflow
_SAME_F1 = 1e-9  # mean F1 values nearer than this are equal: sums in another order


@dataclass(frozen=True)
class Calibration:
    """A threshold, and its scores on the `n` questions that it was fitted on (not a result to report)."""

    threshold: float
    fact_f1: float
    fact_em: float
    n: int


def kept_by_threshold(scores: Float[np.ndarray, "n T"], threshold: float, least: int = 1) -> Int[np.ndarray, " n"]:
    """Picks that a threshold keeps: all before the first t with `Q_t < threshold`, a pick at the threshold included.

    Args:
        scores: value that each pick was taken by, in order of retrieval.
        threshold: may be infinite: -inf keeps all T picks, inf keeps `least`.
        least: picks that are kept whatever their scores are. By default 1, as an empty answer helps nobody; 0 is the
            rule of appendix B.

    Returns:
        Numbers in [least, T].
    """
    check_scores(scores)
    # float64 first: NumPy would round a Python float to the scores' float32.
    passes = np.logical_and.accumulate(scores.astype(np.float64) >= threshold, axis=1)
    return np.maximum(passes.sum(axis=1), least)


def kept_by_oracle(chosen: Int[np.ndarray, "n T"], gold: Bool[np.ndarray, "n M"]) -> Int[np.ndarray, " n"]:
    """Picks until all gold is taken, and T where it never is. Looks at the labels: a bound, never a method.

    No rule on the same picks has a higher fact EM, and none that loses no gold chunk a higher fact F1. A rule that
    gives up a gold chunk which comes late can exceed its F1: hits at steps 1 and 5 of 2 facts give 4/7, stopping
    after the first gives 2/3.
    """
    earliest = earliest_complete(chosen, gold)
    return np.where(earliest > 0, earliest, chosen.shape[1])


def earliest_complete(chosen: Int[np.ndarray, "n T"], gold: Bool[np.ndarray, "n M"]) -> Int[np.ndarray, " n"]:
    """`t_earliest` of appendix B: the number of picks after which all gold chunks are taken, 0 where they never are.

    0 is free for that: every question has a gold chunk, so no set is complete before the first pick.
    """
    complete = hits(chosen, gold).cumsum(axis=1) == gold.sum(axis=1)[:, None]
    return np.where(complete.any(axis=1), complete.argmax(axis=1) + 1, 0)


def keep(chosen: Int[np.ndarray, "n T"], num_kept: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n T"]:
    """The picks with `NOT_TAKEN` after the first `num_kept` of every question."""
    behind = np.arange(chosen.shape[1]) >= num_kept[:, None]
    return np.where(behind, np.asarray(NOT_TAKEN, chosen.dtype), chosen)


def scores_by_budget(chosen: Int[np.ndarray, "n T"], gold: Bool[np.ndarray, "n M"]) -> list[FactScores]:
    """Fact measures after 0, 1, ..., T picks: T + 1 entries."""
    each = np.ones(len(chosen), np.int64)
    return [score_facts(keep(chosen, each * budget), gold) for budget in range(chosen.shape[1] + 1)]


def calibrate_threshold(
    chosen: Int[np.ndarray, "n T"],
    scores: Float[np.ndarray, "n T"],
    gold: Bool[np.ndarray, "n M"],
    least: int = 1,
) -> Calibration:
    """The threshold with the best mean set F1 on these questions, found among all that behave differently.

    Pick t is kept iff the smallest score up to it, `min(Q_1..Q_t)`, is at least the threshold. So the mean F1 changes
    only at these minima, by the change in F1 of the questions with a pick at that minimum. One sort and one running
    sum give its value between any two neighbouring minima.

    The threshold is put midway between the two minima that bound the best F1. Neighbouring pieces of equal F1 (to
    1e-9) count as one piece; of several best pieces the widest is taken, as it leaves most room to other questions,
    and of equally wide ones the one with the higher threshold, which keeps fewer chunks. The pieces beyond the
    smallest and the largest minimum have one bound: they count as wide as the mean gap (as the number itself, at
    least 1, where all minima are equal). So the threshold is finite, and depends on no order of the questions.

    Args:
        chosen: the picks of all T steps, in order of retrieval.
        scores: the values that they were taken by.
        gold: True at the chunks that answer the question.
        least: as in `kept_by_threshold`; the threshold is best for this `least` only.
    """
    check_scores(scores)
    f1 = np.stack([entry.f1 for entry in scores_by_budget(chosen, gold)], axis=1)
    gains = np.diff(f1, axis=1)
    gains[:, :least] = 0  # kept by every threshold: their minima are bounds, but change nothing
    minima, added = sums_by_minimum(scores, gains)
    start = f1[:, least].sum()
    # Piece k holds the thresholds above minima[k] and up to minima[k - 1]: it keeps the picks of the k largest minima.
    f1_of_piece = (start + np.concatenate([[0.0], np.cumsum(added)])) / len(chosen)
    threshold = _middle_of_widest(f1_of_piece >= f1_of_piece.max() - _SAME_F1, minima)
    reached = score_facts(keep(chosen, kept_by_threshold(scores, threshold, least)), gold)
    return Calibration(threshold, float(reached.f1.mean()), float(reached.em.mean()), len(chosen))


def sums_by_minimum(
    scores: Float[np.ndarray, "n T"], values: Float[np.ndarray, "n T"]
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Distinct running minima of the scores, largest first, and for each the sum of `values` over its picks.

    A threshold keeps the picks whose running minimum is at least the threshold: a running sum over this list is the
    sum over what thresholds keep, from strict to lax.
    """
    minima, inverse = np.unique(np.minimum.accumulate(scores.astype(np.float64), axis=1), return_inverse=True)
    sums = np.bincount(inverse.ravel(), weights=values.ravel(), minlength=len(minima))
    return minima[::-1], sums[::-1]


def check_apart(fitted_on: Collection[str], reported: Sequence[str]) -> None:
    """A threshold is never fitted on the split that it reports: refuses questions that are in both.

    Args:
        fitted_on, reported: fingerprints of questions; opaque texts, equal for equal questions.
    """
    if not fitted_on:
        raise UsageError("the threshold does not say which questions it was fitted on: calibrate it again")
    known = frozenset(fitted_on)
    shared = [fingerprint for fingerprint in reported if fingerprint in known]
    if shared:
        raise UsageError(
            f"the threshold was fitted on {len(shared)} of the {len(reported)} questions to report, {shared[0]!r} "
            "first: calibrate on the dev split and report another one"
        )


def hits(chosen: Int[np.ndarray, "n T"], gold: Bool[np.ndarray, "n M"]) -> Bool[np.ndarray, "n T"]:
    """True at the picks that are gold, of a run of all T steps."""
    return np.take_along_axis(gold, chosen, axis=1)


def check_scores(scores: Float[np.ndarray, "n T"]) -> None:
    """Refuses scores that are not finite numbers."""
    wrong = np.argwhere(~(np.abs(scores.astype(np.float64)) < _LARGEST))
    if len(wrong):
        row, step = (int(i) for i in wrong[0])
        raise InputError(f"question {row}, step {step}: score {scores[row, step]} must be finite and below {_LARGEST}")


def _middle_of_widest(best: Bool[np.ndarray, " k_plus_1"], minima: Float[np.ndarray, " k"]) -> float:
    """The middle of the widest sequence of `best` pieces; piece k is between `minima[k]` and `minima[k - 1]`."""
    gap = (minima[0] - minima[-1]) / (len(minima) - 1) if len(minima) > 1 else max(1.0, abs(minima[0]))
    above = max(minima[0] + gap, np.nextafter(minima[0], np.inf))
    bounds = np.concatenate([[above], minima, [minima[-1] - gap]])  # piece k: above bounds[k + 1], up to bounds[k]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], best, [False]])))
    first, end = edges[::2], edges[1::2]  # runs of pieces [first, end)
    widest = int(np.argmax(bounds[first] - bounds[end]))  # the first of equals: the higher threshold
    high, low = float(bounds[first[widest]]), float(bounds[end[widest]])
    middle = low + (high - low) / 2
    return middle if low < middle <= high else high  # neighbouring floats have no middle: the upper one still belongs
