"""Vectors of sentences and their distances: of neighbours, and the joint distance in blocks of rows."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from qrag_jax.types import Embed
from qrag_jax.unit_rows import checked_vectors

# (sentences int64 [b], first) -> float32 [b, n - first]: from these sentences to all from `first` on.
RowDistances = Callable[[np.ndarray, int], np.ndarray]

_BLOCK_ENTRIES = 2**22  # distances in memory at a time: 16 MiB, and some 5 times that for temporary results


def sentence_vectors(embed: Embed, texts: Sequence[str]) -> np.ndarray:
    """One unit vector for each text; a zero vector stays zero, so its cosine to everything is 0.

    Args:
        embed: texts -> real vectors [n, dim] of any length; called once, with all texts.

    Returns:
        float32 [n, dim].
    """
    if not texts:
        return np.zeros((0, 0), np.float32)
    vectors = checked_vectors(embed(texts), texts)
    return np.divide(vectors, _norms(vectors)[:, None], out=np.empty_like(vectors), casting="same_kind")


def _norms(vectors: np.ndarray) -> np.ndarray:
    """Euclidean norms, 1 for a zero vector; in float64, because the square of a large float32 overflows."""
    squares = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    return np.sqrt(np.where(squares == 0, 1, squares))


def neighbour_distances(vectors: np.ndarray) -> np.ndarray:
    """Cosine distances `1 - cos(v_i, v_{i+1})` of consecutive sentences, in [0, 2], not clamped; memory O(n * dim).

    Args:
        vectors: float32 [n, dim] from `sentence_vectors`.

    Returns:
        float64 [max(n - 1, 0)]; 1 next to a zero vector.
    """
    norms = _norms(vectors)  # 1 apart from rounding; dividing makes equal vectors 0 apart to 16 digits
    return 1 - np.einsum("nd,nd->n", vectors[:-1], vectors[1:], dtype=np.float64) / (norms[:-1] * norms[1:])


def joint_distances(vectors: np.ndarray, lambda_: float, num_sentences: int) -> RowDistances:
    """The joint distance of position and meaning, Eq. 1-3 of "Is Semantic Chunking Worth the Computational Cost?".

        d(a, b) = lambda * |a - b| / n + (1 - lambda) * (1 - max(cos(v_a, v_b), 0))

    Distances are computed on request, so no n by n matrix is ever in memory; a term without weight is not computed.
    Cosines are float64 rounded to float32. Float32 products would depend on the block that they are computed in, so
    equal sentences would not tie and another machine would make other chunks.

    Args:
        vectors: float32 [m, dim] of consecutive sentences, of length 1 or 0.
        lambda_: weight of the position in [0, 1].
        num_sentences: n of Eq. 2, the sentences of the whole document; at least m.

    Returns:
        A function (sentences int64 [b], first) -> float32 [b, m - first] in [0, 1].
    """
    positions = np.arange(len(vectors), dtype=np.float32)
    precise = vectors / _norms(vectors)[:, None] if lambda_ < 1 else None  # float64; the float32 ones are not kept

    def distances(rows: np.ndarray, first: int) -> np.ndarray:
        joint = np.zeros((len(rows), len(positions) - first), np.float32)
        if precise is not None:
            joint[:] = precise[rows] @ precise[first:].T
            np.clip(joint, 0, 1, out=joint)  # rounding lets a cosine exceed 1
            np.subtract(1, joint, out=joint)
            joint *= np.float32(1 - lambda_)
        if lambda_ > 0:
            apart = np.subtract.outer(positions[rows], positions[first:])
            np.abs(apart, out=apart)
            apart /= np.float32(num_sentences)  # divided first, so that k / n is the nearest float32
            apart *= np.float32(lambda_)
            joint += apart
        return joint

    return distances


def row_blocks(rows: np.ndarray, num_columns: int) -> Iterator[np.ndarray]:
    """`rows` in pieces whose distances to `num_columns` sentences take at most 16 MiB (or that are one row)."""
    size = max(_BLOCK_ENTRIES // max(num_columns, 1), 1)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
