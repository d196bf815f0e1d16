"""The text of an HTML page, without its navigation."""

import codecs
import re
from collections import Counter
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
_MAX_WRONG = 1 / 1000  # of the characters of a page may be wrong, as some on the web are
_LEAST_KEPT = 0.6
_WORD = re.compile(r"\w+")


def read_html(raw: bytes, encoding: str = "utf-8") -> Converted:
    """The text of a page: its main part, or everything except marked navigation if that part misses too much.

    Only words outside of links count. The main part is not taken if it has less than `_LEAST_KEPT` of them.

    Args:
        encoding: of a page that does not declare its own.
    """
    import trafilatura

    from qrag_jax.documents.readers.html_as_markdown import PLAIN, content_markdown, markdown

    page, num_wrong = decoded(raw, encoding)
    # `[^<>]`: otherwise each unclosed tag would be searched to the end of the page.
    unmarked = re.sub(rf"</?(?:{'|'.join(PLAIN)})(?:\s[^<>]*)?>", "", page, flags=re.IGNORECASE)
    content = content_markdown(page) or markdown(page)
    # As HTML: its own Markdown has backslashes in names, and marks text as code that is not.
    found = trafilatura.extract(unmarked, output_format="html", include_comments=False, favor_recall=True)
    main = markdown(found or "")
    wanted, kept = _words(content_markdown(page, with_links=False)), _words(main)
    is_main = (wanted & kept).total() >= _LEAST_KEPT * wanted.total() and kept
    text = main if is_main else content
    if not text.strip():
        raise InputError(
            "an HTML page without text (scripts may create it in a browser, but none is run here); save the text "
            "that you see there"
        )
    return Converted(text, left_out={"undecodable characters": num_wrong} if num_wrong else {})


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.lower()))


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

    return lambda raw: read_html(raw, options.encoding)


KIND = FileKind(
    (".html", ".htm", ".xhtml"), "an HTML page", ("trafilatura", "markdownify"), _load, looks_like_text=True
)
