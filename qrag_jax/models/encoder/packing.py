"""Short rows of tokens laid side by side in wider ones, so that an encoder computes hardly any padding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

_SMALLEST_WIDTH, _WIDEST_PAIR = 64, 128
_TOKENS_A_ROW = 4  # a packed row takes width / 4 rows at most, which is room for all but the shortest texts


class Packing(NamedTuple):
    """Where n rows went. `sources` and `members` are those of the packed rows, `row` and `member` those of the n.

    Attributes:
        sources: place in the flattened table of rows; 0 where `members` is -1.
        members: which row of the packed row it is from, counted from 0; -1 is padding.
        row: packed row that holds row i.
        member: number of row i in it.
        num_used: packed rows that hold a token; they come first.
    """

    sources: Int[Array, "packed P"]
    members: Int[Array, "packed P"]
    row: Int[Array, " n"]
    member: Int[Array, " n"]
    num_used: Int[Array, ""]


def packed_width(width: int) -> int:
    """Width of packed rows for rows of `width` places: room for two of them, for one above 128.

    A token attends (masked) over all of its packed row: there, full rows would cost more than padding does. Short rows
    still share one.
    """
    wide = 2 * width if width <= _WIDEST_PAIR else width
    return -(-max(wide, _SMALLEST_WIDTH) // 8) * 8


def max_members(width: int) -> int:
    """Most rows that a packed row of `width` places takes."""
    return max(1, width // _TOKENS_A_ROW)


def num_packed_rows(num_rows: int, width: int) -> int:
    """Packed rows that n rows of `width` places need at most: what is known before their lengths are."""
    wide = packed_width(width)
    return -(-num_rows // min(wide // width, max_members(wide)))


def pack_rows(lengths: Int[Array, " n"], width: int) -> Packing:
    """Fills packed rows in order: a row that does not fit any more begins the next one.

    Which rows begin one is a chain, `next(i)` = first row that does not fit beside row i; who is on the chain is found
    by doubling, so that no device walks it step by step.

    Args:
        lengths: real tokens of each row, at its beginning.
        width: places of a row, at least any length.
    """
    lengths = jnp.asarray(lengths, jnp.int32)  # smaller integers would overflow
    n, wide = len(lengths), packed_width(width)
    ends = jnp.cumsum(lengths)
    begins = ends - lengths
    places = jnp.arange(n)
    fits = jnp.searchsorted(ends, begins + wide, side="right")
    following = jnp.append(jnp.minimum(fits, places + max_members(wide)), n)  # n: past the end, follows itself
    first = jnp.zeros(n + 1, bool).at[0].set(True)
    for _ in range(max(1, (n - 1).bit_length())):
        first = first.at[following].max(first)
        following = following[following]
    first = first[:n]
    row = jnp.cumsum(first) - 1
    opening = jax.lax.cummax(jnp.where(first, places, 0))
    member, start = places - opening, begins - begins[opening]

    inside = jnp.arange(width) < lengths[:, None]
    size = num_packed_rows(n, width) * wide
    to = jnp.where(inside, (row * wide + start)[:, None] + jnp.arange(width), size)
    sources = jnp.full(size, -1).at[to].set(jnp.arange(n * width).reshape(n, width), mode="drop").reshape(-1, wide)
    members = jnp.where(sources >= 0, member[sources // width], -1)
    return Packing(
        jnp.maximum(sources, 0), members, row, member, 1 + jnp.max(jnp.where(lengths > 0, row, -1), initial=-1)
    )
