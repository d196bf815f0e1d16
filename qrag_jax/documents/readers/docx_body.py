"""Walks the body of a DOCX document, and all that it refers to, and writes it as a tree of HTML."""

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email import message_from_bytes
from typing import cast

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs
from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]

from qrag_jax.documents.readers.docx_drawings import A, chart, words
from qrag_jax.documents.readers.docx_package import Package
from qrag_jax.documents.readers.docx_styles import Look, Numbering, Styles, W, is_on, level_of, numbering_of, value
from qrag_jax.documents.readers.html_as_markdown import parse
from qrag_jax.documents.readers.office_story import Story, spread_long, unrepeated, whole_number
from qrag_jax.documents.readers.omml import linear
from qrag_jax.documents.readers.symbol_fonts import character

_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_V = "{urn:schemas-microsoft-com:vml}"
_P, _TBL, _TR, _TC = (W + name for name in ("p", "tbl", "tr", "tc"))
# Elements without words of the document.
_SKIPPED = {W + name for name in (
    "pPr", "rPr", "sdtPr", "sdtEndPr", "tblPr", "tblGrid", "trPr", "tcPr", "sectPr", "del", "moveFrom", "delText",
    "delInstrText", "fldData", "rubyPr", "customXmlPr", "smartTagPr",
)}  # fmt: skip
_SCRIPTS = {"superscript": "sup", "subscript": "sub"}
_SHOWN = re.compile(r"\s*(?:MACROBUTTON\s+\S+|GOTOBUTTON\s+\S+|EQ)\s(.*)", re.DOTALL)  # instructions with words
_PRIVATE = re.compile("[\uf020-\uf0ff]")
_SMALL = 20  # halves of a point
_MOST_CARRIED = 10_000  # characters of a paragraph that continues in the next
_MOST_COLUMNS = 64  # that one cell covers; hostile files declare millions


@dataclass
class _Document:
    """The data that the body, notes and headers of one document share."""

    package: Package
    styles: Styles
    numbering: Numbering
    comments: bool
    left_out: Counter[str] = field(default_factory=Counter)
    entries: dict[str, dict[str | None, Element]] = field(default_factory=dict)  # of notes and remarks, by their id
    marks: dict[tuple[str, str | None], str] = field(default_factory=dict)
    notes: dict[str, list[Element]] = field(default_factory=lambda: {"footnotes": [], "endnotes": []})


@dataclass
class _Field:
    instruction: list[str] = field(default_factory=list)
    has_result: bool = False
    is_muted: bool = False  # it is part of the instruction of another field


def read_body(raw: bytes, comments: bool) -> tuple[Element, Counter[str]]:
    """The body, endnotes, and headers and footers without repetitions, and what is left out of them."""
    package = Package(raw)
    styles = Styles(package.tree(package.of_main("styles")))
    numbering = Numbering(package.tree(package.of_main("numbering")), styles)
    document = _Document(package, styles, numbering, comments)
    story = _Story(document, package.main, is_main=True)
    root = package.tree(package.main)
    if root is not None:
        story.part(root)
        story.root.extend(document.notes["endnotes"])
        around: list[Element] = []
        for one in root.iter(f"{W}headerReference", f"{W}footerReference"):
            other = _Story(document, package.once(package.main, one.get(f"{_R}id")))
            other.part(package.tree(other.name))
            around.append(other.root)
        story.root.extend(unrepeated(around))
    return story.root, document.left_out


class _Story(Story):
    """The text of one part, or of a box, note or remark in it."""

    def __init__(self, document: _Document, name: str, is_main: bool = False, mutes: bool = True):
        super().__init__(document.left_out)
        self.name, self._document, self._is_main = name, document, is_main
        self._mutes, self._is_muted = mutes, False  # text between the parts of an instruction is no text
        self._fields: list[_Field] = []
        self._carried: Element | None = None  # a paragraph that continues in the next
        self._look, self._font = Look(), ""

    def part(self, root: Element | None) -> None:
        """Writes a whole part."""
        if root is not None:
            kinds = Counter(one.get(f"{W}fldCharType") for one in root.iter(f"{W}fldChar"))
            self._mutes = kinds["begin"] == kinds["end"]
            self.blocks(root)
            self._paragraph(None, ())

    def blocks(self, elements: Iterable[Element]) -> None:
        """Writes paragraphs and tables."""
        for one in elements:
            if one.tag == _P:
                self._paragraph(one.find(f"{W}pPr"), one)
            elif one.tag == _TBL:
                self._table(one)
            elif one.tag in _HANDLERS:
                self._paragraph(None, [one])
            elif one.tag not in _SKIPPED:
                self.blocks(one)
            if self._is_main and self.out is self.root and (notes := self._document.notes["footnotes"]):
                self.root.extend(notes)
                notes.clear()

    def _paragraph(self, properties: Element | None, inside: Iterable[Element]) -> None:
        style = value(properties, "pStyle")
        self._look = look = self._document.styles.look(style)
        paragraph = etree.Element("p") if self._carried is None else self._carried
        self._carried = None
        with self.into(paragraph):
            self._walk(inside)
        if (
            properties is not None
            and len(paragraph.text or "") < _MOST_CARRIED
            and (
                properties.find(f"{W}rPr/{W}del") is not None or properties.find(f"{W}framePr[@{W}dropCap]") is not None
            )
        ):
            self._carried = paragraph
            return
        number, depth = numbering_of(properties)
        key = number or look.number
        label = self._document.numbering.label(key, depth or look.depth, style) if key else None
        level = level_of(properties)
        level = (look.level or 0) if level is None else level
        self.end_paragraph(f"h{min(level, 6)}" if level else "p", paragraph, label)

    def _walk(self, elements: Iterable[Element]) -> None:
        for one in elements:
            if (handler := _HANDLERS.get(one.tag)) is not None:
                handler(self, one)
            elif one.tag not in _SKIPPED:
                self._walk(one)

    def add(self, text: str) -> None:
        """Writes text that is no part of the instruction of a field."""
        if not self._is_muted:
            super().add(text)

    def leave_out(self, what: str) -> None:
        """Counts content that is not written."""
        self.left_out[what] += 1

    def _run(self, run: Element) -> None:
        properties = {one.tag: one for one in run.iterfind(f"{W}rPr/*")}
        style, vanish, script = (properties.get(W + name) for name in ("rStyle", "vanish", "vertAlign"))
        look = Look() if style is None else self._document.styles.look(style.get(f"{W}val"))
        hidden = look.is_hidden if vanish is None else vanish.get(f"{W}val") not in ("0", "false", "off")
        fonts = properties.get(f"{W}rFonts")
        self.is_hidden = bool(self._look.is_hidden if hidden is None else hidden)
        self.script = _SCRIPTS.get((look.script if script is None else script.get(f"{W}val")) or "", _moved(properties))
        self._font = "" if fonts is None else fonts.get(f"{W}ascii", "")
        self._walk(run)
        self.is_hidden, self.script = False, ""

    def _text(self, element: Element) -> None:
        text, font = element.text or "", self._font
        if _PRIVATE.search(text):
            text = _PRIVATE.sub(lambda found: character(font, ord(found[0])) or found[0], text)
        self.add(text)

    def _symbol(self, element: Element) -> None:
        code = element.get(f"{W}char", "")
        number = int(code, 16) if re.fullmatch("[0-9A-Fa-f]{1,4}", code) else 0
        shown = character(element.get(f"{W}font", ""), number) or (chr(number) if 32 <= number < 0xD800 else "")
        self.add(shown)
        if not shown:
            self.leave_out("symbols")

    def _ruby(self, element: Element) -> None:
        self._walk(element.iterchildren(f"{W}rubyBase"))
        self.add("(")
        self._walk(element.iterchildren(f"{W}rt"))
        self.add(")")

    def _instruction(self, element: Element) -> None:
        if self._fields:
            self._fields[-1].instruction.append(element.text or "")

    def _field_char(self, element: Element) -> None:
        kind, ended, last = element.get(f"{W}fldCharType"), None, self._fields[-1] if self._fields else None
        if kind == "begin":
            is_inner = last is not None and not last.has_result
            self._fields.append(_Field(is_muted=last is not None and (last.is_muted or is_inner)))
        elif kind == "separate" and last is not None:
            last.has_result = True
        elif kind == "end" and last is not None:
            ended = self._fields.pop()
        self._is_muted = self._mutes and bool(self._fields) and self._fields[-1].is_muted
        if ended and not ended.has_result and (shown := _SHOWN.match("".join(ended.instruction))):
            self.add(shown[1].strip())
        data = element.find(f"{W}ffData")
        if data is not None and (box := data.find(f"{W}checkBox")) is not None:
            checked = is_on(box, "checked")
            self.add("☒" if (is_on(box, "default") if checked is None else checked) else "☐")
        elif data is not None:  # the chosen entry of a list
            entries = data.findall(f"{W}ddList/{W}listEntry")[whole_number(value(data, "ddList/result")) :]
            self.add(entries[0].get(f"{W}val", "") if entries else "")

    def _note(self, element: Element) -> None:
        kind = "footnotes" if element.tag == f"{W}footnoteReference" else "endnotes"
        key, marks = (kind, element.get(f"{W}id")), self._document.marks
        if key not in marks and (entry := self._entries(kind).get(key[1])) is not None:
            marks[key] = f"[^{len(marks) + 1}]"
            self._document.notes[kind].append(self._entry(kind, entry, f"{marks[key]}: ", ""))
        self.script = ""
        self.add(marks.get(key, ""))

    def _comment(self, element: Element) -> None:
        entry = self._entries("comments").pop(element.get(f"{W}id"), None)
        if entry is not None and self._document.comments:
            self.after.append(self._entry("comments", entry, f"[{entry.get(f'{W}author') or 'Comment'}: ", "]"))
        elif entry is not None:
            self.leave_out("comments")

    def _entries(self, kind: str) -> dict[str | None, Element]:
        if kind not in self._document.entries:
            root = self._document.package.tree(self._document.package.of_main(kind))
            self._document.entries[kind] = {one.get(f"{W}id"): one for one in (() if root is None else root)}
        return self._document.entries[kind]

    def _entry(self, kind: str, entry: Element, before: str, after: str) -> Element:
        story = _Story(self._document, self._document.package.of_main(kind))
        story.blocks(entry)
        return story.enclosed(before, after)

    def _box(self, elements: Iterable[Element]) -> None:
        story = _Story(self._document, self.name, mutes=self._mutes)
        story.blocks(elements)
        self.after.append(story.root)

    def _alternate(self, element: Element) -> None:
        """Writes the first of several forms of the same content that has any."""
        for form in element:
            before = self.num_written, len(self.after), self.left_out.total()
            self._walk(form)
            if before != (self.num_written, len(self.after), self.left_out.total()):
                return

    def _equation(self, element: Element) -> None:
        self.add(f" {linear(element)} " if element.tag == f"{_M}oMathPara" else linear(element))

    def _drawn(self, element: Element) -> None:
        self.after += words(element)

    def _old_word_art(self, element: Element) -> None:
        paragraph = etree.Element("p")
        paragraph.text = element.get("string")
        self.after.append(paragraph)

    def _embedded(self, element: Element) -> None:
        self.leave_out("equations" if element.get("ProgID", "").startswith("Equation") else "embedded files")

    def _chart(self, element: Element) -> None:
        package = self._document.package
        root = package.tree(package.once(self.name, element.get(f"{_R}id") or element.get(f"{_R}dm")))
        if root is not None:
            self.after += chart(root)

    def _chunk(self, element: Element) -> None:
        """Writes another document in this one, if it is HTML or text."""
        from qrag_jax.documents.readers.html_encoding import decoded  # here: few documents need it

        name = self._document.package.once(self.name, element.get(f"{_R}id"))
        suffix, raw = name.rpartition(".")[2].lower(), self._document.package.archive.read(name) if name else b""
        if suffix in ("mht", "mhtml"):
            found = (one for one in message_from_bytes(raw).walk() if one.get_content_type() == "text/html")
            raw, suffix = cast("bytes", next((one.get_payload(decode=True) for one in found), b"")), "html"
        if suffix not in ("htm", "html", "xhtml", "txt"):
            self.leave_out("embedded documents")
            return
        text, lost = decoded(raw)
        self.left_out.update(lost)
        root = parse(html.escape(text).replace("\n\n", "<p>") if suffix == "txt" else text)
        self.after += [] if root is None else [root]

    def _table(self, element: Element) -> None:
        above: dict[int, Element] = {}  # column -> the last cell that covers it
        table = self.element("table")
        with self.into(table):
            for row in _inside(element, _TR):
                if row.find(f"{W}trPr/{W}del") is None:
                    with self.into(self.element("tr")):
                        self._row(row, above)
        spread_long(table)

    def _row(self, row: Element, above: dict[int, Element]) -> None:
        column = min(whole_number(value(row, "trPr/gridBefore")), _MOST_COLUMNS)
        if column:
            self.element("td", colspan=str(column))
        for one in _inside(row, _TC):
            properties = one.find(f"{W}tcPr")
            merge, span = value(properties, "vMerge"), whole_number(value(properties, "gridSpan"), _MOST_COLUMNS) or 1
            if merge in (None, "restart") or column not in above:
                tag = "th" if is_on(row, "trPr/tblHeader") else "td"
                above[column] = self.element(tag, colspan=str(span))
            else:
                above[column].set("rowspan", str(int(above[column].get("rowspan", "1")) + 1))
            with self.into(above[column]):
                self.blocks(one)
            column += span


def _moved(properties: Mapping[str, Element]) -> str:
    """`sup` or `sub` for small text off its line, as LibreOffice writes raised text; sizes are halves of points."""
    of = lambda name: properties[W + name].get(f"{W}val", "") if W + name in properties else ""  # noqa: E731
    size, by = whole_number(of("sz")), whole_number(of("position").removeprefix("-"))
    is_moved = by and (0 < size <= _SMALL or 0 < size <= 3 * by)
    return "" if not is_moved else "sub" if of("position")[0] == "-" else "sup"


def _inside(element: Element, wanted: str) -> Iterator[Element]:
    """The rows or cells of a table, also in content controls and insertions."""
    for one in element:
        if one.tag == wanted:
            yield one
        elif one.tag not in _SKIPPED and one.tag not in (_P, _TBL):
            yield from _inside(one, wanted)


_HANDLERS: Mapping[str, Callable[[_Story, Element], None]] = {
    **dict.fromkeys((_P, _TBL), lambda story, one: story._box([one])), f"{W}r": _Story._run, f"{W}t": _Story._text,
    **dict.fromkeys((f"{W}tab", f"{W}ptab"), lambda story, _: story.add("\t")),
    **dict.fromkeys((f"{W}br", f"{W}cr"), lambda story, _: story.line_break()),
    f"{W}noBreakHyphen": lambda story, _: story.add("-"), f"{W}sym": _Story._symbol, f"{W}ruby": _Story._ruby,
    f"{W}fldChar": _Story._field_char,
    f"{W}instrText": _Story._instruction, f"{W}txbxContent": _Story._box, f"{W}commentReference": _Story._comment,
    f"{W}footnoteReference": _Story._note, f"{W}endnoteReference": _Story._note, f"{W}altChunk": _Story._chunk,
    f"{W}subDoc": lambda story, _: story.leave_out("subdocuments"), f"{A}p": _Story._drawn,
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent": _Story._alternate,
    **dict.fromkeys((f"{_M}oMath", f"{_M}oMathPara"), _Story._equation), f"{_V}textpath": _Story._old_word_art,
    **dict.fromkeys(
        ("{http://schemas.openxmlformats.org/drawingml/2006/picture}pic", f"{_V}imagedata"),
        lambda story, _: story.leave_out("pictures"),
    ),
    "{urn:schemas-microsoft-com:office:office}OLEObject": _Story._embedded,
    **dict.fromkeys((
        "{http://schemas.openxmlformats.org/drawingml/2006/chart}chart",
        "{http://schemas.microsoft.com/office/drawing/2014/chartex}chart",
        "{http://schemas.openxmlformats.org/drawingml/2006/diagram}relIds",
    ), _Story._chart),
}  # fmt: skip
