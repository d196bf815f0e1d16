"""Walks the body of an OpenDocument text, and all that it refers to, and writes it as a tree of HTML."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs
from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]

from qrag_jax.documents.readers.odt_styles import Look, Styles, attribute, name_of
from qrag_jax.documents.readers.office_story import Story, read_tree, spread_long, unrepeated, whole_number
from qrag_jax.documents.readers.zip_archive import Archive
from qrag_jax.types import InputError

_SPACE = re.compile(r"[ \t\r\n]+")
_MANIFEST = "META-INF/manifest.xml"
_MOST_SPANNED = 64  # columns or rows; hostile files declare millions
_MATH = "{http://www.w3.org/1998/Math/MathML}"
_OTHERS = {
    "office:spreadsheet": "a spreadsheet (ODS), which cannot be read; save its sheets as .csv and name them",
    "office:presentation": "slides (ODP), which cannot be read; save them as PDF",
    "office:drawing": "a drawing (ODG), which cannot be read; save it as PDF",
}
_SKIPPED = {
    "text:tracked-changes", "text:script", "text:note-citation", "office:forms", "svg-compatible:title",
    "svg-compatible:desc", "office:event-listeners", "http:creator", "http:date", "meta:creator-initials",
    *(f"text:{kind}-source" for kind in (
        "table-of-content", "illustration-index", "table-index", "object-index", "user-index", "alphabetical-index",
        "bibliography",
    )),
}  # fmt: skip


@dataclass
class _Document:
    """The data that the body, notes and headers of one document share."""

    archive: Archive
    styles: Styles
    comments: bool
    controls: dict[str, Element]
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[Element] = field(default_factory=list)
    endnotes: list[Element] = field(default_factory=list)
    num_notes: int = 0
    shown: set[str] = field(default_factory=set)  # members
    counts: dict[tuple[str, int], int] = field(default_factory=dict)  # of the last list of a style at a level
    outline: list[int | None] = field(default_factory=list)  # numbers of the last heading


def read_body(raw: bytes, comments: bool) -> tuple[Element, Counter[str]]:
    """The body, endnotes, and headers and footers without repetitions, and what is left out of them."""
    archive = Archive(raw)
    if _MANIFEST in archive and b"encryption-data" in archive.read(_MANIFEST):
        raise InputError("an OpenDocument text with a password; save it without one")
    root = read_tree(archive, "content.xml")
    kinds = [name_of(one.tag) for one in root.iterfind("{*}body/*")]
    if "office:text" not in kinds:
        raise InputError(
            next((_OTHERS[kind] for kind in kinds if kind in _OTHERS), "no document of words; leave it out")
        )
    around = read_tree(archive, "styles.xml") if "styles.xml" in archive else etree.Element("none")
    controls = {attribute(one, "form:id"): one for one in root.iter("{*}*") if attribute(one, "form:id")}
    document = _Document(archive, Styles((root, around)), comments, controls)
    story = _Story(document, is_main=True)
    story.blocks(root.iterfind("{*}body/*"))
    story.root.extend(document.endnotes)
    found: list[Element] = []
    for one in around.iterfind("{*}master-styles/{*}master-page/*"):
        other = _Story(document)
        other.blocks([one])
        found.append(other.root)
    story.root.extend(unrepeated(found))
    return story.root, document.left_out


class _Story(Story):
    """The text of a body, or of a box, note or remark in it."""

    def __init__(self, document: _Document, is_main: bool = False):
        super().__init__(document.left_out)
        self._document, self._is_main = document, is_main

    def blocks(self, elements: Iterable[Element]) -> None:
        """Writes paragraphs, lists and tables."""
        for one in elements:
            name = name_of(one.tag)
            if name == "text:list":
                self._list(one, [], "")
            elif name == "table:table":
                self._table(one)
            elif attribute(one, "text:display") == "none" or attribute(one, "text:is-hidden") == "true":
                self.left_out["hidden words"] += len("".join(one.itertext()).split())
            elif name in _HANDLERS:  # of paragraphs too
                self._paragraph(one)
            elif name not in _SKIPPED:
                self.blocks(one)
            if self._is_main and self.out is self.root:
                self.root.extend(self._document.notes)
                self._document.notes.clear()

    def _paragraph(self, element: Element, label: tuple[int, str] | None = None) -> None:
        """Writes a paragraph or heading, or an element outside of paragraphs as one."""
        name, paragraph = name_of(element.tag), etree.Element("p")
        look = self._document.styles.look(attribute(element, "text:style-name"))
        level = look.level or 0
        if name == "text:h":
            level = whole_number(attribute(element, "text:outline-level", "1"), 10) or 1
            label = label or (0, self._heading_label(level))
        with self.into(paragraph):
            if name in ("text:p", "text:h"):
                hides = element.find("{*}hidden-paragraph")
                is_hidden = hides is not None and attribute(hides, "text:is-hidden") == "true"
                self._styled(look._replace(is_hidden=True) if is_hidden else look, element)
            else:
                self._each([element])
        self.end_paragraph(f"h{min(level, 6)}" if level else "p", paragraph, label)

    def _heading_label(self, level: int) -> str:
        document = self._document
        counts = [*document.outline[:level], *[None] * level][:level]
        counts[-1] = document.styles.start("", level) if counts[-1] is None else counts[-1] + 1
        document.outline = counts
        return document.styles.label("", counts)

    def _list(self, element: Element, above: list[int | None], style: str, goes_on: bool = False) -> None:
        """Writes a list.

        Args:
            above: numbers of the items that it lies in.
            style: name of the style of the list that it lies in.
            goes_on: it continues the numbers of the last such list.
        """
        style, counts = attribute(element, "text:style-name") or style, self._document.counts
        key = style, len(above)
        told = attribute(element, "text:continue-list") or attribute(element, "text:continue-numbering") == "true"
        goes_on, start = bool(goes_on or told), self._document.styles.start(style, len(above) + 1)
        count = counts.get(key, start - 1) if goes_on else start - 1
        for one in element:
            has_label = name_of(one.tag) == "text:list-item"
            if has_label and any(name_of(child.tag) != "text:list" for child in one):
                count, goes_on = whole_number(attribute(one, "text:start-value")) or count + 1, False
            for child in one:
                if name_of(child.tag) == "text:list":
                    self._list(child, [*above, max(count, start)], style, goes_on)
                elif name_of(child.tag) in ("text:p", "text:h"):
                    label = self._document.styles.label(style, [*above, count]) if has_label else ""
                    self._paragraph(child, (len(above), label))
                    has_label = False
                else:
                    self.blocks([child])
        counts[key] = count

    def _content(self, element: Element) -> None:
        self.add(_SPACE.sub(" ", element.text or ""))
        for one in element:
            self._each([one])
            self.add(_SPACE.sub(" ", one.tail or ""))

    def _each(self, elements: Iterable[Element]) -> None:
        for one in elements:
            name = name_of(one.tag)
            if (handler := _HANDLERS.get(name)) is not None:
                handler(self, one)
            elif name not in _SKIPPED:
                self._content(one)

    def _span(self, element: Element) -> None:
        self._styled(self._document.styles.look(attribute(element, "text:style-name")), element)

    def _styled(self, look: Look, element: Element) -> None:
        kept = self.is_hidden, self.script
        self.is_hidden = self.is_hidden if look.is_hidden is None else look.is_hidden
        self.script = self.script if look.script is None else look.script
        self._content(element)
        self.is_hidden, self.script = kept

    def box(self, elements: Iterable[Element]) -> None:
        """Writes content that stands apart, behind this paragraph."""
        story = _Story(self._document)
        story.blocks(elements)
        self.after.append(story.root)

    def _note(self, element: Element) -> None:
        self._document.num_notes += 1
        mark = f"[^{self._document.num_notes}]"
        is_last = attribute(element, "text:note-class") == "endnote"
        notes = self._document.endnotes if is_last else self._document.notes
        story = _Story(self._document)
        story.blocks(element)
        notes.append(story.enclosed(f"{mark}: ", ""))
        self.script = ""
        self.add(mark)

    def _annotation(self, element: Element) -> None:
        if not self._document.comments:
            self.left_out["comments"] += 1
            return
        author = next((one.text for one in element.iter("{*}creator")), None)
        story = _Story(self._document)
        story.blocks(element)
        self.after.append(story.enclosed(f"[{author or 'Comment'}: ", "]"))

    def _reading(self, element: Element) -> None:
        self.add("(")
        self._content(element)
        self.add(")")

    def _hidden_text(self, element: Element) -> None:
        """Text that a condition hides; it stands in an attribute, and is in the element while it is shown."""
        if attribute(element, "text:is-hidden", "true") == "true":
            self.left_out["hidden words"] += len(attribute(element, "text:string-value").split())
        else:
            self._content(element)

    def _control(self, element: Element) -> None:
        if (one := self._document.controls.get(attribute(element, "drawing:control"))) is not None:
            self.add(" ".join(["", *(attribute(one, f"form:{name}") for name in ("label", "current-value")), ""]))

    def _frame(self, element: Element) -> None:
        for one in element:
            name = name_of(one.tag)
            if name == "drawing:object":
                self._object(one)
                return
            if name in ("drawing:image", "drawing:object-ole", "drawing:plugin", "drawing:floating-frame"):
                self.left_out["pictures" if name == "drawing:image" else "embedded files"] += 1
                return
            if name not in _SKIPPED:
                self.box(one)

    def _object(self, element: Element) -> None:
        name = element.get("{http://www.w3.org/1999/xlink}href", "").removeprefix("./").rstrip("/") + "/content.xml"
        root = element if len(element) else self._tree_once(name)
        formula = None if root is None else next(root.iter(f"{_MATH}math"), None)
        if root is None:
            self.left_out["embedded files"] += 1
        elif formula is not None:
            source = next(formula.iter(f"{_MATH}annotation"), formula)
            self.add(" ".join("".join(source.itertext()).split()))
        else:
            self.box(root.iterfind("{*}body/*"))

    def _tree_once(self, name: str) -> Element | None:
        """The root of an object; None if it is missing, was read before, or declares entities as old programs do."""
        if name in self._document.shown or name not in self._document.archive:
            return None
        self._document.shown.add(name)
        try:
            return read_tree(self._document.archive, name)
        except InputError:
            return None

    def _table(self, element: Element) -> None:
        table = self.element("table")
        with self.into(table):
            self._rows(element, "td")
        spread_long(table)

    def _rows(self, element: Element, tag: str) -> None:
        for one in element:
            name = name_of(one.tag)
            if name == "table:table-row":
                with self.into(self.element("tr")):
                    for cell in one.iterchildren("{*}table-cell"):
                        self._cell(cell, tag)
            elif name.startswith("table:table-"):
                self._rows(one, "th" if name == "table:table-header-rows" else tag)

    def _cell(self, cell: Element, tag: str) -> None:
        spans = {
            f"{name[:3]}span": str(whole_number(attribute(cell, f"table:number-{name}-spanned"), _MOST_SPANNED) or 1)
            for name in ("columns", "rows")
        }
        if not len(cell) and cell.getnext() is None:
            return  # what programs write up to the last column of a sheet
        for _ in range(whole_number(attribute(cell, "table:number-columns-repeated"), _MOST_SPANNED) or 1):
            with self.into(self.element(tag, **spans)):
                self.blocks(cell)


_HANDLERS: Mapping[str, Callable[[_Story, Element], None]] = {
    "text:s": lambda story, _: story.add(" "), "text:tab": lambda story, _: story.add("\t"),
    "text:line-break": lambda story, _: story.line_break(), "text:span": _Story._span, "text:note": _Story._note,
    "office:annotation": _Story._annotation, "text:ruby-text": _Story._reading, "drawing:frame": _Story._frame,
    "text:hidden-text": _Story._hidden_text, "drawing:control": _Story._control,
    **dict.fromkeys(("text:p", "text:h", "text:list", "table:table"), lambda story, one: story.box([one])),
}  # fmt: skip
