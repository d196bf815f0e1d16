"""Tables of HTML as lines of Markdown, each value under its head; tables that are layout as blocks."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.documents.readers.html_writer import Writer

_MAX_COLUMNS, _MAX_ROWS = 1_000, 65_534  # of one cell, as in browsers
_MAX_REPEATED = 80  # characters of a cell that is written again in each of its rows
_FILLED_CELLS = 10  # cells of a table that spans may add for each cell that it has
_MAX_CELL = 2_000  # characters of a cell; a table with longer ones is layout
_MAX_LAYOUTS = 4  # tables of layout in one another, in which a table may be data


@dataclass
class _Row:
    cells: list[Element]
    is_head: bool


@dataclass
class Cell:
    """A cell of a table; `text` is one line."""

    text: str
    num_columns: int = 1
    num_rows: int = 1
    is_head: bool = False


def write_table(writer: Writer, element: Element) -> None:
    """Writes a table: lines, or the blocks of its cells, or parts of one line."""
    writer.end_block()
    rows: list[_Row] = []
    _find_rows(writer, element, rows, False)
    writer.end_block()
    rows = [row for row in rows if row.cells]
    if writer.num_flat:
        writer.found.add("table")
        for number, row in enumerate(rows):
            for place, item in enumerate(row.cells):
                writer.pieces.append(", " if place else "; " if number else "")
                writer.children(item)
        writer.pieces.append(" ")
    elif rows and not _write_data(writer, element, rows):
        writer.num_layouts += 1
        for row in rows:
            writer.end_block()
            for item in row.cells:  # side by side, if they are no blocks themselves
                writer.children(item)
                writer.pieces.append(" ")
        writer.end_block()
        writer.num_layouts -= 1


def _find_rows(writer: Writer, element: Element, rows: list[_Row], is_head: bool) -> None:
    """Adds the rows of a table, and writes what is outside of cells."""
    writer.pieces.append(element.text or "")
    for child in element:
        tag = child.tag
        if tag in ("td", "th", "tr", "thead", "tbody", "tfoot") and writer.leaves_out(child):
            pass
        elif tag in ("td", "th"):
            if not rows:
                rows.append(_Row([], is_head))
            rows[-1].cells.append(child)
        elif tag == "tr":
            rows.append(_Row([], is_head))
            _find_rows(writer, child, rows, is_head)
        elif tag in ("thead", "tbody", "tfoot", "form"):  # a form around rows is an error that pages have
            _find_rows(writer, child, rows, tag == "thead")
        else:
            writer.element(child)
        writer.pieces.append(child.tail or "")


def _write_data(writer: Writer, element: Element, rows: Sequence[_Row]) -> bool:
    """Writes a table of data; False if it is layout, and then nothing is written."""
    is_layout = element.get("role") in ("presentation", "none") or max(len(row.cells) for row in rows) == 1
    if is_layout or writer.num_layouts >= _MAX_LAYOUTS:
        return False
    left_out, writer.found = writer.left_out.copy(), set()
    cells = [[_cell(item, writer.flat(item)) for item in row.cells] for row in rows]
    texts = [item.text for row in cells for item in row if item.text]
    has_heads = any(item.is_head for row in cells for item in row)
    is_layout = "block" in writer.found or ("table" in writer.found and not has_heads)
    if is_layout or len(texts) < 2 or max(map(len, texts)) > _MAX_CELL:
        writer.left_out = left_out
        return False
    are_heads = [row.is_head or all(item.is_head or not item.text for item in line)
                 for row, line in zip(rows, cells, strict=True)]  # fmt: skip
    num_heads = are_heads.index(False) if False in are_heads else 1
    writer.write(table_lines(cells, num_heads if has_heads or num_heads else 1), is_paragraph=False)
    return True


def _cell(element: Element, text: str) -> Cell:
    num_columns, num_rows = (_number(element.get(name)) for name in ("colspan", "rowspan"))
    num_columns, num_rows = min(num_columns or 1, _MAX_COLUMNS), min(num_rows or _MAX_ROWS, _MAX_ROWS)
    return Cell(text.replace("|", r"\|"), num_columns, num_rows, element.tag == "th")


def _number(value: str | None) -> int:
    found = re.match(r"\s*(\d{1,9})", value or "")
    return int(found[1]) if found else 1


def table_lines(rows: Sequence[Sequence[Cell]], num_heads: int) -> list[str]:
    """Lines of a table in which each value is under its head.

    A cell of several rows is written in each of them if it is short. A cell of several columns is written in the first
    of them, and a head in all. The heads of a column are joined.

    Args:
        num_heads: first rows that are heads; the head of a table without them is blank.
    """
    room = [_FILLED_CELLS * sum(len(row) for row in rows) + 1_000]
    spans: dict[int, tuple[int, str]] = {}
    lines = [_spread(row, spans, room, number < num_heads) for number, row in enumerate(rows)]
    heads, body = lines[:num_heads], lines[num_heads:]
    width = max(len(line) for line in heads or lines)
    columns = ([line[place] for line in heads if place < len(line)] for place in range(width))
    head = [" ".join(dict.fromkeys(text for text in column if text)) for column in columns]
    return [_line(head), _line(["---"] * width), *(_line(line) for line in body if any(line))]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _spread(row: Sequence[Cell], spans: dict[int, tuple[int, str]], room: list[int], is_head: bool) -> list[str]:
    """The texts of a row by column.

    Args:
        spans: column -> (rows that its cell still fills, text), changed.
        room: number of cells that may still be filled, changed.
    """
    line: list[str] = []
    for item in (*row, None):
        while len(line) in spans:
            num_rows, text = spans.pop(place := len(line))
            room[0] -= 1
            if num_rows > 1 and room[0] > 0:
                spans[place] = (num_rows - 1, text)
            line.append(text)
        if item is None:
            break
        for number in range(item.num_columns if item.num_columns <= room[0] else 1):
            text = item.text if number == 0 or is_head else ""
            spans.pop(len(line), None)
            if item.num_rows > 1 and room[0] > 0:
                spans[len(line)] = (item.num_rows - 1, text if len(text) <= _MAX_REPEATED else "")
            room[0] -= number > 0
            line.append(text)
    return line
