"""The stopping analysis as tables for terminals and Markdown, as JSON, and as a plot of four panels."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from qrag_jax.eval.retrieval.stopping import BudgetRow, Roc, StopAnalysis, StopPoint, auc, auc_within_reach
from qrag_jax.eval.tables import align, check_png, dress, interval, new_figure, share, write_png
from qrag_jax.files.whole_file import write_json, write_whole

# Okabe and Ito's palette; dashes and markers repeat what the colours say.
_BLUE, _ORANGE, _GREEN, _PURPLE, _RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00"
_STOP_COLUMNS = ("threshold", "early", "perfect", "late", "TPR", "FPR", "picks", "EM", "F1")
_BUDGET_COLUMNS = ("picks", "EM", "EM 95%", "F1", "F1 95%", "F1 ceiling")
_ROC_POINTS = 500  # points of the ROC curve in the JSON file; the areas are of the whole curve
_NARROW = 0.1  # an ROC curve that ends below this FPR is drawn twice, once wider; its FPRs get more digits
_FPR_LABEL = "FPR: share of the other chunks taken"
_MAX_MARKERS = 40  # points of a curve that still get a marker each


def format_stopping(analysis: StopAnalysis, *, markdown: bool = False) -> str:
    """Early, perfect and late stops by threshold, the oracle below them, and the meaning of the columns."""
    points = (*analysis.curve, analysis.oracle)
    narrow = max(point.fpr for point in points) < _NARROW
    table = _table([_STOP_COLUMNS, *(_stop_cells(point, 6 if narrow else 3) for point in points)], markdown)
    return _with_notes(table, _stop_notes(analysis), markdown)


def format_budgets(rows: Sequence[BudgetRow], *, markdown: bool = False) -> str:
    """Fact EM and F1 by the number of picks, with 95% intervals over the questions and the ceiling of F1."""
    table = _table([_BUDGET_COLUMNS, *(_budget_cells(row, markdown) for row in rows)], markdown)
    notes = [
        f"n = {rows[0].n:,} questions; protocol: fixed, the first picks of one retrieval.",
        "F1 ceiling: 2 min(g, T) / (g + T), g gold facts, T picks, mean over the questions.",
    ]
    return _with_notes(table, notes, markdown)


def write_stopping(folder: str | os.PathLike, analysis: StopAnalysis, *, title: str) -> list[Path]:
    """Write `stopping.json`, `stopping.md` and `stopping.png` into a folder, which is made; gives their paths."""
    paths = [Path(folder) / name for name in ("stopping.json", "stopping.md", "stopping.png")]
    write_json(paths[0], stopping_values(analysis), indent=1)
    parts = [
        f"# {title}",
        "## Stopping by a threshold on Q",
        format_stopping(analysis, markdown=True).rstrip(),
        f"![early, late and perfect stops, picks and ROC curve by threshold]({paths[2].name})",
        "## By number of picks",
        format_budgets(analysis.budgets, markdown=True).rstrip(),
    ]
    write_whole(paths[1], "\n\n".join(parts) + "\n")
    plot_stopping(paths[2], analysis, title=title)
    return paths


def stopping_values(analysis: StopAnalysis) -> dict[str, object]:
    """The analysis as JSON-able values; a long ROC curve is thinned to evenly spaced points, ends kept."""
    curve = analysis.roc
    last = len(curve.fpr) - 1  # (1, 1); the point before it is where the picks end
    kept = [*np.linspace(0, last - 1, min(last, _ROC_POINTS - 1)).round().astype(int), last]
    return {
        "curve": [asdict(point) for point in analysis.curve],
        "oracle": asdict(analysis.oracle),
        "auc": auc(curve),
        "auc_within_reach": auc_within_reach(curve),
        "reach": {"fpr": float(curve.fpr[-2]), "tpr": float(curve.tpr[-2])},
        "roc": {"fpr": curve.fpr[kept].tolist(), "tpr": curve.tpr[kept].tolist()},
        "budgets": [asdict(row) for row in analysis.budgets],
    }


def plot_stopping(path: str | os.PathLike, analysis: StopAnalysis, *, title: str) -> None:
    """Draw four panels into a PNG: early and late stops, perfect stops, picks, and the ROC curve.

    Args:
        path: ends in .png; its folder is made.
    """
    check_png(path)
    figure = new_figure(10.5, 8.4, title)
    mistakes, perfect, lengths, curve = figure.subplots(2, 2).flat
    points = sorted((p for p in analysis.curve if p.threshold is not None), key=lambda point: point.threshold or 0.0)
    _draw_mistakes(mistakes, points)
    _draw_perfect(perfect, points)
    _draw_lengths(lengths, points, analysis.oracle)
    _draw_roc(curve, analysis.roc, points, analysis.oracle)
    write_png(path, figure)


def _stop_cells(point: StopPoint, fpr_digits: int) -> tuple[str, ...]:
    threshold = "oracle" if point.threshold is None else f"{point.threshold:.4g}"
    shares = (point.early, point.perfect, point.late)
    return (
        threshold,
        *("-" if point.num_complete == 0 else share(part) for part in shares),
        share(point.tpr),
        share(point.fpr, fpr_digits),
        f"{point.episode_length:.2f}",
        share(point.fact_em),
        share(point.fact_f1),
    )


def _stop_notes(analysis: StopAnalysis) -> list[str]:
    oracle, curve = analysis.oracle, analysis.roc
    reach = f"{curve.fpr[-2]:.2g}".removeprefix("0")
    return [
        f"n = {oracle.n:,} questions; early, perfect and late are shares of the {oracle.num_complete:,} whose gold is "
        "complete in the end.",
        "TPR, FPR: shares of the gold and of the other chunks that were picked, all questions pooled.",
        f"AUC {share(auc(curve))}: a straight line from FPR {reach}, where the picks end, to 1 is part of it; "
        f"mean TPR up to {reach}: {share(auc_within_reach(curve))}.",
        "The best row is not a result, because a threshold must be calibrated on other questions.",
        "The oracle reads the labels: it bounds EM, not F1. Where the gold is never complete it takes every pick.",
    ]


def _budget_cells(row: BudgetRow, markdown: bool) -> tuple[str, ...]:
    ends = ((row.em_low, row.em_high), (row.f1_low, row.f1_high))
    em, f1 = (interval(*one) if markdown else "-".join(map(share, one)) for one in ends)
    return str(row.num_steps), share(row.fact_em), em, share(row.fact_f1), f1, share(row.f1_ceiling)


def _table(rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """Columns of numbers."""
    return "\n".join(align(rows, [True] * len(rows[0]), markdown=markdown))


def _with_notes(table: str, notes: Sequence[str], markdown: bool) -> str:
    lines = [table, "", *(f"- {note}" for note in notes)] if markdown else [table, *notes]
    return "\n".join(lines) + "\n"


def _draw_mistakes(axes, points: Sequence[StopPoint]) -> None:
    axes.plot(*_series(points, "early"), color=_RED, linestyle="-", label="early: gold missed", **_marks("o", points))
    axes.plot(*_series(points, "late"), color=_BLUE, linestyle="--", label="late: extra picks", **_marks("s", points))
    dress(axes, "early and late: t_stop before or after t_earliest", "threshold on Q", "share of completed questions")
    _unit(axes)
    axes.legend(frameon=False, fontsize=9, loc="best")


def _draw_perfect(axes, points: Sequence[StopPoint]) -> None:
    axes.plot(*_series(points, "perfect"), color=_GREEN, **_marks("o", points))
    dress(axes, "perfect: t_stop = t_earliest", "threshold on Q", "share of completed questions")
    _unit(axes)


def _draw_lengths(axes, points: Sequence[StopPoint], oracle: StopPoint) -> None:
    axes.axhline(oracle.episode_length, color="0.35", linestyle=(0, (5, 3)), linewidth=1.2, label="oracle")
    axes.plot(*_series(points, "episode_length"), color=_PURPLE, label="threshold", **_marks("o", points))
    dress(axes, "length: picks a question", "threshold on Q", "mean number of picks")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, loc="best")


def _draw_roc(axes, curve: Roc, points: Sequence[StopPoint], oracle: StopPoint) -> None:
    axes.plot([0, 1], [0, 1], color="0.6", linestyle=":", linewidth=1.2, label="chance")
    axes.plot(curve.fpr[-2:], curve.tpr[-2:], color=_BLUE, linestyle="--", linewidth=1.2, label="no pick left")
    _draw_reached(axes, curve, points, oracle)
    dress(axes, f"ROC of the picks, AUC {share(auc(curve))}", _FPR_LABEL, "TPR: share of the gold taken")
    axes.set_xlim(-0.02, 1.02)
    _unit(axes)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    reach = float(curve.fpr[-2])
    if 0 < reach < _NARROW:  # few picks of many chunks: all of it happens at the left edge
        part = axes.inset_axes((0.14, 0.1, 0.42, 0.42))
        _draw_reached(part, curve, points, oracle)
        part.text(0.96, 0.06, "up to where\nthe picks end", transform=part.transAxes, ha="right", fontsize=8)
        part.set_xlim(-0.03 * reach, 1.03 * reach)
        part.set_ylim(-0.03, 1.03)
        part.tick_params(labelsize=8)
        part.locator_params(axis="x", nbins=4)
        part.grid(color="0.9", linewidth=0.8)
        part.set_axisbelow(True)


def _draw_reached(axes, curve: Roc, points: Sequence[StopPoint], oracle: StopPoint) -> None:
    """The curve of the picks, with the thresholds of the table and the oracle."""
    axes.plot(curve.fpr[:-1], curve.tpr[:-1], color=_BLUE, linewidth=1.8, label="all thresholds")
    fpr, tpr = [point.fpr for point in points], [point.tpr for point in points]
    if len(points) <= _MAX_MARKERS:
        axes.plot(fpr, tpr, "o", color=_ORANGE, markersize=5, label="thresholds of the table")
    star = {"markersize": 13, "markeredgecolor": "white", "zorder": 5}
    axes.plot([oracle.fpr], [oracle.tpr], "*", color=_RED, label="oracle", **star)


def _series(points: Sequence[StopPoint], name: str) -> tuple[list[float | None], list[float]]:
    return [point.threshold for point in points], [getattr(point, name) for point in points]


def _marks(marker: str, points: Sequence[StopPoint]) -> dict[str, object]:
    shown = marker if len(points) <= _MAX_MARKERS else ""
    return {"marker": shown, "markersize": 5, "linewidth": 1.8, "clip_on": False}


def _unit(axes) -> None:
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
