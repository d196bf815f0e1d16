"""Vectors of length 1, so that a product of two is their cosine. NumPy only: every package may import it."""

import numpy as np
from jaxtyping import Bool, Float


def unit_rows(vectors: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """Rows divided by their length, in the type that they come in; a row of zeros, which has no direction, stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def are_unit(vectors: Float[np.ndarray, "n dim"], slack: float) -> Bool[np.ndarray, " n"]:
    """Which rows have length 1, but for `slack`, or are zeros, which have no direction; NaN is neither."""
    lengths = np.linalg.norm(vectors, axis=1)
    return (np.abs(lengths - 1) <= slack) | (lengths == 0)
