"""Sentence borders as exact character offsets, over `sentencex` with its known defects guarded.

The guards, each tested: the text is split on blank lines first (the library loses a blank line at the inner borders of
long texts); white space outside ASCII is handed over as plain spaces and lone surrogates as U+FFFD, both one character
for one (it panics on some texts with U+3000 and refuses surrogates); whatever it leaves out becomes a sentence of its
own; if it still panics, a plain rule takes over for that paragraph.
"""

import re
from collections.abc import Iterator

import sentencex

from qrag_jax.types import Span

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_WIDE_SPACE = re.compile(r"[^\S\x20\t\n\r]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_PLAIN_END = re.compile(r"[.!?\u3002\uff01\uff1f\u2026\u061f\u0964]+[\"'\u201d\u2019)\]\u300d\u300f]*\s*")


def split_sentences(text: str, language: str = "en") -> list[Span]:
    """Sentences of `text` as half-open character offsets, in order and not overlapping.

    `text[start:end]` has no outer white space and is never empty; every character that is not white space lies in
    exactly one span. A blank line always ends a sentence.

    Args:
        text: any string, lone surrogates included.
        language: ISO 639-1 code for abbreviations; an unknown one falls back inside `sentencex` to its default rules.
    """
    clean = _SURROGATE.sub("\ufffd", _WIDE_SPACE.sub(" ", text))
    spans: list[Span] = []
    for start, end in _paragraphs(text):
        spans.extend(_stripped(text, start, _cuts(clean[start:end], language)))
    return spans


def _paragraphs(text: str) -> Iterator[Span]:
    """Pieces between blank lines, with their offsets."""
    start = 0
    for match in _BLANK_LINE.finditer(text):
        if match.start() > start:
            yield start, match.start()
        start = match.end()
    if start < len(text):
        yield start, len(text)


def _cuts(paragraph: str, language: str) -> list[int]:
    """Sorted offsets at which `paragraph` is cut, 0 and its length among them."""
    try:
        borders = sentencex.get_sentence_boundaries(language, paragraph)  # pyright: ignore[reportAttributeAccessIssue]
        offsets = {border[name] for border in borders for name in ("start_index", "end_index")}
    except BaseException as error:  # pyo3's PanicException is no Exception and cannot be imported
        if type(error).__name__ != "PanicException":
            raise
        offsets = {match.end() for match in _PLAIN_END.finditer(paragraph)}
    return sorted({0, len(paragraph)} | {offset for offset in offsets if 0 < offset < len(paragraph)})


def _stripped(text: str, offset: int, cuts: list[int]) -> Iterator[Span]:
    """The pieces between neighbouring cuts (shifted by `offset`) without outer white space, empty ones left out."""
    for start, end in zip(cuts, cuts[1:], strict=False):
        piece = text[offset + start : offset + end]
        body = piece.strip()
        if body:
            first = offset + start + len(piece) - len(piece.lstrip())
            yield first, first + len(body)
