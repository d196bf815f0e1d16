"""The parts that readers of office documents share: safe XML, blocks of Markdown, tables, numbers of lists."""

import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.documents.readers.zip_archive import Archive
from qrag_jax.types import InputError

MOST_REPEATED = 64  # columns that one cell covers, or blanks in a row; hostile files declare millions
REPEATED_CHARS = 100  # of a cell over several rows, to be written into each of them
_RECURSION = 5_000  # libxml2 refuses more than 256 nested elements; each takes a few calls
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/(\w+)")
_BLANKS = re.compile(" {2,}")
_BLANKS_AT_LINES = re.compile(r"[ \t]*\n[ \t]*")
_RAISED, _SIMPLE = re.compile(r"[\w+\-−]"), re.compile(r"[+\-−]?\w+[+\-−]?|[+\-−]")
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
          (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


class Block(NamedTuple):
    """A paragraph, heading, item of a list or table as Markdown.

    Attributes:
        is_item: stands in the line below the item before it, without a blank line.
    """

    text: str
    is_item: bool = False


def read_tree(archive: Archive, name: str) -> etree._Element:
    """The root element of a member; `ns` of the strict form of Office become those of the usual form."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION))
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True, recover=True
    )
    root = etree.fromstring(
        _STRICT.sub(rb"http://schemas.openxmlformats.org/\1/2006/\2", archive.read_xml(name)), parser
    )
    fatal = parser.error_log.filter_from_fatals()
    if root is None or len(fatal):
        reason = fatal[0].message if len(fatal) else "no element"
        raise InputError(f"{name[:100]!r} in it is damaged XML ({reason[:200]}); save the document again")
    return root


def joined(blocks: Iterable[Block]) -> str:
    """Markdown of blocks."""
    parts: list[str] = []
    after_item = False
    for block in blocks:
        parts += ["\n" if after_item and block.is_item else "\n\n", block.text]
        after_item = block.is_item
    return "".join(parts[1:])


def heading(level: int, text: str) -> Block:
    """A heading in one line, of level 1 to 6."""
    return Block(f"{'#' * min(level, 6)} {in_one_line(text)}")


def item(depth: int, label: str, text: str) -> Block:
    """An item of a list. A label that is no mark of Markdown, such as `(a)`, begins a paragraph.

    Args:
        depth: from 0.
        label: `-`, `1.` or any other text.
    """
    is_item = label == "-" or (label[:-1].isdigit() and label[-1] in ".)")
    indent = "    " * depth if is_item else ""
    return Block(f"{indent}{label} " + text.replace("\n", f"\n{indent}  " if is_item else "\n"), is_item)


def table(rows: Sequence[Sequence[str]]) -> list[Block]:
    """A table of Markdown, whose first row is its head; none without text."""
    rows = [row for row in rows if any(row)]
    width = max((len(row) - next(i for i, cell in enumerate(reversed(row)) if cell) for row in rows), default=0)
    lines = [f"| {' | '.join([*row, *[''] * width][:width])} |" for row in rows]
    lines[1:1] = [f"|{' --- |' * width}"] if lines else []
    return [Block("\n".join(lines))] if lines else []


def cell(blocks: Iterable[Block]) -> str:
    """The text of a cell, in one line."""
    return in_one_line(" ".join(block.text for block in blocks).replace("|", "\\|"))


def in_one_line(text: str) -> str:
    """Text with single blanks between its words."""
    return " ".join(text.split())


def paragraph_text(parts: Iterable[tuple[str, str]]) -> str:
    """Text of a paragraph without blanks around its lines, which Markdown would take for code.

    Args:
        parts: (text, mark of raised text or "").
    """
    texts = [""]
    for mark, group in groupby(parts, key=itemgetter(1)):
        text = "".join(text for text, _ in group)
        texts.append(_raised(texts[-1], text, mark) if mark else text)
    return _BLANKS_AT_LINES.sub("\n", _BLANKS.sub(" ", "".join(texts))).strip()


def _raised(before: str, text: str, mark: str) -> str:
    """Superscript (`^`) or subscript (`_`) with its mark where it would be read as a part of the word before.

    `10` and `6` become `10^6`; ordinals (`4th`) and formulas of chemistry (`H2O`) stay words.
    """
    last, inside = before[-1:], text.strip()
    if not (last.isalnum() or last in (")", "]")) or not _RAISED.search(inside):
        return text
    is_alike = last.isdigit() == inside[0].isdigit() or not inside.isalnum()
    if not is_alike and (mark == "_" or last.isdigit()):
        return text
    return text.replace(inside, f"{mark}{inside if _SIMPLE.fullmatch(inside) else f'({inside})'}", 1)


def numeral(number: int, form: str) -> str:
    """A number as a list shows it.

    Args:
        form: a name of DOCX, or 1, a, A, i, I of ODT.
    """
    lower = form[:1].islower() or form[:1].isdigit()
    if form in ("a", "A", "lowerLetter", "upperLetter") and number > 0:
        letters = chr(ord("a") + (number - 1) % 26) * min((number - 1) // 26 + 1, MOST_REPEATED)
        return letters if lower else letters.upper()
    if form in ("i", "I", "lowerRoman", "upperRoman") and 0 < number < 5_000:
        text = ""
        for value, letters in _ROMAN:
            text += letters * (number // value)
            number %= value
        return text if lower else text.upper()
    return f"{number:02}" if form == "decimalZero" else str(number)


def whole_number(text: str | None) -> int:
    """A number of at most six digits; 0 for anything else."""
    return int(text) if text and text.isdecimal() and len(text) < 7 else 0
