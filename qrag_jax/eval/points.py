"""How well predicted points are those of a document's sections: F1 by level, Pk and WindowDiff.

Sentence 0 begins every document, with a point or without one, so a point there counts for nothing: neither as found nor
as missed. All others count at their exact sentence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from qrag_jax.chunking.tree.points import Point
from qrag_jax.eval.measures.aggregate import Summary, ratio_interval
from qrag_jax.eval.measures.segmentation import gaps_of_starts, pk, window_diff
from qrag_jax.types import InputError

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
        pk: mean over documents of `eval/measures/segmentation.py:pk`; 0 is best.
        window_diff: likewise.
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
