"""Scripts that answer the prompts of `annotate/hichunk.py` from nothing but the lines in them."""

import re

from qrag_jax.annotate.numbered_lines import Row, format_rows
from qrag_jax.chunking.text.chunks import SentenceText

_LINES = re.compile(r"<(passage-\w+)>\n(.*?)\n</\1>", re.DOTALL)
_NEW = re.compile(r"The lines from (\d+) to (\d+) are new")


def lines_of(prompt):
    """The numbered lines of a prompt: (number, text)."""
    lines = _LINES.search(prompt[1].content)[2].split("\n")
    return [(int(number), text) for number, _, text in (line.partition(": ") for line in lines)]


def first_new(prompt):
    """The number of the first line that was not read before."""
    return int(_NEW.search(prompt[1].content)[1])


def rows_by_marks(prompt):
    """Levels as a reader guesses them who knows nothing but these lines.

    A heading begins with a mark, which no level owns: the first mark is one of level 1, a new one is one deeper than
    the heading before it, and a mark that came before keeps its level.
    """
    level_of, now, rows = {}, 0, []
    for number, text in lines_of(prompt):
        if text[0] in "*+-":
            now = level_of.setdefault(text[0], now + 1)
            rows.append(Row(number, now, True))
    return format_rows(row for row in rows if row.line >= first_new(prompt))


def text_of(lines):
    """A text of these lines, one a sentence."""
    spans, at = [], 0
    for line in lines:
        spans.append((at, at + len(line)))
        at += len(line) + 1
    return SentenceText("\n".join(lines), tuple(spans))


def outline(levels):
    """Lines and the points that they are made of: 0 is a line of text, 1 to 3 a heading."""
    lines = [f"{'*+-'[level - 1]} H{number}" if level else f"text {number}" for number, level in enumerate(levels)]
    return text_of(lines), [(number, level) for number, level in enumerate(levels) if level]
