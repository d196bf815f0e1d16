"""The columns of a study's table: narrow ones for terminals, all of them for Markdown, unrounded ones for CSV."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from qrag_jax.eval.study.records import StudyComparison, StudyResult, StudyRow
from qrag_jax.eval.study.results.lines import Line, total_seconds
from qrag_jax.eval.tables import share

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
        return f"{sign}{share(row.scores[measure])}{sign} [{share(row.low)}, {share(row.high)}]"

    return [
        Column(f1, cell),
        Column(difference, lambda line: _difference(line.versus)),
        Column(p, lambda line: "" if line.versus is None else _p_value(line.versus.p_holm)),
    ]


def _by_document(lines: Sequence[Line]) -> list[Column]:
    """Interval and p of the difference over documents, where the task has enough of them."""

    def interval(line: Line) -> str:
        one = line.versus
        if one is None or one.low_by_document is None or one.high_by_document is None:
            return ""
        return _interval(one.low_by_document, one.high_by_document)

    def p_value(line: Line) -> str:
        one = line.versus
        return "" if one is None or one.p_holm_by_document is None else _p_value(one.p_holm_by_document)

    columns = [Column("by document", interval), Column("p by doc.", p_value)]
    return columns if any(interval(line) for line in lines) else []


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
    return f"{share(versus.difference, sign='+')} {_interval(versus.low, versus.high)}"


def _interval(low: float, high: float) -> str:
    return f"[{share(low, sign='+')}, {share(high, sign='+')}]"


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
