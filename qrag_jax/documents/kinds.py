"""The kind of a file, from its suffix and its first bytes, which must agree."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Any
from urllib.parse import parse_qs, urlencode

from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.files.reading import reading
from qrag_jax.names import FILE_READERS
from qrag_jax.types import InputError

TEXT = "text"
# Files that are read as they are, by their suffix or name in upper or lower case: prose, source code, settings.
TEXT_SUFFIXES = (
    ".txt", ".md", ".markdown", ".mdown", ".mkd", ".mdx", ".text", ".rst", ".adoc", ".asciidoc", ".tex", ".org", ".log",
    ".bash", ".c", ".cc", ".clj", ".cpp", ".cs", ".css", ".cu", ".cxx", ".dart", ".el", ".erl", ".ex", ".exs", ".f90",
    ".go", ".graphql", ".groovy", ".h", ".hpp", ".hs", ".java", ".jl", ".js", ".jsx", ".kt", ".lisp", ".lua", ".m",
    ".mjs", ".ml", ".nim", ".php", ".pl", ".pm", ".proto", ".ps1", ".py", ".pyi", ".r", ".rb", ".rs", ".scala", ".scss",
    ".sh", ".sql", ".swift", ".tf", ".ts", ".tsx", ".vue", ".zig", ".zsh",
    ".cfg", ".conf", ".ini", ".toml", ".yaml", ".yml",
)  # fmt: skip
TEXT_NAMES = frozenset(
    ("authors", "changelog", "changes", "contributing", "copying", "history", "install", "license", "news", "notes",
     "notice", "readme", "todo")
)  # fmt: skip
MAX_DOCUMENT_BYTES = 200 * 10**6  # of a file that is converted
_ASKED = "?"  # before the options in the result of `reader_of`
INSTALL = "pip install 'qrag_jax[documents]'"

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")  # marks an Office file with a password
_ZIP, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
_HTML = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--[^>]*-->\s*)*<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)
_UNMARKED = re.compile(rb"^(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)|\0")  # of UTF-8 and UTF-16, so that ASCII is left
_MAY_BEGIN = 1024  # readers of PDF look for its mark in this many bytes
_MAY_END = 2**16 + 22  # the longest end of a zip archive, with its comment
# First bytes of files that are not text, their kind, and what to do with them.
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
# A member that only such an archive has: (its name, kind of the archive, what to do).
_ARCHIVES = (
    (b"xl/workbook.xml", "a spreadsheet (XLSX)", "save its sheets as .txt or .csv and name them"),
    (b"ppt/presentation.xml", "slides (PPTX)", "save them as PDF"),
    (b"META-INF/MANIFEST.MF", "a Java archive", "leave it out"),
)


@dataclass(frozen=True)
class FileKind:
    """A kind of file that is converted. Its module defines one, and a line of `qrag_jax.names` registers it.

    Attributes:
        suffixes: in lower case.
        about: `a PDF`.
        packages: their versions change the text; without them such files are not read.
        load: options -> function from bytes to text; imports all that it needs.
        is_sign: (first bytes, whether the suffix fits) -> whether the bytes are of this kind.
        member: of a zip archive, a name that only this kind has.
        looks_like_text: its first bytes look like those of any text.
        is_light: its reader only uses parsers of Python's library that take linear time, so it may read a small file
            without a process of its own.
        version: of our code that processes the output of the packages.
        uses: names of the options (`ReadOptions`) that change its text, besides the encoding.
    """

    suffixes: tuple[str, ...]
    about: str
    packages: tuple[str, ...]
    load: Callable[[ReadOptions], Callable[[bytes], Converted]]
    is_sign: Callable[[bytes, bool], bool] = lambda head, named: False
    member: bytes | None = None
    looks_like_text: bool = False
    is_light: bool = False
    version: int = 1
    uses: tuple[str, ...] = ()

    @property
    def is_installed(self) -> bool:
        """True if its packages are installed; imports none of them."""
        return all(importlib.util.find_spec(name) is not None for name in self.packages)


def kind_by_suffix() -> Mapping[str, str]:
    """Suffixes in lower case -> kinds of files that are converted."""
    return _by_suffix(FILE_READERS.names)


@cache
def _by_suffix(names: tuple[str, ...]) -> Mapping[str, str]:
    return {suffix: name for name in names for suffix in _kind(name).suffixes}


def is_installed() -> bool:
    """True if the extra `documents` is installed, so all kinds of files can be read."""
    return all(_kind(name).is_installed for name in FILE_READERS)


def read_suffixes() -> tuple[str, ...]:
    """Suffixes that are read in folders: of text, and of files that can be converted here.

    Most files of records (JSON) are written by programs for programs, so a folder's are read only if the user names
    fields.
    """
    unread = frozenset() if reading().fields else suffixes_by_fields()
    converted = [suffix for suffix, name in kind_by_suffix().items() if _kind(name).is_installed]
    return TEXT_SUFFIXES + tuple(suffix for suffix in converted if suffix not in unread)


def suffixes_by_fields() -> frozenset[str]:
    """Suffixes of files of records, of which the user can name fields."""
    return frozenset(suffix for suffix, name in kind_by_suffix().items() if "fields" in _kind(name).uses)


def is_light(kind: str) -> bool:
    """True if a small file of this kind is read in this process; see `FileKind`."""
    return _kind(kind).is_light


def kind_of(name: str, raw: bytes) -> str:
    """`TEXT`, or a name of `FILE_READERS`.

    The suffix decides, and the first bytes must not contradict it. Without a known suffix the bytes decide; HTML must
    then begin with `<!doctype html` or `<html`.

    Args:
        name: of the file, for messages.
    """
    suffix = PurePath(name).suffix.lower()
    wanted = TEXT if suffix in TEXT_SUFFIXES else kind_by_suffix().get(suffix)
    found, what, remedy = _told_by_bytes(raw, wanted)
    if wanted is None:
        if found:
            return "html" if found == TEXT and _begins_html(raw) else found
        raise InputError(f"{what}, which cannot be read; {remedy}", file=name)
    if found == wanted or (found == TEXT and _kind(wanted).looks_like_text):
        return wanted
    if found and found != TEXT:
        about, end = _kind(found).about, _kind(found).suffixes[0]
        raise InputError(f"this is {about}, but its suffix says otherwise; rename it to end in {end}", file=name)
    if wanted == TEXT or found != TEXT:
        raise InputError(f"{what}, despite its suffix; {remedy}", file=name)
    about = _kind(wanted).about
    raise InputError(f"not {about}, despite its suffix; get the file again, or rename it if it is text", file=name)


def reader_of(kind: str, options: ReadOptions) -> str:
    """The reader of a kind of file, with options and versions. The same reader gives the same text for the same bytes.

    Args:
        kind: `TEXT`, or a name of `FILE_READERS`.
        options: those that differ from the defaults, and that the kind uses, are part of the result.
    """
    if kind == TEXT:
        return f"{TEXT} 2"
    found = _kind(kind)
    used = {name: getattr(options, name) for name in found.uses}
    given = {name: value for name, value in used.items() if value != getattr(ReadOptions, name)}
    versions = [f"{name} {importlib.metadata.version(name)}" for name in found.packages]
    return ", ".join([f"{kind} {found.version}{_ASKED * bool(given)}{urlencode(given, doseq=True)}", *versions])


def options_in(reader: str) -> dict[str, Any]:
    """The options in a result of `reader_of`, by name; those at their defaults are missing."""
    asked = parse_qs(reader.partition(_ASKED)[2].partition(",")[0])
    read: dict[str, Callable[[list[str]], Any]] = {"html": lambda values: values[0], "fields": tuple}
    return {name: read.get(name, bool)(values) for name, values in asked.items()}


def may_be_converted(name: str, head: bytes) -> bool:
    """True if `kind_of` may return another kind than text, from the name and the first bytes of a file."""
    suffix = PurePath(name).suffix.lower()
    named = suffix in kind_by_suffix() or (suffix not in TEXT_SUFFIXES and _begins_html(head))
    return named or head.startswith(_ZIP) or any(_kind(kind).is_sign(head, False) for kind in FILE_READERS)


def refuse_without_extra(name: str, kind: str) -> None:
    """Refuses a file whose reader is not installed, and says how to install it."""
    if not _kind(kind).is_installed:
        raise InputError(f"{_kind(kind).about}: its reader is not installed; {INSTALL}, or give it as text", file=name)


def _begins_html(raw: bytes) -> bool:
    return _HTML.match(_UNMARKED.sub(b"", raw[:_MAY_BEGIN])) is not None


@cache
def _kind(name: str) -> FileKind:
    return FILE_READERS.load(name)


def _told_by_bytes(raw: bytes, wanted: str | None) -> tuple[str, str, str]:
    """(kind or "", what it is, what to do about it); for text (`TEXT`, "", "").

    Args:
        wanted: the kind that its suffix means.
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
        if raw.startswith(sign) and (not sign.isalnum() or b"\0" in head):  # text may begin with these letters
            return "", what, remedy
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "", "a WebP picture", "leave it out"
    return TEXT, "", ""


def _told_by_members(raw: bytes) -> tuple[str, str, str]:
    """As `_told_by_bytes`. Only searches for names, because a directory may have millions of entries."""
    if _ZIP_END not in raw[-_MAY_END:]:
        return "", "an incomplete zip archive (DOCX, ODT and EPUB are zip archives)", "get the file again"
    for name in FILE_READERS:
        if (member := _kind(name).member) is not None and member in raw:
            return name, "", ""
    for member, what, remedy in _ARCHIVES:
        if member in raw:
            return "", what, remedy
    return "", "a zip archive", "unpack it"
