"""Vectors of length 1, so that a product of two is their cosine. NumPy only: every package may import it."""

import numpy as np
from jaxtyping import Bool, Float


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
