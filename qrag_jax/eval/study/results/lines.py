"""Rows of a study beside their comparison with the baseline: what table, CSV and plot are made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qrag_jax.eval.measures.aggregate import LEVEL
from qrag_jax.eval.study.records import StudyComparison, StudyResult, StudyRow
from qrag_jax.types import InputError


@dataclass(frozen=True)
class Line:
    """A row, its comparison of F1@report_k with the baseline (None of the baseline itself), and whether it is bold."""

    row: StudyRow
    versus: StudyComparison | None
    is_best: bool


def study_lines(result: StudyResult) -> dict[str, list[Line]]:
    """Rows by task, in the order of the study, each with its comparison; of a strategy's rows of budgets the first.

    The best F1@k of a task is marked only where it is significant (`significant_sign`): a strategy above the baseline,
    the baseline where all others are below.
    """
    if not result.rows:
        raise InputError("a report of a study needs at least one row, got none")
    measure = f"f1@{result.report_k}"
    known = {(one.task, one.strategy): one for one in result.comparisons if one.measure == measure}
    tasks: dict[str, dict[str, StudyRow]] = {}
    seen: set[tuple[object, ...]] = set()
    for row in result.rows:
        key = row.task, row.strategy, row.budget, row.fill
        is_known = row.strategy in tasks.setdefault(row.task, {})
        if key in seen or (is_known and row.budget is None):
            raise InputError(f"task {row.task}: two rows of strategy {row.strategy}: report one study at a time")
        if row.strategy != result.baseline and (row.task, row.strategy) not in known:
            raise InputError(f"task {row.task}: no comparison of {measure} of {row.strategy} with {result.baseline}")
        seen.add(key)
        tasks[row.task].setdefault(row.strategy, row)
    found = {}
    for task, rows in tasks.items():
        versus = {name: known[task, name] if name != result.baseline else None for name in rows}
        best = max(rows.values(), key=lambda row: row.scores[measure]).strategy
        is_told = _is_significant(best, versus)
        found[task] = [Line(row, versus[name], is_told and name == best) for name, row in rows.items()]
    return found


def total_seconds(row: StudyRow) -> float:
    """Seconds of all stages: chunking, embedding sentences for it, embedding chunks."""
    return sum(row.cost.seconds.values())


def significant_sign(one: StudyComparison) -> Literal[-1, 0, 1]:
    """1 where a strategy is significantly above the baseline, -1 where it is significantly below, else 0.

    The 95% interval of the difference leaves out 0, and the corrected p is below 0.05: an interval knows nothing of the
    other comparisons, so it alone would mark some by chance. By document where the comparison has that, else by
    question.
    """
    low = one.low if one.low_by_document is None else one.low_by_document
    high = one.high if one.high_by_document is None else one.high_by_document
    p_value = one.p_holm if one.p_holm_by_document is None else one.p_holm_by_document
    if p_value >= LEVEL:
        return 0
    return 1 if low > 0 else -1 if high < 0 else 0


def _is_significant(best: str, versus: Mapping[str, StudyComparison | None]) -> bool:
    one = versus[best]
    if one is not None:
        return significant_sign(one) > 0
    others = [significant_sign(other) for other in versus.values() if other is not None]
    return bool(others) and max(others) < 0
