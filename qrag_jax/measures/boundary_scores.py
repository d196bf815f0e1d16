"""How well one cut of a text agrees with another: Pk, WindowDiff, and precision, recall and F1 of the boundaries.

A segmentation of n units (sentences) is a mask over the n - 1 gaps between neighbours: `gaps[i]` says that a segment
ends with unit i and the next one begins with unit i + 1. The two ends of the text are no gaps and never count.

Pk and WindowDiff slide a probe of k gaps over the text, as published (Beeferman et al. 1999; Pevzner and Hearst 2002,
both with n - k probes). NLTK's functions give the same numbers when they are handed the gaps as a string and the same
k; its own default, `len / (2 * boundaries)`, leaves the last segment out of the mean. segeval's numbers are ours,
default k included. Neither end is padded (Lamprier et al. 2007 do), so a boundary within k gaps of an end is seen by
fewer probes than one in the middle.

Points of documents are scored by F1 of each level, Pk and WindowDiff. Sentence 0 begins every document, with a point or
without one, so a point there counts for nothing: neither as found nor as missed. All others count at their exact
sentence.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from qrag_jax.chunking.tree.boundaries import Point
from qrag_jax.measures.aggregate import Summary, ratio_interval
from qrag_jax.types import InputError

_SMALLEST_WINDOW = 2  # with 1, Pk and WindowDiff are both the share of gaps that differ


@dataclass(frozen=True)
class SegmentationScore:
    """Agreement of one segmentation with its reference.

    Attributes:
        pk: share of probes that see one segment in one of the two and several in the other; 0 is best.
        window_diff: share of probes that see another number of boundaries; 0 is best, never below `pk`.
        precision: share of the predicted boundaries that are right.
        recall: share of the reference's boundaries that were found.
        f1: harmonic mean of the two, exact positions only: a near miss counts as one missed and one wrong boundary.
    """

    pk: float
    window_diff: float
    precision: float
    recall: float
    f1: float


def gaps_of_segments(segments: Sequence[int] | Int[np.ndarray, " n"]) -> Bool[np.ndarray, " gaps"]:
    """Gaps of a segment (or cluster) number a unit: a boundary wherever two neighbours have different ones.

    Segments that are not contiguous, as clusters may be, so have a boundary each time the text changes between them.
    """
    ids = np.asarray(segments)
    if ids.size == 0:
        raise InputError("segments is empty: a segmentation has at least one unit")
    return ids[1:] != ids[:-1]


def gaps_of_starts(starts: Iterable[int] | Int[np.ndarray, " k"], num_units: int) -> Bool[np.ndarray, " gaps"]:
    """Gaps of the set of units that begin a segment; unit 0 always does and may be left out."""
    if num_units < 1:
        raise InputError(f"num_units {num_units}: a segmentation has at least one unit")
    gaps = np.zeros(num_units, bool)
    for start in starts:
        if not 0 <= start < num_units:
            raise InputError(f"starts: {start} is no unit, they run from 0 to {num_units - 1}")
        gaps[start] = True
    return gaps[1:]


def window_size(reference: Bool[np.ndarray, " gaps"]) -> int:
    """The usual k: half the mean length of the reference's segments.

        k = round(n / (2 * segments)),   n = gaps + 1,   segments = boundaries + 1

    A half is rounded to the even number, and k is at least 2, both as in segeval; it is at most the number of gaps.
    """
    mean = (reference.size + 1) / (int(reference.sum()) + 1)
    return min(max(_SMALLEST_WINDOW, round(mean / 2)), reference.size)


def pk(reference: Bool[np.ndarray, " gaps"], predicted: Bool[np.ndarray, " others"], k: int | None = None) -> float:
    """Pk: how often two units at distance k are together in one segmentation and apart in the other.

        Pk = 1 / (n - k) * sum_i [ (b_ref(i, i + k) > 0) != (b_pred(i, i + k) > 0) ],   i = 0 .. n - k - 1

    `b(i, j)` is the number of boundaries between units i and j. A text of one unit has no probe and scores 0.

    Args:
        reference: gaps of the right segmentation.
        predicted: gaps of the one to judge.
        k: distance in units; None is `window_size(reference)`.
    """
    ref, pred = _probes(reference, predicted, k)
    return _share((ref > 0) != (pred > 0))


def window_diff(
    reference: Bool[np.ndarray, " gaps"], predicted: Bool[np.ndarray, " others"], k: int | None = None
) -> float:
    """WindowDiff: how often a window of k gaps holds another number of boundaries.

        WD = 1 / (n - k) * sum_i [ b_ref(i, i + k) != b_pred(i, i + k) ],   i = 0 .. n - k - 1

    Arguments, edges and errors as of `pk`.
    """
    ref, pred = _probes(reference, predicted, k)
    return _share(ref != pred)


def boundary_f1(
    reference: Bool[np.ndarray, " gaps"], predicted: Bool[np.ndarray, " others"]
) -> tuple[float, float, float]:
    """Precision, recall and F1 of boundaries at exact positions.

    A share of nothing is 1 where there was nothing to find or nothing was claimed in either, else 0: no boundary
    against no boundary is a perfect 1, and none against some, or some against none, has F1 = 0.
    """
    _check_same_size(reference, predicted)
    right, found, wanted = (int(mask.sum()) for mask in (reference & predicted, predicted, reference))
    if not found and not wanted:
        return 1.0, 1.0, 1.0
    return right / max(1, found), right / max(1, wanted), 2 * right / (found + wanted)


def score_segmentation(
    reference: Bool[np.ndarray, " gaps"], predicted: Bool[np.ndarray, " others"], k: int | None = None
) -> SegmentationScore:
    """All measures of one text; see `pk`, `window_diff` and `boundary_f1`."""
    precision, recall, f1 = boundary_f1(reference, predicted)
    return SegmentationScore(pk(reference, predicted, k), window_diff(reference, predicted, k), precision, recall, f1)


def _probes(reference: np.ndarray, predicted: np.ndarray, k: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Boundaries in every window of k gaps, of both; none where the text has no gap."""
    _check_same_size(reference, predicted)
    if k is None:
        k = window_size(reference)
    elif not 1 <= k <= max(1, reference.size):
        raise InputError(f"k {k}: choose 1 to {max(1, reference.size)}, the number of gaps")
    return _counts(reference, k), _counts(predicted, k)


def _counts(gaps: np.ndarray, k: int) -> np.ndarray:
    before = np.concatenate([[0], np.cumsum(gaps)])
    return before[k:] - before[:-k] if gaps.size else before[:0]


def _share(differ: np.ndarray) -> float:
    return float(differ.mean()) if differ.size else 0.0


def _check_same_size(reference: np.ndarray, predicted: np.ndarray) -> None:
    if reference.size != predicted.size:
        raise InputError(
            f"two segmentations of the same units are needed, got {reference.size + 1} and {predicted.size + 1} units"
        )


LEVELS = (1, 2)  # that have an F1 of their own


@dataclass(frozen=True)
class Judged:
    """The points of one document, right ones and those of a method.

    Attributes:
        num_sentences: of the document.
        gold: (sentence, level) of its sections.
        predicted: those of the method.
    """

    num_sentences: int
    gold: Sequence[Point]
    predicted: Sequence[Point]


@dataclass(frozen=True)
class PointsScore:
    """Scores of one method on some documents.

    Attributes:
        f1: level -> micro F1 over documents of the points of that level, sentence and level both right. Where there is
            none and none was predicted it is 0.
        f1_any: the same of all points, whatever their levels, with a 95% bootstrap interval over documents.
        pk: mean over documents of `measures/boundary_scores.py:pk`; 0 is best.
        window_diff: as `pk`.
        n_points: right ones of all documents, those at sentence 0 left out.
    """

    f1: Mapping[int, float]
    f1_any: Summary
    pk: float
    window_diff: float
    n_points: int


def score_points(documents: Sequence[Judged], *, seed: int = 0) -> PointsScore:
    """Scores points at exact sentences.

        F1 = 2 * sum_d right_d / sum_d (gold_d + predicted_d)

    Args:
        documents: at least one.
    """
    if not documents:
        raise InputError("documents is empty: points are scored on at least one")
    gaps = [(_gaps(one.gold, one), _gaps(one.predicted, one)) for one in documents]
    counts = count_points(documents)
    return PointsScore(
        {level: micro_f1(count_points(documents, level)) for level in LEVELS},
        ratio_interval(2 * counts[:, 0], counts[:, 1] + counts[:, 2], seed=seed),
        float(np.mean([pk(*pair) for pair in gaps])),
        float(np.mean([window_diff(*pair) for pair in gaps])),
        int(counts[:, 1].sum()),
    )


def count_points(documents: Sequence[Judged], level: int | None = None) -> Int[np.ndarray, "documents 3"]:
    """For each document the points that are right, that should be there, and that are predicted.

    Args:
        level: only points of this level; None takes all, and asks no level of them.
    """

    def kept(points: Sequence[Point]) -> set[int]:
        return {sentence for sentence, its_level in points if sentence and level in (None, its_level)}

    pairs = [(kept(one.gold), kept(one.predicted)) for one in documents]
    rows = [(len(gold & predicted), len(gold), len(predicted)) for gold, predicted in pairs]
    return np.array(rows, np.int64).reshape(-1, 3)


def micro_f1(counts: Int[np.ndarray, "documents 3"]) -> float:
    """F1 of the sums of `count_points` over documents; 0 where nothing is there and nothing predicted."""
    right, gold, predicted = counts.sum(axis=0).tolist()
    return 2 * right / (gold + predicted) if gold + predicted else 0.0


def _gaps(points: Sequence[Point], document: Judged) -> np.ndarray:
    return gaps_of_starts([sentence for sentence, _ in points], document.num_sentences)
