"""Points out of strategies that cut a text flat, and at equal lengths: what a source of points is compared with."""

from collections.abc import Sequence

import numpy as np

from qrag_jax.chunking.text.chunks import SentenceText, Strategy
from qrag_jax.chunking.tree.points import Point, PredictPoints
from qrag_jax.types import UsageError


def strategy_points(strategy: Strategy) -> PredictPoints:
    """The borders of a strategy that groups whole sentences as points of level 1.

    Where groups are not contiguous, as clusters may be, a point stands wherever two neighbours are in different ones.
    """
    return lambda texts: [_borders(text, strategy) for text in texts]


def _borders(text: SentenceText, strategy: Strategy) -> list[Point]:
    group_of = {span: number for number, group in enumerate(strategy(text)) for span in group.spans}
    labels = np.array([group_of[span] for span in text.sentences])
    return [(int(i) + 1, 1) for i in np.flatnonzero(labels[1:] != labels[:-1])]


def equal_points(num_sentences: int) -> PredictPoints:
    """A point of level 1 after every so many sentences."""
    if num_sentences < 1:
        raise UsageError(f"num_sentences {num_sentences}: a part has at least 1 sentence")

    def predict(texts: Sequence[SentenceText]) -> list[list[Point]]:
        return [[(i, 1) for i in range(num_sentences, len(text), num_sentences)] for text in texts]

    return predict
