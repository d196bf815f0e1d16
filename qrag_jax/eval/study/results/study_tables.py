"""The columns of a study's table: narrow ones for terminals, all of them for Markdown, unrounded ones for CSV.

Rows of a study with their comparison with the baseline: the source of table, CSV and plot.

Evidence recall of contexts as a table: a line a strategy and fill, a column a budget.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from qrag_jax.eval.study.records import Page, StudyComparison, StudyResult, StudyRow
from qrag_jax.eval.tables import interval, share
from qrag_jax.measures.aggregate import LEVEL


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
    measure = f"f1@{result.report_k}"
    known = {(one.task, one.strategy): one for one in result.comparisons if one.measure == measure}
    tasks: dict[str, dict[str, StudyRow]] = {}
    for row in result.rows:
        tasks.setdefault(row.task, {}).setdefault(row.strategy, row)
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

    The 95% interval of the difference excludes 0, and the corrected p is below 0.05. The interval is not corrected
    for the other comparisons, so alone it would mark some by chance. By document if the comparison has that, else by
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


_MIB = 2**20
_NOT_PLAIN = ("scores", "cost", "low", "high", "budget", "fill", "erec", "erec_low", "erec_high")
_BY_DOCUMENT = ("low_by_document", "high_by_document", "p_by_document", "p_holm_by_document", "num_groups")
_STAGES = {"chunk": "s: cutting", "embed_sentences": "s: sentences", "embed_chunks": "s: chunks"}


@dataclass(frozen=True)
class Column:
    """A heading, the text of a cell, and whether it holds numbers, which are right-aligned."""

    heading: str
    cell: Callable[[Line], str]
    is_number: bool = True


def terminal_columns(result: StudyResult, lines: Sequence[Line]) -> list[Column]:
    """The most important columns, for the lines of one task."""
    return [
        _strategy(),
        *_headline(result, "F1", f"- {result.baseline}", "p", mark=""),
        *_by_document(lines)[1:],
        *_scores(result, lines, {"recall": "recall", "precision": "prec.", "iou": "IoU"}),
        Column("context", lambda line: f"{line.row.context_tokens:,.0f}"),
        Column("chunks", lambda line: f"{line.row.num_chunks:,}"),
        Column("tokens", lambda line: f"{line.row.mean_tokens:,.0f}"),
        Column("beyond", lambda line: f"{line.row.share_beyond_window:.0%}"),
        Column("s", lambda line: _seconds(total_seconds(line.row))),
        *_dollars(lines),
        Column("config", lambda line: line.row.config, is_number=False),
    ]


def markdown_columns(result: StudyResult, lines: Sequence[Line]) -> list[Column]:
    """All columns, for the lines of one task."""
    k = result.report_k
    names = {name: f"{name}@{k}" for name in ("recall", "precision")} | {"iou": f"IoU@{k}"}
    return [
        _strategy(),
        Column("config", lambda line: f"`{line.row.config}`" if line.row.config else "", is_number=False),
        Column("n", lambda line: f"{line.row.n:,}"),
        *_headline(result, f"F1@{k} [95%]", f"minus {result.baseline} [95%]", "p (Holm)", mark="**"),
        *_by_document(lines),
        *_scores(result, lines, names),
        Column("context tokens", lambda line: f"{line.row.context_tokens:,.0f}"),
        Column("chunks", lambda line: f"{line.row.num_chunks:,}"),
        Column("tokens a chunk", lambda line: f"{line.row.mean_tokens:,.0f}"),
        Column("beyond window", lambda line: f"{line.row.share_beyond_window:.1%}"),
        Column("s", lambda line: _seconds(total_seconds(line.row))),
        *(_stage(name) for name in lines[0].row.cost.seconds),
        Column("embedder tokens", lambda line: f"{line.row.cost.embedder_tokens:,}"),
        Column("TFLOP", lambda line: _amount(line.row.cost.flops / 1e12)),
        Column("index MiB", lambda line: _amount(line.row.cost.index_bytes / _MIB)),
        *_dollars(lines),
    ]


def csv_values(line: Line, result: StudyResult, measures: Sequence[str], stages: Sequence[str]) -> dict[str, object]:
    """One line of the CSV: every field of the row, scores by `measures`, seconds by `stages`; None is an empty cell."""
    row, versus, cost = line.row, line.versus, line.row.cost
    headline = f"f1@{result.report_k}"
    plain = {name: value for name, value in asdict(row).items() if name not in _NOT_PLAIN}
    compared = {"": "difference", "_low": "low", "_high": "high", "_p": "p_value", "_p_holm": "p_holm"}
    compared |= {f"_{name}": name for name in _BY_DOCUMENT}
    return {
        **plain,
        **{name: row.scores.get(name) for name in measures},
        f"{headline}_low": row.low,
        f"{headline}_high": row.high,
        **{f"difference{end}": None if versus is None else getattr(versus, name) for end, name in compared.items()},
        "seconds": total_seconds(row),
        **{f"seconds_{stage}": cost.seconds.get(stage) for stage in stages},
        "embedder_tokens": cost.embedder_tokens,
        "flops": cost.flops,
        "index_bytes": cost.index_bytes,
        "prompt_tokens": cost.prompt_tokens,
        "completion_tokens": cost.completion_tokens,
        "dollars": cost.dollars,
    }


def _strategy() -> Column:
    return Column("strategy", lambda line: line.row.strategy, is_number=False)


def _headline(result: StudyResult, f1: str, difference: str, p: str, mark: str) -> list[Column]:
    measure = f"f1@{result.report_k}"

    def cell(line: Line) -> str:
        row, sign = line.row, mark if line.is_best else ""
        return f"{sign}{share(row.scores[measure])}{sign} {interval(row.low, row.high)}"

    return [
        Column(f1, cell),
        Column(difference, lambda line: _difference(line.versus)),
        Column(p, lambda line: "" if line.versus is None else _p_value(line.versus.p_holm)),
    ]


def _by_document(lines: Sequence[Line]) -> list[Column]:
    """Interval and p of the difference over documents, where the task has enough of them."""

    def ends(line: Line) -> str:
        one = line.versus
        if one is None or one.low_by_document is None or one.high_by_document is None:
            return ""
        return interval(one.low_by_document, one.high_by_document, sign="+")

    def p_value(line: Line) -> str:
        one = line.versus
        return "" if one is None or one.p_holm_by_document is None else _p_value(one.p_holm_by_document)

    columns = [Column("by document", ends), Column("p by doc.", p_value)]
    return columns if any(ends(line) for line in lines) else []


def _scores(result: StudyResult, lines: Sequence[Line], names: dict[str, str]) -> list[Column]:
    """Columns of the measures that this task has."""
    measured = [(f"{name}@{result.report_k}", heading) for name, heading in names.items()]
    return [_score(measure, heading) for measure, heading in measured if measure in lines[0].row.scores]


def _score(measure: str, heading: str) -> Column:
    return Column(heading, lambda line: share(line.row.scores[measure]))


def _stage(name: str) -> Column:
    return Column(_STAGES.get(name, f"s: {name}"), lambda line: _seconds(line.row.cost.seconds.get(name, 0.0)))


def _dollars(lines: Sequence[Line]) -> list[Column]:
    """A column where prices were given."""

    def cell(line: Line) -> str:
        dollars = line.row.cost.dollars
        return "" if dollars is None else f"{dollars:.2g}" if dollars < 100 else f"{dollars:,.0f}"

    return [Column("dollars", cell)] if any(line.row.cost.dollars is not None for line in lines) else []


def _difference(versus: StudyComparison | None) -> str:
    if versus is None:
        return ""
    return f"{share(versus.difference, sign='+')} {interval(versus.low, versus.high, sign='+')}"


def _p_value(value: float) -> str:
    return "<.001" if value < 0.001 else share(value)


def _amount(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.1 else f"{value:.2g}"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def row_heading(task: str, lines: Sequence[Line]) -> str:
    """`squad (evidence): 130 questions, 16 documents; configs chosen on other questions`."""
    row: StudyRow = lines[0].row
    chosen = any(line.row.was_chosen for line in lines)
    how = "configs chosen on other questions" if chosen else "first config of each, nothing was chosen"
    return f"{task} ({row.kind}): {row.n:,} questions, {row.num_documents:,} documents; {how}"


RECALL_NOTE = (
    "ERec: share of the evidence sentences, weighted by length, in a context of N tokens, compared by words; "
    "with a 95% bootstrap interval. After it: minus plain, on the same questions; * where the interval excludes 0 and "
    "the corrected p is below 0.05, by document where there are enough of them."
)


def recall_heading(task: str) -> str:
    """`squad: evidence found in contexts, by tokens`."""
    return f"{task}: evidence found in contexts (ERec), by tokens"


def recall_table(result: StudyResult, task: str) -> list[list[str]]:
    """Heading and lines of a task; empty where it has no rows of budgets."""
    rows = {(row.strategy, row.fill, row.budget): row for row in result.rows if row.task == task and row.budget}
    budgets = list(dict.fromkeys(budget for *_, budget in rows))
    versus = {(one.strategy, one.fill, one.budget): one for one in result.comparisons if one.task == task}
    lines = list(dict.fromkeys((strategy, fill) for strategy, fill, _ in rows))
    body = [
        [strategy, str(fill), *(_cell(rows[strategy, fill, n], versus.get((strategy, fill, n))) for n in budgets)]
        for strategy, fill in lines
    ]
    return [["strategy", "fill", *(f"{n:,}" for n in budgets)], *body] if body else []


def _cell(row: StudyRow, versus: StudyComparison | None) -> str:
    assert row.erec is not None and row.erec_low is not None and row.erec_high is not None  # of all with a budget
    found = f"{share(row.erec)} {interval(row.erec_low, row.erec_high)}"
    if versus is None:
        return found
    return f"{found} {share(versus.difference, sign='+')}{'*' if significant_sign(versus) else ''}"


CONTEXTS = Page(
    recall_heading,
    recall_table,
    num_text_columns=2,
    note=lambda result: RECALL_NOTE if any(row.budget for row in result.rows) else None,
)
