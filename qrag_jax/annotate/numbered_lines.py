"""Numbered lines for a language model, and the rows in which it names lines that begin a part of a document.

    12, Level One, true
    15, Level Two, false

A row is the number of a line, the level of the part that begins there, and whether the line is a heading. If no line
begins a part, the answer is `none`.

Lines are cut to a maximum length, and a window contains as many lines as its tokens allow.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qrag_jax.chunking.text.spans import readable
from qrag_jax.types import CountTokens, Grammar, InputError, Regex, UsageError


@dataclass(frozen=True)
class Lines:
    """The lines of a text as a model sees them; the text itself is unchanged.

    Attributes:
        texts: of the lines, without line breaks.
        costs: tokens of each line with its number and line end.
    """

    texts: tuple[str, ...]
    costs: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def stop(self, first: int, tokens: int, most: int | None = None) -> int:
        """The end of a window: the first line that does not fit.

        Args:
            first: first line of the window, from 0.
            tokens: most tokens of the window; a larger line is a window alone.
            most: most lines of the window, at least 1; None is no limit.

        Returns:
            The line after the last one of the window; greater than `first`.
        """
        last = len(self) if most is None else min(len(self), first + most)
        place, left = first + 1, tokens - self.costs[first]
        while place < last and self.costs[place] <= left:
            left -= self.costs[place]
            place += 1
        return place

    def written(self, numbers: Iterable[int]) -> str:
        """Some lines as text, numbered from 0 in this order."""
        return "\n".join(f"{number}: {self.texts[line]}" for number, line in enumerate(numbers))


def number_lines(texts: Sequence[str], count: CountTokens, *, max_chars: int, tokens: int) -> Lines:
    """Makes a line of each text: joins blanks, replaces lone surrogates by U+FFFD, and cuts it.

    Args:
        texts: sentences or paragraphs, none blank.
        count: counts tokens.
        max_chars: most characters of a line, without its number.
        tokens: most tokens of a line with its number, so it fits into a window.

    Raises:
        UsageError: a line of one character has too many tokens.
    """
    lines, costs = [], []
    for text in texts:
        line, cost = _cut(readable(" ".join(text.split())[:max_chars]), len(texts), count, tokens)
        lines.append(line)
        costs.append(cost)
    return Lines(tuple(lines), tuple(costs))


def _cut(line: str, number: int, count: CountTokens, tokens: int) -> tuple[str, int]:
    """The line, cut to the allowed tokens, and its cost."""
    while (cost := count(f"{number}: {line}\n")) > tokens:
        if len(line) == 1:
            raise UsageError(f"a line of one character has {cost} tokens with its number; give windows more tokens")
        line = line[: max(1, len(line) * tokens // cost)]
    return line, cost


LEVELS = ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
NO_ROWS = "none"
# Reasons why a row does not count.
NO_ROW = "no row"
LEVEL_UNKNOWN = "level unknown"
OUT_OF_RANGE = "line out of range"
READ_BEFORE = "line read before"
REPEATED = "line repeated"
NOT_RISING = "lines not rising"
MAX_RISING = 200  # most lines of a window for a grammar with ordered lines; larger ones need too large tables
_LEVEL_NUMBERS = {word.lower(): number for number, word in enumerate(LEVELS, start=1)}
_ROW = re.compile(r"[\s\-*]*(\d{1,9})\s*,\s*level\s+([a-z0-9]+)\s*(?:,\s*(true|false)\b.*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """A line that begins a part.

    Attributes:
        line: its number in the window.
        level: from 1 to 10; 0 is an unknown level.
        is_title: whether the line is a heading.
    """

    line: int
    level: int
    is_title: bool = False


@dataclass(frozen=True)
class Answer:
    """A parsed answer.

    Attributes:
        rows: in the answer's order, valid or not.
        num_other: number of lines that are not rows.
    """

    rows: tuple[Row, ...]
    num_other: int = 0


@dataclass(frozen=True)
class RowsForm:
    """The form of an answer with rows; an `AnswerForm`.

    Attributes:
        window_lines: most lines of a window; None is no limit.
    """

    window_lines: int | None = None

    @property
    def grammar(self) -> Grammar:
        """For windows of up to 200 lines, rows in the order of lines, each line at most once; above that, any rows."""
        if self.window_lines is None or self.window_lines > MAX_RISING:
            row = rf"(?:0|[1-9][0-9]{{0,4}}){_TAIL}"
            return Regex(rf"{NO_ROWS}|{row}(?:\n{row})*\n?")
        rows = "".join(rf"(?:{line}{_TAIL}\n)?" for line in range(self.window_lines))
        return Regex(rf"{NO_ROWS}|{rows}")

    def read(self, text: str) -> Answer:
        """The rows of an answer, ignoring other text.

        Raises:
            InputError: the answer has no row and is not `none`.
        """
        return read_rows(text)


_TAIL = f", Level (?:{'|'.join(LEVELS)}), (?:true|false)"


def format_rows(rows: Iterable[Row]) -> str:
    """The answer with these rows, without a final line end."""
    return (
        "\n".join(f"{row.line}, Level {LEVELS[row.level - 1]}, {str(row.is_title).lower()}" for row in rows) or NO_ROWS
    )


def read_rows(text: str) -> Answer:
    """The rows of an answer, as in `RowsForm.read`; the last field of a row may be missing."""
    lines = [line for line in text.splitlines() if line.strip()]
    if [line.strip(" .`'\"").lower() for line in lines] == [NO_ROWS]:
        return Answer(())
    found = [_ROW.fullmatch(line.rstrip()) for line in lines]
    said = [one.groups() for one in found if one]
    rows = [
        Row(int(n), _LEVEL_NUMBERS.get(word.lower(), 0), (title or "").lower() == "true") for n, word, title in said
    ]
    if not any(row.level for row in rows):
        what = f"no line of it is a row like {format_rows([Row(12, 2)])!r}, and it is not {NO_ROWS!r}"
        raise InputError(what if lines else f"it is empty; where no line begins a part, it is {NO_ROWS!r}")
    return Answer(tuple(rows), len(lines) - len(rows))


def good_rows(
    answer: Answer, num_read: int, num_lines: int, known: Mapping[int, int] | None = None
) -> tuple[dict[int, int], Counter[str]]:
    """The valid rows of an answer, and the number of invalid ones by reason.

    A row is valid if its level is known, its line is in the window and not residual, no earlier row has the same line,
    and the last row of the same level has a lower line.

    Args:
        num_read: number of residual lines at the beginning of the window.
        num_lines: number of lines in the window.
        known: line -> level of settled rows; a row that repeats one is ignored.

    Returns:
        (line -> level, in order; numbers of invalid rows by reason).
    """
    settled = dict(known or {})
    kept: dict[int, int] = {}
    last: dict[int, int] = {}
    dropped: Counter[str] = Counter({NO_ROW: answer.num_other} if answer.num_other else {})
    for row in answer.rows:
        if settled.get(row.line) == row.level:
            continue
        reason = _fault(row, num_read, num_lines, settled.keys() | kept.keys(), last.get(row.level, -1))
        if reason is None:
            kept[row.line] = row.level
            last[row.level] = row.line
        else:
            dropped[reason] += 1
    return dict(sorted(kept.items())), dropped


def _fault(row: Row, num_read: int, num_lines: int, taken: Iterable[int], last: int) -> str | None:
    """The reason why a row is invalid, or None."""
    if not row.level:
        return LEVEL_UNKNOWN
    if row.line >= num_lines:
        return OUT_OF_RANGE
    if row.line < num_read:
        return READ_BEFORE
    if row.line in taken:
        return REPEATED
    return NOT_RISING if row.line <= last else None
