"""Rotary positions on pooled vectors, and the score of a state against rotated actions (Q-RAG, section 3.2, eq. 6).

Pairs are interleaved: (2k, 2k+1) turn by `position * theta ** (-2k / dim)`. With several Q heads each head is
a slice of the vector with its own frequency table over its own `dim / num_heads` components.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qrag_jax.types import UsageError


def inverse_frequencies(dim: int, num_heads: int = 1, theta: float = 1e4) -> np.ndarray:
    """Radians per unit of position for every component pair, float32 [dim / 2], head after head.

    Raises:
        UsageError: `dim` does not split into `num_heads` slices of even width.
    """
    if num_heads < 1 or dim % (2 * num_heads):
        raise UsageError(f"dim={dim} must split into num_heads={num_heads} slices of even width: choose another width")
    width = dim // num_heads
    return np.tile(theta ** (-np.arange(0, width, 2, dtype=np.float64) / width), num_heads).astype(np.float32)


def rotation_table(
    positions: Float[Array, "..."], frequencies: Float[Array, " pairs"] | np.ndarray
) -> tuple[Float[Array, "... pairs"], Float[Array, "... pairs"]]:
    """Cosines and sines of `position * frequency`; positions and angles stay in float32 (bf16 has too few values)."""
    angles = positions.astype(jnp.float32)[..., None] * jnp.asarray(frequencies, jnp.float32)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "... dim"], positions: Float[Array, "..."], num_heads: int = 1, theta: float = 1e4
) -> Float[Array, "... dim"]:
    """Turns every component pair of `x` by its angle at `positions`; position 0 is the identity."""
    cos, sin = rotation_table(positions, inverse_frequencies(x.shape[-1], num_heads, theta))
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
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
        table: cosines and sines of `rotation_table` for every chunk; None leaves the actions unrotated.
    """
    if table is None:
        products = actions * state
        return products.reshape(len(actions), num_heads, -1).sum(-1).T
    cos, sin = table
    s0, s1 = state[0::2], state[1::2]
    a0, a1 = actions[:, 0::2], actions[:, 1::2]
    products = cos * (s0 * a0 + s1 * a1) + sin * (s1 * a0 - s0 * a1)
    return products.reshape(len(actions), num_heads, -1).sum(-1).T
