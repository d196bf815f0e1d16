"""Styles and numbering of DOCX: levels of headings, hidden or raised text, and labels of lists."""

import re
import unicodedata
from functools import cache
from typing import NamedTuple

from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.documents.readers.office_story import numeral, whole_number

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_HEADING = re.compile(
    r"(?:heading|überschrift|ueberschrift|titre|título|titulo|títol|titolo|titlu|kop|rubrik|overskrift|otsikko|nagłówek|"
    r"nadpis|naslov|címsor|pealkiri|virsraksts|antraštė|başlık|judul|encabezado|cabeçalho|tiêu đề|đầu đề|заголовок|"
    r"заглавие|επικεφαλίδα|כותרת|عنوان|शीर्षक|หัวเรื่อง|标题|標題|見出し|제목) ?([1-9])"
)
_TITLES = ("title", "titel", "titre", "título", "titolo", "标题", "標題", "표제", "название")
_LABEL = re.compile("%([1-9])")
_MOST_STYLES = 20  # that inherit from one another
_MOST_CHARS = 100  # of a label
_BODY = 9  # the outline level of text that is no heading


class Look(NamedTuple):
    """Properties of a style with those that it inherits; None where none says it.

    Attributes:
        level: of a heading, from 1; 0 for text.
        number: id of a list.
        depth: in that list, from 0.
    """

    level: int | None = None
    number: str | None = None
    depth: str | None = None
    is_hidden: bool | None = None
    script: str | None = None


class _Level(NamedTuple):
    start: int
    form: str
    text: str
    style: str | None
    restarts: bool
    is_legal: bool


def value(element: Element | None, path: str) -> str | None:
    """`w:val` at a path of names such as `pPr/outlineLvl`; None if it is not there."""
    found = None if element is None else element.find("/".join(W + name for name in path.split("/")))
    return None if found is None else found.get(f"{W}val", "")


def is_on(element: Element | None, path: str) -> bool | None:
    """A property that is there, unless it says no; None if it is not there."""
    found = value(element, path)
    return None if found is None else found not in ("0", "false", "off")


def numbering_of(properties: Element | None) -> tuple[str | None, str | None]:
    """(id of a list, level) that the properties of a paragraph give; None for each that they do not."""
    return value(properties, "numPr/numId"), value(properties, "numPr/ilvl")


class Styles:
    """The properties of styles, by the ids of the styles."""

    def __init__(self, root: Element | None):
        """Finds all styles of `word/styles.xml`."""
        styles = () if root is None else root.iter(f"{W}style")
        self._styles = {style.get(f"{W}styleId", ""): style for style in styles}
        self.look = cache(self._look)

    def _look(self, name: str | None) -> Look:
        found: dict[str, object] = {}
        seen: set[str | None] = set()
        if name and name not in self._styles:  # the document may lack the usual styles
            return Look(_level_of_name(name))
        while (style := self._styles.get(name or "")) is not None and name not in seen and len(seen) < _MOST_STYLES:
            seen.add(name)
            properties, of_text = style.find(f"{W}pPr"), style.find(f"{W}rPr")
            own = Look(
                _level_of_style(style, properties), *numbering_of(properties), is_on(of_text, "vanish"),
                value(of_text, "vertAlign"),
            )  # fmt: skip
            found = {key: one for key, one in own._asdict().items() if one is not None} | found
            name = value(style, "basedOn")
        return Look(**found)  # pyright: ignore[reportArgumentType]  # the fields of a Look


def level_of(properties: Element | None) -> int | None:
    """Level of a heading from 1 that an outline level means; 0 for text, None if there is none."""
    outline = value(properties, "outlineLvl")
    return None if outline is None or not outline.isdecimal() else (int(outline) + 1) % (_BODY + 1)


def _level_of_style(style: Element, properties: Element | None) -> int | None:
    level = level_of(properties)
    return _level_of_name(value(style, "name") or "") if level is None else level


def _level_of_name(name: str) -> int | None:
    name = unicodedata.normalize("NFKC", name.partition(",")[0]).strip().casefold()  # after a comma: other names
    found = _HEADING.fullmatch(name)
    return int(found[1]) if found else 1 if name in _TITLES else None


class Numbering:
    """Counts the paragraphs of numbered lists."""

    def __init__(self, root: Element | None, styles: Styles):
        """Finds all lists of `word/numbering.xml`."""
        self._styles = styles
        self._lists: dict[str, dict[int, _Level]] = {}
        self._linked: dict[str, str] = {}
        self._numbers: dict[str, tuple[str, dict[int, int], dict[int, _Level]]] = {}
        self._counts: dict[str, dict[int, int]] = {}
        for one in () if root is None else root.iter(f"{W}abstractNum"):
            self._lists[one.get(f"{W}abstractNumId", "")] = _levels(one)
            if (style := value(one, "numStyleLink")) is not None:
                self._linked[one.get(f"{W}abstractNumId", "")] = style
        for one in () if root is None else root.iterchildren(f"{W}num"):
            overrides = one.findall(f"{W}lvlOverride")
            starts = {
                whole_number(o.get(f"{W}ilvl")): whole_number(v) for o in overrides if (v := value(o, "startOverride"))
            }
            levels = {key: level for override in overrides for key, level in _levels(override).items()}
            self._numbers[one.get(f"{W}numId", "")] = (value(one, "abstractNumId") or "", starts, levels)

    def label(self, key: str, level: str | None, style: str | None) -> tuple[int, str] | None:
        """(depth from 0, label) of the next paragraph of a list; None if it has no label."""
        if key not in self._numbers:
            return None
        number_id, (key, starts, own) = key, self._numbers[key]
        linked = self._styles.look(self._linked[key]).number if key in self._linked else None
        key = self._numbers[linked][0] if linked in self._numbers else key
        levels = self._lists.get(key, {}) | own
        of_style = next((index for index, one in levels.items() if style and one.style == style), 0)
        depth = of_style if level is None else whole_number(level)
        if depth not in levels:
            return None
        counts = self._counts.setdefault(key, {})
        for index in starts:  # the first paragraph of this list
            counts.pop(index, None)
            levels[index] = levels.get(index, levels[depth])._replace(start=starts[index])
        if starts:
            self._numbers[number_id] = (key, {}, own | {index: levels[index] for index in starts})
        counts[depth] = counts.get(depth, levels[depth].start - 1) + 1
        for index in [index for index in counts if index > depth and levels.get(index, levels[depth]).restarts]:
            del counts[index]
        if levels[depth].form == "bullet":
            return depth, "-"
        label = _LABEL.sub(lambda found: _counted(levels, counts, depth, int(found[1]) - 1), levels[depth].text).strip()
        return (depth, label) if label else None


def _counted(levels: dict[int, _Level], counts: dict[int, int], depth: int, index: int) -> str:
    if index not in levels:
        return ""
    form = "decimal" if levels[depth].is_legal else levels[index].form
    return "" if form == "none" else numeral(counts.setdefault(index, levels[index].start), form)


def _levels(element: Element) -> dict[int, _Level]:
    return {
        whole_number(one.get(f"{W}ilvl")): _Level(
            whole_number(value(one, "start")), value(one, "numFmt") or "decimal",
            (value(one, "lvlText") or "")[:_MOST_CHARS], value(one, "pStyle"), value(one, "lvlRestart") != "0",
            bool(is_on(one, "isLgl")),
        )
        for one in element.iterchildren(f"{W}lvl")
        if whole_number(one.get(f"{W}ilvl")) < _BODY
    }  # fmt: skip
