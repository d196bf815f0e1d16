"""The text of a mail: its subject as a heading, who wrote it to whom and when, and its body."""

import codecs
import email
import re
from collections.abc import Callable, Iterator
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from typing import cast

from qrag_jax.documents.converted import Converted, ReadOptions, cleaned
from qrag_jax.documents.kinds import FileKind
from qrag_jax.documents.readers import html
from qrag_jax.types import InputError

_HEAD = ("From", "To", "Cc", "Date")
_TEXTS = ("text/plain", "text/html", "text/markdown")
_WITHOUT_TEXT = "HTML texts without words"  # a kind of content that is left out
_MAX_HEADER = 20_000  # characters of a line of the head that are parsed, which takes quadratic time
_ASCII = (None, "us-ascii", "ascii")  # declared by programs that do not know the encoding
_ENCODED = re.compile(r"=\?[^?\s]+\?[bq]\?[^?]*\?=(?:\s+=\?[^?\s]+\?[bq]\?[^?]*\?=)*", re.IGNORECASE)
_MAX_DEEP = 20  # mails in mails
_LEAST = 0.5  # of the words of the HTML: a plain text with fewer only says that the mail is HTML


def read_mail(raw: bytes, options: ReadOptions) -> Converted:
    """The text of a mail and of the mails in it, without attachments."""
    message = email.message_from_bytes(raw.replace(b"\0", b""))  # else declarations with one raise ValueError
    if not any(message[name] for name in (*_HEAD, "Subject", "Received", "Message-ID")):
        raise InputError(
            "not a mail, because it has no sender, subject or date; rename it to end in .txt if it is text"
        )
    missing: dict[str, int] = {}
    text = cleaned("\n\n".join(_texts(message, options, missing, 0)))
    if not text:
        raise InputError("a mail without text; leave it out")
    return Converted(text, left_out=missing)


def _texts(message: Message, options: ReadOptions, missing: dict[str, int], depth: int) -> Iterator[str]:
    """The head and the bodies of a mail, in order."""
    if depth > _MAX_DEEP:
        raise InputError(f"more than {_MAX_DEEP} mails in each other; leave it out")
    if subject := _header(message, "Subject"):
        yield f"{'#' * min(depth + 1, 6)} {subject}"
    yield "\n".join(f"{name}: {value}" for name in _HEAD if (value := _header(message, name)))
    yield from _bodies(message, options, missing, depth)


def _bodies(part: Message, options: ReadOptions, missing: dict[str, int], depth: int) -> Iterator[str]:
    """The texts of a part of a mail."""
    if any(len(str(value)) > _MAX_HEADER for name, value in part.raw_items() if name.lower().startswith("content-")):
        raise InputError(f"describes a part in more than {_MAX_HEADER:,} characters, so it is hostile; leave it out")
    kind = part.get_content_type()
    inner = part.get_payload() if part.is_multipart() else None  # else it may fail: it decodes by what is declared
    if kind.startswith("message/") and isinstance(inner, list):
        for message in cast(list[Message], inner):
            if kind in ("message/rfc822", "message/global"):
                yield from _texts(message, options, missing, depth + 1)
            else:  # a report, for example of a mail that did not arrive
                yield "\n".join(f"{name}: {value}" for name, value in message.raw_items())
                yield from _bodies(message, options, missing, depth)
    elif part.get_content_disposition() == "attachment" or not kind.startswith(("multipart/", *_TEXTS)):
        what = "pictures" if kind.startswith("image/") and part["Content-ID"] else "attachments"
        if not kind.endswith("-signature"):
            missing[what] = missing.get(what, 0) + 1
    elif not isinstance(inner, list):
        yield _text(part, options, missing)
    elif kind == "multipart/alternative":
        yield from _alternative(inner, options, missing, depth)
    else:
        for one in cast(list[Message], inner):
            yield from _bodies(one, options, missing, depth)


def _alternative(parts: list, options: ReadOptions, missing: dict[str, int], depth: int) -> Iterator[str]:
    """One of several forms of a text: the plain one, unless it has much fewer words than another."""
    found: list[tuple[str, dict[str, int]]] = []
    for part in parts:
        own: dict[str, int] = {}
        found.append(("\n\n".join(_bodies(part, options, own, depth)), own))
    most = max((len(text.split()) for text, _ in found), default=0)
    text, own = next((one for one in found if len(one[0].split()) >= _LEAST * most), ("", {}))
    missing |= {kind: missing.get(kind, 0) + number for kind, number in own.items()}
    yield text


def _text(part: Message, options: ReadOptions, missing: dict[str, int]) -> str:
    content = part.get_payload(decode=True)
    raw = content if isinstance(content, bytes) else b""
    text, wrong = _decoded(raw, part.get_content_charset(), options.encoding)
    missing |= {kind: missing.get(kind, 0) + number for kind, number in wrong.items()}
    if part.get_content_type() != "text/html" or not text.strip():
        return text
    try:
        found = html.KIND.load(options)(codecs.BOM_UTF8 + text.encode("utf-8", "replace"))
    except InputError:  # of a page without words
        missing[_WITHOUT_TEXT] = missing.get(_WITHOUT_TEXT, 0) + 1
        return ""
    missing |= {kind: missing.get(kind, 0) + number for kind, number in found.left_out.items()}
    return found.text


def _decoded(raw: bytes, declared: str | None, encoding: str) -> tuple[str, dict[str, int]]:
    """Text in the declared encoding, unless most of it is not; then in UTF-8, the given or a guessed encoding.

    Returns:
        The text, and what may be missing in it, as `html_encoding.decoded` does.
    """
    from qrag_jax.documents.readers.html_encoding import by_label, is_mostly_wrong, undeclared

    try:
        text = "\ufffd" if declared in _ASCII else by_label(raw, declared)
    except (LookupError, ValueError):  # nobody knows it, or its codec cannot go on
        text = "\ufffd"
    if is_mostly_wrong(text):
        return undeclared(raw, encoding)
    wrong = text.count("\ufffd")
    return text, {"undecodable characters": wrong} if wrong else {}


def _header(message: Message, name: str) -> str:
    """A line of the head, decoded; without a declaration it is UTF-8 or guessed."""
    value = next((value for found, value in message.raw_items() if found.lower() == name.lower()), "")
    value, _ = _decoded(str(value).encode("ascii", "surrogateescape"), None, "utf-8")
    if len(value) <= _MAX_HEADER:
        value = _ENCODED.sub(lambda found: _decoded_words(found[0]), value)
    return " ".join(value.split())


def _decoded_words(words: str) -> str:
    """The text of encoded words; as they are written if they are damaged."""
    try:
        parts = decode_header(words)
    except HeaderParseError:
        return words
    return "".join(
        part if isinstance(part, str) else _decoded(part, (charset or "").partition("*")[0], "utf-8")[0]
        for part, charset in parts
    )


def _load(options: ReadOptions) -> Callable[[bytes], Converted]:
    html.KIND.load(options)  # imports what it needs
    return lambda raw: read_mail(raw, options)


KIND = FileKind((".eml",), "a mail", html.KIND.packages, _load, looks_like_text=True, uses=html.KIND.uses)
