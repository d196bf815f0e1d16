"""The report of a study as a table for terminals, as Markdown, CSV, JSON and a plot. It has no colours, so it can be
piped."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from qrag_jax.chunking.text.spans import readable
from qrag_jax.eval.study.records import FEWEST_DOCUMENTS, Page, StudyResult
from qrag_jax.eval.study.results.plot import plot_study
from qrag_jax.eval.study.results.study_tables import (
    Column,
    Line,
    csv_values,
    markdown_columns,
    row_heading,
    study_lines,
    terminal_columns,
)
from qrag_jax.eval.tables import align
from qrag_jax.files.whole_file import write_whole
from qrag_jax.measures.aggregate import LEVEL
from qrag_jax.names import PAGES

_OF_CONTEXTS = {"budget", "fill", "erec", "erec_low", "erec_high"}
_OF_LEVELS = ("plan", "level_min", "level_max", "parents", "num_vectors", "built_tokens", "sent_tokens")


def format_table(result: StudyResult) -> str:
    """The table for a terminal: a block a task with its most important columns, and the notes below all."""
    blocks = []
    for task, lines in study_lines(result).items():
        table = _align(terminal_columns(result, lines), lines)
        blocks.append("\n".join([row_heading(task, lines), *table]))
        for page, found in _pages(result, task):
            numbers = [place >= page.num_text_columns for place in range(len(found[0]))]
            blocks.append("\n".join([page.heading(task), *align(found, numbers)]))
    return readable("\n\n".join([*blocks, "\n".join(_notes(result))]) + "\n")


def format_markdown(result: StudyResult, plot: str | None = None) -> str:
    """The whole table as Markdown: a table a task, the notes, and the link of a plot."""
    parts = []
    for task, lines in study_lines(result).items():
        columns = markdown_columns(result, lines)
        table = [
            [column.heading for column in columns],
            ["---:" if column.is_number else "---" for column in columns],
            *([column.cell(line) for column in columns] for line in lines),
        ]
        parts.append(f"**{row_heading(task, lines)}**\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in table))
        for page, (head, *body) in _pages(result, task):
            rule = ["---" if place < page.num_text_columns else "---:" for place in range(len(head))]
            rows = "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))
            parts.append(f"**{page.heading(task)}**\n\n{rows}")
    parts.append("\n".join(f"- {note}" for note in [_bold_note(result), *_notes(result)]))
    if plot is not None:
        parts.append(f"![F1@{result.report_k} of every strategy against its seconds of chunking and embedding]({plot})")
    return readable("\n\n".join(parts) + "\n")


def format_csv(result: StudyResult) -> str:
    """Every number of every row, unrounded: one line per task and strategy; missing values are empty."""
    lines = [line for own in study_lines(result).values() for line in own]
    measures = list(dict.fromkeys(name for line in lines for name in line.row.scores))
    stages = list(dict.fromkeys(name for line in lines for name in line.row.cost.seconds))
    table = [csv_values(line, result, measures, stages) for line in lines]
    content = io.StringIO()
    writer = csv.DictWriter(content, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return readable(content.getvalue())


def write_report(result: StudyResult, out: Path) -> list[Path]:
    """Writes `table.md`, `table.csv`, `results.json`, `per_query.jsonl` and `plot.png` into a folder.

    `results.json` holds all rows, comparisons and notes; `per_query.jsonl` one object a task, strategy and question.

    Returns:
        Their paths.
    """
    texts = {
        "table.md": format_markdown(result, "plot.png"),
        "table.csv": format_csv(result),
        "results.json": _json(summary_values(result), indent=2),
        "per_query.jsonl": "".join(_json(question) for question in result.questions),
    }
    for name, text in texts.items():
        write_whole(out / name, text)
    plot_study(out / "plot.png", result)
    return [out / name for name in (*texts, "plot.png")]


def summary_values(result: StudyResult) -> dict[str, object]:
    """Plain values of all of a study but its questions: report_k, ks, baseline, rows, comparisons, notes.

    Without budgets, rows and comparisons have no fields of contexts. With levels, all rows have the same fields:
    those of levels come last, and missing ones are None.
    """
    values = asdict(replace(result, questions=()))  # they are many, and have a file of their own
    del values["questions"]
    own = values.pop("levels")
    if own:
        blank = {**dict.fromkeys(values["rows"][0]), **dict.fromkeys(_OF_LEVELS)}
        values["rows"] = [blank | row for row in (*values["rows"], *own)]
    if not any(row.budget for row in result.rows):
        for one in (*values["rows"], *values["comparisons"]):
            for name in _OF_CONTEXTS & one.keys():
                del one[name]
    return values


def _pages(result: StudyResult, task: str) -> Iterator[tuple[Page, list[list[str]]]]:
    """Further tables that a task has, each with its heading and lines."""
    for name in PAGES:
        page: Page = PAGES.load(name)
        if found := page.table(result, task):
            yield page, found


def _json(value: object, indent: int | None = None) -> str:
    """ASCII, so that any file name (bytes that are not UTF-8) can be written, and U+2028 ends no line."""
    return json.dumps(value, allow_nan=False, indent=indent) + "\n"


def _notes(result: StudyResult) -> list[str]:
    k, baseline = result.report_k, result.baseline
    compared = [one for one in result.comparisons if one.measure == f"f1@{k}"]
    by_document = (
        "by document: the same, but whole documents are resampled and flip sign together, where each question is about "
        f"one document and at least {FEWEST_DOCUMENTS} exist; p by doc. is corrected as p, with p of the other tasks."
    )
    return [
        f"F1, recall, precision and IoU of the first {k} chunks. In brackets: 95% bootstrap intervals. A strategy is "
        f"compared with {baseline} on the same questions; p: sign-flip permutation test, Holm-corrected for all "
        f"{len(compared)} comparisons of the study.",
        *([by_document] if any(one.num_groups for one in compared) else []),
        f"context: tokens of the {k} chunks together. tokens: of a chunk, mean. beyond: chunks longer than the "
        "encoder's window, embedded as averaged windows. s: seconds of chunking and embedding, as if alone.",
        *(note for name in PAGES if (note := PAGES.load(name).note(result))),
        *result.notes,
    ]


def _bold_note(result: StudyResult) -> str:
    return (
        f"Bold: the best F1@{result.report_k} of a task, where the 95% interval of its difference to "
        f"{result.baseline} lies above 0 and p is below {LEVEL:g}, by document where the table has that "
        f"({result.baseline} itself: where all are worse by this rule). Where nothing is bold, the best does not "
        f"differ significantly from {result.baseline}."
    )


def _align(columns: Sequence[Column], lines: Sequence[Line]) -> list[str]:
    table = [[column.heading for column in columns], *([column.cell(line) for column in columns] for line in lines)]
    return align(table, [column.is_number for column in columns])
