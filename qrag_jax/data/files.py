"""Users' own text files as documents, and their sentences as chunks that know their file and line."""

import codecs
import os
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.chunking.sentences import split_sentences
from qrag_jax.types import Document, InputError, Span, UsageError

TEXT_SUFFIXES = (".txt", ".md")
STDIN = "-"  # the path that stands for standard input, and its document id

_WHERE_TO_NAME_IT = "--encoding of qrag chunk, `encoding` of a task of qrag study"
_SAVE_OR_NAME = f"save it as UTF-8, or name its encoding ({_WHERE_TO_NAME_IT})"
# Line ends as editors count them. `str.splitlines` also breaks at form feeds and U+2028, and lines would be off.
_LINE_END = re.compile(r"\r\n|\r|\n")
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}[ \t]+")
_BULLET = re.compile(r"[ \t]*[-*+\u2022][ \t]+")
_NUMBER = re.compile(r"[ \t]*\(?(\d{1,3})[.)][ \t]+")
_TABLE_ROW = re.compile(r"[ \t]*\|")
_RULE = re.compile(r"[ \t]*([-=*_])([ \t]*\1){2,}[ \t]*$")
_FENCE = re.compile(r"[ \t]*(```|~~~)")


@dataclass(frozen=True)
class FileChunk:
    """One sentence, heading, list item or line of code, where it stands in its document.

    `text` equals `document.text[start:end]` exactly, line breaks inside a sentence included; `line` is the 1-based line
    of `start`.
    """

    document_id: str
    line: int
    start: int
    end: int
    text: str

    @property
    def plain(self) -> str:
        """The text on one line, white space collapsed: what an encoder reads and a terminal shows."""
        return " ".join(self.text.split())

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.document_id}:{self.line}"


def read_files(
    paths: str | os.PathLike | Iterable[str | os.PathLike], encoding: str = "utf-8", *, keep_blank: bool = False
) -> list[Document]:
    """Read text files; the id of a document is its path.

    A folder gives its .txt and .md files, those of its subfolders included, sorted by path; what starts with a dot is
    skipped there. A file that is named itself is read whatever its ending. The text "-" is standard input ("./-" is a
    file of that name). The order of `paths` is kept, and a file that is reached twice (by a link, or named beside its
    folder) is read once. Line ends stay as they are; a byte order mark is no part of the text.

    Args:
        paths: files and folders.
        encoding: of all of them, by any name that Python knows ("latin-1", "cp1252", "utf-16", "gb18030").
        keep_blank: files with nothing but white space are documents too, and not refused.

    Raises:
        UsageError: no path given, a path that does not exist, no text file found, or an unknown encoding.
        InputError: a file that is blank, not in that encoding (file and byte named), not text, or not readable.
    """
    _check_encoding(encoding)
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    documents: list[Document] = []
    seen: set[str] = set()
    searched = []
    for path in paths:
        searched.append(str(path))
        for file in [path] if path == STDIN else _text_files(Path(path)):
            real = STDIN if path == STDIN else os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                raw = _read_stdin() if path == STDIN else _read_bytes(Path(file))
                name = f"./{file}" if str(file) == STDIN and path != STDIN else str(file)
                documents.append(_document(name, raw, encoding, keep_blank))
    if not documents:
        where = ", ".join(searched) or "no path given"
        raise UsageError(f"no .txt or .md file found ({where}); name a text file or a folder that has some")
    return documents


def sentence_chunks(documents: Sequence[Document]) -> list[FileChunk]:
    """Cut documents into chunks in document order: one sentence, heading, list item or code line each.

    Lines without a letter or digit (rules, fences) give no chunk, and markers (`#`, `-`, `1.`) stand before theirs.

    Raises:
        InputError: a document with nothing to search in; the message names it.
    """
    chunks: list[FileChunk] = []
    for document in documents:
        text = document.text
        line_starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
        before = len(chunks)
        for start, end in _sentences(text):
            if any(character.isalnum() for character in text[start:end]):
                chunks.append(FileChunk(document.id, bisect_right(line_starts, start), start, end, text[start:end]))
        if len(chunks) == before:
            raise InputError(f"{document.id}: holds no sentence to search in; leave this file out")
    return chunks


def _text_files(path: Path) -> Iterator[Path]:
    if os.path.isfile(path):
        yield path
    elif os.path.isdir(path):
        yield from sorted(_files_below(path), key=lambda file: file.parts)
    elif os.path.exists(path):
        raise UsageError(f"{path}: neither a file nor a folder; name a text file or a folder that has some")
    else:
        raise UsageError(f"{path}: no such file or folder; check the path")


def _files_below(folder: Path) -> Iterator[Path]:
    """Text files of a folder, links followed; a folder is entered once, so that loops of links end."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); change its rights or leave it out")

    entered: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        status = os.stat(root)
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if name.lower().endswith(TEXT_SUFFIXES) and not name.startswith("."):
                yield Path(root, name)


def _read_bytes(path: Path) -> bytes:
    if not os.path.isfile(path):  # a pipe would block for ever, a dangling link has nothing
        raise InputError(f"{path}: not a regular file, or a link to nothing; remove it or leave it out")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); change its rights or leave it out") from error


def _read_stdin() -> bytes:
    if sys.stdin is None:  # what Python makes of a closed one
        raise UsageError(f"{STDIN}: standard input is closed; name a file, or ./{STDIN} for a file of that name")
    return sys.stdin.buffer.read()


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
    try:
        text = raw.decode(encoding)
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
        raise InputError(f"{name}: zero byte at byte {_zero(raw, encoding)}; {hint}")
    text = text.removeprefix("\ufeff")  # the byte order mark that Windows editors write
    if not text.strip() and not keep_blank:
        raise InputError(f"{name}: empty document; leave this file out")
    return Document(id=name, text=text, metadata={"path": name})


def _zero(raw: bytes, encoding: str) -> int:
    """Offset of the last byte of the first NUL character; UTF-16 has zero bytes in other characters too."""
    decoder = codecs.getincrementaldecoder(encoding)
    return bisect_left(range(len(raw)), True, key=lambda last: "\0" in decoder().decode(raw[: last + 1]))


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def _looks_like_utf16(raw: bytes) -> bool:
    """True where every second byte is mostly zero, as in plain English without a byte order mark."""
    return len(raw) % 2 == 0 and max(raw[::2].count(0), raw[1::2].count(0)) > len(raw) // 4


def _sentences(text: str) -> Iterator[Span]:
    """Sentences of every block, as offsets into `text`."""
    for start, end, is_code in _blocks(text):
        if is_code:
            yield start, end
        else:
            yield from ((start + first, start + last) for first, last in split_sentences(text[start:end]))


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Paragraphs, headings, list items, table rows and code lines, as (start, end, is code).

    Wrapped lines of prose are one block, so that sentences may run over line ends; only markup starts a new one.
    """
    start: int | None = None  # of the open block
    end = 0
    in_list = fenced = False
    for first, last in _lines(text):
        line = text[first:last]
        marker = None if fenced else _marker_length(line, start is None or in_list)
        closes = fenced or not line.strip() or _RULE.match(line) or _FENCE.match(line) or line.startswith("\f")
        if start is not None and (closes or marker is not None):
            yield start, end, False
            start = None
        if _FENCE.match(line):
            fenced = not fenced
        elif fenced:
            if line.strip():
                yield first + len(line) - len(line.lstrip()), first + len(line.rstrip()), True
        elif line.strip() and not _RULE.match(line):
            if start is None:
                start, in_list = first + (marker or 0), marker is not None
            end = last
            if _HEADING.match(line) or _TABLE_ROW.match(line):
                yield start, end, False
                start = None
    if start is not None:
        yield start, end, False


def _marker_length(line: str, may_number: bool) -> int | None:
    """Length of the markup that opens a block at this line, None where none does.

    As in CommonMark a number cannot break into a paragraph unless it is 1: wrapped prose may have `1984. It was` at
    the start of a line.
    """
    if _TABLE_ROW.match(line):
        return 0
    match = _HEADING.match(line) or _BULLET.match(line) or _NUMBER.match(line)
    if match is None or (match.re is _NUMBER and not may_number and match[1] != "1"):
        return None
    return match.end()


def _lines(text: str) -> Iterator[Span]:
    """Offsets of the lines of `text`, line ends left out."""
    start = 0
    for match in _LINE_END.finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)
