"""Result rows as a table for terminals, as Markdown, and as a plot. No display, no colours: all of it pipes well."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.eval.retrieval.records import Row
from qrag_jax.eval.setting import Setting
from qrag_jax.eval.tables import align, check_png, dress, interval, new_figure, share, write_png
from qrag_jax.files.whole_file import write_whole
from qrag_jax.measures.aggregate import Summary, over_seeds
from qrag_jax.names import METHODS, PROTOCOLS
from qrag_jax.types import InputError

# Okabe and Ito's palette, told apart by people with any kind of colour blindness; shape and dashes repeat the message.
_STYLES = {
    "trained": ("#0072B2", "o", "-"),
    "untrained": ("#D55E00", "s", "--"),
    "single_step": ("#009E73", "^", "-."),
    "bm25": ("#000000", "D", ":"),
    "reranked": ("#CC79A7", "v", "-."),
}
_VARIANT_COLOURS = ("#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#009E73", "#D55E00", "#000000")
_NAMES = {
    "trained": "trained",
    "untrained": "untrained",
    "single_step": "single step",
    "bm25": "BM25",
    "reranked": "single step, reranked",
}


@dataclass(frozen=True)
class Cell:
    """One method at one length, over its seeds.

    The ends are 95% intervals: over the questions of the row, or, of several seeds, for other questions and other seeds
    (`over_seeds`).
    """

    row: Row
    num_seeds: int
    fact_em: float
    em_low: float
    em_high: float
    fact_f1: float
    f1_ceiling: float
    f1_low: float | None
    f1_high: float | None
    num_taken: float | None
    em_ceiling: float


@dataclass(frozen=True)
class Line:
    """One method under one protocol: its cells by `num_chunks`, shortest context first.

    `setting` is that of its first row; those of the others differ in seed and length alone.
    """

    task: str
    setting: Setting
    cells: dict[int, Cell]


def collect_lines(rows: Sequence[Row]) -> list[Line]:
    """Group rows into lines, seeds merged; tasks in order of appearance, methods in the order of `METHODS`."""
    if not rows:
        raise InputError("a report needs at least one row, got none")
    groups: dict[tuple[object, ...], dict[int, list[Row]]] = {}
    first: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row.task, *row.setting.line)
        first.setdefault(key, row)
        _add_length(groups.setdefault(key, {}), row)
    lines = [
        Line(
            first[key].task,
            first[key].setting,
            {num_chunks: _merge_seeds(lengths[num_chunks]) for num_chunks in sorted(lengths)},
        )
        for key, lengths in groups.items()
    ]
    tasks = list(dict.fromkeys(line.task for line in lines))

    def place(line: Line) -> tuple[int, int, int, int]:
        protocol, method = PROTOCOLS.index(line.setting.protocol), METHODS.index(line.setting.method)
        return tasks.index(line.task), protocol, method, line.setting.beam_width

    return sorted(lines, key=place)


def _add_length(lengths: dict[int, list[Row]], row: Row) -> None:
    """Puts a row to those of its length, whose seeds are others."""
    own = row.setting
    same_length = lengths.setdefault(own.num_chunks, [])
    if any(other.setting.seed == own.seed for other in same_length):
        raise InputError(
            f"two rows for task {row.task}, method {own.method}, {own.mode}, positions {own.positions}, protocol "
            f"{own.protocol}, beam width {own.beam_width}, {own.num_chunks} chunks, seed {own.seed}: report one run at "
            "a time"
        )
    same_length.append(row)


def format_table(rows: Sequence[Row], *, markdown: bool = False) -> str:
    """The rows as aligned text, or as a Markdown table: a block a task, a column a length, EM above F1.

    Fact EM comes with its 95% interval, for several seeds that of `over_seeds`; the short form (`.955 .941-.967`)
    keeps four lengths within 80 columns. Values that all rows share are in the heading only.
    """
    lines = collect_lines(rows)
    blocks = []
    for task in dict.fromkeys(line.task for line in lines):
        own = [line for line in lines if line.task == task]
        heading = _heading(own)
        table = align(_table_cells(own, markdown), markdown=markdown)
        notes = _notes(own)
        if markdown:
            blocks.append("\n".join([f"**{heading}**", "", *table, "", *(f"- {note}" for note in notes)]))
        else:
            blocks.append("\n".join([heading, *table, *notes]))
    return "\n\n".join(blocks) + "\n"


def write_markdown(
    path: str | os.PathLike, rows: Sequence[Row], *, title: str, plot: str, notes: Sequence[str] = ()
) -> None:
    """Write a Markdown report: title, `notes` (command, hardware, ...) as a list, the table, and the plot's link."""
    parts = [f"# {title}", "\n".join(f"- {note}" for note in notes), format_table(rows, markdown=True).rstrip()]
    parts.append(f"![fact EM and F1 against the number of chunks]({plot})")
    write_whole(path, "\n\n".join(part for part in parts if part) + "\n")


def plot_rows(path: str | os.PathLike, rows: Sequence[Row]) -> None:
    """Draw fact EM and fact F1 against the number of chunks into a PNG; one row of panels a task.

    Both axes of length are logarithmic; each number of chunks is labelled with the multiple of the training length.
    Bands are 95% intervals, for several seeds those of `over_seeds`; the F1 ceiling is a dashed line.

    Args:
        path: ends in .png; its folder is made.
    """
    check_png(path)
    lines = collect_lines(rows)
    tasks = list(dict.fromkeys(line.task for line in lines))
    figure = new_figure(10.5, 4.6 * len(tasks))
    for panel, task in zip(figure.subfigures(len(tasks), 1, squeeze=False)[:, 0], tasks, strict=True):
        _draw_task(panel, [line for line in lines if line.task == task])
    write_png(path, figure)


def _merge_seeds(rows: Sequence[Row]) -> Cell:
    em = over_seeds([Summary(row.fact_em, row.em_low, row.em_high, row.n) for row in rows])
    known = [
        Summary(row.fact_f1, row.f1_low, row.f1_high, row.n)
        for row in rows
        if row.f1_low is not None and row.f1_high is not None
    ]
    f1 = over_seeds(known) if len(known) == len(rows) else None  # rows of before have no interval of F1
    taken = [row.num_taken for row in rows if row.num_taken is not None]
    return Cell(
        row=rows[0],
        num_seeds=len(rows),
        fact_em=em.mean,
        em_low=em.low,
        em_high=em.high,
        fact_f1=float(np.mean([row.fact_f1 for row in rows])),
        f1_ceiling=float(np.mean([row.f1_ceiling for row in rows])),
        f1_low=None if f1 is None else f1.low,
        f1_high=None if f1 is None else f1.high,
        num_taken=float(np.mean(taken)) if taken else None,
        em_ceiling=float(np.mean([1.0 if row.em_ceiling is None else row.em_ceiling for row in rows])),
    )


def _shared(lines: Sequence[Line], name: str) -> str | None:
    """The value of `name` that all lines have, or None."""
    values = {getattr(line.setting, name) for line in lines}
    return values.pop() if len(values) == 1 else None


def _label(line: Line, lines: Sequence[Line]) -> str:
    """Name of a line: the method, and of its mode, positions and protocol what tells it from others of that method."""
    own = line.setting
    label, alike = _NAMES[own.method], [one for one in lines if one.setting.method == own.method]
    if _shared(alike, "mode") is None:
        label += f", {own.mode}"
    if _shared(alike, "positions") is None:
        label += f", {own.positions} positions" if own.positions != "none" else ", no positions"
    if _shared(lines, "protocol") is None:
        label += f", {own.protocol}"
    return label if own.beam_width == 1 else f"{label}, beam {own.beam_width}"


def _between(values: Sequence[int]) -> str:
    """`7` for equal numbers, `5-7` for others."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def _cells(lines: Sequence[Line]) -> list[Cell]:
    return [cell for line in lines for cell in line.cells.values()]


def _lengths(lines: Sequence[Line]) -> dict[int, str]:
    """Every length of the lines and its multiple of the training length, shortest first."""
    found = {cell.row.setting.num_chunks: f"{cell.row.length_factor:g}x" for cell in _cells(lines)}
    return dict(sorted(found.items()))


def _heading(lines: Sequence[Line]) -> str:
    parts = [lines[0].task]
    run = [line for line in lines if line.setting.method in ("trained", "untrained")] or lines  # baselines have neither
    if (mode := _shared(run, "mode")) is not None:
        parts.append(f"mode {mode}")
    if (positions := _shared(run, "positions")) is not None:
        parts.append(f"positions {positions}")
    if (protocol := _shared(lines, "protocol")) is not None and protocol != "fixed":
        parts.append(f"protocol {protocol}")
    number = f"n = {_between([cell.row.n for cell in _cells(lines)])} questions"
    parts.append(number if len(_lengths(lines)) == 1 else f"{number} for each length")
    max_seeds = max(cell.num_seeds for cell in _cells(lines))
    if max_seeds > 1:
        parts.append(f"{max_seeds} seeds")
    return ", ".join(parts)


def _notes(lines: Sequence[Line]) -> list[str]:
    cells = _cells(lines)
    after = f"After fact EM{' and F1' if _many_protocols(lines) else ''}: 95% interval over the questions"
    if any(cell.num_seeds > 1 for cell in cells):
        after += "; of several seeds that of their mean, for other questions and other seeds"
    notes = [f"{after}."]
    if ceilings := [cell.f1_ceiling for cell in cells if cell.row.setting.protocol == "fixed"]:
        which = "of the fixed protocol cannot" if _many_protocols(lines) else "cannot"
        notes.append(
            f"Fact F1 {which} exceed {_span(ceilings)} with this many picks: 2 min(g, T) / (g + T), g gold facts, "
            "T picks."
        )
    own = [cell.em_ceiling for cell in cells if cell.row.setting.protocol == "fixed"]
    if own and min(own) < 1:
        notes.append(f"Fact EM cannot exceed {_span(own)} with this many picks: other questions have more gold facts.")
    meanings = {
        "threshold": "stops below a Q that was fitted on held-out questions",
        "stop": "the retriever's own learned stop",
        "oracle": "stops when all gold is found: it reads the labels, so it bounds EM and is not a method",
    }
    notes += [f"{name}: {text}." for name, text in meanings.items() if any(x.setting.protocol == name for x in lines)]
    left_out = {num_chunks: 0 for num_chunks in _lengths(lines)}
    for cell in cells:
        left_out[cell.row.setting.num_chunks] = max(left_out[cell.row.setting.num_chunks], cell.row.num_left_out)
    if any(left_out.values()):
        counts = ", ".join(f"{count:,} at {num_chunks:,}" for num_chunks, count in left_out.items() if count)
        notes.append(f"Left out, story longer than the context or broken gold: {counts} chunks.")
    return notes + _below_untrained(lines)


def _span(values: Sequence[float]) -> str:
    """`0.800` for equal shares, `0.800 to 0.900` for others."""
    low, high = min(values), max(values)
    return f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f} to {high:.3f}"


def _below_untrained(lines: Sequence[Line]) -> list[str]:
    """A note where training has made a run worse than none does; else none."""
    untrained = {line.setting.line[1:]: line for line in lines if line.setting.method == "untrained"}
    worse: list[int] = []
    for line in lines:
        other = untrained.get(line.setting.line[1:])
        if line.setting.method == "trained" and other is not None:
            worse += [n for n, cell in line.cells.items() if n in other.cells and cell.fact_f1 < other.cells[n].fact_f1]
    if not worse:
        return []
    places = ", ".join(f"{num_chunks:,}" for num_chunks in sorted(set(worse)))
    return [
        f"Trained is below untrained in F1 at {places} chunks: too few updates (num_updates), too few questions, or "
        "questions unlike those of its training; until more training helps, search with the best of the other methods."
    ]


def _table_cells(lines: Sequence[Line], markdown: bool) -> list[list[str]]:
    """Header and body of the table as texts; a row with a name only opens the block of one measure."""
    lengths = _lengths(lines)
    table = [["chunks", *(f"{num_chunks:,} ({factor})" for num_chunks, factor in lengths.items())]]
    for measure in ("fact EM", "fact F1", "chunks taken") if _many_protocols(lines) else ("fact EM", "fact F1"):
        table.append([f"**{measure}**" if markdown else measure, *("" for _ in lengths)])
        for line in lines:
            cells = [line.cells.get(num_chunks) for num_chunks in lengths]
            label = _label(line, lines) if markdown else f"  {_label(line, lines)}"
            with_ends = measure == "fact EM" or _many_protocols(lines)
            table.append([label, *(_cell_text(cell, measure, with_ends, markdown) for cell in cells)])
    return table


def _many_protocols(lines: Sequence[Line]) -> bool:
    """True if a line is not of the fixed protocol: F1 and the number of picks are then the main measures."""
    return any(line.setting.protocol != "fixed" for line in lines)


def _cell_text(cell: Cell | None, measure: str, with_ends: bool, markdown: bool) -> str:
    if cell is None or (measure == "chunks taken" and cell.num_taken is None):
        return "-"
    if measure == "chunks taken":
        return f"{cell.num_taken:.2f}"
    mean, low, high = cell.fact_em, cell.em_low, cell.em_high
    if measure == "fact F1":
        mean, low, high = cell.fact_f1, cell.f1_low, cell.f1_high
    if not with_ends or low is None or high is None:
        return share(mean)
    return f"{share(mean)} {interval(low, high) if markdown else f'{share(low)}-{share(high)}'}"


def _line_style(index: int, line: Line, lines: Sequence[Line]) -> tuple[str, str, str]:
    """Colour, marker and dashes: by method, or one colour a line where a method occurs more than once."""
    colour, marker, dashes = _STYLES[line.setting.method]
    if len({other.setting.method for other in lines}) < len(lines):
        colour = _VARIANT_COLOURS[index % len(_VARIANT_COLOURS)]
        marker = "osD^vPX*"[index % 8]  # one more than the colours: 56 lines before a pair repeats
    return colour, marker, dashes


def _draw_task(panel, lines: Sequence[Line]) -> None:
    """Two axes of one task: fact EM with its bands, fact F1 with its ceiling; one legend below both."""
    panel.suptitle(_heading(lines), fontsize=11)
    left, right = panel.subplots(1, 2, sharey=True)
    for index, line in enumerate(lines):
        colour, marker, dashes = _line_style(index, line, lines)
        chunks, cells = list(line.cells), list(line.cells.values())
        style = {"color": colour, "marker": marker, "linestyle": dashes, "linewidth": 1.8, "markersize": 5}
        left.fill_between(
            chunks, [c.em_low for c in cells], [c.em_high for c in cells], color=colour, alpha=0.18, linewidth=0
        )
        left.plot(chunks, [c.fact_em for c in cells], label=_label(line, lines), clip_on=False, **style)
        right.plot(chunks, [c.fact_f1 for c in cells], clip_on=False, **style)
    ceilings = {
        cell.row.setting.num_chunks: cell.f1_ceiling for cell in _cells(lines) if cell.row.setting.protocol == "fixed"
    }
    if ceilings:
        chunks = sorted(ceilings)
        heights = [ceilings[num_chunks] for num_chunks in chunks]
        right.plot(chunks, heights, color="0.35", linestyle=(0, (5, 3)), linewidth=1.0)
        right.annotate(
            f"ceiling {heights[0]:.3g}: no retriever exceeds it with this many picks",
            (chunks[0], heights[0]), xytext=(0, 7), textcoords="offset points", fontsize=8, color="0.25",
        )  # fmt: skip
    _dress(left, "fact EM: all gold chunks among the picks", "share of questions (band: 95% interval)", lines)
    _dress(right, "fact F1 of the picks", "", lines)
    handles, labels = left.get_legend_handles_labels()
    panel.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=9)


def _dress(axes, title: str, ylabel: str, lines: Sequence[Line]) -> None:
    from matplotlib.ticker import NullLocator

    lengths = _lengths(lines)
    dress(axes, title, "chunks in the context; below, multiple of the training length", ylabel)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(lengths), [f"{num_chunks:,}\n{factor}" for num_chunks, factor in lengths.items()])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
