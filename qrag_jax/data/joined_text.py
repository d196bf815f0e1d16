"""What the readers of the study's data sets share: one text from many pieces, and the usual file of a folder."""

from collections.abc import Sequence
from pathlib import Path

from qrag_jax.data.packed import plain_or_gz
from qrag_jax.types import InputError, Span, UsageError


def join_pieces(pieces: Sequence[str], gaps: Sequence[str] | str = " ") -> tuple[str, tuple[Span, ...]]:
    """The stripped pieces with a gap between neighbours, and the half-open character offsets of each.

    `text[start:end] == piece.strip()` for every piece; the gaps are all that lies between the spans.

    Args:
        pieces: at least one; the white space at the ends of each is dropped.
        gaps: one for all places, or a sequence with one for each of the len(pieces) - 1 places.

    Raises:
        InputError: no piece, a blank piece (named by its index), or a wrong number of gaps.
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


def find_file(path: Path, names: Sequence[str], what: str) -> Path:
    """`path` if it is a file, else the first of the usual `names` that the folder `path` holds, plain or as .gz.

    Raises:
        UsageError: neither; names what was looked for, and `what` says which data is expected.
    """
    for candidate in (path, *(plain_or_gz(path / name) for name in names)):
        if candidate.is_file():
            return candidate
    raise UsageError(f"{path}: neither a file nor a folder with {' or '.join(names)} (or .gz of it); expected {what}")
