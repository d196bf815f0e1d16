"""HTML as Markdown: what it says, without addresses, pictures and marks of emphasis."""

import re

from markdownify import MarkdownConverter

from qrag_jax.data.documents.converted import cleaned

_PROLOGUE = re.compile(r"<\?xml[^>]*>")
# Of these the words alone are wanted.
PLAIN = (
    "abbr", "b", "cite", "del", "em", "font", "i", "ins", "kbd", "mark", "q", "s", "samp", "small", "span", "strong",
    "sub", "sup", "u", "var",
)  # fmt: skip
_LINK = ("a",)


def _nothing(*_: object, **__: object) -> str:
    return ""


class _Converter(MarkdownConverter):
    """Without what is no text of the document."""

    convert_head = convert_title = convert_script = convert_style = convert_noscript = _nothing
    convert_template = convert_svg = convert_img = convert_video = convert_audio = convert_iframe = _nothing
    convert_object = convert_button = convert_select = convert_textarea = _nothing


class _Content(_Converter):
    """Without what stands around the content of a page."""

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
        html: a whole page.
        with_links: the words of links are kept.
    """
    return _convert(_Content, html, PLAIN + _LINK) if with_links else _convert(_NoLinks, html, PLAIN)


def _convert(kind: type[MarkdownConverter], html: str, plain: tuple[str, ...]) -> str:
    converter = kind(
        heading_style="atx", bullets="-", strip=list(plain), escape_asterisks=False, escape_underscores=False,
        table_infer_header=True,
    )  # fmt: skip
    return cleaned(converter.convert(_PROLOGUE.sub("", html)))
