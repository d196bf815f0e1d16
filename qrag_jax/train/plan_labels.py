"""Pseudo-labels of plans: which range of levels a question needs, from evidence or from a language model's answers.

Of evidence:  label(q) = argmin_i cost_i over the ranges i whose context at the budget holds the evidence of q
Of answers:   retrieve, answer, check; if it is right, the levels of what was retrieved; else widen, and again

A question for which nothing is found has no label, and is dropped and counted. Splits are by document
(`retrieval/router_fit.py:deal_groups`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from qrag_jax.chunking.tree.levels import LevelRange
from qrag_jax.llm.prompts import load_prompt, passages_prompt
from qrag_jax.retrieval.context.fill import Budget, fill_context
from qrag_jax.retrieval.index.levels import LevelIndex
from qrag_jax.types import InputError, Sampling, TextGenerator

# Why a question has no label.
NOT_HELD = "no range whose context holds the evidence"
NOT_ANSWERED = "no right answer from any range"
CALL_FAILED = "call failed"
_MOST_NODES = 200  # of a range that are ranked for a context
_SLACK = 1e-9  # of a recall: sums of floats


@dataclass(frozen=True)
class PlanLabels:
    """The range of each question, None where it was dropped, and how many were by reason."""

    ranges: tuple[LevelRange | None, ...]
    dropped: dict[str, int]


@dataclass(frozen=True)
class Tried:
    """What became of a question in a range.

    Attributes:
        is_right: the answer was right; None: the call failed.
        found: the levels of what was retrieved, from the coarsest to the finest.
    """

    is_right: bool | None
    found: LevelRange


# (places of questions, the range of each) -> what became of them.
Trial = Callable[[Sequence[int], Sequence[LevelRange]], Sequence[Tried]]


def cheapest_ranges(
    recall: Float[np.ndarray, "n r"],
    cost: Float[np.ndarray, "n r"],
    ranges: Sequence[LevelRange],
    *,
    least_recall: float = 1.0,
) -> PlanLabels:
    """The cheapest range of each question whose context holds its evidence; of equally cheap ones the narrower.

    Args:
        recall: evidence recall of the context of every range at the budget.
        cost: of every range for every question (`retrieval/planning.py:plan_cost`).
        least_recall: that counts as holding the evidence, in (0, 1].
    """
    if not 0 < least_recall <= 1:
        raise InputError(f"least_recall {least_recall}: above 0, at most 1 (all of the evidence)")
    if not np.isfinite(cost).all():
        raise InputError("cost: must be finite")
    if (wrong := np.argwhere(~((recall >= 0) & (recall <= 1 + _SLACK)))).size:
        row, column = wrong[0].tolist()
        raise InputError(f"recall[{row}, {column}] = {recall[row, column]} is outside [0, 1]")
    width = np.array([one.most - one.least for one in ranges])
    holds = recall >= least_recall - _SLACK
    order = np.lexsort((np.broadcast_to(width, cost.shape), np.where(holds, cost, np.inf)), axis=1)
    rows = enumerate(order[:, 0].tolist())
    found = [ranges[best] if holds[row].any() else None for row, best in rows]
    return _labels(found, {NOT_HELD: found.count(None)})


def answered_ranges(num_questions: int, num_levels: int, start: LevelRange, trial: Trial) -> PlanLabels:
    """Labels by answers: all open questions are tried together, then each range grows by a level at both ends.

    Args:
        start: range that is tried first.
    """
    if start.most >= num_levels:
        raise InputError(f"start: levels {start.least} to {start.most}: there are {num_levels}, from 0")
    found: list[LevelRange | None] = [None] * num_questions
    dropped = {NOT_ANSWERED: 0, CALL_FAILED: 0}
    waiting, now = list(range(num_questions)), start
    while waiting:
        outcomes = trial(waiting, [now] * len(waiting))
        if len(outcomes) != len(waiting):
            raise InputError(f"trial: {len(outcomes)} outcomes of {len(waiting)} questions")
        is_full = now.least == 0 and now.most == num_levels - 1
        still = []
        for place, one in zip(waiting, outcomes, strict=True):
            if one.is_right:
                found[place] = one.found
            elif one.is_right is None:
                dropped[CALL_FAILED] += 1
            elif is_full:
                dropped[NOT_ANSWERED] += 1
            else:
                still.append(place)
        waiting, now = still, LevelRange(max(0, now.least - 1), min(num_levels - 1, now.most + 1))
    return _labels(found, dropped)


def make_trial(
    index: LevelIndex,
    questions: Sequence[str],
    vectors: Float[np.ndarray, "questions dim"],
    generator: TextGenerator,
    is_right: Callable[[int, str], bool],
    budget: Budget,
    sampling: Sampling | None = None,
) -> Trial:
    """A trial over an index: the best nodes of a range, an answer from them, and a check.

    Args:
        generator: of the answers; with a journal around it no finished call is made again.
        is_right: (place of a question, answer) -> whether it is right.
        budget: of a context; one that cuts the last node can hold any.
    """
    template, sampling = load_prompt("short_answer"), sampling or Sampling(max_tokens=60)

    def trial(places: Sequence[int], ranges: Sequence[LevelRange]) -> list[Tried]:
        prompts, found = [], []
        for place, levels in zip(places, ranges, strict=True):
            ranked = index.rank(questions[place], vectors[place], levels, _MOST_NODES)
            passages = fill_context(index.corpus, ranked, budget).passages
            own = [min(index.corpus.nodes[one.node].level, levels.most) for one in passages] or [levels.most]
            found.append(LevelRange(max(levels.least, min(own)), max(levels.least, max(own))))
            texts = [one.text for one in passages]
            prompts.append(passages_prompt(template, questions[place], texts, "labels"))
        answers = generator.generate(prompts, sampling=sampling)
        return [
            Tried(None if one.error is not None else is_right(place, one.text), levels)
            for place, one, levels in zip(places, answers, found, strict=True)
        ]

    return trial


def _labels(found: Sequence[LevelRange | None], dropped: dict[str, int]) -> PlanLabels:
    return PlanLabels(tuple(found), {reason: number for reason, number in dropped.items() if number})
