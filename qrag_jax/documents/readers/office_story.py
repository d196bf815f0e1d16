"""Shared parts of the DOCX and ODT readers: safe XML, the HTML tree that they build, numbers of lists."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs
from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]

from qrag_jax.documents.converted import Converted, cleaned
from qrag_jax.documents.readers.html_elements import WRITERS
from qrag_jax.documents.readers.html_writer import Writer
from qrag_jax.documents.readers.zip_archive import Archive
from qrag_jax.types import InputError

_RECURSION = 8_000  # libxml2 refuses more than 256 nested elements; each takes some calls
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/(\w+)")
_DEEPEST = 8  # level of a list
_LONGEST_HEAD = 80  # characters
_MORE_THAN_A_NUMBER = re.compile(r"[^\W\d_]|(?:\d\D*){5}")
_NUMBER = re.compile(r"\d+\.")
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
          (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


def read_tree(archive: Archive, name: str) -> Element:
    """The root element of a member. Names of the strict form of Office become those of its usual form."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True, recover=True
    )
    content = _STRICT.sub(rb"http://schemas.openxmlformats.org/\1/2006/\2", archive.read_xml(name))
    root = etree.fromstring(content, parser)
    fatal = parser.error_log.filter_from_fatals()
    if root is None or len(fatal):
        reason = fatal[0].message if len(fatal) else "no element"
        raise InputError(f"{name[:100]!r} in it is damaged XML ({reason[:200]}); save the document again")
    return root


class Story:
    """Text in reading order as a tree of HTML, such as that of a body, a box or a note.

    Attributes:
        root: what is written so far.
        out: the element in `root` that is being written.
        after: elements that follow the paragraph in progress.
        is_hidden: text is counted in `left_out` instead of written.
        num_written: pieces of text and elements so far.
        script: `sup` or `sub` for raised or lowered text.
    """

    def __init__(self, left_out: Counter[str]):
        """Starts without text.

        Args:
            left_out: counts kinds of content that are not written.
        """
        self.root = self.out = etree.Element("div")
        self.after: list[Element] = []
        self.left_out, self.is_hidden, self.script = left_out, False, ""
        self.num_written = 0
        self._pieces: list[str] = []
        self._script = ""  # of the pieces

    def add(self, text: str) -> None:
        """Writes text."""
        if self.is_hidden:
            self.left_out["hidden words"] += len(text.split())
        elif text:
            self.num_written += 1
            if self.script != self._script:
                self._flush()
                self._script = self.script
            self._pieces.append(text)

    def line_break(self) -> None:
        """Ends a line."""
        if not self.is_hidden:
            self.element("br")

    def element(self, tag: str, **attributes: str) -> Element:
        """Writes an element without text."""
        self._flush()
        self.num_written += 1
        return etree.SubElement(self.out, tag, attributes)

    @contextmanager
    def into(self, element: Element) -> Iterator[None]:
        """Writes into an element for a while."""
        self._flush()
        outer, self.out = self.out, element
        yield
        self._flush()
        self.out = outer

    def end_paragraph(self, tag: str, paragraph: Element, label: tuple[int, str] | None) -> None:
        """Writes a paragraph and what follows it.

        Args:
            tag: `p` or a heading.
            label: of an item of a list: (depth from 0, text); a bullet is `-`.
        """
        depth, mark = label or (0, "")
        paragraph.tag = tag
        is_item = tag == "p" and (mark == "-" or _NUMBER.fullmatch(mark))
        if (paragraph.text or "").strip() or _last(paragraph) is not None:
            if mark.strip("-") and not is_item:
                paragraph.text = f"{mark} {paragraph.text or ''}"
            out = _list_at(self.out, depth, "ul" if mark == "-" else "ol") if is_item else self.out
            if is_item:
                paragraph.tag = "li"
                paragraph.attrib.update({} if mark == "-" else {"value": mark[:-1]})
            out.append(paragraph)
        self.out.extend(self.after)
        self.after = []

    def enclosed(self, before: str, after: str) -> Element:
        """The root, with words around its text; for notes."""
        first = next(self.root.iter("p"), self.root)
        first.text = before + (first.text or "").lstrip()
        last = _last(self.root)
        with self.into(self.root if last is None else last):
            self.add(after)
        return self.root

    def _flush(self) -> None:
        text, self._pieces = "".join(self._pieces), []
        if text and self._script:
            etree.SubElement(self.out, self._script).text = text
        elif text and (last := _last(self.out)) is not None:
            last.tail = (last.tail or "") + text
        elif text:
            self.out.text = (self.out.text or "") + text


def _last(element: Element) -> Element | None:
    """The last child; lxml takes the time of all children to count them."""
    return next(element.iterchildren(reversed=True), None)


def _list_at(out: Element, depth: int, tag: str) -> Element:
    """The list that an item of this depth goes on, which ends what is written so far, or a new one."""
    depth = min(depth, _DEEPEST)
    for level in range(depth + 1):
        last = _last(out)
        if last is None or last.tag not in ("ul", "ol") or (level == depth and last.tag != tag):
            last = etree.SubElement(out, tag)
        above = _last(last)
        out = last if level == depth or above is None or above.tag != "li" else above
    return out


def unrepeated(stories: Iterable[Element]) -> list[Element]:
    """Headers and footers, each text once, without those that are only the number of a page."""
    texts = {"".join(root.itertext()): root for root in stories}
    return [root for text, root in texts.items() if _MORE_THAN_A_NUMBER.search(text)]


def spread_long(table: Element) -> None:
    """Leaves a long cell over several columns in the first of them, because heads are written again in each."""
    for cell in list(table.iterfind("tr/*")):
        num_columns = int(cell.get("colspan", "1"))
        if num_columns > 1 and len("".join(cell.itertext())) > _LONGEST_HEAD:
            cell.set("colspan", "1")
            for _ in range(num_columns - 1):
                cell.addnext(etree.Element("td", rowspan=cell.get("rowspan", "1")))


def converted(root: Element, left_out: Counter[str], about: str) -> Converted:
    """The Markdown of a tree; refuses one without text.

    Args:
        about: `a DOCX document`.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION))
    writer = Writer(WRITERS)
    writer.element(root)
    writer.end_block()
    text = cleaned("".join(writer.blocks))
    if not text.strip():
        raise InputError(f"{about} without text (only pictures or empty paragraphs); leave it out")
    return Converted(text, left_out=dict(+(left_out + writer.left_out)))


def numeral(number: int, form: str) -> str:
    """A number as a list shows it.

    Args:
        form: a name of DOCX, or 1, a, A, i, I of ODT.
    """
    text = ""
    if form in ("a", "A", "lowerLetter", "upperLetter") and 0 < number < 1_000:
        text = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
    elif form in ("i", "I", "lowerRoman", "upperRoman") and 0 < number < 5_000:
        for value, letters in _ROMAN:
            text += letters * (number // value)
            number %= value
    else:
        text = f"{number:02}" if form == "decimalZero" else str(number)
    return text if form[:1].islower() else text.upper()


def whole_number(text: str | None, most: int = 999_999) -> int:
    """A number up to `most`; 0 for anything else."""
    return min(int(text), most) if text and text.isdecimal() and len(text) < 7 else 0
