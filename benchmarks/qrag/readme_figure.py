"""Draws the figure of the README: three multi-hop sets, five methods, 95% intervals.

    python -m benchmarks.qrag.readme_figure     # writes docs/images/multihop.png, in seconds

It reads the table "Regression" of `results/multihop/controls.md`, so the figure has the numbers of that page.
"""

import re
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, arguments
from qrag_jax.eval.tables import new_figure, write_png

PAGE = Path(__file__).parent / "results" / "multihop" / "controls.md"
OUT = ROOT / "docs" / "images" / "multihop.png"
# Row of the page -> its name in the figure, colour and marker; from the first to the last of a group.
METHODS = {
    "BM25": ("BM25", "0.55", "s"),
    "single step": ("nearest vectors", "0.35", "D"),
    "untrained": ("Q-RAG search, untrained", "tab:blue", "^"),
    "regression on links": ("logistic regression on the link features", "tab:green", "v"),
    "**run**": ("Q-RAG with link features, 3 seeds", "tab:red", "o"),
}
Values = tuple[float, float, float]


def read_table(text: str) -> dict[str, dict[str, Values]]:
    """Set -> method -> mean, low and high, of the first table of a page."""
    lines = text[text.index("| fact EM") :].split("\n\n")[0].splitlines()
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        head: {row[0]: read_interval(row[column]) for row in rows}
        for column, head in enumerate(heads)
        if ", n = " in head
    }


def read_interval(cell: str) -> Values:
    """`.869 [.812, .919]` as numbers."""
    mean, low, high = map(float, re.findall(r"\d*\.\d+", cell))
    return mean, low, high


def draw(sets: dict[str, dict[str, Values]]) -> Any:
    """A group of points for each set."""
    figure = new_figure(8.4, 3.5)
    axes = figure.subplots()
    for number, (row, (name, colour, marker)) in enumerate(METHODS.items()):
        values = [methods[row] for methods in sets.values()]
        places = [group + 0.15 * (number - (len(METHODS) - 1) / 2) for group in range(len(sets))]
        means = [mean for mean, _, _ in values]
        ends = [[mean - low for mean, low, _ in values], [high - mean for mean, _, high in values]]
        axes.errorbar(places, means, ends, color=colour, marker=marker, linestyle="none", capsize=3, label=name)
    axes.set_xticks(range(len(sets)), [head.replace(", n = ", "\n") + " questions" for head in sets])
    axes.set_ylim(0, 1)
    axes.set_ylabel("all gold paragraphs found\nin 4 picks, 95% interval", fontsize=9)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    return figure


if __name__ == "__main__":
    arguments(__doc__).parse_args()
    write_png(OUT, draw(read_table(PAGE.read_text(encoding="utf-8"))))
    print(OUT)
