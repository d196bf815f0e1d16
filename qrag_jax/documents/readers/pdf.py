"""The text of a PDF, page by page; headings where its outline names them.

Words that a PDF divides at the end of a line, joined as the rest of the document writes them.
"""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qrag_jax.documents.converted import Converted, cleaned, several
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError

if TYPE_CHECKING:
    import pypdfium2

DIVIDED = "\ufffe"  # what pdfium writes for a hyphen at the end of a line, whose break it leaves out

_LEAST, _MIN_AFTER = 4, 6  # letters of two parts, of which the second is no word of the document
# English words that begin longer ones without a hyphen.
_BEGINNINGS = frozenset(
    "after back down every fore here how in inter more never not off on out over some super there through under up "
    "where with".split()
)
_WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_PLACE = re.compile(rf"([^\W_]+(?:-[^\W_]+)*)?{DIVIDED}\s?([^\W_]+)?")


def words_of(texts: list[str]) -> frozenset[str]:
    """The words of texts in lower case, those with hyphens whole and as their parts; divided ones are left out."""
    found: set[str] = set()
    for text in texts:
        for word in _WORD.findall(_PLACE.sub(" ", text)):
            found.add(word.lower())
            found.update(word.lower().split("-"))
    return frozenset(found)


def joined(text: str, words: frozenset[str]) -> str:
    """A text without marks of divided words.

    A hyphen at the end of a line divides a word (`exam|ple`) or belongs to it (`well|known`). What the document has
    elsewhere tells: the whole word, then the word with its hyphen, then both parts as words of their own, or the first
    if both are long (`conversation|centric`). Beside numbers and before a capital letter inside of a name it belongs to
    the word; where nothing tells, it divides.

    Args:
        text: with `DIVIDED` for such hyphens.
        words: of the document, by `words_of`.
    """
    return _PLACE.sub(lambda place: _join(place[1] or "", place[2] or "", words), text)


def _join(left: str, right: str, words: frozenset[str]) -> str:
    if not left or not right:  # a dash between words
        return f"{left}-{'' if left or not right else ' '}{right}"
    before, after = left.lower().rpartition("-")[2], right.lower()
    if before + after in words:
        return left + right
    is_name = right[0].isupper() and not left.isupper()
    is_compound = before in words and (after in words or (len(before) >= _LEAST and len(after) >= _MIN_AFTER))
    is_whole = f"{before}-{after}" in words or (is_compound and before not in _BEGINNINGS)
    return f"{left}-{right}" if is_whole or is_name or before.isdigit() or after.isdigit() else left + right


_MAX_PAGES = 20_000
_MAX_ENTRIES = 20_000  # of an outline
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
    if num_pages > _MAX_PAGES:
        raise InputError(f"a PDF of {num_pages:,} pages, and at most {_MAX_PAGES:,} are read: split it")
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
            if count >= _MAX_ENTRIES:
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


def _load(_: str) -> Callable[[bytes], Converted]:
    import pypdfium2  # noqa: F401

    return read_pdf


KIND = FileKind(
    (".pdf",), "a PDF", ("pypdfium2",), _load,
    lambda head, named: head.lstrip().startswith(b"%PDF-") or (named and b"%PDF-" in head),
)  # fmt: skip
