import io
import subprocess
import sys
import zipfile

import pytest
from support.tiers import PATIENCE

from qrag_jax.documents.kinds import (
    TEXT_SUFFIXES,
    FileKind,
    kind_by_suffix,
    kind_of,
    read_suffixes,
    refuse_without_extra,
)
from qrag_jax.files.reading import read_with
from qrag_jax.types import InputError


def archive(*members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for member in members:
            file.writestr(member, "x")
    return content.getvalue()


PDF, DOCX, EPUB = b"%PDF-1.4 ...", archive("word/document.xml"), archive("mimetype", "META-INF/container.xml")
ODT = archive("mimetype", "content.xml")


@pytest.mark.parametrize(
    ("name", "raw", "kind"),
    [
        ("a.txt", b"Text.", "text"),
        ("a.md", b"", "text"),
        ("README", b"Text.", "text"),
        ("a.csv", b"a,b", "csv"),
        ("a.dat", b"a,b", "text"),
        ("a.txt", b"GIF89a was the second version.", "text"),
        ("page", b"<!doctype html><p>Text", "html"),
        ("-", b"\xef\xbb\xbf\n<!-- made by hand -->\n<HTML lang=en>", "html"),
        ("-", "<?xml version='1.0'?><html xmlns='x'>".encode("utf-16"), "html"),
        ("-", b"<htmlish> is no tag, and <html> comes late", "text"),
        ("a.txt", b"<!doctype html><p>Text", "text"),
        ("a.HTML", b"<p>Text", "html"),
        ("a.htm", b"Text", "html"),
        ("a.pdf", PDF, "pdf"),
        ("a.pdf", b"\n junk before " + PDF, "pdf"),
        ("-", PDF, "pdf"),
        ("report", DOCX, "docx"),
        ("a.docx", DOCX, "docx"),
        ("a.epub", EPUB, "epub"),
        ("a.epub", archive("mimetype", "OEBPS/content.xml", "META-INF/container.xml"), "epub"),
        ("a.odt", ODT, "odt"),
        ("report", ODT, "odt"),
    ],
)
def test_kinds(name, raw, kind):
    assert kind_of(name, raw) == kind


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.txt", PDF, "a.txt: this is a PDF, but its suffix says otherwise; rename it to end in .pdf"),
        ("a.docx", PDF, "a.docx: this is a PDF, but its suffix"),
        ("a.html", DOCX, "a.html: this is a DOCX document, but its suffix .* rename it to end in .docx"),
        ("a.pdf", b"Text.", "a.pdf: not a PDF, despite its suffix; get the file again, or rename it"),
        ("a.epub", b"", "a.epub: not an EPUB book, despite"),
        ("a.md", b"\x89PNG\r\n\x1a\n", "a.md: a PNG picture, despite its suffix; leave it out, or give what"),
        ("a.png", b"\x89PNG\r\n\x1a\n", "a.png: a PNG picture, which cannot be read; leave it out"),
        ("a.webp", b"RIFF1234WEBP", "a.webp: a WebP picture, which"),
        ("a.zip", archive("a.txt"), "a.zip: a zip archive, which cannot be read; unpack it"),
        ("a.docx", archive("a.txt"), "a.docx: a zip archive, despite its suffix; unpack it"),
        (
            "a.docx",
            DOCX[:-30],
            "a.docx: an incomplete zip archive .DOCX, ODT and EPUB are zip archives., .*; get the file again",
        ),
        ("a.xlsx", archive("xl/workbook.xml"), "a spreadsheet .XLSX., which cannot be read; save its sheets"),
        (
            "a.doc",
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
            "an old Office file .*, which cannot be read; save it as",
        ),
        ("a", b"\x1f\x8b", "a: a gzip archive, which cannot be read; unpack it"),
    ],
)
def test_other_kinds_are_named_with_what_to_do(name, raw, message):
    with pytest.raises(InputError, match=message):
        kind_of(name, raw)


def test_what_converts_is_not_imported_where_texts_are_read():
    code = "import sys, qrag_jax.documents.read as _; print({'lxml', 'pypdfium2', 'trafilatura'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.stdout == "set()\n", ended.stderr


def test_without_the_extra_its_files_are_of_other_types(monkeypatch):
    monkeypatch.setattr(FileKind, "is_installed", False)
    assert read_suffixes() == TEXT_SUFFIXES
    with pytest.raises(
        InputError, match=r"a.pdf: a PDF: its reader is not installed; pip install 'qrag_jax\[documents\]'"
    ):
        refuse_without_extra("a.pdf", "pdf")
    monkeypatch.setattr(FileKind, "is_installed", True)
    unread = {".json", ".jsonl", ".ndjson"}
    assert set(read_suffixes()) == {*TEXT_SUFFIXES, *kind_by_suffix()} - unread and ".pdf" in kind_by_suffix()
    with read_with(fields=("title",)):
        assert set(read_suffixes()) == {*TEXT_SUFFIXES, *kind_by_suffix()}
    refuse_without_extra("a.pdf", "pdf")
