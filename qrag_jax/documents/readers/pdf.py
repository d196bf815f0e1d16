"""The text of a PDF, page by page, with headings from its outline.

Words that are divided at the end of a line are joined as the rest of the document writes them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from qrag_jax.documents.converted import Converted, ReadOptions, cleaned, several
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError

if TYPE_CHECKING:
    import pypdfium2

DIVIDED = "\ufffe"  # pdfium writes this for a hyphen at the end of a line, and leaves the line break out

_LEAST, _MIN_AFTER = 4, 6  # letters of two parts, if the second is not a word of the document
# English words that often begin longer words without a hyphen.
_BEGINNINGS = frozenset(
    "after back down every fore here how in inter more never not off on out over some super there through under up "
    "where with".split()
)
_WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_PLACE = re.compile(rf"([^\W_]+(?:-[^\W_]+)*)?{DIVIDED}\s?([^\W_]+)?")


def words_of(texts: list[str]) -> frozenset[str]:
    """The words of texts in lower case, those with hyphens both whole and in parts; divided words are left out."""
    found: set[str] = set()
    for text in texts:
        for word in _WORD.findall(_PLACE.sub(" ", text)):
            found.add(word.lower())
            found.update(word.lower().split("-"))
    return frozenset(found)


def joined(text: str, words: frozenset[str]) -> str:
    """Joins divided words.

    A hyphen at the end of a line divides a word (`exam|ple`) or belongs to it (`well|known`). The rest of the document
    decides: it contains the whole word, or the word with its hyphen, or both parts as words, or only the first part
    and both parts are long (`conversation|centric`). Next to a number, and before a capital letter in a name, the
    hyphen belongs to the word. If nothing decides, it divides.

    Args:
        text: with `DIVIDED` for each such hyphen.
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


_AT_END = re.compile(r"(?<=[^\W\d_])[-\u00ad\u058a\u2010][ \t]*\r?\n(?=[^\W\d_])")
_XFA = 2  # a form whose pages a program makes from XML; the PDF has only a page that says so
_MAX_PAGES = 20_000
_MAX_ENTRIES = 20_000  # of an outline
_GAP = "\n\n"  # between pages
_END_OF_TEXT = 2  # bytes that pdfium writes where a letter is missing
_MANY_PIECES, _MOSTLY = 200, 0.65  # of 424 pages, only those without their Chinese text exceeded both
_NO_LETTER = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"^(?:[0-9]+|[ivxlcIVXLC]+|[A-Z])(?:\.[0-9]+)*\.?\s+")  # of a section


def read_pdf(raw: bytes, options: ReadOptions | None = None) -> Converted:
    """The text of a PDF."""
    import pypdfium2

    from qrag_jax.documents.readers.pdf_marks import marked_text

    try:
        document = pypdfium2.PdfDocument(raw)
    except pypdfium2.PdfiumError as error:
        if "assword" in str(error):
            raise InputError("an encrypted PDF; save it without a password") from error
        raise InputError(f"a PDF that cannot be read ({error}); check it and save it again") from error
    document.init_forms()
    num_pages = len(document)
    if num_pages > _MAX_PAGES:
        raise InputError(f"a PDF of {num_pages:,} pages, more than the {_MAX_PAGES:,} that are read; split it")
    comments = options is not None and options.comments
    texts, num_bad, num_silent, left_out = [], 0, 0, Counter(attachments=document.count_attachments())
    for number in range(num_pages):
        try:
            page = document[number]
            text = page.get_textpage()
            plain, beside = marked_text(document, number, text, comments)
            texts.append(divided_at_ends(plain))
            left_out.update(beside)
            num_silent += _is_silent(page, text)
            text.close()
            page.close()
        except pypdfium2.PdfiumError:
            texts.append("")
            num_bad += 1
    if num_bad == num_pages:
        raise InputError(f"a PDF of {several(num_pages, 'page')}, none readable; check it and save it again")
    num_blank = sum(not text.strip() for text in texts) - num_bad
    if num_blank + num_bad == num_pages:
        _refuse_blank(document, several(num_pages, "page"), left_out["comments"])
    words = words_of(texts)
    pages = [cleaned(joined(text, words)) for text in texts]
    for number, headings in _outline(document).items():
        if number < num_pages:
            pages[number] = with_headings(pages[number], headings)
    left_out |= {
        "pages without a character (pictures or blank)": num_blank,
        "pages that cannot be read": num_bad,
        "pages without most letters (fonts that are not in it)": num_silent,
        "forms of another kind (XFA)": document.get_formtype() == _XFA,
    }
    left_out = {kind: int(number) for kind, number in left_out.items() if number}
    labels = tuple(document.get_page_label(number) for number in range(num_pages))
    has_own = any(label not in ("", str(number)) for number, label in enumerate(labels, 1))
    return Converted(_GAP.join(pages), tuple(_starts(pages)), left_out, labels if has_own else None)


def divided_at_ends(text: str) -> str:
    """Text with `DIVIDED` for hyphens of all kinds between letters at the end of a line; pdfium knows two kinds."""
    return _AT_END.sub(DIVIDED, text)


def _refuse_blank(document: "pypdfium2.PdfDocument", pages: str, num_comments: int) -> NoReturn:
    """Refuses a PDF without a character, and says what it has."""
    if num_comments:
        raise InputError(
            f"a PDF of {pages} without a character but {several(num_comments, 'comment')}; read the comments too"
        )
    if document.get_formtype():
        raise InputError(f"a PDF form of {pages} with empty fields and no other character; fill it in, or leave it out")
    raise InputError(f"a scanned PDF: {pages} without a character; run text recognition (OCR) and give its text")


def _is_silent(page: "pypdfium2.PdfPage", text: "pypdfium2.PdfTextPage") -> bool:
    """True if most letters of a page are in fonts that are not in the file, and are missing from the text.

    If such a font places each letter separately, as text recognition does, and this machine does not have the font,
    pdfium leaves the letters out silently. Separately placed blanks look the same, but are fewer.
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
    """(level from 1, title) of the outline's entries by page; empty for an outline that cannot be read."""
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
    """A page with Markdown headings for the lines that the outline names; section numbers may be missing there.

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


def _load(options: ReadOptions) -> Callable[[bytes], Converted]:
    import pypdfium2.raw  # noqa: F401

    import qrag_jax.documents.readers.pdf_marks  # noqa: F401

    return partial(read_pdf, options=options)


KIND = FileKind(
    (".pdf",), "a PDF", ("pypdfium2",), _load,
    lambda head, named: head.lstrip().startswith(b"%PDF-") or (named and b"%PDF-" in head),
    version=2, uses=("comments",),
)  # fmt: skip
