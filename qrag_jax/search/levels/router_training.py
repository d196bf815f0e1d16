"""Training of a router: ridge regression of the evidence recall of every range, with a limit on possible losses.

    weights = argmin_W |Y - Z W|^2 + strength * n * |W|^2        Z standardised, Y [n, ranges] centred

Strength and margin are chosen by cross-validation on the recall of the chosen ranges; groups of questions (of one
document) are held out together. A router leaves the fallback only if that gains more than one standard error over the
fallback on the same folds; otherwise its margin is infinite.

Pseudo-labels of plans: the range of levels that a question needs, from evidence or from a language model's answers.

From evidence:  label(q) = argmin_i cost_i over the ranges i whose context at the budget contains the evidence of q
From answers:   retrieve, answer, check; if right, the label is the levels of what was retrieved; else widen and repeat

A question without a label is dropped and counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges
from qrag_jax.llm.prompts import load_prompt, passages_prompt
from qrag_jax.names import FeaturesName
from qrag_jax.search.context.pack import Budget, fill_context
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.planners import Router, choose_ranges
from qrag_jax.types import InputError, Sampling, TextGenerator

_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
_MARGINS = (0.0, 0.01, 0.02, 0.05, 0.1)
_NUM_FOLDS = 5
_MIN_SCALE = 1e-9  # of a number that is the same for all questions


@dataclass(frozen=True)
class FittedRouter:
    """A router and the results of its cross-validation.

    Attributes:
        router: trained on all questions.
        strength: of the ridge.
        held_out: mean recall of the ranges chosen for held-out questions.
        fallback_held_out: mean recall of the best fixed range of the other folds, on the same questions.
        n: number of questions.
    """

    router: Router
    strength: float
    held_out: float
    fallback_held_out: float
    n: int


def deal_groups(groups: Sequence[str], num_folds: int, seed: int) -> Int[np.ndarray, " n"]:
    """The fold of every question: groups in random order, each into the fold with the fewest questions so far.

    Args:
        groups: the group of each question; a group stays in one fold.
        num_folds: from 2 to the number of groups.
        seed: of the order.
    """
    names, place, sizes = np.unique(np.array(groups), return_inverse=True, return_counts=True)
    fold_of, filled = np.zeros(len(names), np.int64), np.zeros(num_folds, np.int64)
    for group in np.random.default_rng(seed).permutation(len(names)).tolist():
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += sizes[group]
    return fold_of[place]


def fit_router(
    features: Float[np.ndarray, "n f"],
    recall: Float[np.ndarray, "n r"],
    groups: Sequence[str],
    ranges: Sequence[LevelRange],
    *,
    names: Sequence[str],
    kind: FeaturesName,
    fingerprint: str = "",
    seed: int = 0,
) -> FittedRouter:
    """Trains a router on the recall of every range for every question.

    Args:
        features: of the questions, of the kind `kind`.
        recall: evidence recall of every range at the budget, in [0, 1].
    """
    if len(set(groups)) < 2:
        raise InputError(
            f"router: {len(recall)} questions about {len(set(groups))} document; cross-validation needs questions "
            "about at least 2 documents, so add some"
        )
    folds = deal_groups(groups, min(_NUM_FOLDS, len(set(groups))), seed)
    fallback = np.array([recall[folds != fold].mean(axis=0).argmax() for fold in range(folds.max() + 1)])[folds]
    rows = np.arange(len(recall))
    base = recall[rows, fallback]
    best = (_STRENGTHS[-1], np.inf, base)
    for strength in reversed(_STRENGTHS):
        predicted = np.zeros_like(recall)
        for fold in range(folds.max() + 1):
            held = folds == fold
            mean, scale, weights, bias = ridge(features[~held], recall[~held], strength)
            predicted[held] = bias + ((features[held] - mean) / scale) @ weights
        for margin in reversed(_MARGINS):
            found = recall[rows, choose_ranges(predicted, fallback, margin)]
            if found.mean() > best[2].mean():
                best = (strength, margin, found)
    strength, margin, found = best
    gain = found - base
    if gain.mean() <= gain.std(ddof=1) / np.sqrt(len(gain)):
        strength, margin, found = strength, np.inf, base
    router = Router(
        kind,
        tuple(names),
        tuple(ranges),
        int(recall.mean(axis=0).argmax()),
        float(margin),
        *ridge(features, recall, strength),
        fingerprint,
    )
    return FittedRouter(router, float(strength), float(found.mean()), float(base.mean()), len(recall))


def ridge(
    features: Float[np.ndarray, "n f"], targets: Float[np.ndarray, "n r"], strength: float
) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, " f"], Float[np.ndarray, "f r"], Float[np.ndarray, " r"]]:
    """(mean, scale, weights, bias) of the module; a number that is the same for all questions has scale 1.

    With fewer questions than numbers, the weights are solved in their smaller dual form.
    """
    mean, scale, bias = features.mean(axis=0), features.std(axis=0), targets.mean(axis=0)
    scale = np.where(scale > _MIN_SCALE, scale, 1.0)
    z, y = ((features - mean) / scale).astype(np.float64), targets - bias
    num, dim = z.shape
    if num < dim:
        weights = z.T @ np.linalg.solve(z @ z.T + strength * num * np.eye(num), y)
    else:
        weights = np.linalg.solve(z.T @ z + strength * num * np.eye(dim), z.T @ y)
    return mean.astype(np.float64), scale.astype(np.float64), weights, bias


def fit_best_router(
    features: Mapping[FeaturesName, Float[np.ndarray, "n _"]],
    recall: Float[np.ndarray, "n r"],
    groups: Sequence[str],
    *,
    names: Sequence[str],
    fingerprint: str,
    seed: int,
) -> FittedRouter:
    """The router on the features with the highest held-out recall, the first of equal ones.

    Args:
        features: of the questions, by their kind.
        recall: of all ranges of the levels of these names.
    """
    fitted = [
        fit_router(own, recall, groups, all_ranges(names), names=names, kind=kind, fingerprint=fingerprint, seed=seed)
        for kind, own in features.items()
    ]
    return max(fitted, key=lambda one: one.held_out)


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
