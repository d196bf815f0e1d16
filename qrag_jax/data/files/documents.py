"""Users' own text files as documents."""

import codecs
import os
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from qrag_jax.data.files.links import TEXT_SUFFIXES, files_below, warn_of_skipped
from qrag_jax.files.reading import Source, check_size, pieces
from qrag_jax.types import Document, InputError, UsageError

STDIN = "-"  # the path that stands for standard input, and its document id

_WHERE_TO_NAME_IT = "--encoding of qrag chunk, `encoding` of a task of qrag study"
_SAVE_OR_NAME = f"save it as UTF-8, or name its encoding ({_WHERE_TO_NAME_IT})"


def read_files(
    paths: str | os.PathLike | Iterable[str | os.PathLike], encoding: str = "utf-8", *, keep_blank: bool = False
) -> list[Document]:
    """Read text files; the id of a document is its path.

    A folder gives its .txt and .md files, those of its subfolders included, sorted by path; what starts with a dot is
    skipped there, and so are links, with one warning, unless `files.reading.read_with(follow_links=True)` holds. A path
    that is named itself is read whatever its ending, also a link. The text "-" is standard input ("./-" is a file of
    that name). The order of `paths` is kept, and a file that is reached twice (by a link, or named beside its folder)
    is read once. Line ends stay as they are; a byte order mark is no part of the text.

    Args:
        paths: files and folders.
        encoding: of all of them, by any name that Python knows ("latin-1", "cp1252", "utf-16", "gb18030").
        keep_blank: files with nothing but white space are documents too, and not refused.

    Raises:
        UsageError: no path given, a path that does not exist, no text file found, or an unknown encoding.
        InputError: a file that is blank, not in that encoding (file and byte named), not text, or not readable.
        InputTooLarge: they have more bytes than `files.reading.Reading.max_bytes`.
    """
    _check_encoding(encoding)
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    documents: list[Document] = []
    seen: set[str] = set()
    size = 0
    searched, skipped = [], []
    for path in paths:
        searched.append(str(path))
        for file in [path] if path == STDIN else _text_files(Path(path), skipped):
            real = STDIN if path == STDIN else os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                raw = _read_stdin(encoding) if path == STDIN else _read_bytes(Path(file), encoding)
                name = f"./{file}" if str(file) == STDIN and path != STDIN else str(file)
                size += len(raw)
                check_size(size, f"all documents up to {name}")
                documents.append(_document(name, raw, encoding, keep_blank))
    warn_of_skipped(skipped)
    if not documents:
        where = ", ".join(searched) or "no path given"
        raise UsageError(f"no .txt or .md file found ({where}); name a text file or a folder that has some")
    return documents


def _text_files(path: Path, skipped: list[Path]) -> Iterator[Path]:
    if os.path.isfile(path):
        yield path
    elif os.path.isdir(path):
        yield from files_below(path, TEXT_SUFFIXES, skipped)
    elif os.path.exists(path):
        raise UsageError(f"{path}: neither a file nor a folder; name a text file or a folder that has some")
    else:
        raise UsageError(f"{path}: no such file or folder; check the path")


def _read_bytes(path: Path, encoding: str) -> bytes:
    if not os.path.isfile(path):  # a pipe would block for ever, a dangling link has nothing
        raise InputError(f"{path}: not a regular file, or a link to nothing; remove it or leave it out")
    try:
        with path.open("rb") as file:
            check_size(os.fstat(file.fileno()).st_size, path)
            return _read_text(file, str(path), encoding)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); change its rights or leave it out") from error


def _read_text(file: Source, name: str, encoding: str) -> bytes:
    """All of a file, or of one that is no text as much as shows it: not gigabytes of zeros."""
    found = []
    for piece in pieces(file, name):
        found.append(piece)
        if b"\0" in piece and _is_utf8(encoding):
            break
    return b"".join(found)


def _read_stdin(encoding: str) -> bytes:
    if sys.stdin is None:  # what Python makes of a closed one
        raise UsageError(f"{STDIN}: standard input is closed; name a file, or ./{STDIN} for a file of that name")
    return _read_text(sys.stdin.buffer, STDIN, encoding)


def _check_encoding(encoding: str) -> None:
    """Refuses names that Python does not know, and codecs that do not make text of bytes (hex, rot13)."""
    try:
        b" ".decode(encoding)  # looked up for the first byte only, so an empty text would not do
    except UnicodeError:  # known, and a blank is no whole character of it
        return
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"encoding {encoding!r}: Python knows no text encoding of that name; examples: utf-8, latin-1, cp1252, "
            "utf-16, gb18030, shift_jis"
        ) from error


def _document(name: str, raw: bytes, encoding: str, keep_blank: bool) -> Document:
    """The document of a file's bytes; see `read_files`."""
    zero = raw.find(b"\0") if _is_utf8(encoding) else -1
    try:
        text = raw[: zero + 1].decode(encoding) if zero >= 0 else raw.decode(encoding)
    except UnicodeError as error:
        place = f"at byte {getattr(error, 'start', 0)}"
        if not _is_utf8(encoding):
            raise InputError(
                f"{name}: not {encoding} {place}; give the encoding that it was saved in ({_WHERE_TO_NAME_IT}), or "
                "leave it out if it is not a text"
            ) from error
        hint = "it looks like UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "it may be Latin-1, or not a text"
        raise InputError(f"{name}: not UTF-8 {place} ({hint}); {_SAVE_OR_NAME}") from error
    if "\0" in text:
        hint = "this is not a text file, leave it out"
        if _is_utf8(encoding) and _looks_like_utf16(raw):
            hint = f"it looks like UTF-16: {_SAVE_OR_NAME}"
        raise InputError(f"{name}: zero byte at byte {zero if zero >= 0 else _zero(raw, text, encoding)}; {hint}")
    text = text.removeprefix("\ufeff")  # the byte order mark that Windows editors write
    if not text.strip() and not keep_blank:
        raise InputError(f"{name}: empty document; leave this file out")
    return Document(id=name, text=text, metadata={"path": name})


def _zero(raw: bytes, text: str, encoding: str) -> int:
    """Offset of the last byte of the first NUL character; UTF-16 has zero bytes in other characters too."""
    decoder = codecs.getincrementaldecoder(encoding)
    try:
        return bisect_left(range(len(raw)), True, key=lambda last: "\0" in decoder().decode(raw[: last + 1]))
    except UnicodeError:  # UTF-16 without a byte order mark is only decoded as a whole
        return len(text.partition("\0")[0].encode(encoding) + b"\0\0") - len("".encode(encoding)) - 1


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def _looks_like_utf16(raw: bytes) -> bool:
    """True where every second byte is mostly zero, as in plain English without a byte order mark."""
    return len(raw) % 2 == 0 and max(raw[::2].count(0), raw[1::2].count(0)) > len(raw) // 4
