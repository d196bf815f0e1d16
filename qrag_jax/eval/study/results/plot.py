"""Quality against cost as a PNG: one panel per task, one named point per strategy. Needs no display."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qrag_jax.eval.study.records import StudyResult
from qrag_jax.eval.study.results.study_tables import Line, study_lines, total_seconds
from qrag_jax.eval.tables import check_png, dress, new_figure, write_png

if TYPE_CHECKING:
    import matplotlib.figure

# Okabe and Ito's palette, told apart by people with any kind of colour blindness; shapes and names repeat the message.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "0.45")
_MARKERS = "osD^vPX*"
_MAX_COLUMNS = 3
_MIN_SECONDS = 1e-3  # an axis of logarithms has no 0
_MARKER_SIZE = 7.0  # points
_GAP = 4.0  # points between a marker and its name
_FAR = (0.0, 10.0, 22.0, 36.0, 52.0)  # further distances, tried where nearer places are taken


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, y upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "Box") -> float:
        """Shared area in square pixels."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    def outside(self, other: "Box") -> float:
        """Area of this that is not inside the other, in square pixels."""
        return (self.right - self.left) * (self.top - self.bottom) - self.overlap(other)


def plot_study(path: str | os.PathLike, result: StudyResult) -> None:
    """Writes what `draw_study` draws as a PNG.

    Args:
        path: ends in .png; its folder is made.
        result: at least one row.
    """
    check_png(path)
    write_png(path, draw_study(result))


def draw_study(result: StudyResult) -> "matplotlib.figure.Figure":
    """F1@report_k against seconds of chunking and embedding, a panel a task.

    Bars are the 95% intervals of the rows; the dashed line is the baseline's F1. Seconds are on an axis of logarithms,
    which begins at a millisecond.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    tasks = study_lines(result)
    strategies = list(dict.fromkeys(row.strategy for row in result.rows))
    num_columns = min(len(tasks), _MAX_COLUMNS)
    num_rows = -(-len(tasks) // num_columns)
    figure = new_figure(1.2 + 4.6 * num_columns, 4.1 * num_rows)
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.12))
    grid = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes, (task, lines) in zip(grid, tasks.items(), strict=False):
        _draw_task(axes, task, lines, result, strategies)
    for axes in grid[len(tasks) :]:
        axes.set_axis_off()
    canvas: Any = figure.canvas
    canvas.draw()  # places the axes, so that pixels are known
    figure.set_layout_engine("none")
    for axes, lines in zip(grid, tasks.values(), strict=False):
        _name_points(axes, lines, result, strategies, canvas.get_renderer())
    return figure


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    taken: Sequence[Box],
    frame: Box,
    scale: float = 1.0,
) -> list[Box]:
    """Boxes for the names of points, one after the other, each where it covers least.

    Args:
        sizes: (width, height) of each name in pixels.
        taken: what should not be covered: markers and bars.
        frame: inside which names should stay.
        scale: pixels of a point (1/72 inch).

    Returns:
        One box a point.
    """
    placed: list[Box] = []
    for (x, y), (width, height) in zip(points, sizes, strict=True):
        best, least = Box(x, y, x + width, y + height), np.inf
        for far in _FAR:
            distance = (_MARKER_SIZE / 2 + _GAP + far) * scale
            for box in _around(x, y, width, height, distance):
                covered = sum(box.overlap(other) for other in taken) + 50 * sum(box.overlap(other) for other in placed)
                price = covered + 4 * box.outside(frame) + far * scale * height / 4  # near a point its name is clearer
                if price < least - 1e-9:
                    best, least = box, price
        placed.append(best)
    return placed


def _around(x: float, y: float, width: float, height: float, distance: float) -> list[Box]:
    """Eight places at a distance from a point, left and right first."""
    slope = distance * 0.75
    corners = [
        (x + distance, y - height / 2),
        (x - distance - width, y - height / 2),
        (x + slope, y + slope),
        (x + slope, y - slope - height),
        (x - slope - width, y + slope),
        (x - slope - width, y - slope - height),
        (x - width / 2, y + distance),
        (x - width / 2, y - distance - height),
    ]
    return [Box(left, bottom, left + width, bottom + height) for left, bottom in corners]


def _style(strategy: str, strategies: Sequence[str]) -> tuple[str, str]:
    number = strategies.index(strategy)
    return _COLOURS[number % len(_COLOURS)], _MARKERS[number // len(_COLOURS) + number % len(_COLOURS) & 7]


def _draw_task(axes, task: str, lines: Sequence[Line], result: StudyResult, strategies: Sequence[str]) -> None:
    """Points and intervals of one task."""
    row = lines[0].row
    for line in lines:
        colour, marker = _style(line.row.strategy, strategies)
        x, y = _point(line, result)
        ends = [[y - line.row.low], [line.row.high - y]]
        axes.errorbar(
            x, y, yerr=np.maximum(ends, 0.0), color=colour, marker=marker, markersize=_MARKER_SIZE, linewidth=1.3,
            capsize=2.5,
        )  # fmt: skip
        if line.versus is None:
            axes.axhline(y, color="0.6", linestyle=(0, (5, 3)), linewidth=0.9, zorder=0)
    _dress(
        axes,
        f"{task} ({row.kind}, n = {row.n:,})",
        f"F1@{result.report_k}",
        [_point(line, result)[0] for line in lines],
    )


def _dress(axes, title: str, ylabel: str, seconds: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = min(seconds), max(seconds)
    margin = max(3.0 / (high / low), 1.5)  # at least a factor of three to see, and room for names
    axes.set_xscale("log")
    axes.set_xlim(low / margin, high * margin * 1.2)
    subs = (1.0, 2.0, 3.0, 5.0) if high / low * margin**2 < 50 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(y=0.12)
    dress(axes, title, "seconds of chunking and embedding", ylabel, grid="0.92", labelsize=8)


def _name_points(axes, lines: Sequence[Line], result: StudyResult, strategies: Sequence[str], renderer) -> None:
    """Writes the name of each strategy where it covers nothing; a thin line connects a name that is far away."""
    from matplotlib.patheffects import withStroke

    scale = axes.figure.dpi / 72
    to_pixels = axes.transData.transform
    points = [(float(x), float(y)) for x, y in to_pixels([_point(line, result) for line in lines])]
    texts = [
        axes.annotate(line.row.strategy, (0, 0), xycoords="figure pixels", fontsize=8.5, verticalalignment="bottom",
                      color=_style(line.row.strategy, strategies)[0],
                      path_effects=[withStroke(linewidth=2.5, foreground="white")])
        for line in lines
    ]  # fmt: skip
    extents = [text.get_window_extent(renderer) for text in texts]
    half = _MARKER_SIZE / 2 * scale
    taken = [Box(x - half, y - half, x + half, y + half) for x, y in points]
    for (x, y), line in zip(points, lines, strict=True):
        ends = [float(to_pixels((1.0, end))[1]) for end in (line.row.low, line.row.high)]
        taken.append(Box(x - scale * 2, ends[0], x + scale * 2, ends[1]))
        if line.versus is None:
            taken.append(Box(axes.bbox.x0, y - scale, axes.bbox.x1, y + scale))
    frame = axes.get_window_extent(renderer)
    inside = Box(frame.x0, frame.y0, frame.x1, frame.y1)
    boxes = place_labels(points, [(one.width, one.height) for one in extents], taken, inside, scale)
    for text, box, (x, y) in zip(texts, boxes, points, strict=True):
        text.set_position((box.left, box.bottom))
        near = (min(max(x, box.left), box.right), min(max(y, box.bottom), box.top))
        if np.hypot(near[0] - x, near[1] - y) > (_MARKER_SIZE / 2 + _GAP + 3) * scale:
            arrow = {"arrowstyle": "-", "color": "0.5", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
            axes.annotate("", (x, y), near, "figure pixels", textcoords="figure pixels", arrowprops=arrow)


def _point(line: Line, result: StudyResult) -> tuple[float, float]:
    return max(total_seconds(line.row), _MIN_SECONDS), line.row.scores[f"f1@{result.report_k}"]
