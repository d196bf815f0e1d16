"""Decodes bytes: the encoding is decided for each file, and errors name the encoding that the bytes are likely in.

The order: a byte order mark; UTF-8, if the bytes are valid and not only ASCII; else the given encoding. A file with few
undecodable bytes is read with U+FFFD in their place. A file of another encoding is refused.
"""

import codecs
import re
from bisect import bisect_left

from qrag_jax.types import Arg, InputError, UsageError

_UTF8 = "utf-8"
UNDECODABLE = "undecodable bytes"  # a kind of content that is left out
_BINARY = "this is not a text file; leave it out"
# UTF-32 first: its mark begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: _UTF8, codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_FOREIGN = re.compile("[a-z]\ufffd|\ufffd[a-z]|\ufffd{4,}", re.IGNORECASE)  # a letter with an accent; a foreign word
_BYTES_A_BAD = 20  # at least so many bytes of a file for each undecodable one
_MANY = 1_000  # bytes of a file for each letter or word of another encoding after the first
_SAMPLE, _SHORT = 20_000, 200  # bytes to guess an encoding from; with fewer, old encodings are not considered


def check_encoding(encoding: str) -> None:
    """Refuses names that Python does not know, and codecs that do not decode to text (hex, rot13)."""
    try:
        b" ".decode(encoding)  # an empty text would not look the codec up
    except (LookupError, ValueError) as error:
        # A blank is incomplete in some known encodings; a name that is not a string cannot be looked up.
        if isinstance(error, UnicodeError) and not isinstance(error, UnicodeEncodeError):
            return
        raise UsageError(
            "Python knows no text encoding of that name",
            field="encoding",
            value=encoding,
            remedy="give one such as utf-8, latin-1, cp1252, utf-16, gb18030, shift_jis",
        ) from error


def decode(name: str | None, raw: bytes, encoding: str) -> tuple[str, int]:
    """The text of a file's bytes; line ends unchanged, without a byte order mark.

    Args:
        name: of the file, for messages.
        raw: all bytes, or enough to contain a zero byte.
        encoding: of text without a byte order mark that is not UTF-8; any name that Python knows.

    Returns:
        The text, and the number of undecodable bytes, each run of which became U+FFFD.
    """
    used = encoding_of_bytes(raw, encoding)
    zero = raw.find(b"\0") if used == _UTF8 else -1
    try:
        text, num_bad = raw[: zero + 1 or None].decode(used), 0
    except UnicodeError as error:
        text, num_bad = _mended(name, raw, used, error)
    if "\0" in text:
        likely = _likely(raw, 0) if used == _UTF8 else ""
        raise InputError(
            f"zero byte at byte {zero if zero >= 0 else _zero(raw, text, used)}",
            file=name,
            remedy=(f"it looks like {likely}: ", *_save_or_name(likely))
            if likely.startswith(("utf-16", "utf-32"))
            else _BINARY,
        )
    return text.removeprefix("\ufeff"), num_bad  # the byte order mark that Windows editors write


def decode_part(raw: bytes, encoding: str) -> tuple[str, dict[str, int]]:
    """The text of the bytes that a reader is given, with `\\n` as line ends, and what it left out so far."""
    text, num_bad = decode(None, raw, encoding)
    if not text.strip():
        raise InputError("empty document; leave this file out")
    return text.replace("\r\n", "\n").replace("\r", "\n"), {UNDECODABLE: num_bad} if num_bad else {}


def encoding_of_bytes(raw: bytes, encoding: str) -> str:
    """The encoding to decode bytes with.

    Args:
        encoding: the given one.
    """
    marked = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), None)
    return marked or (_UTF8 if is_utf8(encoding) or _looks_like_utf8(raw, encoding) else encoding)


def is_utf8(encoding: str) -> bool:
    """True if a name that Python knows means UTF-8."""
    return codecs.lookup(encoding).name in (_UTF8, "utf-8-sig")


def has_wide_mark(raw: bytes) -> bool:
    """True if bytes begin with a byte order mark of UTF-16 or UTF-32, whose text contains zero bytes."""
    return raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE))


def _mended(name: str | None, raw: bytes, encoding: str, error: UnicodeError) -> tuple[str, int]:
    """The text with U+FFFD for undecodable bytes, and their number; refuses a file that has more than a few."""
    place = f"at byte {getattr(error, 'start', 0)}"
    is_own = encoding == _UTF8
    try:
        text = raw.decode(encoding, "replace")
    except UnicodeError:  # no text of it can be decoded
        text = "\ufffd" * len(raw)
    num_wrong = text.count("\ufffd")
    num_bad = len(raw) - len(raw.decode(encoding, "ignore").encode()) if is_own else num_wrong
    num_right = len(text) - len(text.encode("ascii", "ignore")) - num_wrong if is_own else 0
    num_foreign = len(_FOREIGN.findall(text)) if is_own else num_bad
    is_other = num_foreign > 1 + len(raw) // _MANY and 2 * num_bad > num_right
    if num_bad * _BYTES_A_BAD <= len(raw) and not is_other:
        return text, num_bad
    likely, what = _likely(raw, getattr(error, "start", 0)), "UTF-8" if is_own else encoding
    if not likely or likely == encoding:
        remedy = ("leave it out, or name its encoding (", Arg("encoding", "NAME"), ")")
        raise InputError(f"not {what} {place}, and perhaps not text", file=name, remedy=remedy) from error
    raise InputError(f"not {what} {place}; it looks like {likely}", file=name, remedy=_save_or_name(likely)) from error


def _save_or_name(encoding: str) -> tuple[str | Arg, ...]:
    """The remedy for a file of another encoding."""
    return (
        "save it as UTF-8, or name its encoding (",
        Arg("encoding", encoding),
        "; UTF-8 files are still read as UTF-8)",
    )


def _likely(raw: bytes, start: int) -> str:
    """The encoding that bytes are likely in; empty if they look like none. CP1252 if that gives the same text.

    Args:
        start: of the first undecodable byte.
    """
    import chardet  # takes a tenth of a second

    first = max(start - _SAMPLE // 2, 0) & ~1
    sample = raw[first : first + _SAMPLE]
    era = chardet.EncodingEra.MODERN_WEB if len(sample) < _SHORT else chardet.EncodingEra.ALL
    found = chardet.detect(sample, encoding_era=era, compat_names=False)["encoding"]
    return "cp1252" if found and sample.decode(found, "replace") == sample.decode("cp1252", "replace") else found or ""


def _looks_like_utf8(raw: bytes, encoding: str) -> bool:
    """True if bytes are valid UTF-8, which text of other encodings rarely is.

    ASCII alone decides nothing, except against encodings such as UTF-16 and EBCDIC, which write it differently.
    """
    if (raw.isascii() and _has_ascii(encoding)) or _CONTROL.search(raw):
        return False
    try:
        return bool(raw.decode())
    except UnicodeDecodeError:
        return False


def _has_ascii(encoding: str) -> bool:
    """True if an encoding writes ASCII unchanged."""
    try:
        return b"Ab 1".decode(encoding) == "Ab 1"
    except UnicodeError:
        return False


def _zero(raw: bytes, text: str, encoding: str) -> int:
    """Offset of the last byte of the first NUL character; in UTF-16 other characters have zero bytes too."""
    decoder = codecs.getincrementaldecoder(encoding)
    try:
        return bisect_left(range(len(raw)), True, key=lambda last: "\0" in decoder().decode(raw[: last + 1]))
    except UnicodeError:  # UTF-16 without a byte order mark is only decoded as a whole
        return len(text.partition("\0")[0].encode(encoding) + b"\0\0") - len("".encode(encoding)) - 1
