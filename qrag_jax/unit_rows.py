"""Vectors that an embedder gave, and those of length 1, so that a product of two is their cosine. NumPy only."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from qrag_jax.errors import InputError


def checked_vectors(
    given: object, texts: Sequence[str], dtype: type[np.floating] = np.float32
) -> Float[np.ndarray, "n dim"]:
    """The vectors of an embedder, checked: one of finite numbers for each text."""
    try:
        with np.errstate(over="ignore"):  # what is too large for the type is infinite, and refused
            vectors = np.asarray(given, dtype)
    except (TypeError, ValueError) as error:
        raise InputError(f"embedder: gave no array of numbers for {len(texts)} texts ({error})") from error
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
        raise InputError(f"embedder: gave {vectors.shape} for {len(texts)} texts: ({len(texts)}, dim) is needed")
    is_finite = np.isfinite(vectors)
    if not is_finite.all():
        first = int(np.argmin(is_finite.all(axis=1)))
        wrong = vectors[first][~is_finite[first]][0]
        raise InputError(f"embedder: the vector of {texts[first][:60]!r} is not finite, it holds {wrong}; mend it")
    return vectors


def unit_rows(vectors: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """Rows divided by their length, in the type that they come in; a row of zeros, which has no direction, stays."""
    lengths, lost = _lengths(vectors)
    if not lost.any():
        return vectors / np.where(lengths > 0, lengths, 1)[:, None]
    found = vectors.copy()
    found[lost] /= np.abs(vectors[lost]).max(axis=1, keepdims=True)
    lengths[lost] = np.linalg.norm(found[lost], axis=1)  # the largest number is 1, so sqrt(dim) at most
    return found / np.where(lengths > 0, lengths, 1)[:, None]


def are_unit(vectors: Float[np.ndarray, "n dim"], slack: float) -> Bool[np.ndarray, " n"]:
    """Which rows have length 1, but for `slack`, or are zeros, which have no direction; NaN is neither."""
    lengths, lost = _lengths(vectors)
    return ~lost & ((np.abs(lengths - 1) <= slack) | (lengths == 0))


def _lengths(vectors: Float[np.ndarray, "n dim"]) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Lengths of the rows, and of which they say nothing: squares overflowed, or were too small to be added up."""
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=1)
    kind = np.finfo(lengths.dtype)
    least = np.sqrt(kind.tiny / kind.eps)  # below it what squares lose is no longer a rounding error
    lost = ~((lengths >= least) & (lengths < np.inf))
    lost[lost] = vectors[lost].any(axis=1)
    return lengths, lost
