"""The text of a PDF, page by page; headings where its outline names them."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qrag_jax.data.documents.converted import Converted, cleaned, several
from qrag_jax.data.documents.hyphens import joined, words_of
from qrag_jax.types import InputError

if TYPE_CHECKING:
    import pypdfium2

_MOST_PAGES = 20_000
_MOST_ENTRIES = 20_000  # of an outline
_GAP = "\n\n"  # between pages
_END_OF_TEXT = 2  # bytes that pdfium writes for no letter
_MANY_PIECES, _MOSTLY = 200, 0.65  # of 424 pages only those without their Chinese were beyond both
_NO_LETTER = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"^(?:[0-9]+|[ivxlcIVXLC]+|[A-Z])(?:\.[0-9]+)*\.?\s+")  # of a section


def read_pdf(raw: bytes) -> Converted:
    """The text of a PDF."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(raw)
    except pypdfium2.PdfiumError as error:
        if "assword" in str(error):
            raise InputError("a PDF that is encrypted: save it without a password") from error
        raise InputError(f"a PDF that cannot be read ({error}): is it whole? Save it anew") from error
    num_pages = len(document)
    if num_pages > _MOST_PAGES:
        raise InputError(f"a PDF of {num_pages:,} pages, and at most {_MOST_PAGES:,} are read: split it")
    texts, num_bad, num_silent = [], 0, 0
    for number in range(num_pages):
        try:
            page = document[number]
            text = page.get_textpage()
            texts.append(text.get_text_range())
            num_silent += _is_silent(page, text)
            text.close()
            page.close()
        except pypdfium2.PdfiumError:
            texts.append("")
            num_bad += 1
    if num_bad == num_pages:
        raise InputError(f"a PDF none of whose {several(num_pages, 'page')} can be read: is it whole? Save it anew")
    num_blank = sum(not text.strip() for text in texts) - num_bad
    if num_blank + num_bad == num_pages:
        raise InputError(
            f"a scanned PDF: {several(num_pages, 'page')} without a character; give what a text recognition "
            "(OCR) makes of it"
        )
    words = words_of(texts)
    pages = [cleaned(joined(text, words)) for text in texts]
    for number, headings in _outline(document).items():
        if number < num_pages:
            pages[number] = with_headings(pages[number], headings)
    left_out = [f"{several(num_blank, 'page')} without a character (pictures or blank)"] if num_blank else []
    left_out += [f"{several(num_bad, 'page')} that cannot be read"] if num_bad else []
    left_out += [f"most letters of {several(num_silent, 'page')} (fonts that are not in it)"] if num_silent else []
    return Converted(_GAP.join(pages), tuple(_starts(pages)), tuple(left_out))


def _is_silent(page: "pypdfium2.PdfPage", text: "pypdfium2.PdfTextPage") -> bool:
    """Whether most letters of a page are in fonts that are not in the file, and were not told.

    Where each letter of such a font is placed by itself, as text recognition does, and this machine has no such font,
    pdfium leaves out letters without a word. Blanks that are placed by themselves look the same, but are fewer.
    """
    import pypdfium2.raw as pdfium

    num_pieces = num_silent = 0
    for piece in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_TEXT]):
        num_pieces += 1
        font = pdfium.FPDFTextObj_GetFont(piece.raw)
        if font and not pdfium.FPDFFont_GetIsEmbedded(font):
            num_silent += pdfium.FPDFTextObj_GetText(piece.raw, text.raw, None, 0) <= _END_OF_TEXT
    return num_pieces >= _MANY_PIECES and num_silent > _MOSTLY * num_pieces


def _starts(pages: list[str]) -> Iterator[int]:
    start = 0
    for page in pages:
        yield start
        start += len(page) + len(_GAP)


def _outline(document: "pypdfium2.PdfDocument") -> dict[int, list[tuple[int, str]]]:
    """(level from 1, title) of the entries of an outline by their page; an outline that cannot be read has none."""
    import pypdfium2

    found: dict[int, list[tuple[int, str]]] = {}
    try:
        for count, entry in enumerate(document.get_toc(max_depth=6)):
            if count >= _MOST_ENTRIES:
                break
            place = entry.get_dest()
            number = place.get_index() if place is not None else None
            if number is not None:
                found.setdefault(number, []).append((entry.level + 1, entry.get_title()))
    except pypdfium2.PdfiumError:
        return {}
    return found


def with_headings(page: str, headings: list[tuple[int, str]]) -> str:
    """A page whose lines that an outline names are headings of Markdown; numbers of sections need not be in it.

    Args:
        headings: (level, title) in the order of the outline.
    """
    lines = page.split("\n")
    first = 0
    for level, title in headings:
        wanted = _letters(title)
        for index in range(first, len(lines)):
            line = lines[index]
            if wanted and wanted in (_letters(line), _letters(_NUMBER.sub("", line))):
                lines[index] = f"{'#' * min(level, 6)} {line.strip()}"
                first = index + 1
                break
    return "\n".join(lines)


def _letters(text: str) -> str:
    return _NO_LETTER.sub("", text).lower()
