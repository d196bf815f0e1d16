"""Reads the marks on a page of a PDF: values of form fields, notes, stamps and remarks of reviewers.

Each mark has a rectangle. Its text is put into the text of the page next to the nearest characters: a value after its
label, `[x]` before the label of a checked box, anything else on a separate line.
"""

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pypdfium2

Rect = tuple[float, float, float, float]  # left, bottom, right, top in points

# Kinds of annotations, flags and kinds of fields, by their numbers in pdfium.
_LINK, _FREE_TEXT, _STAMP, _POPUP, _FILE, _WIDGET = 2, 3, 13, 16, 17, 20
_REMARKS = (1, *range(4, 16))  # notes, marked text, drawings and stamps: a click shows their contents
_PLAYED = (18, 19, 21, 25, 26)
_NOT_SEEN = 2 | 32
_CHECK, _RADIO, _COMBO, _LIST, _TYPED = 2, 3, 4, 5, 6
_PASSWORD = 1 << 13
_DRAWS_TEXT = re.compile(r"\b(?:T[jJ]|Do)\b")  # operators of an appearance

_MAX_PLACED = 2_000  # marks of a page that are placed; others follow its text, so that no page takes quadratic time
_NEAR = 40.0  # points between a box and the label on its right, at most
_TOUCHING = 2.0  # points by which a label may reach into its field
_GAP = 8.0  # points between words of one label, at most
_ABOVE = 20.0  # a label on the left is preferred up to this many points, and three for each one between a label above


@dataclass(frozen=True)
class Mark:
    """A text beside that of the page.

    Attributes:
        rect: where it stands.
        text: empty if only its appearance has it.
        is_line: it stands on a line of its own.
        label: of a checked box that has no text beside it; None if it is no box.
    """

    rect: Rect
    text: str
    is_line: bool = True
    label: str | None = None


def marked_text(
    document: "pypdfium2.PdfDocument", number: int, text: "pypdfium2.PdfTextPage", comments: bool
) -> tuple[str, Counter[str]]:
    """The text of a page with its marks, and the numbers of what is left out by kind.

    Args:
        document: with its form environment, if it has forms.
        number: of the page, from 0.
        text: of the page.
        comments: keep the remarks of reviewers too; else they are counted.
    """
    marks, left_out = _find_marks(document, text.page, comments)
    plain = text.get_text_range()
    if any(not mark.text for mark in marks):
        drawn = _drawn_texts(document, number, plain, [mark.rect for mark in marks if not mark.text])
        marks = [mark if mark.text else replace(mark, text=next(drawn)) for mark in marks]
    marks = [mark for mark in marks if mark.text.strip()]
    return (_written(plain, text, marks) if marks else plain), left_out


def _find_marks(
    document: "pypdfium2.PdfDocument", page: "pypdfium2.PdfPage", comments: bool
) -> tuple[list[Mark], Counter[str]]:
    import pypdfium2.raw as pdfium

    marks: list[Mark] = []
    left_out: Counter[str] = Counter()
    for number in range(pdfium.FPDFPage_GetAnnotCount(page)):
        note = pdfium.FPDFPage_GetAnnot(page, number)
        if note and pdfium.FPDFAnnot_GetSubtype(note) not in (_LINK, _POPUP):
            _find_marks_of(document, note, comments, marks, left_out)
        pdfium.FPDFPage_CloseAnnot(note)
    return marks, left_out


def _find_marks_of(
    document: "pypdfium2.PdfDocument", note: Any, comments: bool, marks: list[Mark], left_out: Counter[str]
) -> None:
    import pypdfium2.raw as pdfium

    kind, edges = pdfium.FPDFAnnot_GetSubtype(note), pdfium.FS_RECTF()
    pdfium.FPDFAnnot_GetRect(note, edges)
    rect = (edges.left, min(edges.bottom, edges.top), edges.right, max(edges.bottom, edges.top))
    said = _string(pdfium.FPDFAnnot_GetStringValue, note, b"Contents").strip()
    found = [_field(document.formenv, note, rect)] if kind == _WIDGET else []
    if kind in (_FREE_TEXT, _STAMP):
        found.append(Mark(rect, said if kind == _FREE_TEXT else ""))
    if kind in _REMARKS and said and comments:
        author = _string(pdfium.FPDFAnnot_GetStringValue, note, b"T").strip() or "Comment"
        found.append(Mark(rect, f"[{author}: {said}]"))
    is_drawn = _DRAWS_TEXT.search(_string(pdfium.FPDFAnnot_GetAP, note, 0)) if found else None
    told = [mark for mark in found if mark and (mark.text or is_drawn)]
    if pdfium.FPDFAnnot_GetFlags(note) & _NOT_SEEN:
        left_out["hidden words"] += sum(len(mark.text.split()) for mark in told)
        return
    marks += told
    left_out["comments"] += kind in _REMARKS and said != "" and not comments
    left_out["attachments"] += kind == _FILE
    left_out["sounds and films"] += kind in _PLAYED


def _field(forms: Any, note: Any, rect: Rect) -> Mark | None:
    """The value of a form field as the page shows it; a button or a signature has only an appearance."""
    import pypdfium2.raw as pdfium

    kind = pdfium.FPDFAnnot_GetFormFieldType(forms, note) if forms else 0
    if kind in (_CHECK, _RADIO):
        label = _string(pdfium.FPDFAnnot_GetFormFieldAlternateName, forms, note)
        return Mark(rect, "[x]", False, label) if pdfium.FPDFAnnot_IsChecked(forms, note) else None
    if kind not in (_COMBO, _LIST, _TYPED):
        # A field that the form of the file does not list has no kind, but may have a value.
        is_listed = forms or _string(pdfium.FPDFAnnot_GetStringValue, note, b"FT") == "Btn"
        return Mark(rect, "" if is_listed else _string(pdfium.FPDFAnnot_GetStringValue, note, b"V"), False)
    if kind == _TYPED and pdfium.FPDFAnnot_GetFormFieldFlags(forms, note) & _PASSWORD:
        return None
    shown = []  # a list shows all of its options, a combination box the chosen one
    for index in range(max(0, pdfium.FPDFAnnot_GetOptionCount(forms, note))):
        is_chosen = pdfium.FPDFAnnot_IsOptionSelected(forms, note, index)
        if is_chosen or kind == _LIST:
            label = _string(pdfium.FPDFAnnot_GetOptionLabel, forms, note, index)
            shown.append(f"[x] {label}" if is_chosen and kind == _LIST else label)
    value = ", ".join(shown) or _string(pdfium.FPDFAnnot_GetFormFieldValue, forms, note)
    return Mark(rect, value, False) if value.strip() else None


def _string(get: Callable[..., int], *of: Any) -> str:
    """The text that a function of pdfium writes into a buffer of UTF-16."""
    import pypdfium2.raw as pdfium

    size = get(*of, None, 0)
    buffer = ctypes.create_string_buffer(max(2, size))
    get(*of, ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), size)
    return buffer.raw[: max(0, size - 2)].decode("utf-16-le", "ignore")


def _drawn_texts(document: "pypdfium2.PdfDocument", number: int, plain: str, rects: list[Rect]) -> Iterator[str]:
    """The text that an annotation draws in each rectangle, which pdfium tells when it makes them part of the page.

    Their characters follow those of the page; if they do not, nothing is known of them. A character counts once.
    """
    import pypdfium2.raw as pdfium

    pdfium.FPDFPage_Flatten(document[number], pdfium.FLAT_NORMALDISPLAY)
    text = document[number].get_textpage()
    whole = text.get_text_range()
    start = len(plain) if whole.startswith(plain) else len(whole)
    boxes = _boxes(text, start)
    across, up = boxes[:, [0, 2]].mean(1), boxes[:, [1, 3]].mean(1)
    for left, bottom, right, top in rects[:_MAX_PLACED]:
        (inside,) = np.nonzero((left <= across) & (across <= right) & (bottom <= up) & (up <= top))
        across[inside] = np.nan
        runs = np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1)  # line ends between them are nowhere
        yield "\n".join(whole[start + run[0] : start + run[-1] + 1] for run in runs if len(run))
    yield from ("" for _ in rects[_MAX_PLACED:])


def _boxes(text: "pypdfium2.PdfTextPage", start: int = 0) -> np.ndarray:
    """The rectangles of the characters of a page from one of them on, as `Rect`: float64 [n, 4]."""
    import pypdfium2.raw as pdfium

    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    found = []
    for place in range(start, text.count_chars()):
        pdfium.FPDFText_GetCharBox(text, place, left, right, bottom, top)
        found.append((left.value, bottom.value, right.value, top.value))
    return np.array(found, np.float64).reshape(-1, 4)


def _written(plain: str, text: "pypdfium2.PdfTextPage", marks: list[Mark]) -> str:
    """The text of a page with its marks: each at its place, those of one place from top left to bottom right."""
    import pypdfium2.raw as pdfium

    boxes = _boxes(text)
    boxes[boxes[:, 2] <= boxes[:, 0]] = np.nan  # generated blanks and line ends
    placed = []
    for number, mark in enumerate(sorted(marks, key=lambda mark: (-mark.rect[3], mark.rect[0]))):
        place, is_beside = _place(boxes, mark) if number < _MAX_PLACED else (len(boxes), False)
        offset, said = pdfium.FPDFText_GetTextIndexFromCharIndex(text, place - 1) + 1 if place else 0, mark.text
        if mark.is_line or not is_beside:
            end = plain.find("\n", offset)
            offset, said = (len(plain) if end < 0 else end), f"\n{said} {mark.label or ''}".rstrip()
        placed.append((offset, number, said))
    parts, done = [], 0
    for offset, _, said in sorted(placed):
        before = plain[done:offset] if done < offset or not parts else said
        has_gap = said[0] == "\n" or not before[-1:].strip()
        parts += [
            plain[done:offset],
            said if has_gap else f" {said}",
            " " if plain[offset : offset + 1].strip() else "",
        ]
        done = offset
    return "".join([*parts, plain[done:]])


def _place(boxes: np.ndarray, mark: Mark) -> tuple[int, bool]:
    """The number of characters before a mark, and whether its label stands there.

    A label is on the left of a field or above it, that of a box on its right. Without one the mark follows the nearest
    character.
    """
    if np.isnan(boxes).all():
        return len(boxes), False
    left, bottom, right, top = mark.rect
    starts, downs, ends, ups = boxes.T
    is_beside = np.minimum(ups, top) - np.maximum(downs, bottom) > (ups - downs) / 2
    if mark.label is not None:
        gaps = np.where(is_beside & (starts > (left + right) / 2), starts - right, np.inf)
        if gaps.min(initial=np.inf) < _NEAR:
            return int(gaps.argmin()), True
    before = np.where(is_beside & ((starts + ends) / 2 < right), np.maximum(left - ends, 0) - ends / 1e6, np.inf)
    over = (starts < right) & (ends > left) & (downs > top - _TOUCHING)
    above = np.where(over, _ABOVE + 3 * np.maximum(downs - top, 0) - ends / 1e6, np.inf)
    gaps = np.minimum(before, above)
    if np.isfinite(gaps).any():
        return _end_of_phrase(boxes, int(gaps.argmin())), True
    away = np.maximum(0, np.maximum(left - ends, starts - right)) + 3 * np.maximum(
        0, np.maximum(downs - top, bottom - ups)
    )
    return int(np.nanargmin(away)) + 1, False


def _end_of_phrase(boxes: np.ndarray, place: int) -> int:
    """The number of characters up to the last one that follows a character on its line without a wide gap."""
    _, bottom, end, top = boxes[place]
    for number in range(place + 1, len(boxes)):
        start, down, next_end, _ = boxes[number]
        if start > end + _GAP or start < end - _GAP or not bottom - _GAP < down < top:
            break
        if start == start:  # not a generated blank
            place, end = number, next_end
    return place + 1
