"""PDF, DOCX, ODT and EPUB files made by hand: as small as readers take them."""

import io
import zipfile
from collections.abc import Mapping, Sequence

_NAMES = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "r": "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
    "wp": "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing",
    "pic": "http://schemas.openxmlformats.org/drawingml/2006/picture",
}
_OASIS = "urn:oasis:names:tc:opendocument:xmlns"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
_IMAGE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/image"
_CONTAINER = "urn:oasis:names:tc:opendocument:xmlns:container"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6300010000000500010d0a2db4"
    "0000000049454e44ae426082"
)  # a PNG of one pixel


def tiny_zip(members: Mapping[str, str | bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return content.getvalue()


def pdf_of_objects(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """A PDF of numbered objects, of which the first is its catalogue."""
    content, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(content))
        content += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    table += b"".join(b"%010d 00000 n \n" % place for place in places)
    ends = b"trailer\n<< /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n"
    return content + table + ends % (len(objects) + 1, trailer, len(content))


def stream(content: bytes, extra: bytes = b"") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(content), extra, content)


def tiny_pdf(pages: Sequence[Sequence[str]], outline: Sequence[tuple[str, int]] = (), trailer: bytes = b"") -> bytes:
    """A PDF of pages of lines, and an outline of (title, page from 0), all of one level."""
    first = 4  # catalogue, pages, font; two objects a page; outline and its entries
    kids = b" ".join(b"%d 0 R" % (first + 2 * number) for number in range(len(pages)))
    root = first + 2 * len(pages)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R%b >>" % (b" /Outlines %d 0 R" % root if outline else b""),
        b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, lines in enumerate(pages):
        shown = b"".join(
            b"(%b) Tj T* " % line.encode("cp1252").replace(b"(", b"\\(").replace(b")", b"\\)") for line in lines
        )
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> "
            b"/Contents %d 0 R >>" % (first + 2 * number + 1)
        )
        objects.append(stream(b"BT /F1 12 Tf 72 720 Td 14 TL %bET" % shown))
    if outline:
        last = root + len(outline)
        objects.append(b"<< /Type /Outlines /First %d 0 R /Last %d 0 R >>" % (root + 1, last))
        for index, (title, page) in enumerate(outline):
            here = root + 1 + index
            links = (b"/Prev %d 0 R " % (here - 1) if index else b"") + (
                b"/Next %d 0 R" % (here + 1) if here < last else b""
            )
            place = b"[%d 0 R /Fit]" % (first + 2 * page)
            objects.append(b"<< /Title (%b) /Parent %d 0 R %b /Dest %b >>" % (title.encode(), root, links, place))
    return pdf_of_objects(objects, trailer)


def marked_pdf(lines: Sequence[tuple[float, float, str]], marks: Sequence[bytes], catalogue: bytes = b"") -> bytes:
    """A PDF of one page with lines at (left, bottom) in points, and annotations, of which those with /FT are fields.

    An annotation may name `8 0 R` as its appearance, which says "Drawn".
    """
    shown = b"".join(b"BT /F1 12 Tf %d %d Td (%b) Tj ET " % (x, y, line.encode("cp1252")) for x, y, line in lines)
    numbers = [9 + number for number in range(len(marks))]
    fields = b" ".join(b"%d 0 R" % number for number, mark in zip(numbers, marks, strict=True) if b"/FT" in mark)
    notes = b" ".join(b"%d 0 R" % number for number in numbers)
    resources = b"/Resources << /Font << /F1 3 0 R >> >>"
    drawing = b"/Type /XObject /Subtype /Form /BBox [0 0 90 20] " + resources
    return pdf_of_objects([
        b"<< /Type /Catalog /Pages 2 0 R %b %b >>" % (b"/AcroForm 6 0 R" if fields else b"", catalogue),
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] %b /Contents 5 0 R /Annots [%b] >>" % (resources, notes),
        stream(shown), b"<< /Fields [%b] /DR << /Font << /F1 3 0 R >> >> >>" % fields, b"null",
        stream(b"BT /F1 12 Tf 2 5 Td (Drawn) Tj ET", drawing),
        *(b"<< /Type /Annot %b >>" % mark for mark in marks),
    ])  # fmt: skip


def silent_pdf() -> bytes:
    """A PDF of one Latin letter, and of 300 Chinese ones, each placed by itself, in a font that is not in it."""
    font = b"<< /Type /Font /Subtype /Type0 /BaseFont /SimSun /Encoding /GBK-EUC-H /DescendantFonts [7 0 R] >>"
    about = b"/CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 2 >> /FontDescriptor 8 0 R"
    pages = b"/Resources << /Font << /F1 3 0 R /F2 6 0 R >> >> /MediaBox [0 0 612 792]"
    lines = b"BT /F1 12 Tf 72 720 Td (A) Tj ET "
    for number in range(300):
        place = b"%d %d" % (72 + number % 20 * 18, 700 - number // 20 * 18)
        lines += b"q 1 0 0 1.4 %b cm BT 3 Tr /F2 12 Tf <b9d8> Tj ET Q " % place
    return pdf_of_objects([
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Type /Page /Parent 2 0 R /Contents 5 0 R %b >>" % pages, stream(lines), font,
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /SimSun /DW 1000 %b >>" % about,
        b"<< /Type /FontDescriptor /FontName /SimSun /FontBBox [-8 -145 1000 859] /Flags 32 /StemV 88 /Ascent 859 "
        b"/Descent -141 /CapHeight 683 /ItalicAngle 0 >>",
    ])  # fmt: skip


def encrypted_pdf() -> bytes:
    """A PDF that no password opens."""
    handler = b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <%b> /U <%b> >> /ID [<00> <00>]"
    return tiny_pdf([["Secret."]], trailer=handler % (b"00" * 32, b"11" * 32))


def tiny_docx(body: str, others: Mapping[str, str | bytes] | None = None) -> bytes:
    """A DOCX document with the inside of its `w:body`."""
    names = " ".join(f'xmlns:{name}="{where}"' for name, where in _NAMES.items())
    types = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    types += (
        '<Default Extension="xml" ContentType="application/xml"/><Default Extension="png" ContentType="image/png"/>'
    )
    members = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">{types}</Types>',
        "_rels/.rels": relationships(f'<Relationship Id="r1" Type="{_OFFICE}" Target="word/document.xml"/>'),
        "word/document.xml": f"<w:document {names}><w:body>{body}</w:body></w:document>",
    }
    return tiny_zip(members | dict(others or {}))


def tiny_odt(
    body: str, styles: str = "", others: Mapping[str, str | bytes] | None = None, kind: str = "text", pages: str = ""
) -> bytes:
    """An OpenDocument file.

    Args:
        body: inside of `office:text`, or of `office:KIND`.
        styles: inside of the automatic styles.
        pages: inside of the only master page.
    """
    names = " ".join(f'xmlns:{name}="{_OASIS}:{name}:1.0"' for name in ("office", "text", "table", "style", "form"))
    names += f' xmlns:draw="{_OASIS}:drawing:1.0" xmlns:svg="{_OASIS}:svg-compatible:1.0"'
    names += ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:dc="http://purl.org/dc/elements/1.1/"'
    content = f"<office:automatic-styles>{styles}</office:automatic-styles>"
    content += f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    page = f'<office:master-styles><style:master-page style:name="S">{pages}</style:master-page></office:master-styles>'
    members = {
        "mimetype": f"application/vnd.oasis.opendocument.{kind}",
        "content.xml": f"<office:document-content {names}>{content}</office:document-content>",
        "styles.xml": f"<office:document-styles {names}>{page}</office:document-styles>",
        "META-INF/manifest.xml": "<manifest/>",
    }
    return tiny_zip(members | dict(others or {}))


def relationships(inside: str) -> str:
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{inside}</Relationships>'


def paragraph(text: str, style: str = "") -> str:
    about = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{about}<w:r><w:t>{text}</w:t></w:r></w:p>"


def picture(target: str = "media/a.png", *, is_external: bool = False) -> tuple[str, dict[str, str | bytes]]:
    """A paragraph with a picture, and the members that it needs."""
    mode = ' TargetMode="External"' if is_external else ""
    linked = "link" if is_external else "embed"
    inside = f'<pic:pic><pic:blipFill><a:blip r:{linked}="p1"/></pic:blipFill></pic:pic>'
    graphic = f"<a:graphic><a:graphicData>{inside}</a:graphicData></a:graphic>"
    body = f'<w:p><w:r><w:drawing><wp:inline><wp:docPr descr="A map"/>{graphic}</wp:inline></w:drawing></w:r></w:p>'
    relation = f'<Relationship Id="p1" Type="{_IMAGE}" Target="{target}"{mode}/>'
    members: dict[str, str | bytes] = {"word/_rels/document.xml.rels": relationships(relation)}
    return body, members | ({} if is_external else {"word/media/a.png": PICTURE})


def tiny_epub(
    chapters: Mapping[str, str | bytes],
    spine: Sequence[str] | None = None,
    others: Mapping[str, str | bytes] | None = None,
) -> bytes:
    """An EPUB book of pages of XHTML by their paths, read in the order of `spine` (paths; all that there are)."""
    ids = {path: f"c{number}" for number, path in enumerate(dict.fromkeys([*chapters, *(spine or ())]))}
    items = "".join(f'<item id="{ids[path]}" href="{path}" media-type="application/xhtml+xml"/>' for path in ids)
    order = "".join(f'<itemref idref="{ids[path]}"/>' for path in (chapters if spine is None else spine))
    container = '<rootfiles><rootfile full-path="OEBPS/a.opf"/></rootfiles>'
    package = f"<manifest>{items}</manifest><spine>{order}</spine>"
    members: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": f'<container xmlns="{_CONTAINER}">{container}</container>',
        "OEBPS/a.opf": f'<package xmlns="http://www.idpf.org/2007/opf">{package}</package>',
    }
    return tiny_zip(members | {f"OEBPS/{path}": page for path, page in chapters.items()} | dict(others or {}))
