"""The text of CSV and TSV files: each row a paragraph of `head: value` lines, so that it is understood by itself."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice

from qrag_jax.documents.converted import Converted, ReadOptions, cleaned
from qrag_jax.documents.decoding import decode_part
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError

_SAMPLE_CHARS, _SAMPLE_ROWS = 50_000, 50  # in which delimiter and head are searched
_MAX_HEAD = 100  # characters of a head, which every row repeats
_DELIMITERS = ";\t|,"  # of equal ones, the first: a decimal comma looks like a delimiter
_TOLD = re.compile(r"sep=(.)\n")  # first line of a file for Excel
_NUMBER, _NAME = re.compile(r"[-+(]?[$€£]?\s?\d[\d\s.,:/%€)-]*"), re.compile(r"\d{1,4}")
_YEAR = re.compile(r"(?:19|20)\d\d")


def read_table(raw: bytes, encoding: str = "utf-8", delimiter: str = ",") -> Converted:
    """The text of a table. Empty cells are left out, and rows above the head are kept without it.

    Args:
        encoding: of a file that is not UTF-8.
        delimiter: if the rows do not show another one.
    """
    text, missing = decode_part(raw, encoding)
    told = _TOLD.match(text)
    if told is not None:
        text, delimiter = text[told.end() :], told[1]
    elif delimiter == ",":
        delimiter = _delimiter(text) or delimiter
    try:
        content = _paragraphs(_rows(text, delimiter))
    except csv.Error:  # a quotation mark that nothing closes: here they are characters like others
        try:
            content = _paragraphs(_rows(text, delimiter, csv.QUOTE_NONE))
        except csv.Error as error:
            raise InputError(f"not a table ({error}); rename it to end in .txt if it is text") from error
    return Converted(cleaned(content), left_out=missing)


def _rows(text: str, delimiter: str, quoting: int = csv.QUOTE_MINIMAL) -> Iterator[list[str]]:
    """The rows that are not blank, without blanks around their cells.

    Raises:
        csv.Error: the text ends inside a quoted cell, or a cell is very long.
    """
    how = {"delimiter": delimiter, "quoting": quoting, "skipinitialspace": delimiter != "\t"}
    reader = csv.reader(io.StringIO(text, newline=""), **how, strict=True)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if any(cells):
            yield cells


def _delimiter(text: str) -> str | None:
    """The delimiter that divides most of the first rows into as many cells as the first; None if there is none."""
    sample = text[:_SAMPLE_CHARS]
    lines = sample[: sample.rfind("\n") + 1] or sample
    best, most = None, 0.0
    for delimiter in _DELIMITERS:
        try:
            widths = [len(row) for row in islice(_rows(lines, delimiter), _SAMPLE_ROWS)]
        except csv.Error:
            widths = [line.count(delimiter) + 1 for line in lines.split("\n")[:_SAMPLE_ROWS] if line.strip()]
        width, number = Counter(widths).most_common(1)[0] if widths else (1, 0)
        if width > 1 and number / len(widths) > most:
            best, most = delimiter, number / len(widths)
    return best


def _paragraphs(rows: Iterator[list[str]]) -> str:
    first = list(islice(rows, _SAMPLE_ROWS))
    place = _head_place(first)
    heads = first[place] if place is not None else []
    above = first[:place] if place is not None else []
    found = [", ".join(filter(None, row)) for row in above]
    below = _below(heads, chain(first[len(above) + bool(heads) :], rows))
    written = ["\n".join(lines) for lines in below]
    if heads and (not written or max(map(len, heads)) > _MAX_HEAD):
        found.append(", ".join(filter(None, heads)))
    return "\n\n".join(found + written)


def _below(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    """The lines of each row; without heads, one line with all cells."""
    labels = [f"{head[:_MAX_HEAD]}: " if head else "" for head in heads]
    for row in rows:
        if heads:
            named = zip([*labels, *[""] * (len(row) - len(labels))], row, strict=False)
            yield [label + cell for label, cell in named if cell]
        else:
            yield [", ".join(filter(None, row))]


def _head_place(rows: Sequence[Sequence[str]]) -> int | None:
    """The row of the heads: the first that fills most columns; None if it looks like the rows below."""
    width = Counter(len(row) for row in rows).most_common(1)[0][0] if rows else 0
    for place, row in enumerate(rows):
        cells = [cell for cell in row if cell]
        if len(row) == width and (2 * len(cells) > width or all(row[1:])):
            columns = zip(row, *(below for below in rows[place + 1 :] if len(below) == width), strict=True)
            is_head = 2 * len(set(cells)) > len(cells) and not any(map(_holds_numbers, columns))
            return place if is_head else None
    return None


def _holds_numbers(column: Sequence[str]) -> bool:
    """True if the first cell of a column is a number, and not a name like a year above cells of another form."""
    first, *others = column
    form = _YEAR if _YEAR.fullmatch(first) else _NAME
    is_name = form.fullmatch(first) and any(other and not form.fullmatch(other) for other in others)
    return _NUMBER.fullmatch(first) is not None and not is_name


def _load(options: ReadOptions, *, delimiter: str) -> Callable[[bytes], Converted]:
    return lambda raw: read_table(raw, options.encoding, delimiter)


KIND = FileKind((".csv",), "a CSV file", (), partial(_load, delimiter=","), looks_like_text=True, is_light=True)
TABS = FileKind((".tsv", ".tab"), "a TSV file", (), partial(_load, delimiter="\t"), looks_like_text=True, is_light=True)
