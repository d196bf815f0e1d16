"""Walks the body of an OpenDocument text, and all that it refers to."""

import re
from collections import Counter
from collections.abc import Iterable

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.documents.readers.odt_styles import Look, Styles, attribute, name_of
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
    read_tree,
    table,
    whole_number,
)
from qrag_jax.documents.readers.zip_archive import Archive
from qrag_jax.types import InputError

_SPACE = re.compile(r"[ \t\r\n]+")
_HREF = "{http://www.w3.org/1999/xlink}href"
_OTHERS = {
    "office:spreadsheet": "a spreadsheet (ODS), which cannot be read; save its sheets as .csv and name them",
    "office:presentation": "slides (ODP), which cannot be read; save them as PDF",
    "office:drawing": "a drawing (ODG), which cannot be read; save it as PDF",
}
_SKIPPED = {
    "text:tracked-changes", "text:script", "text:note-citation", "office:forms", "svg-compatible:title",
    "svg-compatible:desc", "office:event-listeners", "http:creator", "http:date", "meta:creator-initials",
    "text:table-of-content-source", "text:illustration-index-source", "text:table-index-source",
    "text:object-index-source", "text:user-index-source", "text:alphabetical-index-source", "text:bibliography-source",
}  # fmt: skip


class Body:
    """The content of one document.

    Attributes:
        left_out: kinds of content that are missing from the blocks so far -> their number.
    """

    def __init__(self, raw: bytes, comments: bool):
        """Finds the parts of a document; refuses other files of OpenDocument."""
        self._archive, self._comments = Archive(raw), comments
        if b"encryption-data" in (
            self._archive.read("META-INF/manifest.xml") if self._has("META-INF/manifest.xml") else b""
        ):
            raise InputError("an OpenDocument text with a password; save it without one")
        self._root = read_tree(self._archive, "content.xml")
        kinds = [name_of(one.tag) for body in self._root if name_of(body.tag) == "office:body" for one in body]
        if "office:text" not in kinds:
            what = next((_OTHERS[kind] for kind in kinds if kind in _OTHERS), "no document of words; leave it out")
            raise InputError(what)
        self._around = read_tree(self._archive, "styles.xml") if self._has("styles.xml") else None
        self._styles = Styles(root for root in (self._root, self._around) if root is not None)
        self._controls = {
            one.get("{http://www.w3.org/XML/1998/namespace}id") or attribute(one, "form:id"): one
            for one in self._root.iter("{urn:oasis:names:tc:opendocument:xmlns:form:1.0}*")
        }
        self.left_out: Counter[str] = Counter()
        self._line: list[tuple[str, str]] = []
        self._boxes: list[Block] = []
        self._notes: list[Block] = []
        self._endnotes: list[Block] = []
        self._look, self._depth, self._in_cell = Look(), 0, False
        self._num_notes = 0
        self._shown: set[str] = set()
        self._outline: list[int | None] = []
        self._counts: dict[tuple[str, int], int] = {}  # of the last list of a style at a level
        self._handlers = {
            "text:s": lambda _: self._add(" "), "text:tab": lambda _: self._add("\t"),
            "text:line-break": lambda _: self._add("\n"), "text:span": self._span, "text:note": self._note,
            "office:annotation": self._annotation, "text:ruby": self._ruby, "text:hidden-text": self._hidden_text,
            "drawing:frame": self._frame, "drawing:control": self._control,
            **dict.fromkeys(("text:p", "text:h", "text:list", "table:table"), lambda one: self._box([one])),
        }  # fmt: skip

    def _has(self, name: str) -> bool:
        return name in self._archive

    def blocks(self) -> list[Block]:
        """The blocks of the body, of its endnotes, and of its headers and footers without those that repeat."""
        body = next(one for one in self._root if name_of(one.tag) == "office:body")
        blocks = self._blocks(body) + self._endnotes
        around: dict[str, list[Block]] = {}
        for page in () if self._around is None else self._around.iter("{*}master-page"):
            for one in page:
                found = self._nested([one], in_cell=False)
                around.setdefault(joined(found), found)
        return blocks + [block for found in around.values() for block in found]

    def _blocks(self, elements: Iterable[etree._Element]) -> list[Block]:
        blocks: list[Block] = []
        for one in elements:
            name = name_of(one.tag)
            if name in ("text:p", "text:h"):
                blocks += self._paragraph(one, "")
            elif name == "text:list":
                blocks += self._list(one, [], "")
            elif name == "table:table":
                blocks += self._table(one)
            elif attribute(one, "text:display") == "none" or attribute(one, "table:display") == "false":
                self.left_out["hidden words"] += len("".join(one.itertext()).split())
            elif name in self._handlers:
                blocks += self._paragraph_of([one])
            elif name not in _SKIPPED:
                blocks += self._blocks(one)
            if not self._depth:
                blocks += self._notes
                self._notes = []
        return blocks

    def _paragraph(self, element: etree._Element, label: str, depth: int = 0) -> list[Block]:
        self._look = look = self._styles.look(attribute(element, "text:style-name"))
        self._line, self._boxes = [], []
        self._content(element)
        text, boxes = paragraph_text(self._line), self._boxes
        level = 0
        if name_of(element.tag) == "text:h":
            level = whole_number(attribute(element, "text:outline-level", "1")) or 1
            label = label or self._heading_label(min(level, 10))
        elif look.level:
            level = look.level
        if not text:
            return boxes
        shown = f"{label} {text}" if label.strip("-") else text
        if self._in_cell:
            return [Block(shown), *boxes]
        if level:
            return [heading(level, shown), *boxes]
        return [item(depth, label, text) if label else Block(text), *boxes]

    def _heading_label(self, level: int) -> str:
        counts = [*self._outline[:level], *[None] * level][:level]
        counts[-1] = self._styles.start("", level) if counts[-1] is None else counts[-1] + 1
        self._outline = counts
        return self._styles.label("", counts)

    def _list(self, element: etree._Element, above: list[int | None], style: str) -> list[Block]:
        """Blocks of a list.

        Args:
            above: numbers of the items that it lies in.
            style: name of the style of the list that it lies in.
        """
        style = attribute(element, "text:style-name") or style
        key = style, len(above)
        goes_on = attribute(element, "text:continue-numbering") == "true" or attribute(element, "text:continue-list")
        count = self._counts.get(key, 0) if goes_on else self._styles.start(style, len(above) + 1) - 1
        blocks: list[Block] = []
        for one in element:
            has_label = name_of(one.tag) == "text:list-item"
            if has_label and any(name_of(child.tag) != "text:list" for child in one):
                count = whole_number(attribute(one, "text:start-value")) or count + 1
            for child in one:
                if name_of(child.tag) == "text:list":
                    blocks += self._list(child, [*above, count], style)
                elif name_of(child.tag) in ("text:p", "text:h"):
                    label = self._styles.label(style, [*above, count]) if has_label else ""
                    blocks += self._paragraph(child, label, len(above))
                    has_label = False
                else:
                    blocks += self._blocks([child])
        self._counts[key] = count
        return blocks

    def _paragraph_of(self, elements: Iterable[etree._Element]) -> list[Block]:
        self._line, self._boxes = [], []
        for one in elements:
            self._inline(one)
        text = paragraph_text(self._line)
        return ([Block(text)] if text else []) + self._boxes

    def _content(self, element: etree._Element) -> None:
        self._add(_SPACE.sub(" ", element.text or ""))
        for one in element:
            self._inline(one)
            self._add(_SPACE.sub(" ", one.tail or ""))

    def _inline(self, element: etree._Element) -> None:
        name = name_of(element.tag)
        if (handler := self._handlers.get(name)) is not None:
            handler(element)
        elif name not in _SKIPPED:
            self._content(element)

    def _add(self, text: str) -> None:
        if self._look.is_hidden:
            self.left_out["hidden words"] += len(text.split())
        elif text:
            self._line.append((text, self._look.script or ""))

    def _span(self, element: etree._Element) -> None:
        outer, own = self._look, self._styles.look(attribute(element, "text:style-name"))
        self._look = outer._replace(
            is_hidden=outer.is_hidden if own.is_hidden is None else own.is_hidden,
            script=outer.script if own.script is None else own.script,
        )
        self._content(element)
        self._look = outer

    def _nested(self, elements: Iterable[etree._Element], in_cell: bool) -> list[Block]:
        """Blocks of content that interrupts this paragraph."""
        kept = self._line, self._boxes, self._look, self._in_cell
        self._in_cell, self._depth = in_cell or self._in_cell, self._depth + 1
        blocks = self._blocks(elements)
        self._line, self._boxes, self._look, self._in_cell = kept
        self._depth -= 1
        return blocks

    def _box(self, elements: Iterable[etree._Element]) -> None:
        self._boxes += self._nested(elements, in_cell=False)

    def _in_one_line(self, elements: Iterable[etree._Element]) -> str:
        return in_one_line(" ".join(block.text for block in self._nested(elements, in_cell=True)))

    def _note(self, element: etree._Element) -> None:
        self._num_notes += 1
        mark = f"[^{self._num_notes}]"
        notes = self._endnotes if attribute(element, "text:note-class") == "endnote" else self._notes
        notes.append(Block(f"{mark}: {self._in_one_line(element)}"))
        self._line.append((mark, ""))

    def _annotation(self, element: etree._Element) -> None:
        if not self._comments:
            self.left_out["comments"] += 1
            return
        author = next((one.text for one in element.iter("{*}creator")), None)
        self._boxes.append(Block(f"[{author or 'Comment'}: {self._in_one_line(element)}]"))

    def _ruby(self, element: etree._Element) -> None:
        for one in element:
            is_base = name_of(one.tag) == "text:ruby-base"
            self._add("" if is_base else "(")
            self._content(one)
            self._add("" if is_base else ")")

    def _hidden_text(self, element: etree._Element) -> None:
        self.left_out["hidden words"] += len(attribute(element, "text:string-value").split())

    def _control(self, element: etree._Element) -> None:
        if (one := self._controls.get(attribute(element, "drawing:control"))) is not None:
            words = [attribute(one, f"form:{name}") for name in ("label", "current-value")]
            self._add(f" {' '.join(words)} ")

    def _frame(self, element: etree._Element) -> None:
        """A box, a formula, a chart or a picture; a frame may have a picture besides, for programs without the rest."""
        for one in element:
            name = name_of(one.tag)
            if name == "drawing:object":
                return self._object(one)
            if name in (
                "drawing:image",
                "drawing:object-ole",
                "drawing:plugin",
                "drawing:applet",
                "drawing:floating-frame",
            ):
                self.left_out["pictures" if name == "drawing:image" else "embedded files"] += 1
                return None
            if name not in _SKIPPED:
                self._box(one)
        return None

    def _object(self, element: etree._Element) -> None:
        name = f"{element.get(_HREF, '').removeprefix('./').rstrip('/')}/content.xml"
        root: etree._Element | None = element
        if not len(element):
            root = self._tree_once(name)
        formula = None if root is None else next(root.iter("{http://www.w3.org/1998/Math/MathML}math"), None)
        if root is None:
            self.left_out["embedded files"] += 1
        elif formula is not None:
            source = next(formula.iter("{*}annotation"), formula)
            self._add(in_one_line(" ".join(source.itertext())))
        else:
            self._box([one for one in root if name_of(one.tag) == "office:body"])

    def _tree_once(self, name: str) -> etree._Element | None:
        """The root of an object; None if it is missing, was read before, or declares entities as old programs do."""
        if name in self._shown or not self._has(name):
            return None
        self._shown.add(name)
        try:
            return read_tree(self._archive, name)
        except InputError:
            return None

    def _table(self, element: etree._Element) -> list[Block]:
        rows = list(element.iter("{*}table-row")) if element.find(".//{*}table") is None else list(_rows(element))
        if all(len(row) < 2 for row in rows) and not self._in_cell:
            return [block for row in rows for one in row for block in self._blocks(one)]
        grid: list[list[str]] = []
        down: dict[int, tuple[int, str]] = {}  # column -> rows that its cell still covers, and its text
        for row in rows:
            texts: list[str] = []
            for one in row:
                columns = min(whole_number(attribute(one, "table:number-columns-repeated", "1")) or 1, MOST_REPEATED)
                text = cell(self._nested(one, in_cell=True))
                covers = whole_number(attribute(one, "table:number-rows-spanned", "1")) - 1
                left, above = down.get(len(texts), (0, ""))
                if name_of(one.tag) == "table:covered-table-cell" and left > 0:
                    text, covers = text or above, left - 1
                down[len(texts)] = covers, text if len(text) < REPEATED_CHARS else ""
                texts += [text] * columns
            grid.append(texts)
        if self._in_cell:
            return [Block("; ".join(filter(None, (", ".join(filter(None, row)) for row in grid))))]
        return table(grid)


def _rows(element: etree._Element) -> Iterable[etree._Element]:
    """The rows of a table without those of tables in it."""
    for one in element:
        name = name_of(one.tag)
        if name == "table:table-row":
            yield one
        elif name.startswith("table:table-") and "column" not in name:
            yield from _rows(one)
