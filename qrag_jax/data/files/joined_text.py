"""One text from many pieces, with the place of each."""

from collections.abc import Sequence

from qrag_jax.types import InputError, Span


def join_pieces(pieces: Sequence[str], gaps: Sequence[str] | str = " ") -> tuple[str, tuple[Span, ...]]:
    """The stripped pieces with a gap between neighbours, and the half-open character offsets of each.

    `text[start:end] == piece.strip()` for every piece; the gaps are all that lies between the spans.

    Args:
        pieces: at least one; the white space at the ends of each is dropped.
        gaps: one for all places, or a sequence with one for each of the len(pieces) - 1 places.
    """
    between = [gaps] * (len(pieces) - 1) if isinstance(gaps, str) else list(gaps)
    if not pieces or len(between) != len(pieces) - 1:
        raise InputError(
            f"{len(pieces)} pieces and {len(between)} gaps: join at least one piece, with one gap fewer than pieces"
        )
    parts: list[str] = []
    spans: list[Span] = []
    end = 0
    for index, (piece, gap) in enumerate(zip(pieces, ["", *between], strict=True)):
        stripped = piece.strip()
        if not stripped:
            raise InputError(f"piece {index} of {len(pieces)} is blank: leave it out before joining")
        start = end + len(gap)
        end = start + len(stripped)
        parts += [gap, stripped]
        spans.append((start, end))
    return "".join(parts), tuple(spans)
