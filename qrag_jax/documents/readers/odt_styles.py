"""Styles of OpenDocument: levels of headings, hidden or raised text, and labels of lists."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.documents.readers.office_story import numeral, whole_number

_OASIS = "urn:oasis:names:tc:opendocument:xmlns:"


@cache
def name_of(tag: str) -> str:
    """`text:p` for a tag with its namespace."""
    space, _, local = tag[1:].rpartition("}")
    return f"{space.removeprefix(_OASIS).partition(':')[0]}:{local}"


def attribute(element: Element, name: str, default: str = "") -> str:
    """An attribute such as `text:name`."""
    prefix, _, local = name.partition(":")
    return element.get(f"{{{_OASIS}{prefix}:1.0}}{local}", default)


class Look(NamedTuple):
    """Properties of a style with those that it inherits; None where none says it.

    Attributes:
        level: of a heading, from 1.
        script: `sup` for raised text, `sub` for lowered, "" for neither.
    """

    level: int | None = None
    is_hidden: bool | None = None
    script: str | None = None


class Styles:
    """The properties of the styles in `content.xml` and `styles.xml`."""

    def __init__(self, roots: Iterable[Element]):
        """Finds all styles."""
        self._styles: dict[str, Element] = {}
        self._levels: dict[str, dict[int, Element]] = {}
        for root in roots:
            for one in root.iter(f"{{{_OASIS}style:1.0}}style"):
                self._styles.setdefault(attribute(one, "style:name"), one)
            for one in root.iter(f"{{{_OASIS}text:1.0}}list-style", f"{{{_OASIS}text:1.0}}outline-style"):
                key = "" if name_of(one.tag) == "text:outline-style" else attribute(one, "style:name")
                self._levels.setdefault(key, {whole_number(attribute(level, "text:level")): level for level in one})
        self.look = cache(self._look)

    def _look(self, name: str) -> Look:
        found, seen = Look(), set[str]()
        while name not in seen and len(seen) < 20 and (style := self._styles.get(name)) is not None:
            seen.add(name)
            own = _look_of(style)
            found = own._replace(**{key: one for key, one in found._asdict().items() if one is not None})
            name = attribute(style, "style:parent-style-name")
        return found

    def label(self, lists: str, counts: list[int | None]) -> str:
        """The label of an item, `-` for a bullet, "" without one.

        Args:
            lists: name of a style of lists; "" is that of headings.
            counts: number of the item at each level from the first; None where counting has not begun.
        """
        levels = self._levels.get(lists, {})
        if (level := levels.get(len(counts))) is None:
            return "-" if lists else ""
        if not name_of(level.tag).endswith(("number", "outline-level-style")):
            return "-"
        first = len(counts) - min(whole_number(attribute(level, "text:display-levels", "1")), len(counts))
        shown = []
        for index in range(first, len(counts)):
            form = attribute(levels.get(index + 1, level), "style:num-format")
            count = self.start(lists, index + 1) if counts[index] is None else counts[index]
            shown += [numeral(count or 0, form)] if form else []
        if not shown:
            return ""
        before, after = (attribute(level, f"style:num-{name}")[:99] for name in ("prefix", "suffix"))
        return f"{before}{'.'.join(shown)}{after}".strip()

    def start(self, lists: str, depth: int) -> int:
        """The first number of a level, from 1."""
        level = self._levels.get(lists, {}).get(depth)
        return 1 if level is None else whole_number(attribute(level, "text:start-value", "1"))


def _look_of(style: Element) -> Look:
    level = whole_number(attribute(style, "style:default-outline-level"))
    hidden = script = None
    for one in style:
        if name_of(one.tag) == "style:text-properties":
            shown = attribute(one, "text:display")
            hidden = shown == "none" if shown else None
            if place := attribute(one, "style:text-position"):
                script = "sub" if place.startswith(("sub", "-")) else "" if place.startswith("0%") else "sup"
    is_title = attribute(style, "style:name") == "Title"
    return Look(level or (1 if is_title else None), hidden, script)
