"""Where a chunk stands: relative positions of Q-RAG (eq. 6), absolute indices, or none."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Positions = Literal["relative", "absolute", "none"]


def relative_positions(
    indices: Int[Array, " chunks"],
    taken: Int[Array, " taken"],
    length: Int[Array, ""] | int,
    delta: float = 10.0,
    ell: float = 9.0,
) -> Float[Array, " chunks"]:
    """Position of every chunk relative to the chunks taken so far.

        rho(i) = j * delta + ell * (i - b_j) / (b_{j+1} - b_j)   for b_j <= i < b_{j+1},

    with bounds `b_0 = 0, b_j = i_j, b_{k+1} = length` of the taken document indices `i_1 < .. < i_k`. If index 0 is
    taken, interval 0 is empty and no chunk falls in it. Real-valued: neighbours keep distinct positions in long texts.

    Args:
        indices: document index of every chunk, in [0, length).
        taken: document indices of the taken chunks, ascending; entries >= `length` count as not taken.
        length: number of chunks in the document.
        delta: distance between the starts of two intervals.
        ell: extent of one interval, below `delta`.
    """
    length = jnp.asarray(length, indices.dtype)
    bounds = jnp.concatenate([jnp.zeros(1, indices.dtype), jnp.minimum(taken, length), length[None]])
    interval = jnp.sum(taken[None, :] <= indices[:, None], axis=1)
    start, stop = bounds[interval], bounds[interval + 1]
    # A chunk beyond the document (padding) may meet an empty interval: its position is unused, but must stay finite.
    width = jnp.maximum(stop - start, 1).astype(jnp.float32)
    fraction = (indices - start).astype(jnp.float32) / width
    return interval.astype(jnp.float32) * delta + ell * fraction


def chunk_positions(
    mode: Positions,
    indices: Int[Array, " chunks"],
    taken: Int[Array, " taken"],
    length: Int[Array, ""] | int,
    delta: float,
    ell: float,
) -> Float[Array, " chunks"]:
    """Positions in the chosen mode: `relative`, `absolute` (the document index itself), or `none` (all zero)."""
    if mode == "relative":
        return relative_positions(indices, taken, length, delta, ell)
    if mode == "absolute":
        return indices.astype(jnp.float32)
    return jnp.zeros(indices.shape, jnp.float32)
