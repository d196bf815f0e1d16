"""When a threshold on Q stops: early, perfect or late, as a classifier of chunks, and by budget (Q-RAG, app. B and C).

One retrieval of T steps is cut at every threshold; nothing is played again. All numbers of a curve describe the
questions that it was computed on, so the best point of a curve is no result: a threshold to report with comes from
`protocols.calibrate_threshold` on other questions.

Which questions count: the shares of early, perfect and late stops are over the questions whose gold set the T steps
complete (for others no stop is right, and appendix B leaves them out); everything else is over all questions. With
`c` the share of complete questions, `fact_em = c * (perfect + late)`.

All chunks of a context with fewer than T chunks are picked. Its remaining steps point at slots beyond its chunks,
where gold is False; such a step takes nothing and does not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.eval.retrieval.protocols import (
    check_scores,
    earliest_complete,
    hits,
    keep,
    kept_by_oracle,
    kept_by_threshold,
    sums_by_minimum,
)
from qrag_jax.measures.aggregate import mean_interval
from qrag_jax.measures.facts import score_facts
from qrag_jax.types import InputError

APP_B_THRESHOLDS = tuple(round(0.1 * i, 1) for i in range(-1, 12))  # -0.1, 0.0, ..., 1.1: tables 4 and 5


@dataclass(frozen=True)
class StopPoint:
    """A stopping rule on `n` questions.

    `threshold` is None for a rule without one. `early`, `perfect` and `late` are shares of the `num_complete`
    questions whose gold is complete within T picks, all 0 where there is none. `tpr` and `fpr` are shares of the gold
    and of the other chunks that were taken, pooled over all chunks of all questions (micro). `episode_length` is the
    mean number of picks; `fact_em` and `fact_f1` are means over questions.
    """

    threshold: float | None
    early: float
    late: float
    perfect: float
    tpr: float
    fpr: float
    episode_length: float
    fact_em: float
    fact_f1: float
    n: int
    num_complete: int


@dataclass(frozen=True)
class Roc:
    """ROC curve of a stopping rule over all its thresholds.

    `fpr` and `tpr` start at (0, 0) and end at (1, 1); point i + 1 belongs to `threshold[i]`, strict thresholds first.
    T picks take a part of the chunks only, so the rule ends at the last but one point, `fpr[-2]`, `tpr[-2]`. The
    straight piece from there to (1, 1) is a convention: chunks that were not taken are in no order.
    """

    threshold: Float[np.ndarray, " k"]
    fpr: Float[np.ndarray, " k_plus_2"]
    tpr: Float[np.ndarray, " k_plus_2"]


@dataclass(frozen=True)
class BudgetRow:
    """The first `num_steps` picks of `n` questions: means with 95% intervals, and the mean ceiling of fact F1."""

    num_steps: int
    fact_em: float
    em_low: float
    em_high: float
    fact_f1: float
    f1_low: float
    f1_high: float
    f1_ceiling: float
    n: int


@dataclass(frozen=True)
class StopAnalysis:
    """Appendix B and C for one retrieval: curve, ROC, the oracle's point and the rows by budget."""

    curve: tuple[StopPoint, ...]
    roc: Roc
    oracle: StopPoint
    budgets: tuple[BudgetRow, ...]


def analyse(
    chosen: Int[np.ndarray, "n T"],
    scores: Float[np.ndarray, "n T"],
    gold: Bool[np.ndarray, "n M"],
    num_chunks: Int[np.ndarray, " n"],
) -> StopAnalysis:
    """All of appendix B and C for one retrieval of T steps.

    Args:
        chosen: the picks of all T steps, in order of retrieval.
        scores: the values that they were taken by.
        gold: True at the chunks that answer the question; False at padding.
        num_chunks: chunks of each context, padding not counted.
    """
    return StopAnalysis(
        curve=tuple(stopping_curve(chosen, scores, gold, num_chunks)),
        roc=roc(chosen, scores, gold, num_chunks),
        oracle=stop_point(chosen, gold, num_chunks, kept_by_oracle(chosen, gold)),
        budgets=tuple(budget_rows(chosen, gold, range(1, chosen.shape[1] + 1), num_chunks)),
    )


def stop_point(
    chosen: Int[np.ndarray, "n T"],
    gold: Bool[np.ndarray, "n M"],
    num_chunks: Int[np.ndarray, " n"],
    num_kept: Int[np.ndarray, " n"],
    threshold: float | None = None,
) -> StopPoint:
    """The scores of a rule that keeps the first `num_kept` picks of every question.

        early: t_stop < t_earliest,   perfect: t_stop = t_earliest,   late: t_stop > t_earliest

    Args:
        chosen: the picks of all T steps, in order of retrieval.
        gold: True at the chunks that answer the question; False at padding.
        num_chunks: chunks of each context, padding not counted.
        num_kept: `t_stop` of every question.
        threshold: of the rule, for the record.
    """
    earliest = earliest_complete(chosen, gold)
    measures = score_facts(keep(chosen, np.minimum(num_kept, num_chunks)), gold)
    num_taken = measures.num_taken
    num_hits = (hits(chosen, gold) & (np.arange(chosen.shape[1]) < num_taken[:, None])).sum()
    done = earliest > 0
    offset = num_taken[done] - earliest[done]
    early, late, perfect = (_share(which) for which in (offset < 0, offset > 0, offset == 0))
    return StopPoint(
        threshold=None if threshold is None else float(threshold),
        early=early,
        late=late,
        perfect=perfect,
        tpr=float(num_hits / gold.sum()),
        fpr=float((num_taken.sum() - num_hits) / _num_others(gold, num_chunks)),
        episode_length=float(num_taken.mean()),
        fact_em=float(measures.em.mean()),
        fact_f1=float(measures.f1.mean()),
        n=len(chosen),
        num_complete=int(done.sum()),
    )


def stopping_curve(
    chosen: Int[np.ndarray, "n T"],
    scores: Float[np.ndarray, "n T"],
    gold: Bool[np.ndarray, "n M"],
    num_chunks: Int[np.ndarray, " n"],
    thresholds: Sequence[float] = APP_B_THRESHOLDS,
) -> list[StopPoint]:
    """Tables 4 and 5: one point a threshold, by the rule of appendix B, which may stop before the first pick.

    Args:
        thresholds: finite; the points come in their order. By default those of the paper.

    The other arguments are those of `analyse`.
    """
    return [
        stop_point(chosen, gold, num_chunks, kept_by_threshold(scores, float(threshold), least=0), threshold)
        for threshold in thresholds
    ]


def roc(
    chosen: Int[np.ndarray, "n T"],
    scores: Float[np.ndarray, "n T"],
    gold: Bool[np.ndarray, "n M"],
    num_chunks: Int[np.ndarray, " n"],
) -> Roc:
    """Figure 5 without a grid: TPR and FPR at every threshold that behaves differently.

    The rule of appendix B is a classifier of chunks by `min(Q_1..Q_t)`, t the step of the pick; chunks that were not
    taken are below all. Arguments are those of `stopping_curve`.
    """
    check_scores(scores)
    is_gold = hits(chosen, gold)
    others = ~is_gold & (np.arange(chosen.shape[1]) < num_chunks[:, None])
    threshold, gold_taken = sums_by_minimum(scores, is_gold.astype(np.float64))
    _, others_taken = sums_by_minimum(scores, others.astype(np.float64))
    fpr, tpr = (
        np.concatenate([[0.0], np.cumsum(taken) / total, [1.0]])
        for taken, total in ((others_taken, _num_others(gold, num_chunks)), (gold_taken, gold.sum()))
    )
    return Roc(threshold, fpr, tpr)


def auc(curve: Roc) -> float:
    """Area under the ROC curve, by trapezoids, its straight last piece included.

    This is the probability that a gold chunk ranks above another chunk, when one of each is drawn from all questions
    together. Ties count half; chunks that were not taken are tied.
    """
    return float(np.trapezoid(curve.tpr, curve.fpr))


def auc_within_reach(curve: Roc) -> float:
    """Mean TPR over the FPRs that the rule can reach: the area without the straight last piece, over its width.

    It depends on T, and `auc` almost does not; the columns of the paper's table 4 give .98 by `auc` and .96 by this.
    A rule that takes only gold has no width; the value is then its last TPR.
    """
    reach = curve.fpr[-2]
    return float(np.trapezoid(curve.tpr[:-1], curve.fpr[:-1]) / reach) if reach > 0 else float(curve.tpr[-2])


def budget_rows(
    chosen: Int[np.ndarray, "n T"],
    gold: Bool[np.ndarray, "n M"],
    budgets: Sequence[int],
    num_chunks: Int[np.ndarray, " n"],
) -> list[BudgetRow]:
    """Table 6: fact measures of the first picks, one row a budget, in the order of `budgets`.

    The retrieval is greedy and sequential, so the first picks of a long run are the run with that budget. (This holds
    for the picks, not for a retriever trained for that budget, nor for a beam search.)

    Args:
        chosen: the picks of all T steps, in order of retrieval.
        gold: True at the chunks that answer the question; False at padding.
        budgets: numbers of picks; a context with fewer chunks is taken whole.
        num_chunks: chunks of each context, padding not counted.
    """
    rows = []
    for budget in budgets:
        measures = score_facts(keep(chosen, np.minimum(num_chunks, budget)), gold)
        em, f1 = mean_interval(measures.em), mean_interval(measures.f1)
        ceiling = float(measures.f1_ceiling.mean())
        rows.append(BudgetRow(budget, em.mean, em.low, em.high, f1.mean, f1.low, f1.high, ceiling, em.n))
    return rows


def _share(which: Bool[np.ndarray, " m"]) -> float:
    return float(which.mean()) if len(which) else 0.0


def _num_others(gold: Bool[np.ndarray, "n M"], num_chunks: Int[np.ndarray, " n"]) -> int:
    """Chunks of all contexts that are not gold."""
    others = int((num_chunks - gold.sum(axis=1)).sum())
    if others == 0:
        raise InputError("no context has a chunk that is not gold: there is no false positive rate")
    return others
