"""Checks vectors of an embedder and scales them to length 1, so their products are cosines. NumPy only."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from qrag_jax.errors import InputError


def checked_vectors(
    given: object, texts: Sequence[str], dtype: type[np.floating] = np.float32
) -> Float[np.ndarray, "n dim"]:
    """The vectors of an embedder, after a check: finite numbers, one vector for each text."""
    try:
        with np.errstate(over="ignore"):  # numbers too large for the type become infinite, and are refused
            vectors = np.asarray(given, dtype)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"embedder: gave no array of numbers for {len(texts)} texts ({error}); return float32 [n, dim]"
        ) from error
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
        raise InputError(f"embedder: gave {vectors.shape} for {len(texts)} texts; return ({len(texts)}, dim)")
    is_finite = np.isfinite(vectors)
    if not is_finite.all():
        first = int(np.argmin(is_finite.all(axis=1)))
        wrong = vectors[first][~is_finite[first]][0]
        raise InputError(f"embedder: the vector of {texts[first][:60]!r} is not finite, it has {wrong}; fix it")
    return vectors


def unit_rows(vectors: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """Rows scaled to length 1, in their own type; a row of zeros stays, because it has no direction."""
    lengths, lost = _lengths(vectors)
    if not lost.any():
        return vectors / np.where(lengths > 0, lengths, 1)[:, None]
    found = vectors.copy()
    found[lost] /= np.abs(vectors[lost]).max(axis=1, keepdims=True)
    lengths[lost] = np.linalg.norm(found[lost], axis=1)  # the largest number is 1, so at most sqrt(dim)
    return found / np.where(lengths > 0, lengths, 1)[:, None]


def are_unit(vectors: Float[np.ndarray, "n dim"], slack: float) -> Bool[np.ndarray, " n"]:
    """Which rows have length 1 within `slack`, or are zeros, which have no direction; False for NaN."""
    lengths, lost = _lengths(vectors)
    return ~lost & ((np.abs(lengths - 1) <= slack) | (lengths == 0))


def _lengths(vectors: Float[np.ndarray, "n dim"]) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Lengths of the rows, and which of them are wrong because squares overflowed or vanished."""
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=1)
    kind = np.finfo(lengths.dtype)
    least = np.sqrt(kind.tiny / kind.eps)  # below it, squares lose more than a rounding error
    lost = ~((lengths >= least) & (lengths < np.inf))
    lost[lost] = vectors[lost].any(axis=1)
    return lengths, lost
