"""What a file is: by the end of its name and by its first bytes, which must agree."""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from qrag_jax.documents.converted import Converted
from qrag_jax.names import FILE_READERS
from qrag_jax.types import InputError

TEXT = "text"
TEXT_SUFFIXES = (".txt", ".md")  # of documents, in any case of letters
MAX_DOCUMENT_BYTES = 200 * 10**6  # of a file that is converted
INSTALL = "pip install 'qrag_jax[documents]'"

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")  # what a new Office file with a password is wrapped in
_ZIP, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
_MAY_BEGIN = 1024  # readers of PDF look for its mark so far
_MAY_END = 2**16 + 22  # the end of a zip archive has a comment of at most so many bytes
# First bytes of what is no text, and what to do about it.
_SIGNS = (
    (b"\x89PNG\r\n\x1a\n", "a PNG picture", "leave it out, or give what a text recognition (OCR) finds in it"),
    (b"\xff\xd8\xff", "a JPEG picture", "leave it out, or give what a text recognition (OCR) finds in it"),
    (b"GIF8", "a GIF picture", "leave it out"),
    (_OLE, "an old Office file (.doc, .xls, .ppt)", "save it as .docx or as text"),
    (b"{\\rtf", "an RTF document", "save it as .docx or as text"),
    (b"\x1f\x8b", "a gzip archive", "unpack it"),
    (b"BZh", "a bzip2 archive", "unpack it"),
    (b"\xfd7zXZ\0", "an xz archive", "unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    (b"Rar!\x1a\x07", "a RAR archive", "unpack it"),
    (b"SQLite format 3\0", "an SQLite database", "leave it out, or write its texts into .txt files"),
    (b"\x7fELF", "a program", "leave it out"),
    (b"%!PS", "a PostScript file", "convert it to PDF"),
)  # fmt: skip
# A member that only such an archive has: (its name, what the archive is, what to do).
_ARCHIVES = (
    (b"xl/workbook.xml", "a spreadsheet (XLSX)", "save its sheets as .txt or .csv and name them"),
    (b"ppt/presentation.xml", "slides (PPTX)", "save them as PDF"),
    (b"content.xml", "an OpenDocument file", "save it as .docx or PDF"),
    (b"META-INF/MANIFEST.MF", "a Java archive", "leave it out"),
)


@dataclass(frozen=True)
class FileKind:
    """A kind of file that is converted; its module ends with one, and a line of `qrag_jax.names` names it.

    Attributes:
        suffixes: ends of names, in lower case.
        about: `a PDF`.
        packages: whose versions change the text; where one is not there, such files are not read.
        load: the encoding of texts that do not say their own -> bytes to text; imports all that it needs.
        is_sign: (first bytes, whether the name says so) -> whether they are of such a file.
        member: of a zip archive, the name that only such a file has.
        looks_like_text: its first bytes are those of any text.
        version: of what we make of what the packages give.
    """

    suffixes: tuple[str, ...]
    about: str
    packages: tuple[str, ...]
    load: Callable[[str], Callable[[bytes], Converted]]
    is_sign: Callable[[bytes, bool], bool] = lambda head, named: False
    member: bytes | None = None
    looks_like_text: bool = False
    version: int = 1

    @property
    def is_installed(self) -> bool:
        """Whether its packages are there; imports none of them."""
        return all(importlib.util.find_spec(name) is not None for name in self.packages)


def kind_by_suffix() -> dict[str, str]:
    """Ends of names, in lower case -> kinds of files that are converted."""
    return {suffix: name for name in FILE_READERS for suffix in _kind(name).suffixes}


def is_installed() -> bool:
    """Whether the extra `documents` is there: all kinds of files can be read."""
    return all(_kind(name).is_installed for name in FILE_READERS)


def read_suffixes() -> tuple[str, ...]:
    """Ends of names that are read in folders: texts, and what can be converted here."""
    return TEXT_SUFFIXES + tuple(suffix for suffix, name in kind_by_suffix().items() if _kind(name).is_installed)


def kind_of(name: str, raw: bytes) -> str:
    """`TEXT`, or a name of `FILE_READERS`.

    The end of the name says it, and the first bytes must not say something else; where the name says nothing, the
    bytes alone do. A page of HTML has no such bytes: without its end it is a text.

    Args:
        name: of the file; opens the message.
    """
    suffix = PurePath(name).suffix.lower()
    wanted = TEXT if suffix in TEXT_SUFFIXES else kind_by_suffix().get(suffix)
    found, what, remedy = _told_by_bytes(raw, wanted)
    if wanted is None:
        if found:
            return found
        raise InputError(f"{what}, which is not read: {remedy}", file=name)
    if found == wanted or (found == TEXT and _kind(wanted).looks_like_text):
        return wanted
    if found and found != TEXT:
        about, end = _kind(found).about, _kind(found).suffixes[0]
        raise InputError(f"{about} under the name of another kind of file: rename it to end in {end}", file=name)
    if wanted == TEXT or found != TEXT:
        raise InputError(f"{what}, whatever its name says: {remedy}", file=name)
    about = _kind(wanted).about
    raise InputError(f"not {about}, whatever its name says: is it whole? If it is a text, rename it", file=name)


def reader_of(kind: str) -> str:
    """What reads a kind of file, with versions: equal bytes read by the same give the same text.

    Args:
        kind: `TEXT`, or a name of `FILE_READERS`.
    """
    if kind == TEXT:
        return f"{TEXT} 1"
    found = _kind(kind)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in found.packages]
    return ", ".join([f"{kind} {found.version}", *versions])


def may_be_converted(name: str, head: bytes) -> bool:
    """Whether `kind_of` may say something else than a text, by the name and the first bytes of a file."""
    named = PurePath(name).suffix.lower() in kind_by_suffix()
    return named or head.startswith(_ZIP) or any(_kind(kind).is_sign(head, False) for kind in FILE_READERS)


def refuse_without_extra(name: str, kind: str) -> None:
    """Says what a file is, and how to get what reads it."""
    if not _kind(kind).is_installed:
        raise InputError(f"{_kind(kind).about}: to have it read, {INSTALL}, or give it as text", file=name)


def _kind(name: str) -> FileKind:
    return FILE_READERS.load(name)


def _told_by_bytes(raw: bytes, wanted: str | None) -> tuple[str, str, str]:
    """(kind or "", what it is, what to do about it); all of it about a text is (`TEXT`, "", "").

    Args:
        wanted: the kind that its name says.
    """
    head = raw[:_MAY_BEGIN]
    for name in FILE_READERS:
        if _kind(name).is_sign(head, name == wanted):
            return name, "", ""
    if raw.startswith(_ZIP):
        return _told_by_members(raw)
    if raw.startswith(_OLE) and _ENCRYPTED in raw:
        return "", "an encrypted Office file", "save it without a password"
    for sign, what, remedy in _SIGNS:
        if raw.startswith(sign) and (not sign.isalnum() or b"\0" in head):  # a text may begin with such letters
            return "", what, remedy
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "", "a WebP picture", "leave it out"
    return TEXT, "", ""


def _told_by_members(raw: bytes) -> tuple[str, str, str]:
    """As `_told_by_bytes`; looks for names only, as a directory of millions of them is nothing to read here."""
    if _ZIP_END not in raw[-_MAY_END:]:
        return "", "a zip archive (DOCX and EPUB are such) that is cut off", "get it again"
    for name in FILE_READERS:
        if (member := _kind(name).member) is not None and member in raw:
            return name, "", ""
    for member, what, remedy in _ARCHIVES:
        if member in raw:
            return "", what, remedy
    return "", "a zip archive", "unpack it"
