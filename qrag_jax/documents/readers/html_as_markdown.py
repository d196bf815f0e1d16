"""Converts HTML to Markdown: the text that a browser shows, without addresses, pictures and emphasis.

Other converters were measured on real pages (docs/decisions/0008-hostile-files.md): they keep hidden text, make 210 of
2^10, and move the values of tables with merged cells.
"""

import re
import sys
from collections import Counter
from dataclasses import dataclass, field

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs
from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]

from qrag_jax.documents.converted import cleaned
from qrag_jax.documents.readers.html_elements import WRITERS
from qrag_jax.documents.readers.html_writer import MAX_DEEP, Writer, too_deep

_CALLS_AN_ELEMENT = 16  # recursive calls of the converter for each element, with those of a checker of types
_ENDS = re.compile(rb"</(?:html|body)\s*>", re.IGNORECASE)
_HEADING = re.compile(r"^#{1,6} (.*)", re.MULTILINE)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Page:
    """A page as Markdown.

    Attributes:
        left_out: kind -> number, as in `Converted`.
    """

    text: str
    title: str
    left_out: Counter[str] = field(default_factory=Counter)


def markdown(html: str) -> str:
    """Markdown of a page or a part of one; nothing is escaped but `|` in tables, so names and formulas stay."""
    root = parse(html)
    return "" if root is None else _converted(root, Writer(WRITERS))


def page_markdown(html: str) -> Page:
    """Markdown of a page without navigation; if there is nothing else, with it, or with hidden text."""
    root = parse(html)
    if root is None:
        return Page("", "")
    title = next((" ".join("".join(found.itertext()).split()) for found in root.iterfind("head/title")), "")
    for writer in (Writer(WRITERS, with_navigation=False), Writer(WRITERS), Writer(WRITERS, with_hidden=True)):
        if text := _converted(root, writer):
            return Page(text, title, writer.left_out)
    return Page("", title)


def with_title(page: Page) -> str:
    """The text of a page below its title, unless its first heading contains that."""
    first = _HEADING.search(page.text)
    title, heading = (" ".join(_WORD.findall(text.lower())) for text in (page.title, first[1] if first else ""))
    if not title or f" {title} " in f" {heading} ":
        return page.text
    return cleaned(f"# {page.title}\n\n{page.text}")


def parse(html: str) -> Element | None:
    """The tree of a page; None if it has no element."""
    # The parser ends at these tags, but browsers show what follows them.
    raw = _ENDS.sub(b"", html.encode("utf-8", "replace"))
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    root = etree.fromstring(raw, parser) if raw.strip() else None
    if any("depth" in entry.message.lower() for entry in parser.error_log):  # the parser ended there
        raise too_deep()
    return root


def _converted(root: Element, writer: Writer) -> str:
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1_000 + _CALLS_AN_ELEMENT * MAX_DEEP))
    writer.element(root)
    writer.end_block()
    return cleaned("".join(writer.blocks))
