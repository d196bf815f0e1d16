"""Rows in which a language model says which lines begin parts of a document: written, read, checked, their grammar.

    12, Level One, true
    15, Level Two, false

A row is the number of a line, the level of the part that begins there, and whether the line is a heading. Where no line
begins a part, the answer is `none`.

A text as numbered lines for a language model: each cut short, and as many in a window as its tokens hold.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qrag_jax.chunking.text.spans import readable
from qrag_jax.types import CountTokens, Grammar, InputError, Regex, UsageError


@dataclass(frozen=True)
class Lines:
    """What a model is shown of a text; the text itself stays whole.

    Attributes:
        texts: one line each, without line breaks.
        costs: tokens of each with its number and line end.
    """

    texts: tuple[str, ...]
    costs: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def stop(self, first: int, tokens: int, most: int | None = None) -> int:
        """Where a window ends that begins with a line: before the first line that it has no room for.

        Args:
            first: line from 0.
            tokens: that the window holds; a line that is larger is a window of its own.
            most: lines that it holds, at least 1; None is any number.

        Returns:
            The line behind the last one of the window, above `first`.
        """
        last = len(self) if most is None else min(len(self), first + most)
        place, left = first + 1, tokens - self.costs[first]
        while place < last and self.costs[place] <= left:
            left -= self.costs[place]
            place += 1
        return place

    def written(self, numbers: Iterable[int]) -> str:
        """Some lines below each other, numbered from 0 in this order, whatever they are in the text."""
        return "\n".join(f"{number}: {self.texts[line]}" for number, line in enumerate(numbers))


def number_lines(texts: Sequence[str], count: CountTokens, *, max_chars: int, tokens: int) -> Lines:
    """Each text as a line: blanks as one, lone surrogates as U+FFFD, cut to a number of characters and of tokens.

    Args:
        texts: sentences or paragraphs, none blank.
        max_chars: of a line, without its number.
        tokens: of a line with its number, so that it fits into a window.
    """
    lines, costs = [], []
    for text in texts:
        line, cost = _cut(readable(" ".join(text.split())[:max_chars]), len(texts), count, tokens)
        lines.append(line)
        costs.append(cost)
    return Lines(tuple(lines), tuple(costs))


def _cut(line: str, number: int, count: CountTokens, tokens: int) -> tuple[str, int]:
    """The line, shorter where it is over the tokens, and its cost."""
    while (cost := count(f"{number}: {line}\n")) > tokens:
        if len(line) == 1:
            raise UsageError(f"a line of one character has {cost} tokens with its number: give windows of more tokens")
        line = line[: max(1, len(line) * tokens // cost)]
    return line, cost


LEVELS = ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
NO_ROWS = "none"
# Why a row does not count.
NO_ROW = "no row"
LEVEL_UNKNOWN = "level unknown"
OUT_OF_RANGE = "line out of range"
READ_BEFORE = "line read before"
REPEATED = "line repeated"
NOT_RISING = "lines not rising"
MAX_RISING = 200  # lines of a window whose grammar knows their order; of more its tables become too large
_LEVEL_NUMBERS = {word.lower(): number for number, word in enumerate(LEVELS, start=1)}
_ROW = re.compile(r"[\s\-*]*(\d{1,9})\s*,\s*level\s+([a-z0-9]+)\s*(?:,\s*(true|false)\b.*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """A line that begins a part.

    Attributes:
        line: its number in the window.
        level: from 1 to 10; 0 is one that there is not.
        is_title: the line is a heading.
    """

    line: int
    level: int
    is_title: bool = False


@dataclass(frozen=True)
class Answer:
    """What an answer says.

    Attributes:
        rows: in its order, good or bad.
        num_other: lines that are no row.
    """

    rows: tuple[Row, ...]
    num_other: int = 0


@dataclass(frozen=True)
class RowsForm:
    """Answers of rows; an `AnswerForm`.

    Attributes:
        window_lines: most lines of a window; None is any number.
    """

    window_lines: int | None = None

    @property
    def grammar(self) -> Grammar:
        """Rows of lines that rise, none twice, up to 200 lines a window; rows in any order for more."""
        if self.window_lines is None or self.window_lines > MAX_RISING:
            row = rf"(?:0|[1-9][0-9]{{0,4}}){_TAIL}"
            return Regex(rf"{NO_ROWS}|{row}(?:\n{row})*\n?")
        rows = "".join(rf"(?:{line}{_TAIL}\n)?" for line in range(self.window_lines))
        return Regex(rf"{NO_ROWS}|{rows}")

    def read(self, text: str) -> Answer:
        """The rows of an answer, whatever stands around them."""
        return read_rows(text)


_TAIL = f", Level (?:{'|'.join(LEVELS)}), (?:true|false)"


def format_rows(rows: Iterable[Row]) -> str:
    """The answer that says these rows, without a line end behind the last one."""
    return (
        "\n".join(f"{row.line}, Level {LEVELS[row.level - 1]}, {str(row.is_title).lower()}" for row in rows) or NO_ROWS
    )


def read_rows(text: str) -> Answer:
    """The rows of an answer, as of `RowsForm.read`; one without its last word is read too."""
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
    """The rows of an answer that count, and why others do not.

    A row counts where its level is known, its line is in the window and was not read before, no row before it is of
    the same line, and the last one of the same level is of a line above it.

    Args:
        num_read: lines at the beginning of the window that were read before.
        known: line -> level of what is settled; a row that says the same is neither.

    Returns:
        (line -> level, rising; how many rows do not count, by reason).
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
    """Why a row does not count; None where it does."""
    if not row.level:
        return LEVEL_UNKNOWN
    if row.line >= num_lines:
        return OUT_OF_RANGE
    if row.line < num_read:
        return READ_BEFORE
    if row.line in taken:
        return REPEATED
    return NOT_RISING if row.line <= last else None
