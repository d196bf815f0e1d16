"""Vectors as one bit a number, the sign, to leave out most of a million vectors before others are compared exactly.

A question keeps four bits a number, as whole numbers u from 0 to 15 that are `_STEP` of its mean size apart:

    q_j ~ step (u_j - 7.5),   u_j = sum_i 2^i u_ij        with bits u_ij, i = 0 to 3
    sum_j (u_j - 7.5) s_j = (15 dim) / 2 - sum_i 2^i h_i  with signs s_j = -1 or 1

where h_i counts the j at which the bit u_ij differs from the sign. So vectors are ordered by `sum_i 2^i h_i`, their
distance, which needs no product. How many of the nearest vectors are among the first by distance can only be measured.
"""

from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int, UInt16, UInt32

if TYPE_CHECKING:
    import jax

_BITS = 4
_STEP = 0.3352  # the best of 16 equal steps for normally distributed numbers (Max 1960, table II)
_SAMPLE, _PLACE = 32_768, 32  # distances that are sampled for a bound of the first, and how many of them are within it
_CACHED_ROWS = 4096  # compared at a time by NumPy: 768 KB, which stay in a cache of the processor
_MOST = 2  # times as many rows as wanted, where many have one distance


def signs_of(vectors: Float[np.ndarray, "n dim"]) -> UInt32[np.ndarray, "n words"]:
    """The signs of vectors, 32 in a number; 1 is above 0."""
    return _packed(vectors > 0)


class Signs:
    """The signs of many vectors, compared by JAX, and by NumPy for the first question: to load JAX takes longer."""

    def __init__(self, signs: UInt32[np.ndarray, "n words"], gone: Int[np.ndarray, " _"] | None = None) -> None:
        """Takes what `signs_of` returns.

        Args:
            signs: of all vectors.
            gone: rows that are not searched.
        """
        self._signs, self._gone = signs, gone
        self._is_first = True

    def __len__(self) -> int:
        return len(self._signs)

    def distances(self, question: Float[np.ndarray, " dim"]) -> UInt16[np.ndarray, " n"]:
        """The distance of every vector from a question; right for up to 4,369 dimensions."""
        step = _STEP * np.sqrt(np.mean(question.astype(np.float64) ** 2)) or 1.0
        most = 1 << _BITS
        levels = np.clip(np.floor(question / step) + most // 2, 0, most - 1).astype(int)
        bits = _packed(np.stack([(levels >> order) & 1 for order in range(_BITS)]) > 0)
        if self._is_first:
            self._is_first = False
            return self._slow_distances(bits)
        return np.asarray(_distances()(self._columns, bits))

    def _slow_distances(self, bits: UInt32[np.ndarray, "bits words"]) -> UInt16[np.ndarray, " n"]:
        weights = np.repeat(2.0 ** np.arange(_BITS), bits.shape[1]).astype(np.float32)
        found = np.empty(len(self._signs), np.uint16)
        for start in range(0, len(found), _CACHED_ROWS):
            some = slice(start, start + _CACHED_ROWS)
            differ = np.bitwise_count(self._signs[some, None] ^ bits)
            found[some] = differ.reshape(len(differ), -1) @ weights
        return found

    def first(self, question: Float[np.ndarray, " dim"], number: int) -> Int[np.ndarray, " _"]:
        """About the `number` rows of the smallest distances, in their order; the bound is that of a sample.

        Rows that are gone may be among them only if others are fewer.
        """
        distances = self.distances(question)
        if self._gone is not None:
            distances = distances.copy()
            distances[self._gone] = np.iinfo(distances.dtype).max
        every = max(1, min(len(distances) // _SAMPLE, number // _PLACE))
        some, place = distances[::every], number // every
        if place >= len(some):
            return np.arange(len(distances))
        rows = np.flatnonzero(distances <= np.partition(some, place)[place])
        if len(rows) > _MOST * number:
            rows = np.sort(rows[np.argsort(distances[rows], kind="stable")[: _MOST * number]])
        return rows

    @cached_property
    def _columns(self) -> "jax.Array":
        """uint32 [words, n]: so the compiler adds up many vectors at a time."""
        import jax.numpy as jnp

        return jnp.asarray(np.ascontiguousarray(self._signs.T))


@cache
def _distances() -> Callable[..., "jax.Array"]:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def distances(signs: jax.Array, bits: jax.Array) -> jax.Array:
        each = (jax.lax.population_count(signs ^ bits[order, :, None]).sum(0) << order for order in range(_BITS))
        return sum(each, jnp.zeros((), signs.dtype)).astype(jnp.uint16)

    return distances


def _packed(bits: np.ndarray) -> UInt32[np.ndarray, "n words"]:
    """Bits [n, dim], 32 in a number, filled up with zeros."""
    packed = np.packbits(bits, axis=1)
    return np.ascontiguousarray(np.pad(packed, ((0, 0), (0, -packed.shape[1] % 4)))).view(np.uint32)
