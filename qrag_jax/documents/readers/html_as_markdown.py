"""Converts HTML to Markdown: its text, without addresses, pictures and emphasis."""

import re
import sys

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs
from markdownify import MarkdownConverter

from qrag_jax.documents.converted import cleaned
from qrag_jax.types import InputError

_MAX_DEEP = 1_000  # nested elements; a page has a few dozen, one with missing end tags some hundreds
_CALLS_AN_ELEMENT = 6  # recursive calls of the converter for each element

_PROLOGUE = re.compile(r"<\?xml[^>]*>")
# Of these elements only the words are kept.
PLAIN = (
    "abbr", "b", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "mark", "q", "s", "samp", "small", "span",
    "strong", "sub", "sup", "tt", "u", "var",
)  # fmt: skip
_LINK = ("a",)


def _nothing(*_: object, **__: object) -> str:
    return ""


class _Converter(MarkdownConverter):
    """Leaves out elements that are not text of the document."""

    convert_head = convert_title = convert_script = convert_style = convert_noscript = _nothing

    def convert_text(self, el: object, text: str, parent_tags: object) -> str:
        """A line of SVG."""
        return f"{text} "

    convert_template = convert_img = convert_video = convert_audio = convert_iframe = _nothing


class _Content(_Converter):
    """Also leaves out what surrounds the content of a page, and its controls."""

    convert_svg = convert_object = convert_button = convert_select = convert_textarea = _nothing
    convert_nav = convert_header = convert_footer = convert_aside = convert_form = _nothing


class _NoLinks(_Content):
    """Also without the words of links."""

    convert_a = _nothing


def markdown(html: str) -> str:
    """Markdown of a page or a part of one; nothing is escaped, so names and formulas stay unchanged."""
    return _convert(_Converter, html, PLAIN + _LINK)


def content_markdown(html: str, with_links: bool = True) -> str:
    """`markdown` without the parts of a page that are marked as navigation, header, footer or aside.

    Args:
        with_links: keep the words of links.
    """
    return _convert(_Content, html, PLAIN + _LINK) if with_links else _convert(_NoLinks, html, PLAIN)


class _Depth:
    """Counts the depth of elements during parsing, before a tree is built."""

    def __init__(self) -> None:
        self._now = 0

    def start(self, tag: str, attributes: object, names: object = None) -> None:
        self._now += 1
        if self._now > _MAX_DEEP:
            raise InputError(f"HTML with more than {_MAX_DEEP:,} nested elements is damaged or hostile; leave it out")

    def end(self, tag: str) -> None:
        self._now -= 1

    def close(self) -> None:
        pass


def _convert(kind: type[MarkdownConverter], html: str, plain: tuple[str, ...]) -> str:
    html = _PROLOGUE.sub("", html)  # lxml refuses decoded text that declares an encoding
    if not html.strip():
        return ""
    etree.fromstring(html, etree.HTMLParser(target=_Depth(), huge_tree=True))
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1_000 + _CALLS_AN_ELEMENT * _MAX_DEEP))
    # lxml, because Python's parser takes quadratic time on unclosed tags, and nests unclosed paragraphs.
    converter = kind(
        bs4_options="lxml", heading_style="atx", bullets="-", strip=list(plain), escape_asterisks=False,
        escape_underscores=False, table_infer_header=True,
    )  # fmt: skip
    return cleaned(converter.convert(html))
