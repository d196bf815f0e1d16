"""Tables of Markdown: their rows as units, and the head that a chunk without it needs to be read.

A chunk is an exact slice of its document, so a chunk that begins inside a table has rows without names of columns. Its
context gives them: the nearest heading above the table, and the row of names. The context is derived from the text of
the document and the place of the chunk; it is embedded, searched and shown with the chunk, but is not a part of it.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from qrag_jax.chunking.text.blocks import find_blocks
from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.types import Span

_MOST = 1_000  # characters of a context; all chunks of a table repeat it
_DELIMITER = re.compile(r"(?:\A|[\r\n])[ \t]*[|:-][|: \t-]*(?=[\r\n]|\Z)")


@dataclass(frozen=True)
class Table:
    """A table at the top level of a Markdown text.

    Attributes:
        rows: half-open characters of the head (names and the line below them), then of each row.
        heading: the nearest heading above it, without marks; empty if there is none.
        head: the names of the columns as written, without the line below them.
    """

    rows: tuple[Span, ...]
    heading: str
    head: str

    @property
    def context(self) -> str:
        """The heading and the head, cut between cells if they are too long."""
        told = "\n".join(part for part in (self.heading, self.head) if part)
        return told if len(told) <= _MOST else f"{told[:_MOST].rpartition('|')[0] or told[:_MOST]}| ..."


@lru_cache(maxsize=2)
def find_tables(text: str) -> tuple[Table, ...]:
    """The tables of a text that have a row besides the head, in order."""
    if "|" not in text or not _DELIMITER.search(text):
        return ()
    tables, heading = [], ""
    for block in find_blocks(text):
        if block.kind == "heading" and block.title is not None:
            heading = " ".join(text[slice(*block.title)].split())
        elif block.kind == "table" and block.parts:
            head = text[slice(*block.parts[0])].splitlines()[0]
            tables.append(Table(block.parts, heading, head.strip()))
    return tuple(tables)


def context_of(text: str, spans: Sequence[Span]) -> str:
    """The context of a chunk: of the table in which its first span begins, after the head; else empty.

    Args:
        text: of the document.
        spans: of the chunk, half-open characters of the text.
    """
    found = _table_at(text, spans[0][0])
    return found.context if found is not None and spans[0][0] >= found.rows[0][1] else ""


def join_context(context: str, text: str) -> str:
    """The text of a chunk after its context, as it is embedded, searched and read by a language model."""
    return f"{context}\n{text}" if context else text


def make_row_splitter(split: SplitSentences) -> SplitSentences:
    """A splitter for which every row of a table is a sentence, and so is the head with the line below it."""

    def split_rows(text: str) -> list[Span]:
        units: list[Span] = []
        done = 0
        for table in find_tables(text):
            start, end = table.rows[0][0], table.rows[-1][1]
            units += [(done + first, done + last) for first, last in split(text[done:start])]
            units += table.rows
            done = end
        return units + [(done + first, done + last) for first, last in split(text[done:])]

    return split_rows


def join_in_rows(text: str, spans: Sequence[Span]) -> list[Span]:
    """Ordered spans of a text; those that begin in one row of a table are joined, and so are the lines of a head."""
    joined: list[Span] = []
    row: Span | None = None
    for start, end in spans:
        if row is not None and start < row[1]:
            joined[-1] = joined[-1][0], end
            continue
        joined.append((start, end))
        found = _table_at(text, start)
        row = None if found is None else found.rows[bisect_right(found.rows, start, key=lambda span: span[0]) - 1]
    return joined


def _table_at(text: str, place: int) -> Table | None:
    """The table around a character."""
    tables = find_tables(text)
    number = bisect_right(tables, place, key=lambda table: table.rows[0][0]) - 1
    return tables[number] if number >= 0 and place < tables[number].rows[-1][1] else None
