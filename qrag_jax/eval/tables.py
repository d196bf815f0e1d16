"""Numbers and columns as all tables show them, on a terminal and in Markdown.

PNG files of plots, written whole. matplotlib is loaded by who draws, and no display is needed.
"""

import importlib.util
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import UsageError

if TYPE_CHECKING:
    import matplotlib.figure


def share(value: float, digits: int = 3, sign: str = "") -> str:
    """`.955`: a share of 1 without its leading zero.

    Args:
        value: mostly in [0, 1]; a difference of shares may be negative.
        sign: `+` also marks positive values (`+.021`).
    """
    text = f"{value:{sign}.{digits}f}"
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def interval(low: float, high: float, digits: int = 3, sign: str = "") -> str:
    """`[.941, .967]`, its ends as `share` writes them."""
    return f"[{share(low, digits, sign)}, {share(high, digits, sign)}]"


def align(table: Sequence[Sequence[str]], right: Sequence[bool] = (), *, markdown: bool = False) -> list[str]:
    """The lines of a table, its columns padded to one width each.

    Args:
        table: rows of as many cells each, the heading first.
        right: for every column whether it is aligned to the right, as numbers are; none: all to the left.
        markdown: with bars and a rule below the heading, instead of two spaces between the columns.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    sides = right or [False] * len(widths)
    pad = [(str.rjust if to_right else str.ljust) for to_right in sides]
    padded = [[one(cell, width) for one, cell, width in zip(pad, row, widths, strict=True)] for row in table]
    if not markdown:
        return ["  ".join(row).rstrip() for row in padded]
    rules = ("-" * (width + 1) + (":" if to_right else "-") for to_right, width in zip(sides, widths, strict=True))
    body = ["| " + " | ".join(row) + " |" for row in padded]
    return [body[0], "|" + "|".join(rules) + "|", *body[1:]]


def new_figure(width: float, height: float, title: str | None = None) -> "matplotlib.figure.Figure":
    """A figure of the given size in inches, without overlapping parts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and only who draws needs it
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # without pyplot: no global state, no display
    if title is not None:
        figure.suptitle(title, fontsize=13)
    return figure


def dress(axes: Any, title: str, xlabel: str, ylabel: str, *, grid: str = "0.9", labelsize: int = 9) -> None:
    """Adds title, labels and a light grid instead of a box."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.grid(color=grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=labelsize)


def check_can_plot() -> None:
    """Refuses work that ends in a plot where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("plots need the package matplotlib, which is not installed: pip install 'qrag_jax[train]'")


def check_png(path: str | os.PathLike) -> None:
    """Refuses the path of a plot before anything is drawn."""
    check_can_plot()
    if Path(path).suffix != ".png":
        raise UsageError(f"{path}: plots are written as .png; change the ending")


def write_png(path: str | os.PathLike, figure: "matplotlib.figure.Figure") -> None:
    """Writes a figure, the whole file or nothing; its folder is made."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_whole(path, content.getvalue())
