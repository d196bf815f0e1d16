"""The characters of an HTML page, as browsers decode it (the Encoding and HTML standards of the WHATWG).

Where browsers differ, or do otherwise than the standards, this does as Chromium.
"""

import codecs
import re
from collections.abc import Iterator
from functools import cache
from html import unescape

import chardet
import webencodings

from qrag_jax.types import InputError

# Byte order marks, and the first character of UTF-16 pages without one.
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be",
          b"<\0": "utf-16-le", b"\0<": "utf-16-be"}  # fmt: skip
_SEARCHED = 1_024  # bytes, in which a declaration counts outside of the head too
_IN_HEAD = frozenset(b"html head meta link title base object style script noscript".split())
_TEXT_ONLY = frozenset(b"script style title textarea xmp iframe noembed noframes".split())
_MAX_WRONG = 1 / 4  # of the characters outside of tags

_XML = re.compile(rb"""<\?xml\s[^>]*?\bencoding\s*=\s*(["'])([^"'>]*)\1""")
_COMMENT = re.compile(rb"<!--(?:-?>|.*?--!?>)|<(?:!(?!--)|\?|/[^A-Za-z])[^>]*>", re.DOTALL)
_NAME = re.compile(rb"</?([A-Za-z][^\t\n\f\r />]*)")
_ATTRIBUTE = re.compile(
    rb"""[\t\n\f\r /]*+(?:(?P<end>>)|(?P<name>[^\t\n\f\r />][^\t\n\f\r />=]*+)
    (?:[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:"([^"]*+)"|'([^']*+)'|([^\t\n\f\r >"'][^\t\n\f\r >]*+)|(?=>))
    |(?![\t\n\f\r ]*+=)))""",
    re.VERBOSE,
)
_CHARSET = re.compile(r"""charset\s*=\s*(?:"([^"]*)"|'([^']*)'|([^"'\s;][^\s;]*))""", re.IGNORECASE)
_DOUBLY_ESCAPED = re.compile(rb"<script[\t\n\f\r />](?!.*-->)", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(rb"<[^<>]*>")

# Characters that browsers decode otherwise than Python.
_OTHERWISE = {
    "euc_jp": str.maketrans("〜‖−¢£¬", "～∥－￠￡￢"),
    "iso2022_jp_ext": str.maketrans("〜‖−¢£¬", "～∥－￠￡￢"),
    "big5hkscs": str.maketrans("•､‾∼♁☉¥¢£", "‧﹑¯～⊕⊙￥￠￡"),
    "cp932": dict.fromkeys(range(0xF8F0, 0xF8F4), "\ufffd"),
    "gb18030": dict(zip(
        (0xE5E5, *range(0xE78D, 0xE797), 0xE7C7, 0xE81E, 0xE826, 0xE82B, 0xE82C, 0xE832, 0xE843, 0xE854, 0xE864),
        "\u3000︐︒︑︓︔︕︖︗︘︙ḿ龴龵龶龷龸龹龺龻", strict=True,
    )),
}  # fmt: skip
_PAIRS = ("gb18030", "big5hkscs", "euc_jp", "cp932", "cp949")
_SINGLE_OTHERWISE = {("cp1255", 0xCA): "\u05ba", ("koi8-u", 0xAE): "ў", ("koi8-u", 0xBE): "Ў"}


def decoded(raw: bytes, encoding: str = "utf-8", is_xml: bool = False) -> tuple[str, dict[str, int]]:
    """The characters of a page, without its byte order mark.

    The encoding is that of the byte order mark, else that which the page declares, else UTF-8 if the page is valid
    UTF-8, else the given one. If that is UTF-8 too, the encoding is guessed.

    Args:
        encoding: of a page that declares none, by any name that Python knows.
        is_xml: the declaration of XML counts more than `<meta>`, and so does valid UTF-8.

    Returns:
        The page, and what may be missing in it: kind -> number. Wrong characters became U+FFFD.

    Raises:
        InputError: the declared encoding is none that browsers decode, or most characters are not of it.
    """
    mark = next((mark for mark in _MARKS if raw.startswith(mark)), None)
    name = _MARKS[mark] if mark else _declared(raw, is_xml)
    return _counted(raw, name) if name else undeclared(raw, encoding)


def undeclared(raw: bytes, encoding: str) -> tuple[str, dict[str, int]]:
    """As `decoded`, of text that declares nothing."""
    name = codecs.lookup(encoding).name
    if name not in ("utf-8", "utf-8-sig"):
        return _counted(raw, name)
    page, left_out = _decode(raw, "utf-8"), {}
    if is_mostly_wrong(page):
        page = _decode(raw, _guessed(raw))
        left_out["characters of a guessed encoding"] = len(page) - len(page.encode("ascii", "ignore"))
    elif wrong := page.count("\ufffd"):
        left_out["undecodable characters"] = wrong
    return page, left_out


def by_label(raw: bytes, label: str) -> str:
    """Text in an encoding by a name that browsers or Python know, with U+FFFD for what is not in it.

    Raises:
        LookupError: nobody knows the name.
    """
    found = webencodings.lookup(label)
    is_known = found is not None and found.name != "replacement" and not found.name.startswith("utf-16")
    name = (_python_name(label) if is_known else None) or codecs.lookup(label).name
    return _decode(raw, name)


def is_mostly_wrong(text: str) -> bool:
    """True if U+FFFD is more than half of the characters outside of ASCII."""
    return 2 * text.count("\ufffd") > sum(map(len, re.findall("[^\0-\x7f]+", text)))


def _counted(raw: bytes, name: str) -> tuple[str, dict[str, int]]:
    page = _decode(raw, name).removeprefix("\ufeff")
    wrong = page.count("\ufffd")
    if wrong and wrong > _MAX_WRONG * len(re.sub("<[^<>]*>|\\s+", "", page)):
        raise InputError(f"an HTML page that is not in its encoding, {name}; save it as UTF-8")
    return page, {"undecodable characters": wrong} if wrong else {}


def _declared(raw: bytes, is_xml: bool) -> str | None:
    """Python's name of the encoding that a page declares, or in which it is valid."""
    declaration = _XML.match(raw)
    in_xml = _python_name(declaration[2].decode("latin-1")) if declaration else None
    name = in_xml if is_xml else next(filter(None, map(_python_name, _labels(raw))), in_xml)
    if name is None and _is_utf8(raw):
        return "utf-8"
    return next(filter(None, map(_python_name, _labels(raw))), None) if is_xml and name is None else name


def _is_utf8(raw: bytes) -> bool:
    try:
        return bool(raw.decode())
    except UnicodeDecodeError:
        return False


def _python_name(label: str) -> str | None:
    """Python's name of an encoding that is declared within a page; None if browsers do not know the label."""
    found = webencodings.lookup(label)
    if found is None:
        return None
    if found.name == "replacement":
        raise InputError(f"an HTML page in {label[:40]!r}, which browsers do not decode; save it as UTF-8")
    # A page in which a declaration of UTF-16 can be read is not in UTF-16.
    names = {"utf-16le": "utf-8", "utf-16be": "utf-8", "x-user-defined": "cp1252", "gbk": "gb18030",
             "iso-2022-jp": "iso2022_jp_ext"}  # fmt: skip
    return names.get(found.name, found.codec_info.name)


def _labels(raw: bytes) -> Iterator[str]:
    """Labels of encodings in the `<meta>` elements of the head and of the first bytes."""
    at, is_head = 0, True
    while (at := raw.find(b"<", at)) >= 0 and (is_head or at < _SEARCHED):
        if (skipped := _COMMENT.match(raw, at)) is not None:
            at = skipped.end()
        elif (found := _NAME.match(raw, at)) is not None:
            name, is_start = found[1].lower(), raw[at + 1 : at + 2] != b"/"
            attributes, at = _attributes(raw, found.end())
            if name == b"meta" and is_start and (label := _label(attributes)):
                yield label
            if name == b"plaintext":
                return
            if name in _TEXT_ONLY and is_start:
                at = _end_of_text(raw, name, at)
            is_head = is_head and name in _IN_HEAD
        elif raw.startswith((b"<!", b"<?", b"</"), at):
            return  # it has no end
        else:
            at += 1


def _attributes(raw: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    """The attributes of a tag, and its end; a tag without end has none."""
    found = {}
    while (attribute := _ATTRIBUTE.match(raw, at)) is not None:
        at = attribute.end()
        if attribute["end"]:
            return found, at
        found[attribute["name"].lower()] = attribute[3] or attribute[4] or attribute[5] or b""
    return {}, len(raw)


def _label(attributes: dict[bytes, bytes]) -> str | None:
    if b"charset" in attributes:
        return unescape(attributes[b"charset"].decode("latin-1"))
    if attributes.get(b"http-equiv", b"").lower() != b"content-type":
        return None
    found = _CHARSET.search(unescape(attributes.get(b"content", b"").decode("latin-1")))
    return (found[1] or found[2] or found[3]) if found else None


def _end_of_text(raw: bytes, name: bytes, at: int) -> int:
    """The end tag of an element that contains only text."""
    ends = re.compile(rb"</%s[\t\n\f\r />]" % name, re.IGNORECASE).finditer(raw, at)
    for end in ends:
        opened = raw.rfind(b"<!--", at, end.start()) if name == b"script" else -1
        if opened < 0 or not _DOUBLY_ESCAPED.search(raw, opened, end.start()):
            return end.start()
        next(ends, None)  # a script may show a script within a comment
        at = end.end()
    return len(raw)


def _guessed(raw: bytes) -> str:
    era = chardet.EncodingEra.MODERN_WEB
    return chardet.detect(_TAG.sub(b" ", raw), encoding_era=era, compat_names=False)["encoding"] or "cp1252"


def _decode(raw: bytes, name: str) -> str:
    """Text in an encoding by Python's name, as browsers decode it."""
    if (table := _table(name)) is not None:
        return codecs.charmap_decode(raw, "strict", table)[0]  # pyright: ignore[reportArgumentType]  # a text too
    text = raw.decode(name, _HANDLER)
    return text.translate(_OTHERWISE[name]) if name in _OTHERWISE else text


@cache
def _table(name: str) -> str | None:
    """The characters of the 256 bytes of a single-byte encoding; None for other encodings."""
    characters = [bytes([byte]).decode(name, "replace") for byte in range(256)]
    if "".join(characters[0xA1:0xFF]).count("\ufffd") > 60 or name.startswith(("utf", "cp932")):
        return None
    for byte, character in enumerate(characters):
        if character == "\ufffd":
            characters[byte] = chr(byte) if byte < 0xA0 else "\ufffd"
    return "".join(_SINGLE_OTHERWISE.get((name, byte), character) for byte, character in enumerate(characters))


def _replace(error: UnicodeError) -> tuple[str, int]:
    """A handler of errors: what Python's codecs lack, or U+FFFD for as many bytes as in browsers."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    raw, at, name = error.object, error.start, error.encoding
    lead, trail = raw[at], raw[at + 1] if at + 1 < len(raw) else 0
    if name == "gb18030" and lead == 0x80:
        return "€", at + 1
    if name == "euc_jp" and min(lead, trail) > 0xA0 or name == "iso2022_jp_ext" and min(lead, trail) > 0x20:
        character = _shifted(lead % 0x80, trail % 0x80).decode("cp932", "replace")  # has what these lack
        if len(character) == 1 and character != "\ufffd":
            return character, at + 2
    is_pair = name in _PAIRS and trail >= 0x80 and lead in range(0xA1 if name == "euc_jp" else 0x81, 0xFF)
    return "\ufffd", at + 2 if is_pair else error.end if name.startswith("utf") else at + 1


def _shifted(row: int, cell: int) -> bytes:
    """A character of JIS X 0208 in Shift_JIS."""
    lead = (row + 1) // 2 + (0x70 if row < 0x5F else 0xB0)
    return bytes([lead, cell + (0x7E if row % 2 == 0 else 0x20 if cell >= 0x60 else 0x1F)])


_HANDLER = "qrag_jax.browsers"
codecs.register_error(_HANDLER, _replace)
