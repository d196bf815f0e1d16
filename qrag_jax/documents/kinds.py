"""What a file is: by the end of its name and by its first bytes, which must agree."""

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType

from qrag_jax.types import InputError

TEXT = "text"
KINDS: Mapping[str, str] = MappingProxyType(
    {".pdf": "pdf", ".html": "html", ".htm": "html", ".xhtml": "html", ".docx": "docx", ".epub": "epub"}
)  # by ends of names, in lower case
TEXT_SUFFIXES = (".txt", ".md")  # of documents, in any case of letters
MAX_DOCUMENT_BYTES = 200 * 10**6  # of a file that is converted
INSTALL = "pip install 'qrag_jax[documents]'"

_VERSION = 1  # of what we make of what libraries give
_READ_BY = {
    "pdf": ("pypdfium2",), "html": ("trafilatura", "markdownify"), "docx": ("mammoth", "markdownify"),
    "epub": ("markdownify",),
}  # fmt: skip
_PACKAGES = ("pypdfium2", "trafilatura", "mammoth", "markdownify", "lxml")  # of the extra `documents`
_NAMES = {"pdf": "a PDF", "html": "an HTML page", "docx": "a DOCX document", "epub": "an EPUB book"}
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
# A member that only such an archive has: (its name, kind, else what the archive is, what to do).
_ARCHIVES = (
    (b"word/document.xml", "docx", "", ""),
    (b"META-INF/container.xml", "epub", "", ""),
    (b"xl/workbook.xml", "", "a spreadsheet (XLSX)", "save its sheets as .txt or .csv and name them"),
    (b"ppt/presentation.xml", "", "slides (PPTX)", "save them as PDF"),
    (b"content.xml", "", "an OpenDocument file", "save it as .docx or PDF"),
    (b"META-INF/MANIFEST.MF", "", "a Java archive", "leave it out"),
)


def is_installed() -> bool:
    """Whether the packages of the extra `documents` are there; imports none of them."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


def read_suffixes() -> tuple[str, ...]:
    """Ends of names that are read in folders: texts, and with the extra `documents` what it converts."""
    return TEXT_SUFFIXES + (tuple(KINDS) if is_installed() else ())


def kind_of(name: str, raw: bytes) -> str:
    """`TEXT`, or one of the values of `KINDS`.

    The end of the name says it, and the first bytes must not say something else; where the name says nothing, the
    bytes alone do. A page of HTML has no such bytes: without its end it is a text.

    Args:
        name: of the file; opens the message.
    """
    suffix = PurePath(name).suffix.lower()
    wanted = TEXT if suffix in TEXT_SUFFIXES else KINDS.get(suffix)
    found, what, remedy = _told_by_bytes(raw, is_pdf=wanted == "pdf")
    if wanted is None:
        if found == TEXT or found in _NAMES:
            return found
        raise InputError(f"{name}: {what}, which is not read: {remedy}")
    if found == wanted or (wanted == "html" and found == TEXT):
        return wanted
    if found in _NAMES:
        end = next(end for end, kind in KINDS.items() if kind == found)
        raise InputError(f"{name}: {_NAMES[found]} under the name of another kind of file: rename it to end in {end}")
    if wanted == TEXT or found != TEXT:
        raise InputError(f"{name}: {what}, whatever its name says: {remedy}")
    raise InputError(f"{name}: not {_NAMES[wanted]}, whatever its name says: is it whole? If it is a text, rename it")


def reader_of(kind: str) -> str:
    """What reads a kind of file, with versions: equal bytes read by the same give the same text.

    Args:
        kind: `TEXT`, or one of the values of `KINDS`.
    """
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _READ_BY.get(kind, ())]
    return ", ".join([f"{kind} {_VERSION}", *versions])


def may_be_converted(name: str, head: bytes) -> bool:
    """Whether `kind_of` may say something else than a text, by the name and the first bytes of a file."""
    return PurePath(name).suffix.lower() in KINDS or head.lstrip()[:5] == b"%PDF-" or head.startswith(_ZIP)


def refuse_without_extra(name: str, kind: str) -> None:
    """Says what a file is, and how to get what reads it."""
    if not is_installed():
        raise InputError(f"{name}: {_NAMES[kind]}: to have it read, {INSTALL}, or give it as text")


def _told_by_bytes(raw: bytes, is_pdf: bool) -> tuple[str, str, str]:
    """(kind or "", what it is, what to do about it); all of it about a text is (`TEXT`, "", "").

    Args:
        is_pdf: its name says so, and the mark of a PDF may come later.
    """
    head = raw[:_MAY_BEGIN]
    if head.lstrip().startswith(b"%PDF-") or (is_pdf and b"%PDF-" in head):
        return "pdf", _NAMES["pdf"], ""
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
    for member, kind, what, remedy in _ARCHIVES:
        if member in raw:
            return kind, what or _NAMES[kind], remedy
    return "", "a zip archive", "unpack it"
