"""Spans of a text: stripping and joining them, and joining many pieces into one text with the place of each."""

import re
from collections.abc import Iterable, Sequence

from qrag_jax.types import InputError, Span

_BLANK = re.compile(r"\s*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def readable(text: str) -> str:
    """The text with lone surrogates as U+FFFD, one for one, because tokenizers and files refuse surrogates."""
    return _SURROGATE.sub("\ufffd", text)


def is_blank(text: str, start: int, end: int) -> bool:
    """True if `text[start:end]` is only white space; stops at the first other character and copies nothing."""
    found = _BLANK.match(text, start, end)
    return found is None or found.end() >= min(end, len(text))


def strip_span(text: str, start: int, end: int) -> Span | None:
    """`[start, end)` without outer white space; None if nothing is left."""
    piece = text[start:end]
    body = piece.strip()
    first = start + len(piece) - len(piece.lstrip())
    return (first, first + len(body)) if body else None


def cut_text(text: str, cuts: Sequence[int]) -> list[Span]:
    """The pieces between neighbouring cuts without outer white space; blank ones are left out."""
    pieces = (strip_span(text, start, end) for start, end in zip(cuts, cuts[1:], strict=False))
    return [piece for piece in pieces if piece]


def join_spans(text: str, spans: Iterable[Span]) -> tuple[Span, ...]:
    """Ordered spans; those with only blank space between them are joined."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and is_blank(text, joined[-1][1], start):
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return tuple(joined)


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """The union of spans: ordered, those that overlap or touch as one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def join_pieces(pieces: Sequence[str], gaps: Sequence[str] | str = " ") -> tuple[str, tuple[Span, ...]]:
    """The stripped pieces with a gap between neighbours, and the half-open character offsets of each.

    `text[start:end] == piece.strip()` for every piece; only the gaps are between the spans.

    Args:
        pieces: at least one; the white space at the ends of each is dropped.
        gaps: one for all places, or a sequence with one for each of the len(pieces) - 1 places.
    """
    between = [gaps] * (len(pieces) - 1) if isinstance(gaps, str) else list(gaps)
    if not pieces or len(between) != len(pieces) - 1:
        raise InputError(
            f"{len(pieces)} pieces and {len(between)} gaps; give at least one piece, and one gap fewer than pieces"
        )
    parts: list[str] = []
    spans: list[Span] = []
    end = 0
    for index, (piece, gap) in enumerate(zip(pieces, ["", *between], strict=True)):
        stripped = piece.strip()
        if not stripped:
            raise InputError(f"piece {index} of {len(pieces)} is blank; leave it out before joining")
        start = end + len(gap)
        end = start + len(stripped)
        parts += [gap, stripped]
        spans.append((start, end))
    return "".join(parts), tuple(spans)
