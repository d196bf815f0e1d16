"""HTML as Markdown: what it says, without addresses, pictures and marks of emphasis."""

import re
import sys

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs
from markdownify import MarkdownConverter

from qrag_jax.documents.converted import cleaned
from qrag_jax.types import InputError

_MAX_DEEP = 1_000  # elements in one another; a page has a few dozen, one whose ends are missing some hundreds
_CALLS_AN_ELEMENT = 6  # of the converter, which calls itself

_PROLOGUE = re.compile(r"<\?xml[^>]*>")
# Of these the words alone are wanted.
PLAIN = (
    "abbr", "b", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "mark", "q", "s", "samp", "small", "span",
    "strong", "sub", "sup", "tt", "u", "var",
)  # fmt: skip
_LINK = ("a",)


def _nothing(*_: object, **__: object) -> str:
    return ""


class _Converter(MarkdownConverter):
    """Without what is no text of the document."""

    convert_head = convert_title = convert_script = convert_style = convert_noscript = _nothing

    def convert_text(self, el: object, text: str, parent_tags: object) -> str:
        """A line of SVG."""
        return f"{text} "

    convert_template = convert_img = convert_video = convert_audio = convert_iframe = _nothing


class _Content(_Converter):
    """Without what stands around the content of a page, and what is there to be used and not read."""

    convert_svg = convert_object = convert_button = convert_select = convert_textarea = _nothing
    convert_nav = convert_header = convert_footer = convert_aside = convert_form = _nothing


class _NoLinks(_Content):
    """Also without the words of links."""

    convert_a = _nothing


def markdown(html: str) -> str:
    """Markdown of all of a page or a part of one; nothing is escaped, so that names and formulas stay what they are."""
    return _convert(_Converter, html, PLAIN + _LINK)


def content_markdown(html: str, with_links: bool = True) -> str:
    """`markdown` without the parts of a page that are marked as navigation, header, footer or aside.

    Args:
        with_links: the words of links are kept.
    """
    return _convert(_Content, html, PLAIN + _LINK) if with_links else _convert(_NoLinks, html, PLAIN)


class _Depth:
    """Counts how deep elements are, while they are parsed and before a tree is made of them."""

    def __init__(self) -> None:
        self._now = 0

    def start(self, tag: str, attributes: object, names: object = None) -> None:
        self._now += 1
        if self._now > _MAX_DEEP:
            raise InputError(f"HTML with more than {_MAX_DEEP:,} elements in one another: it is damaged or hostile")

    def end(self, tag: str) -> None:
        self._now -= 1

    def close(self) -> None:
        pass


def _convert(kind: type[MarkdownConverter], html: str, plain: tuple[str, ...]) -> str:
    html = _PROLOGUE.sub("", html)  # as a text it cannot say an encoding
    if not html.strip():
        return ""
    etree.fromstring(html, etree.HTMLParser(target=_Depth(), huge_tree=True))
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1_000 + _CALLS_AN_ELEMENT * _MAX_DEEP))
    # lxml: Python's own parser takes quadratic time on tags that are not closed, and nests paragraphs without ends.
    converter = kind(
        bs4_options="lxml", heading_style="atx", bullets="-", strip=list(plain), escape_asterisks=False,
        escape_underscores=False, table_infer_header=True,
    )  # fmt: skip
    return cleaned(converter.convert(html))
