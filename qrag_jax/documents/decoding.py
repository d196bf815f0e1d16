"""Decodes bytes in a named encoding; errors say what the bytes look like."""

import codecs
from bisect import bisect_left

from qrag_jax.types import Arg, InputError, UsageError

_SAVE_OR_NAME = ("save it as UTF-8, or name its encoding (", Arg("encoding", "NAME"), ")")


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


def decode(name: str, raw: bytes, encoding: str) -> str:
    """The text of a file's bytes; line ends unchanged, without a byte order mark.

    Args:
        name: of the file, for messages.
        raw: all bytes, or enough to contain a zero byte.
        encoding: any name that Python knows.
    """
    zero = raw.find(b"\0") if is_utf8(encoding) else -1
    try:
        text = raw[: zero + 1].decode(encoding) if zero >= 0 else raw.decode(encoding)
    except UnicodeError as error:
        place = f"at byte {getattr(error, 'start', 0)}"
        if not is_utf8(encoding):
            raise InputError(
                f"not {encoding} {place}",
                file=name,
                remedy=(
                    "give the encoding that it was saved in (",
                    Arg("encoding", "NAME"),
                    "), or leave the file out if it is not text",
                ),
            ) from error
        hint = "it looks like UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "it may be Latin-1, or not text"
        raise InputError(f"not UTF-8 {place} ({hint})", file=name, remedy=_SAVE_OR_NAME) from error
    if "\0" in text:
        is_other = is_utf8(encoding) and _looks_like_utf16(raw)
        raise InputError(
            f"zero byte at byte {zero if zero >= 0 else _zero(raw, text, encoding)}",
            file=name,
            remedy=("it looks like UTF-16: ", *_SAVE_OR_NAME) if is_other else "this is not a text file; leave it out",
        )
    return text.removeprefix("\ufeff")  # the byte order mark that Windows editors write


def is_utf8(encoding: str) -> bool:
    """True if a name that Python knows means UTF-8."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def looks_like_utf8(raw: bytes, encoding: str) -> bool:
    """True if bytes that used to be in another encoding are valid UTF-8, which text of other encodings rarely is.

    ASCII alone decides nothing, except against encodings such as UTF-16 and EBCDIC, which write it differently.
    """
    if raw.isascii() and (b"\0" in raw or _has_ascii(encoding)):
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


def _looks_like_utf16(raw: bytes) -> bool:
    """True if every second byte is mostly zero, as in English UTF-16 without a byte order mark."""
    return len(raw) % 2 == 0 and max(raw[::2].count(0), raw[1::2].count(0)) > len(raw) // 4
