"""The text of a page of HTML: what it is about, without its navigation."""

import codecs
import re
from collections import Counter
from collections.abc import Callable

from qrag_jax.documents.converted import Converted, several
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_.:-]+)""", re.IGNORECASE)
_MAY_DECLARE = 4096  # bytes from the beginning
# What a page calls by these names is read as browsers do: as the larger set.
_AS_BROWSERS = {"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "gb2312": "gb18030", "gbk": "gb18030",
                "shift_jis": "cp932", "euc_kr": "cp949"}  # fmt: skip
_MAX_WRONG = 1 / 1000  # of the characters of a page may be wrong: on the web some are
_LEAST_KEPT = 0.6
_WORD = re.compile(r"\w+")


def read_html(raw: bytes, encoding: str = "utf-8") -> Converted:
    """The text of a page: its main part, or all but what is marked as navigation where that part misses too much.

    What is looked for is where the words outside of links are. The main part is not taken if it has fewer than
    `_LEAST_KEPT` of these.

    Args:
        encoding: of a page that does not say its own.
    """
    import trafilatura

    from qrag_jax.documents.readers.html_as_markdown import PLAIN, content_markdown, markdown

    page, num_wrong = decoded(raw, encoding)
    # `[^<>]`, as otherwise each tag that is not closed would be looked through to the end.
    unmarked = re.sub(rf"</?(?:{'|'.join(PLAIN)})(?:\s[^<>]*)?>", "", page, flags=re.IGNORECASE)
    content = content_markdown(page) or markdown(page)
    # As HTML: its own Markdown has back slashes in names, and marks what is no block of code.
    found = trafilatura.extract(unmarked, output_format="html", include_comments=False, favor_recall=True)
    main = markdown(found or "")
    wanted, kept = _words(content_markdown(page, with_links=False)), _words(main)
    is_main = (wanted & kept).total() >= _LEAST_KEPT * wanted.total() and kept
    text = main if is_main else content
    if not text.strip():
        raise InputError(
            "an HTML page without text (scripts may make it in a browser; none is run here): save what you see there"
        )
    return Converted(text, left_out=(several(num_wrong, "character") + " of another encoding",) if num_wrong else ())


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.lower()))


def decoded(raw: bytes, encoding: str = "utf-8") -> tuple[str, int]:
    """The characters of a page: by its byte order mark, what it declares, or the encoding that is given.

    Returns:
        The page, and how many characters of it are wrong and became U+FFFD.
    """
    name = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), None)
    declared = _DECLARED.search(raw[:_MAY_DECLARE])
    if name is None and declared is not None:
        try:
            name = codecs.lookup(declared[1].decode("ascii")).name
            "a".encode(name)  # refuses codecs that make no text of bytes, as hex
        except (LookupError, UnicodeError, ValueError) as error:
            raise InputError(f"an HTML page that says its encoding is {declared[1]!r}, which is not known") from error
    name = _AS_BROWSERS.get(name or "", name) or encoding
    try:
        return raw.decode(name).removeprefix("\ufeff"), 0
    except UnicodeError as error:
        text = raw.decode(name, "replace").removeprefix("\ufeff")
        num_wrong = text.count("\ufffd")
        if num_wrong > _MAX_WRONG * len(text):
            place = getattr(error, "start", 0)
            raise InputError(f"an HTML page that is not {name} at byte {place} and others; save it as UTF-8") from error
        return text, num_wrong


def _load(encoding: str) -> Callable[[bytes], Converted]:
    import trafilatura  # noqa: F401

    import qrag_jax.documents.readers.html_as_markdown  # noqa: F401

    return lambda raw: read_html(raw, encoding)


KIND = FileKind(
    (".html", ".htm", ".xhtml"), "an HTML page", ("trafilatura", "markdownify"), _load, looks_like_text=True
)
