"""Tables of Markdown: their rows as units, and the head that a chunk without it needs to be read.

A chunk is an exact slice of its document, so a chunk that begins inside a table has rows without names of columns. Its
context gives them: the nearest heading above the table, a caption directly above it, and the row of names. The context
is derived from the text of the document and the place of the chunk; it is embedded, searched and shown with the chunk,
but is not a part of it.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from qrag_jax.chunking.text.blocks import end_of_front_matter, line_starts, parse_blocks
from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.spans import cut_text, strip_span
from qrag_jax.types import Span

_LONG = 50_000  # characters of a text; fewer of the longer ones are kept in memory
_MOST = 1_000  # characters of a context; all chunks of a table repeat it
_MOST_CAPTION = 200  # characters of a paragraph that counts as a caption of the table below it
_HEAD = re.compile(r"\|[^\r\n]*(?:\r\n?|\n)[ \t>]*[|:-][|: \t-]*(?=[\r\n]|\Z)")  # as in each table, and fast
_UNDERLINE = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*(?:\||$))+[ \t]*")
_BORDER, _OUTER = re.compile(r"(?<!\\)\|"), re.compile(r"^\||(?<!\\)\|$")
_MARKS = " \t>"  # before a row: indentation, and marks of quotations


@dataclass(frozen=True)
class Table:
    """A table of a Markdown text, perhaps inside a list or a quotation.

    Attributes:
        rows: half-open characters of the head (names of the columns and the line below them), then of each row.
        top: where the heading or short paragraph directly above it begins; the begin of the head if there is none.
        titles: the nearest heading above it, and a short paragraph directly above it; each may be missing.
        head: the names of the columns as written.
    """

    rows: tuple[Span, ...]
    top: int
    titles: tuple[str, ...]
    head: str

    def context(self, place: int) -> str:
        """The context of a chunk that begins at a character of the table: what it lacks of titles and head."""
        begin = self.rows[0][0]
        told = "\n".join((*self.titles, self.head) if place > begin else self.titles if place == begin else ())
        return told if len(told) <= _MOST else f"{told[:_MOST].rpartition('|')[0] or told[:_MOST]}| ..."


def find_tables(text: str) -> tuple[Table, ...]:
    """The tables of a text that have a row besides the head, in order; kept for the texts that were read last."""
    return (_of_long_text if len(text) > _LONG else _of_short_text)(text)


def _read_tables(text: str) -> tuple[Table, ...]:
    if not _HEAD.search(text):
        return ()
    starts = line_starts(text)
    front = end_of_front_matter(text, starts)
    tables: list[Table] = []
    heading = above = ""
    top = below = front  # lines: where the heading and the paragraph just read begin, and where the next block may
    for token, inside in pairwise(parse_blocks(text, starts[front], "table")):  # tables are paragraphs then
        first, last = (front + line for line in token.map or (0, 0))
        if token.type == "heading_open":
            heading, above, top, below = " ".join(inside.content.split()), "", first, last
        elif token.type == "paragraph_open":
            lines = inside.content.split("\n")
            while first < last - 1 and not text[starts[first] : starts[first + 1]].strip():
                first += 1  # behind a line of a form feed, which the content lacks
            head = next((n for n, pair in enumerate(pairwise(lines)) if _is_head(*pair)), len(lines))
            is_near = not text[starts[below] : starts[first]].strip(_MARKS + "\r\n")
            if head:  # text, perhaps with a table directly below it
                above, top = " ".join(lines[:head]), top if is_near and not above else first
            has_titles = (head > 0 or is_near) and len(above) <= _MOST_CAPTION
            line, below = first + head, last
            if head + 2 < len(lines):
                names = max(starts[line], text.find(lines[head].strip(), starts[line], starts[line + 1]))
                rows = cut_text(text, [names, *starts[line + 2 : last + 1]])
                titles = tuple(filter(None, (heading, above if has_titles else "")))
                tables.append(Table(tuple(rows), starts[top] if has_titles else names, titles, lines[head].strip()))
            if token.level or line < last:  # neither what is in a list nor a table is a title of what follows
                above, top = "", last
    return tuple(tables)


_of_short_text, _of_long_text = lru_cache(2_048)(_read_tables), lru_cache(32)(_read_tables)


def _is_head(line: str, following: str) -> bool:
    """True if a line has the names of columns: the next one underlines as many cells."""
    if "|" not in line or not _UNDERLINE.fullmatch(following):
        return False
    cells, marks = (len(_BORDER.split(_OUTER.sub("", row.strip()))) for row in (line, following))
    return cells == marks


def context_of(text: str, spans: Sequence[Span]) -> str:
    """The context of a chunk: of the table in which its first span begins; empty if it begins in none.

    Args:
        text: of the document.
        spans: of the chunk, half-open characters of the text.
    """
    found = _table_at(text, spans[0][0])
    return "" if found is None else found.context(spans[0][0])


def join_context(context: str, text: str) -> str:
    """The text of a chunk after its context, as a language model reads it."""
    return f"{context}\n{text}" if context else text


def searched_text(context: str, text: str) -> str:
    """The text of a chunk with its context, as it is embedded and searched by words.

    A context that is longer than the text stands behind it, because the encoder cuts off the end of a long text.
    """
    return join_context(context, text) if len(context) <= len(text) else join_context(text, context)


def cut_at_rows(text: str, span: Span) -> Iterator[tuple[Span, int | None]]:
    """The parts of a span in order: rows of tables with their numbers, 0 for the head, and text with None."""
    done, stop = span
    for table in find_tables(text) if _may_have_rows(text, span) else ():
        if table.rows[-1][1] <= done or stop <= table.rows[0][0]:
            continue
        for number, (start, end) in enumerate(table.rows):
            if done < start and (between := strip_span(text, done, min(start, stop))):
                yield between, None
            if done < end and start < stop:
                yield (max(done, start), min(end, stop)), number
            done = max(done, min(end, stop))
    if rest := strip_span(text, done, stop):
        yield rest, None


def _may_have_rows(text: str, span: Span) -> bool:
    """False only if no table has rows in a span, told without reading the rest of a long text.

    A table is one paragraph. So its head begins in the span, or before it and after the last empty line.
    """
    start, stop = span
    end = text.find("\n", stop)
    end = text.find("\n", end + 1) if end >= 0 else end  # the line below a head may be behind the span
    return _HEAD.search(text, text.rfind("\n\n", 0, start) + 1, len(text) if end < 0 else end) is not None


def make_row_splitter(split: SplitSentences) -> SplitSentences:
    """A splitter for which every row of a table is a sentence, and so is the head with the line below it."""

    def split_rows(text: str) -> list[Span]:
        if not find_tables(text):
            return split(text)
        units: list[Span] = []
        for (start, end), number in cut_at_rows(text, (0, len(text))):
            own = split(text[start:end]) if number is None else [(0, end - start)]
            units += [(start + first, start + last) for first, last in own]
        return units

    return split_rows


def join_in_rows(text: str, spans: Sequence[Span], *, titles: bool = False) -> list[Span]:
    """Ordered spans of a text; those that begin in one row of a table are joined, and so are the lines of a head.

    Args:
        titles: also join what is directly above a table to its head.
    """
    joined: list[Span] = []
    row: Span | None = None
    for start, end in spans:
        if row is not None and start < row[1]:
            joined[-1] = joined[-1][0], end
            continue
        joined.append((start, end))
        row = None
        if (table := _table_at(text, start)) is not None:
            number = bisect_right(table.rows, start, key=lambda span: span[0]) - 1
            row = table.rows[max(number, 0)] if number >= 0 or titles else None
    return joined


def _table_at(text: str, place: int) -> Table | None:
    """The table around a character, or directly below it."""
    tables = find_tables(text)
    number = bisect_right(tables, place, key=lambda table: table.top) - 1
    return tables[number] if number >= 0 and place < tables[number].rows[-1][1] else None
