"""Pseudo-labels of plans: the range of levels that a question needs, from evidence or from a model's answers.

From evidence:  label(q) = argmin_i cost_i over the ranges i whose context at the budget contains the evidence of q
From answers:   retrieve, answer, check; if right, the label is the levels of what was retrieved; else widen and repeat

A question without a label is dropped and counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.llm.prompts import load_prompt, passages_prompt
from qrag_jax.search.context.pack import Budget, fill_context
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.types import Sampling, TextGenerator

# Reasons for a question without a label.
NOT_HELD = "no range whose context holds the evidence"
NOT_ANSWERED = "no right answer from any range"
CALL_FAILED = "call failed"
_MAX_NODES = 200  # of a range, ranked for a context
_SLACK = 1e-9  # tolerance of a recall, a sum of floats


@dataclass(frozen=True)
class PlanLabels:
    """The range of each question, None if it was dropped, and the number dropped by reason."""

    ranges: tuple[LevelRange | None, ...]
    dropped: dict[str, int]


@dataclass(frozen=True)
class Tried:
    """The result of a question in a range.

    Attributes:
        is_right: whether the answer was right; None if the call failed.
        found: the levels of the retrieved nodes, from the coarsest to the finest.
    """

    is_right: bool | None
    found: LevelRange


# (positions of questions, the range of each) -> their results.
Trial = Callable[[Sequence[int], Sequence[LevelRange]], Sequence[Tried]]


def cheapest_ranges(
    recall: Float[np.ndarray, "n r"],
    cost: Float[np.ndarray, "n r"],
    ranges: Sequence[LevelRange],
) -> PlanLabels:
    """The cheapest range of each question whose context contains its evidence; the narrower of equally cheap ones.

    Args:
        recall: evidence recall of the context of every range at the budget.
        cost: of every range for every question (`search/levels/planners.py:plan_cost`).
    """
    width = np.array([one.most - one.least for one in ranges])
    holds = recall >= 1 - _SLACK
    order = np.lexsort((np.broadcast_to(width, cost.shape), np.where(holds, cost, np.inf)), axis=1)
    rows = enumerate(order[:, 0].tolist())
    found = [ranges[best] if holds[row].any() else None for row, best in rows]
    return _labels(found, {NOT_HELD: found.count(None)})


def answered_ranges(num_questions: int, num_levels: int, start: LevelRange, trial: Trial) -> PlanLabels:
    """Labels from answers: all open questions are tried together, then each range grows by a level at both ends.

    Args:
        start: the first range.
    """
    found: list[LevelRange | None] = [None] * num_questions
    dropped = {NOT_ANSWERED: 0, CALL_FAILED: 0}
    waiting, now = list(range(num_questions)), start
    while waiting:
        is_full = now.least == 0 and now.most == num_levels - 1
        still = []
        for place, one in zip(waiting, trial(waiting, [now] * len(waiting)), strict=True):
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
        generator: of the answers; with a journal it repeats no finished call.
        is_right: (position of a question, answer) -> whether it is right.
        budget: of a context; with `cut_last` any node fits.
    """
    template, sampling = load_prompt("short_answer"), sampling or Sampling(max_tokens=60)

    def trial(places: Sequence[int], ranges: Sequence[LevelRange]) -> list[Tried]:
        prompts, found = [], []
        for place, levels in zip(places, ranges, strict=True):
            ranked = index.rank(questions[place], vectors[place], levels, _MAX_NODES)
            passages = fill_context(index.corpus, ranked, budget).passages
            own = [min(index.corpus.nodes[one.node].level, levels.most) for one in passages] or [levels.most]
            found.append(LevelRange(max(levels.least, min(own)), max(levels.least, max(own))))
            texts = [one.text for one in passages]
            prompts.append(passages_prompt(template, questions[place], texts, "labels"))
        answers = generator.generate(prompts, sampling=sampling)
        return [
            Tried(None if one.is_failed else is_right(place, one.text), levels)
            for place, one, levels in zip(places, answers, found, strict=True)
        ]

    return trial


def _labels(found: Sequence[LevelRange | None], dropped: dict[str, int]) -> PlanLabels:
    return PlanLabels(tuple(found), {reason: number for reason, number in dropped.items() if number})
