"""Walks the body of a DOCX document, and all that it refers to."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.documents.readers.docx_drawings import A, C, chart, diagram, words
from qrag_jax.documents.readers.docx_package import Package
from qrag_jax.documents.readers.docx_styles import (
    Look,
    Numbering,
    Styles,
    W,
    is_on,
    level_of,
    numbering_of,
    value,
)
from qrag_jax.documents.readers.html_as_markdown import markdown
from qrag_jax.documents.readers.office import (
    MOST_REPEATED,
    REPEATED_CHARS,
    Block,
    cell,
    heading,
    in_one_line,
    item,
    joined,
    paragraph_text,
    table,
    whole_number,
)
from qrag_jax.documents.readers.omml import linear
from qrag_jax.documents.readers.symbol_fonts import character

_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_V = "{urn:schemas-microsoft-com:vml}"
_P, _TBL, _TR, _TC, _FIELD = (W + name for name in ("p", "tbl", "tr", "tc", "fldChar"))
# Elements without words of the document.
_SKIPPED = {W + name for name in (
    "pPr", "rPr", "sdtPr", "sdtEndPr", "tblPr", "tblGrid", "trPr", "tcPr", "sectPr", "del", "moveFrom", "delText",
    "delInstrText", "fldData", "rubyPr", "customXmlPr", "smartTagPr",
)}  # fmt: skip
_SCRIPTS = {"superscript": "^", "subscript": "_"}
_SHOWN = re.compile(r"\s*(?:MACROBUTTON\s+\S+|GOTOBUTTON\s+\S+|EQ)\s(.*)", re.DOTALL)  # instructions with words
_PRIVATE = re.compile("[\uf020-\uf0ff]")


@dataclass
class _Field:
    instruction: list[str] = field(default_factory=list)
    has_result: bool = False


@dataclass
class _State:
    """Where the walk is.

    Attributes:
        line: (text, mark of a raised text) of this paragraph so far.
        carried: the line of a paragraph that continues in the next.
        boxes: blocks that follow this paragraph.
        mutes: fields are well-formed, so text between the parts of an instruction is part of it.
    """

    part: str
    in_cell: bool = False
    depth: int = 0
    line: list[tuple[str, str]] = field(default_factory=list)
    carried: list[tuple[str, str]] = field(default_factory=list)
    boxes: list[Block] = field(default_factory=list)
    fields: list[_Field] = field(default_factory=list)
    mutes: bool = True
    muted: bool = False
    look: Look = Look()
    script: str = ""
    hidden: bool = False
    font: str = ""


class Body:
    """The content of one document.

    Attributes:
        left_out: kinds of content that are missing from the blocks so far -> their number.
    """

    def __init__(self, raw: bytes, comments: bool):
        """Finds the parts of a document."""
        self._package, self._comments = Package(raw), comments
        self._styles = Styles(self._package.tree(self._package.of_main("styles")))
        self._numbering = Numbering(self._package.tree(self._package.of_main("numbering")), self._styles)
        self._entries = cache(self._read_entries)
        self._state = _State(self._package.main)
        self._notes: dict[str, list[Block]] = {"footnotes": [], "endnotes": []}
        self._marks: dict[tuple[str, str | None], str] = {}
        self._shown: set[str | None] = set()
        self.left_out: Counter[str] = Counter()
        self._handlers = {
            **dict.fromkeys((_P, _TBL), lambda one: self._box([one])), f"{W}r": self._run, f"{W}t": self._text,
            **{W + name: lambda _: self._add("\t") for name in ("tab", "ptab")},
            **{W + name: lambda _: self._add("\n") for name in ("br", "cr")},
            f"{W}noBreakHyphen": lambda _: self._add("-"), f"{W}sym": self._symbol, f"{W}ruby": self._ruby,
            f"{W}fldChar": self._field_char, f"{W}instrText": self._instruction, f"{W}txbxContent": self._box,
            f"{W}footnoteReference": lambda one: self._note(one, "footnotes"),
            f"{W}endnoteReference": lambda one: self._note(one, "endnotes"), f"{W}commentReference": self._comment,
            f"{W}altChunk": self._chunk, f"{W}subDoc": lambda _: self._leave_out("subdocuments"),
            "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent": self._alternate,
            "{http://schemas.openxmlformats.org/officeDocument/2006/math}oMath": self._equation,
            "{http://schemas.openxmlformats.org/officeDocument/2006/math}oMathPara": self._equation,
            "{http://schemas.openxmlformats.org/drawingml/2006/picture}pic": lambda _: self._leave_out("pictures"),
            f"{_V}imagedata": lambda _: self._leave_out("pictures"), f"{A}p": self._drawn,
            f"{_V}textpath": lambda one: self._state.boxes.append(Block(in_one_line(one.get("string", "")))),
            "{urn:schemas-microsoft-com:office:office}OLEObject": self._object, f"{C}chart": self._chart,
            "{http://schemas.microsoft.com/office/drawing/2014/chartex}chart": self._chart,
            "{http://schemas.openxmlformats.org/drawingml/2006/diagram}relIds": self._diagram,
        }  # fmt: skip

    def blocks(self) -> list[Block]:
        """The blocks of the body, of its endnotes, and of its headers and footers without those that repeat."""
        root = self._package.tree(self._state.part)
        if root is None:
            return []
        self._state.mutes = _is_balanced(root)
        blocks = self._blocks(root) + self._paragraph(None, ()) + self._notes["endnotes"]
        around: dict[str, list[Block]] = {}
        for one in root.iter(f"{W}headerReference", f"{W}footerReference"):
            if (part := self._part_once(one.get(f"{_R}id"))) is not None:
                with self._nested(*part):
                    found = self._blocks(part[1])
                around.setdefault(joined(found), found)
        return blocks + [block for found in around.values() for block in found]

    @contextmanager
    def _nested(
        self, part: str | None = None, root: etree._Element | None = None, in_cell: bool = False
    ) -> Iterator[None]:
        """A state for content that interrupts this paragraph, of the same or another part."""
        outer = self._state
        mutes = outer.mutes if root is None else _is_balanced(root)
        self._state = _State(part or outer.part, in_cell or outer.in_cell, outer.depth + 1, mutes=mutes)
        yield
        self._state = outer

    def _part_once(self, relation: str | None) -> tuple[str, etree._Element] | None:
        """(name, root) of a part that this part relates to; None if there is none, or it was read before."""
        name = self._package.related(self._state.part, relation)
        root = None if name in self._shown else self._package.tree(name)
        self._shown.add(name)
        return None if root is None or name is None else (name, root)

    def _blocks(self, elements: Iterable[etree._Element]) -> list[Block]:
        blocks: list[Block] = []
        for one in elements:
            if one.tag == _P:
                blocks += self._paragraph(one.find(f"{W}pPr"), one)
            elif one.tag == _TBL:
                blocks += self._table(one)
            elif one.tag in self._handlers:
                blocks += self._paragraph(None, [one])
            elif one.tag not in _SKIPPED:
                blocks += self._blocks(one)
            if not self._state.depth and self._notes["footnotes"]:
                blocks += self._notes["footnotes"]
                self._notes["footnotes"] = []
        return blocks

    def _paragraph(self, properties: etree._Element | None, inside: Iterable[etree._Element]) -> list[Block]:
        state, style = self._state, value(properties, "pStyle")
        state.look = look = self._styles.look(style)
        state.line, state.carried, state.boxes = state.carried, [], []
        self._walk(inside)
        line, boxes = state.line, state.boxes
        if properties is not None and (
            properties.find(f"{W}rPr/{W}del") is not None or properties.find(f"{W}framePr[@{W}dropCap]") is not None
        ):
            state.carried = line
            return boxes
        number_of_list = numbering_of(properties) or (None, None)
        from_style = look.numbering or (None, None)
        key = number_of_list[0] or from_style[0]
        label = self._numbering.label(key, number_of_list[1] or from_style[1], style) if key else None
        text = paragraph_text(line)
        if not text:
            return boxes
        level = level_of(properties)
        level = (look.level or 0) if level is None else level
        depth, mark = label or (0, "")
        if state.in_cell:
            return [Block(f"{mark} {text}" if mark.strip("-") else text), *boxes]
        if level:
            return [heading(level, f"{mark} {text}" if mark.strip("-") else text), *boxes]
        return [item(depth, mark, text) if mark else Block(text), *boxes]

    def _walk(self, elements: Iterable[etree._Element]) -> None:
        for one in elements:
            if (handler := self._handlers.get(one.tag)) is not None:
                handler(one)
            elif one.tag not in _SKIPPED:
                self._walk(one)

    def _add(self, text: str, script: str | None = None) -> None:
        state = self._state
        if state.hidden:
            self._leave_out("hidden words", len(text.split()))
        elif text and not state.muted:
            state.line.append((text, state.script if script is None else script))

    def _leave_out(self, what: str, how_many: int = 1) -> None:
        self.left_out[what] += how_many

    def _run(self, run: etree._Element) -> None:
        state = self._state
        properties = {one.tag: one for one in run.iterfind(f"{W}rPr/*")}
        style = properties.get(f"{W}rStyle")
        look = Look() if style is None else self._styles.look(style.get(f"{W}val"))
        vanish, raised = properties.get(f"{W}vanish"), properties.get(f"{W}vertAlign")
        hidden = look.is_hidden if vanish is None else vanish.get(f"{W}val") not in ("0", "false", "off")
        fonts = properties.get(f"{W}rFonts")
        state.hidden = bool(state.look.is_hidden if hidden is None else hidden)
        state.script = _SCRIPTS.get((look.script if raised is None else raised.get(f"{W}val")) or "", "")
        state.font = "" if fonts is None else fonts.get(f"{W}ascii", "")
        self._walk(run)
        state.hidden, state.script = False, ""

    def _text(self, element: etree._Element) -> None:
        text, font = element.text or "", self._state.font
        if _PRIVATE.search(text):
            text = _PRIVATE.sub(lambda found: character(font, ord(found[0])) or found[0], text)
        self._add(text)

    def _symbol(self, element: etree._Element) -> None:
        code = element.get(f"{W}char", "")
        shown = (
            character(element.get(f"{W}font", ""), int(code, 16)) if re.fullmatch("[0-9A-Fa-f]{1,6}", code) else None
        )
        self._add(shown or "")
        self._leave_out("symbols", shown is None)

    def _ruby(self, element: etree._Element) -> None:
        self._walk(element.iterchildren(f"{W}rubyBase"))
        self._add("(")
        self._walk(element.iterchildren(f"{W}rt"))
        self._add(")")

    def _instruction(self, element: etree._Element) -> None:
        if self._state.fields:
            self._state.fields[-1].instruction.append(element.text or "")

    def _field_char(self, element: etree._Element) -> None:
        state, kind = self._state, element.get(f"{W}fldCharType")
        ended = None
        if kind == "begin":
            state.fields.append(_Field())
        elif kind == "separate" and state.fields:
            state.fields[-1].has_result = True
        elif kind == "end" and state.fields:
            ended = state.fields.pop()
        state.muted = state.mutes and not all(one.has_result for one in state.fields[:-1])
        if ended and not ended.has_result and (shown := _SHOWN.match("".join(ended.instruction))):
            self._add(shown[1].strip())
        self._form_field(element.find(f"{W}ffData"))

    def _form_field(self, data: etree._Element | None) -> None:
        """A check box, or the chosen entry of a list; text fields have a result."""
        if data is None:
            return
        if (box := data.find(f"{W}checkBox")) is not None:
            checked = is_on(box, "checked")
            self._add("☒" if (is_on(box, "default") if checked is None else checked) else "☐")
        entries = data.findall(f"{W}ddList/{W}listEntry")
        self._add("".join(one.get(f"{W}val", "") for one in entries[whole_number(value(data, "ddList/result")) :][:1]))

    def _note(self, element: etree._Element, kind: str) -> None:
        key = kind, element.get(f"{W}id")
        if key not in self._marks and (text := self._entry(*key)):
            self._marks[key] = f"[^{len(self._marks) + 1}]"
            self._notes[kind].append(Block(f"{self._marks[key]}: {text}"))
        self._add(self._marks.get(key, ""), script="")

    def _comment(self, element: etree._Element) -> None:
        found = self._entries("comments").get(element.get(f"{W}id"))
        if not self._comments or found is None:
            self._leave_out("comments")
            return
        text = self._entry("comments", element.get(f"{W}id"))
        self._state.boxes.append(Block(f"[{found.get(f'{W}author') or 'Comment'}: {text}]"))

    def _entry(self, kind: str, name: str | None) -> str:
        """The text of a note or remark in one line."""
        if (found := self._entries(kind).get(name)) is None:
            return ""
        with self._nested(self._package.of_main(kind), found, in_cell=True):
            return in_one_line(" ".join(block.text for block in self._blocks(found)))

    def _read_entries(self, kind: str) -> dict[str | None, etree._Element]:
        root = self._package.tree(self._package.of_main(kind))
        return {} if root is None else {one.get(f"{W}id"): one for one in root}

    def _box(self, elements: Iterable[etree._Element]) -> None:
        with self._nested():
            found = self._blocks(elements)
        self._state.boxes += found

    def _alternate(self, element: etree._Element) -> None:
        """The first of several forms of the same content that has any."""
        state = self._state
        for form in element:
            before = len(state.line), len(state.boxes), self.left_out.total()
            self._walk(form)
            if before != (len(state.line), len(state.boxes), self.left_out.total()):
                return

    def _equation(self, element: etree._Element) -> None:
        is_alone = element.tag.endswith("Para")
        self._add(f" {linear(element)} " if is_alone else linear(element), script="")

    def _drawn(self, element: etree._Element) -> None:
        self._state.boxes += [Block(text)] if (text := words(element)) else []

    def _object(self, element: etree._Element) -> None:
        self._leave_out("equations" if element.get("ProgID", "").startswith("Equation") else "embedded files")

    def _chart(self, element: etree._Element) -> None:
        if (part := self._part_once(element.get(f"{_R}id"))) is not None:
            self._state.boxes += chart(part[1])

    def _diagram(self, element: etree._Element) -> None:
        if (part := self._part_once(element.get(f"{_R}dm"))) is not None:
            self._state.boxes += diagram(part[1])

    def _chunk(self, element: etree._Element) -> None:
        """Another document in this one."""
        name = self._package.related(self._state.part, element.get(f"{_R}id")) or ""
        suffix = name.rpartition(".")[2].lower()
        if suffix not in ("htm", "html", "xhtml", "txt") or name in self._shown or name not in self._package.archive:
            self._leave_out("embedded documents")
            return
        self._shown.add(name)
        text = self._package.archive.read(name).decode("utf-8-sig", "replace")
        self._state.boxes.append(Block(text if suffix == "txt" else markdown(text)))

    def _table(self, element: etree._Element) -> list[Block]:
        rows = [list(_inside(row, _TC)) for row in _inside(element, _TR) if row.find(f"{W}trPr/{W}del") is None]
        is_layout = all(len(row) < 2 for row in rows) or (
            len(rows) == 1 and element.find(f".//{_TC}//{_TBL}") is not None
        )
        if is_layout and not self._state.in_cell:
            return [block for row in rows for one in row for block in self._blocks(one)]
        grid: list[list[str]] = []
        for row in rows:
            grid.append(self._grid_row(row, grid[-1] if grid else []))
        if self._state.in_cell:
            lines = [", ".join(filter(None, row)) for row in grid]
            return [Block("; ".join(filter(None, lines)))]
        return table(grid)

    def _grid_row(self, cells: list[etree._Element], above: list[str]) -> list[str]:
        """Texts of a row by column; a short cell that covers several rows stands in each of them."""
        row = [""] * _repeated(cells[0].getparent(), "trPr/gridBefore", 0) if cells else []
        for one in cells:
            properties = one.find(f"{W}tcPr")
            with self._nested(in_cell=True):
                text = cell(self._blocks(one))
            merge = value(properties, "vMerge")
            if (
                merge is not None
                and merge != "restart"
                and len(row) < len(above)
                and len(above[len(row)]) < REPEATED_CHARS
            ):
                text = text or above[len(row)]
            row += [text, *[""] * (_repeated(properties, "gridSpan", 1) - 1)]
        return row


def _is_balanced(root: etree._Element) -> bool:
    kinds = Counter(one.get(f"{W}fldCharType") for one in root.iter(_FIELD))
    return kinds["begin"] == kinds["end"]


def _repeated(properties: etree._Element | None, name: str, least: int) -> int:
    return min(max(whole_number(value(properties, name)), least), MOST_REPEATED)


def _inside(element: etree._Element, wanted: str) -> Iterator[etree._Element]:
    """The rows or cells of a table, also in content controls and insertions."""
    for one in element:
        if one.tag == wanted:
            yield one
        elif one.tag not in _SKIPPED and one.tag not in (_P, _TBL):
            yield from _inside(one, wanted)
