"""Rotary positions on pooled vectors, and the score of a state against rotated actions (Q-RAG, section 3.2, eq. 7).

Pairs are interleaved: (2k, 2k+1) turn by `position * theta ** (-2k / dim)`. With several Q heads each head is
a slice of the vector with its own frequency table over its own `dim / num_heads` components.

A chunk's position is relative to the chunks that were taken (Q-RAG, eq. 6), absolute, or none.
"""

from math import factorial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qrag_jax.types import UsageError

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


def inverse_frequencies(dim: int, num_heads: int = 1, theta: float = 1e4) -> np.ndarray:
    """Radians per unit of position for every component pair, float32 [dim / 2], head after head."""
    if num_heads < 1 or dim % (2 * num_heads):
        raise UsageError(f"dim={dim} must split into num_heads={num_heads} slices of even width: choose another width")
    width = dim // num_heads
    return np.tile(theta ** (-np.arange(0, width, 2, dtype=np.float64) / width), num_heads).astype(np.float32)


def rotation_table(
    positions: Float[Array, "..."], frequencies: Float[Array, " pairs"] | np.ndarray, small_angles: bool = False
) -> tuple[Float[Array, "... pairs"], Float[Array, "... pairs"]]:
    """Cosines and sines of `position * frequency`; positions and angles stay in float32 (bf16 has too few values).

    Args:
        small_angles: no angle exceeds 1e4 radians, as is sure of relative positions: `cos_sin` may be used.
    """
    angles = positions.astype(jnp.float32)[..., None] * jnp.asarray(frequencies, jnp.float32)
    return cos_sin(angles) if small_angles else (jnp.cos(angles), jnp.sin(angles))


def cos_sin(angles: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Cosine and sine of angles up to 1e4 radians, to 1.2e-7: a quarter of the time of XLA's own pair on CPU.

    The angle is reduced to [-pi/4, pi/4] by pi/2 in three parts (Cody and Waite), of which the first two leave exact
    products; there Taylor's polynomials of degree 9 and 8 are as exact as float32 is. XLA calls one function for each.
    """
    quarter = jnp.round(angles * np.float32(2 / np.pi))
    rest = angles
    for part in _HALF_PI_PARTS:
        rest = rest - quarter * part
    square = rest * rest
    sine, cosine = jnp.float32(_SINE[-1]), jnp.float32(_COSINE[-1])
    for odd, even in zip(_SINE[-2::-1], _COSINE[-2::-1], strict=True):
        sine, cosine = odd + square * sine, even + square * cosine
    sine = sine * rest
    turn = quarter.astype(jnp.int32) & 3
    swapped = (turn & 1) == 1
    first, second = jnp.where(swapped, sine, cosine), jnp.where(swapped, cosine, sine)
    return jnp.where((turn == 1) | (turn == 2), -first, first), jnp.where(turn >= 2, -second, second)


# pi/2 = 1.5703125 + 2^-11 * 0.99072265625 + what is left: few bits each, so that products with whole numbers are exact.
_HALF_PI_PARTS = tuple(np.float32(part) for part in (1.5703125, 4.837512969970703125e-4, 7.549789948768648e-8))
_SINE = tuple(np.float32((-1) ** k / factorial(2 * k + 1)) for k in range(5))
_COSINE = tuple(np.float32((-1) ** k / factorial(2 * k)) for k in range(5))


def turn_back(
    x: Float[Array, "... dim"], cos: Float[Array, "... pairs"], sin: Float[Array, "... pairs"]
) -> Float[Array, "... dim"]:
    """`R(-p) x`: every component pair turned back by the angle of its cosine and sine.

    So a state meets rows that are not turned: `<s, R(p) a> = <R(-p) s, a>`.
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = jnp.stack([even * cos + odd * sin, odd * cos - even * sin], axis=-1)
    return turned.reshape(x.shape)


def rotary_scores(
    state: Float[Array, " dim"],
    actions: Float[Array, "chunks dim"],
    table: tuple[Float[Array, "chunks pairs"], Float[Array, "chunks pairs"]] | None,
    num_heads: int = 1,
) -> Float[Array, "heads chunks"]:
    """`Q_h(s, a_i) = <s_h, R(rho_i) a_{i,h}>` without building the rotated rows.

        <s, R(p) a> = sum_k cos(p th_k) (s_2k a_2k + s_2k+1 a_2k+1) + sin(p th_k) (s_2k+1 a_2k - s_2k a_2k+1)

    Args:
        table: cosines and sines of `rotation_table` for every chunk; None leaves the actions unrotated. A table of
            fewer pairs than the vectors have is of their last components; those before are not turned.
    """
    if table is None:
        heads = actions.reshape(len(actions), num_heads, -1)
        return jnp.einsum("nhw,hw->hn", heads, state.reshape(num_heads, -1), precision=_EXACT)
    cos, sin = table
    if fixed := len(state) - 2 * cos.shape[-1]:
        if num_heads > 1:
            raise UsageError(
                f"env.num_q_heads={num_heads} must be 1 for towers that rotate only part of each vector by position"
            )
        still = jnp.matmul(actions[:, :fixed], state[:fixed], precision=_EXACT)
        return still[None] + rotary_scores(state[fixed:], actions[:, fixed:], table)
    s0, s1 = state[0::2], state[1::2]
    a0, a1 = actions[:, 0::2], actions[:, 1::2]
    products = (cos * (s0 * a0 + s1 * a1) + sin * (s1 * a0 - s0 * a1)).reshape(len(actions), num_heads, -1)
    # Summed by a matrix product: XLA on CPU is much slower at a sum that it fuses with the products.
    return jnp.matmul(products, jnp.ones(products.shape[-1], products.dtype), precision=_EXACT).T


_EXACT = jax.lax.Precision.HIGHEST  # float32 on accelerators too: angles of long texts need their digits
