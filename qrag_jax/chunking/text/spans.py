"""Spans of a text: what is blank in them, what is left without the blank ends, what joins them."""

import re
from collections.abc import Iterable, Sequence

from qrag_jax.types import Span

_BLANK = re.compile(r"\s*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def readable(text: str) -> str:
    """The text with lone surrogates as U+FFFD, one character for one: no tokenizer and no file takes them."""
    return _SURROGATE.sub("\ufffd", text)


def is_blank(text: str, start: int, end: int) -> bool:
    """Whether `text[start:end]` is nothing but white space; stops at the first other character and copies nothing."""
    found = _BLANK.match(text, start, end)
    return found is None or found.end() >= min(end, len(text))


def strip_span(text: str, start: int, end: int) -> Span | None:
    """`[start, end)` without outer white space; None where nothing is left."""
    piece = text[start:end]
    body = piece.strip()
    first = start + len(piece) - len(piece.lstrip())
    return (first, first + len(body)) if body else None


def cut_text(text: str, cuts: Sequence[int]) -> list[Span]:
    """The pieces between neighbouring cuts without outer white space, blank ones left out."""
    pieces = (strip_span(text, start, end) for start, end in zip(cuts, cuts[1:], strict=False))
    return [piece for piece in pieces if piece]


def join_spans(text: str, spans: Iterable[Span]) -> tuple[Span, ...]:
    """Ordered spans, those with only blank space between them as one."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and is_blank(text, joined[-1][1], start):
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return tuple(joined)
