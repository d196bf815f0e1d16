"""Fact measures: exact match, set F1, precision and recall of the chunks that a retriever picked.

Conventions, because the field has several: fact EM is 1 when the gold chunks are a *subset* of the picks (picks beyond
the gold do not cost EM, they cost F1); F1 is the set F1 of one question, averaged over questions (macro); precision of
an empty prediction is 0. Every question has at least one gold chunk.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.types import InputError

NOT_TAKEN = -1  # fills rows of `chosen` whose retriever stopped before the last step


@dataclass(frozen=True)
class FactScores:
    """Fact measures of `n` questions, one value a question, all in [0, 1] and in the order of the questions."""

    em: Float[np.ndarray, " n"]
    f1: Float[np.ndarray, " n"]
    precision: Float[np.ndarray, " n"]
    recall: Float[np.ndarray, " n"]
    num_gold: Int[np.ndarray, " n"]
    num_taken: Int[np.ndarray, " n"]

    @property
    def f1_ceiling(self) -> Float[np.ndarray, " n"]:
        """The best F1 that each question allows with as many picks as were taken for it."""
        return np.asarray(f1_ceiling(self.num_gold, self.num_taken))


def score_facts(chosen: Int[np.ndarray, "n T"], gold: Bool[np.ndarray, "n M"]) -> FactScores:
    """Fact measures of `n` questions at once.

    Args:
        chosen: indices of the picked chunks in their context, in any order; `NOT_TAKEN` (-1) where a retriever
            stopped early.
        gold: True at the chunks that answer the question. Contexts of unequal length are padded with False.

    Raises:
        InputError: a chunk is picked twice, an index is outside [0, M), or a question has no gold chunk.
    """
    _check_chosen(chosen, gold.shape[1])
    num_gold = gold.sum(axis=1)
    if not num_gold.all():
        row = int(np.flatnonzero(num_gold == 0)[0])
        raise InputError(f"question {row} has no gold chunk: leave out questions whose facts are not in the context")
    taken = chosen != NOT_TAKEN
    hits = (np.take_along_axis(gold, np.where(taken, chosen, 0), axis=1) & taken).sum(axis=1)
    num_taken = taken.sum(axis=1)
    return FactScores(
        em=(hits == num_gold).astype(np.float64),
        f1=2 * hits / (num_taken + num_gold),
        precision=hits / np.maximum(num_taken, 1),
        recall=hits / num_gold,
        num_gold=num_gold,
        num_taken=num_taken,
    )


def f1_ceiling(num_gold: int | Int[np.ndarray, " n"], num_steps: int | Int[np.ndarray, " n"]):
    """The largest set F1 that exactly `num_steps` distinct picks can reach.

        ceiling(g, T) = 2 * min(g, T) / (g + T)

    At most `min(g, T)` picks are hits, and F1 = 2 * hits / (g + T) grows with them. For T >= g this is 2g / (g + T):
    with two facts and three picks no retriever exceeds 0.8. For T < g it is 2T / (g + T).

    Args:
        num_gold: gold chunks of a question, at least 1.
        num_steps: picks, at least 0.

    Returns:
        A float, or float64 [n] when an argument is an array.
    """
    gold, steps = np.asarray(num_gold), np.asarray(num_steps)
    if (gold < 1).any() or (steps < 0).any():
        raise InputError(f"f1_ceiling needs num_gold >= 1 and num_steps >= 0, got {num_gold} and {num_steps}")
    ceiling = 2 * np.minimum(gold, steps) / (gold + steps)
    return float(ceiling) if ceiling.ndim == 0 else ceiling


def _check_chosen(chosen: Int[np.ndarray, "n T"], num_chunks: int) -> None:
    outside = (chosen < NOT_TAKEN) | (chosen >= num_chunks)
    if outside.any():
        row, step = (int(i) for i in np.argwhere(outside)[0])
        raise InputError(
            f"question {row}, pick {step}: chunk {chosen[row, step]} is outside the context of {num_chunks} chunks"
        )
    ranked = np.sort(chosen, axis=1)
    twice = (ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] != NOT_TAKEN)
    if twice.any():
        row, step = (int(i) for i in np.argwhere(twice)[0])
        raise InputError(f"question {row}: chunk {ranked[row, step]} occurs twice in the prediction")
