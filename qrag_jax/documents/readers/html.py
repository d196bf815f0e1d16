"""The text of an HTML page, without its navigation."""

import codecs
import re
from collections.abc import Callable

from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_.:-]+)""", re.IGNORECASE)
_MAY_DECLARE = 4096  # first bytes, in which a page may declare its encoding
# Browsers read these encodings as their supersets.
_AS_BROWSERS = {"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "gb2312": "gb18030", "gbk": "gb18030",
                "shift_jis": "cp932", "euc_kr": "cp949"}  # fmt: skip
_DEFAULT = ReadOptions()
# Elements of which only the words are kept.
_PLAIN = (
    "abbr", "b", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "mark", "q", "s", "samp", "small", "span",
    "strong", "sub", "sup", "tt", "u", "var",
)  # fmt: skip
_MAX_WRONG = 1 / 1000  # of the characters of a page may be wrong, as some on the web are


def read_html(raw: bytes, options: ReadOptions = _DEFAULT) -> Converted:
    """The text of a page below its title: all that a browser shows but navigation, or its main part if that is asked.

    Args:
        options: `encoding` is that of a page that does not declare its own.
    """
    from qrag_jax.documents.readers.html_as_markdown import Page, markdown, page_markdown, with_title
    from qrag_jax.documents.readers.html_writer import count_words

    html, num_wrong = decoded(raw, options.encoding)
    page = page_markdown(html)
    left_out = page.left_out
    if options.html == "article":
        article = markdown(_article(html))
        left_out["words outside of the article"] = max(0, count_words(page.text) - count_words(article))
        page = Page(article, page.title)
    if not page.text:
        raise InputError(
            "an HTML page without text (scripts may create it in a browser, but none is run here); save the text "
            "that you see there"
        )
    left_out["undecodable characters"] = num_wrong
    return Converted(with_title(page), left_out=+left_out)


def _article(html: str) -> str:
    """The main part of a page."""
    import trafilatura
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

    from qrag_jax.documents.readers.html_as_markdown import parse
    from qrag_jax.documents.readers.html_elements import raise_all

    root = parse(html)
    if root is None:
        return ""
    raise_all(root)
    etree.strip_tags(root, *_PLAIN)
    # As HTML: its own Markdown has backslashes in names, and marks text as code that is not.
    text = etree.tostring(root, encoding="unicode", method="html")
    return trafilatura.extract(text, output_format="html", include_comments=False, favor_recall=True) or ""


def decoded(raw: bytes, encoding: str = "utf-8") -> tuple[str, int]:
    """The characters of a page, decoded by its byte order mark, its declaration, or the given encoding.

    Returns:
        The page, and the number of its wrong characters, which became U+FFFD.
    """
    name = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), None)
    declared = _DECLARED.search(raw[:_MAY_DECLARE])
    if name is None and declared is not None:
        try:
            name = codecs.lookup(declared[1].decode("ascii")).name
            "a".encode(name)  # refuses codecs that do not encode text, such as hex
        except (LookupError, UnicodeError, ValueError) as error:
            raise InputError(
                f"an HTML page that declares the unknown encoding {declared[1]!r}; save it as UTF-8"
            ) from error
    name = _AS_BROWSERS.get(name or "", name) or encoding
    try:
        return raw.decode(name).removeprefix("\ufeff"), 0
    except UnicodeError as error:
        text = raw.decode(name, "replace").removeprefix("\ufeff")
        num_wrong = text.count("\ufffd")
        if num_wrong > _MAX_WRONG * len(text):
            place = getattr(error, "start", 0)
            raise InputError(
                f"an HTML page that is not {name} at byte {place} and elsewhere; save it as UTF-8"
            ) from error
        return text, num_wrong


def _load(options: ReadOptions) -> Callable[[bytes], Converted]:
    import trafilatura  # noqa: F401

    import qrag_jax.documents.readers.html_as_markdown  # noqa: F401

    return lambda raw: read_html(raw, options)


KIND = FileKind(
    (".html", ".htm", ".xhtml"), "an HTML page", ("trafilatura", "lxml"), _load, looks_like_text=True, version=2,
    uses=("html",),
)  # fmt: skip
