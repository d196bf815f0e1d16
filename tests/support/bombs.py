"""Documents that are small and become large, never end, or lead elsewhere."""

import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from support.documents import (
    encrypted_pdf,
    paragraph,
    pdf_of_objects,
    stream,
    tiny_docx,
    tiny_epub,
    tiny_odt,
    tiny_pdf,
    tiny_zip,
)

MB = 10**6
PAGE = "<html><body><h1>One</h1><p>Some text.</p></body></html>"
ENTITY = '<!DOCTYPE a [<!ENTITY b SYSTEM "/etc/passwd">]><a>&b;</a>'
TEXT = paragraph("Some text.")


def docx_of_much_xml() -> bytes:
    """About 200 KB that become 65 MB of XML, which would take more than 512 MB as a tree."""
    return tiny_docx(paragraph("Rye is a grass.") * (65 * MB // len(paragraph("Rye is a grass."))))


def docx_of_entities() -> bytes:
    laughs = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    content = f"<!DOCTYPE x [{laughs}]><x>&a11;</x>"
    return tiny_docx(TEXT, {"word/styles.xml": content})


def docx_with_an_archive_in_it() -> bytes:
    """Legal: what is embedded is not unpacked."""
    inner = tiny_zip({"zeros": bytes(100 * MB)})
    return tiny_docx(TEXT, {"word/embeddings/a.zip": inner})


def zip_that_lies() -> bytes:
    """A directory that says 100 bytes of a member of 100 MB."""
    content = tiny_docx(TEXT, {"word/styles.xml": b" " * (100 * MB)})
    return content.replace(struct.pack("<I", 100 * MB), struct.pack("<I", 100))


def zip_of_many_members() -> bytes:
    return tiny_docx(TEXT, {f"word/{number}.xml": b"" for number in range(60_000)})


def zip_of_one_member_many_times() -> bytes:
    """A directory with 5,000 names of one place, whose members would be 500 GB: each fits, all do not."""
    content = tiny_docx(TEXT, {"word/media/a": bytes(100 * MB)})
    end = content.rindex(b"PK\x05\x06")
    start = struct.unpack("<I", content[end + 16 : end + 20])[0]
    directory = content[start:end]
    entry = directory[directory.rindex(b"PK\x01\x02") :]
    copies = b"".join(entry.replace(b"word/media/a", b"word/md/%04d" % number, 1) for number in range(5_000))
    total = 4 + 5_000
    ends = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, total, total, len(directory + copies), start, 0)
    return content[:start] + directory + copies + ends


def pdf_of_pages_that_are_not_there() -> bytes:
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 2000000000 >>"
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] >>"
    return pdf_of_objects([b"<< /Type /Catalog /Pages 2 0 R >>", pages, page])


def pdf_whose_pages_hold_themselves() -> bytes:
    pages = b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 1000 /Parent 2 0 R >>"
    return pdf_of_objects([b"<< /Type /Catalog /Pages 2 0 R >>", pages])


def pdf_of_one_stream() -> bytes:
    """A page that unpacks to 1 GB of instructions."""
    packer = zlib.compressobj(9)
    piece = b"BT /F1 12 Tf 72 720 Td " + b"(Rye is a grass.) Tj T* " * 40_000 + b"ET "
    packed = b"".join([*(packer.compress(piece) for _ in range(1_000)), packer.flush()])
    font = b"/Resources << /Font << /F1 3 0 R >> >>"
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R %b >>" % font
    return pdf_of_objects([
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        page,
        stream(packed, b"/Filter /FlateDecode"),
    ])  # fmt: skip


def epub_of_one_chapter_many_times() -> bytes:
    """Refused by nobody and read once."""
    page = "<html><body>" + "<p>Rye is a grass.</p>" * 5_000 + "</body></html>"
    return tiny_epub({"a.xhtml": page}, ["a.xhtml"] * 100_000)


def odt_of_repeated_cells() -> bytes:
    """Its cells say that they are there in a million columns, and cover a million rows."""
    about = 'table:number-columns-repeated="999999" table:number-rows-spanned="999999"'
    row = f"<table:table-row><table:table-cell {about}><text:p>Rye</text:p></table:table-cell></table:table-row>"
    return tiny_odt(f"<table:table>{row * 100}</table:table>")


# Name of the file -> its bytes. Each is refused.
REFUSED: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "DOCX: 200 KB become 65 MB of XML": ("a.docx", docx_of_much_xml),
    "DOCX: 300 KB become 300 MB of a picture": (
        "a.docx", lambda: tiny_docx(TEXT, {"word/media/a.bmp": bytes(300 * MB)}),
    ),
    "DOCX: entities of entities": ("a.docx", docx_of_entities),
    "DOCX: elements nested 100,000 deep": ("a.docx", lambda: tiny_docx("<w:p>" * 100_000 + "</w:p>" * 100_000)),
    "DOCX: a directory that lies": ("a.docx", zip_that_lies),
    "DOCX: 60,000 members": ("a.docx", zip_of_many_members),
    "DOCX: one member 5,000 times": ("a.docx", zip_of_one_member_many_times),
    "DOCX: cut off": ("a.docx", lambda: tiny_docx(TEXT)[:-100]),
    "ODT: entities": ("a.odt", lambda: tiny_odt("<text:p>Rye</text:p>", others={"styles.xml": ENTITY})),
    "PDF: encrypted": ("a.pdf", encrypted_pdf),
    "PDF: cut off": ("a.pdf", lambda: tiny_pdf([["Some text."]] * 30)[:400]),
    "PDF: two billion pages": ("a.pdf", pdf_of_pages_that_are_not_there),
    "PDF: pages that hold themselves": ("a.pdf", pdf_whose_pages_hold_themselves),
    "PDF: 1 GB of instructions in 3 MB": ("a.pdf", pdf_of_one_stream),
    "PDF under another name": ("a.docx", lambda: tiny_pdf([["Some text."]])),
    "HTML: elements nested a million deep": ("a.html", lambda: b"<div>" * MB + b"Text"),
    "HTML: scripts alone": ("a.html", lambda: b"<script>" + b"document.write('x');" * 10**5 + b"</script>"),
    "EPUB: a path out of the book": (
        "a.epub", lambda: tiny_epub({"a.xhtml": PAGE}, ["../../../../../../../../etc/passwd"]),
    ),
    "EPUB: entities": (
        "a.epub",
        lambda: tiny_epub({"a.xhtml": PAGE}, others={"META-INF/encryption.xml": ENTITY}),
    ),
}  # fmt: skip
# Each is read, and as small as it is.
READ: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "DOCX: an archive that becomes 100 MB in it": ("a.docx", docx_with_an_archive_in_it),
    "ODT: cells that repeat a million times": ("a.odt", odt_of_repeated_cells),
    "EPUB: one chapter 100,000 times": ("a.epub", epub_of_one_chapter_many_times),
    "HTML: 200,000 tags that are not closed": ("a.html", lambda: b"<p>Some text.</p>" + b"<b " * 200_000),
}


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path
