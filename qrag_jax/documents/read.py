"""Reads files as documents: text as it is, other kinds converted to Markdown."""

import codecs
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from qrag_jax.documents import kinds
from qrag_jax.documents.convert import convert
from qrag_jax.documents.converted import EXPECTED, ReadOptions, counted
from qrag_jax.documents.decoding import UNDECODABLE, check_encoding, decode, has_wide_mark, is_utf8
from qrag_jax.documents.found import STDIN, DocumentFile, Found, Only, ReadInPart, Skipped, find_files
from qrag_jax.documents.kinds import (
    MAX_DOCUMENT_BYTES,
    TEXT,
    kind_of,
    may_be_converted,
    options_in,
    refuse_without_extra,
)
from qrag_jax.documents.told import named, of_types, warn_of_found
from qrag_jax.files.reading import Source, check_size, pieces, reading
from qrag_jax.types import Arg, Document, InputError, UsageError

__all__ = [
    "STDIN", "DocumentFile", "Found", "Skipped", "encoding_of", "find_files", "left_out", "page_of", "read_bytes",
    "read_document", "read_files", "read_options", "reader_of",
]  # fmt: skip

_BEFORE_ENCODING = ", "  # in the result of `reader_of`
_PAGES, _PAGE_LABELS, _LEFT_OUT, CONVERTED = "pages", "page_labels", "left_out", "converted"  # of metadata


def read_files(
    paths: str | os.PathLike | Iterable[str | os.PathLike],
    encoding: str = "utf-8",
    *,
    keep_blank: bool = False,
    strict: bool = False,
    report: Callable[[Found], None] | None = None,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> list[Document]:
    """Reads files and folders (`find_files` says which files). The id of a document is its path.

    Text stays unchanged, line ends too, without its byte order mark. Other kinds become Markdown
    (docs/how_to/read_documents.md). A bad file in a folder is left out, with one warning for all; a bad file that you
    name is refused.

    Args:
        paths: files and folders; "-" is standard input.
        encoding: of text that is not UTF-8 and has no byte order mark, by any name that Python knows ("latin-1",
            "cp1252", "utf-16", "gb18030").
        keep_blank: keep text that is only white space.
        strict: refuse bad files in folders too, and files of which content is left out (`refuse_part`).
        report: called with what was and was not read, instead of the warning.
        only: patterns of ids (`found.Only`); other files are not read.
        exclude: patterns of files and folders that are not read (`find_files`).

    Raises:
        UsageError: there is no path, a path does not exist, no file can be read, or the encoding is unknown.
        InputError: a file is blank, not in that encoding (names file and byte), of another kind, damaged, or not
            readable. In a folder this is raised only with `strict`, or if no file is left.
        InputTooLarge: all files together have more bytes than `files.reading.Reading.max_bytes`.
    """
    check_encoding(encoding)
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = Only(only).of_found(find_files(paths, exclude))
    documents: list[Document] = []
    skipped, size = list(found.skipped), 0
    if strict and skipped:
        raise InputError(skipped[0].reason, file=skipped[0].id)
    for file in found.files:
        try:
            raw = read_bytes(file, encoding)
            document = read_document(file, encoding, keep_blank, raw)
            if strict:
                refuse_part(document)
        except InputError as error:
            if strict or file.named:
                raise
            skipped.append(Skipped(file.id, error.text(with_file=error.file != file.id)))
            continue
        size += max(len(raw), len(document.text))
        check_size(size, f"all documents up to {file.id}")
        documents.append(document)
    lossy = tuple(part for one in documents if (part := read_in_part(one)) is not None)
    found = replace(found, skipped=tuple(skipped), lossy=lossy)
    if not documents:
        _refuse_nothing(found, paths)
    (report or warn_of_found)(found)
    return documents


def read_in_part(document: Document) -> ReadInPart | None:
    """The content that is missing from the text of a document; None if it is complete."""
    missing = left_out(document)
    return ReadInPart(document.id, missing) if missing else None


def left_out(document: Document) -> dict[str, int]:
    """The content of its file that is missing from the text of a document: kind -> number; empty if nothing is."""
    found = document.metadata.get(_LEFT_OUT, {})
    if isinstance(found, Mapping):
        return {str(kind): int(number) for kind, number in cast(Mapping[str, int], found).items()}
    # An index of an earlier version has phrases, such as "2 equations".
    phrases = [re.fullmatch(r"(?:([\d,]+) )?(.*)", str(phrase)) for phrase in cast(Sequence[str], found)]
    return {one[2]: int((one[1] or "1").replace(",", "")) for one in phrases if one is not None}


def refuse_part(document: Document) -> None:
    """Refuses a document that lacks content of its file, except kinds that are left out on purpose (`EXPECTED`)."""
    missing = {kind: number for kind, number in left_out(document).items() if kind not in EXPECTED}
    if missing:
        reason = f"read in part (left out: {counted(missing)})"
        raise InputError(reason, file=document.id, remedy=("leave out ", Arg("strict", True), " to use the rest"))


def _refuse_nothing(found: Found, paths: Sequence[str | os.PathLike]) -> None:
    where = ", ".join(map(str, paths)) or "no path given"
    if found.skipped:
        raise InputError(f"{where}: none of {len(found.skipped)} files could be read: {named(found.skipped)}")
    there = f"; there are {of_types(found)}" if found.others else ""
    aside = "".join(f"; {number:,} {reason}" for reason, number in found.left_aside.items())
    raise UsageError(
        f"no file of a type that is read in folders, such as .txt, .md or .csv ({where}{there}{aside}); name a text "
        "file or a folder that contains some"
    )


def read_bytes(file: DocumentFile, encoding: str = "utf-8") -> bytes:
    """Reads the bytes of a file. If it is not text, reads only enough to show that, not gigabytes of zeros.

    Args:
        file: from `find_files`.
        encoding: as in `read_document`; in UTF-8, a zero byte means that it is not text.

    Raises:
        UsageError: standard input is closed.
        InputError: it is not a regular file, cannot be read, or changed while it was read.
        InputTooLarge: it has more bytes than `files.reading.Reading.max_bytes`.
    """
    if file.path is None:
        if sys.stdin is None:  # Python sets this if it is closed
            raise UsageError(f"{STDIN}: standard input is closed; name a file, or ./{STDIN} for a file of that name")
        return _pieces(sys.stdin.buffer, file.id, encoding)
    if not os.path.isfile(file.path):  # a pipe would block for ever; a dangling link has no content
        raise InputError("not a regular file, or a dangling link; remove it or leave it out", file=file.id)
    try:
        with file.path.open("rb") as opened:
            before = os.fstat(opened.fileno())
            check_size(before.st_size, file.id)
            raw = _pieces(opened, file.id, encoding)
            after = os.fstat(opened.fileno())
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror}); change its permissions or leave it out", file=file.id
        ) from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise InputError("changed while it was read; try again when it is complete", file=file.id)
    return raw


def _pieces(file: Source, name: str, encoding: str) -> bytes:
    found: list[bytes] = []
    size, is_converted = 0, False
    for piece in pieces(file, name):
        is_converted = is_converted or (not found and may_be_converted(name, piece))
        found.append(piece)
        size += len(piece)
        if is_converted and size > MAX_DOCUMENT_BYTES:
            raise InputError(f"has more than {MAX_DOCUMENT_BYTES:,} bytes, too many to convert; split it", file=name)
        if not is_converted and is_utf8(encoding) and b"\0" in piece and not has_wide_mark(found[0]):
            break
    return b"".join(found)


def read_document(
    file: DocumentFile,
    encoding: str = "utf-8",
    keep_blank: bool = False,
    raw: bytes | None = None,
    options: ReadOptions | None = None,
) -> Document:
    """Reads one file as a document; see `read_files`.

    Args:
        file: from `find_files`.
        keep_blank: keep text that is only white space.
        raw: its bytes by `read_bytes`, if you have read them.
        options: used instead of the encoding and the options of `read_with`.

    Returns:
        The document. Its metadata has `path`; for a PDF `pages`, the offset of the first character of each page,
        ascending (page 1 begins at 0); `converted`, the kind of a file that is not text; and `left_out`, if content of
        the file is missing: kind -> number.
    """
    if raw is None:
        raw = read_bytes(file, encoding)
    options = options or read_options(encoding)
    kind = kind_of(file.id, raw)
    if kind != TEXT:
        return _converted(file.id, kind, raw, options)
    text, num_bad = decode(file.id, raw, options.encoding)
    if not text.strip() and not keep_blank:
        raise InputError("empty document; leave this file out", file=file.id)
    missing = {_LEFT_OUT: {UNDECODABLE: num_bad}} if num_bad else {}
    return Document(id=file.id, text=text, metadata={"path": file.id} | missing)


def read_options(encoding: str, earlier: str = "") -> ReadOptions:
    """The options of `read_with`; those that are not given are as in an earlier reader, or at their defaults.

    Args:
        encoding: of text.
        earlier: result of `reader_of`.
    """
    now = reading()
    named = {"html": now.html, "comments": now.comments, "outputs": now.outputs, "fields": now.fields}
    given = {name: value for name, value in named.items() if value is not None}
    return ReadOptions(encoding, **options_in(earlier) | given)


def _converted(name: str, kind: str, raw: bytes, options: ReadOptions) -> Document:
    refuse_without_extra(name, kind)
    found = convert(name, kind, raw, options)
    metadata: dict[str, object] = {"path": name, CONVERTED: kind}
    if found.pages is not None:
        metadata[_PAGES] = found.pages
    if found.page_labels is not None:
        metadata[_PAGE_LABELS] = found.page_labels
    if found.left_out:
        metadata[_LEFT_OUT] = dict(found.left_out)
    return Document(id=name, text=found.text, metadata=metadata)


def reader_of(file: DocumentFile, raw: bytes, options: ReadOptions) -> str:
    """The reader that `read_document` uses for these bytes. The same reader gives the same text for the same bytes.

    Args:
        file: from `find_files`.
        raw: its bytes, by `read_bytes`.
        options: as in `read_document`.
    """
    kind = kind_of(file.id, raw)
    if kind != TEXT:
        refuse_without_extra(file.id, kind)
    return f"{kinds.reader_of(kind, options)}{_BEFORE_ENCODING}{codecs.lookup(options.encoding).name}"


def encoding_of(reader: str) -> str | None:
    """The encoding in a result of `reader_of`; None if there is none that Python knows."""
    _, before, name = reader.rpartition(_BEFORE_ENCODING)
    try:
        check_encoding(name)
    except UsageError:
        return None
    return codecs.lookup(name).name if before else None


def page_of(document: Document, start: int) -> int | None:
    """The page, from 1, of a character of a document; None if the document has no pages.

    Args:
        document: from `read_files` or a corpus.
        start: offset of the character.
    """
    pages = document.metadata.get(_PAGES)
    return bisect_right(cast(Sequence[int], pages), start) if isinstance(pages, list | tuple) and pages else None


def page_label_of(document: Document, page: int | None) -> str | None:
    """The number that a page bears in a PDF that numbers its pages otherwise than 1, 2, ...; else None."""
    labels = cast(Sequence[str], document.metadata.get(_PAGE_LABELS, ()))
    label = None if page is None else next(iter(labels[page - 1 : page]), None)
    return None if label == str(page) else label
