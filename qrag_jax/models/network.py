"""The two-tower Q network as a bundle of pure functions; text and latent towers fill the same three slots."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import struct

PyTree = Any


class Network(NamedTuple):
    """Two towers that meet in an inner product: `Q(s, a) = <states(s), R(rho) actions(a)>`.

    Attributes:
        init: key -> params, a dict with the subtrees `state` and `action`.
        actions: (params, table) -> [rows, dim], one vector for every row of the chunk table, unrotated.
        states: (params, questions, table, taken int32 [batch, t]) -> [batch, dim]; `taken` names table rows in
            document order. `t` is static: states of different steps have different shapes.
        dim: width of the vectors that meet.
    """

    init: Callable[[jax.Array], PyTree]
    actions: Callable[[PyTree, PyTree], jax.Array]
    states: Callable[[PyTree, PyTree, PyTree, jax.Array], jax.Array]
    dim: int


@struct.dataclass
class VectorRows:
    """Frozen text vectors, one row a text: what the latent towers read."""

    vectors: jax.Array  # float32 [rows, dim]

    def take(self, rows: jax.Array, buckets: tuple[tuple[int, int], ...] = ()) -> "VectorRows":
        """The given rows, in their order; vectors have one width, so `buckets` does not matter."""
        del buckets
        return VectorRows(self.vectors[rows])


@struct.dataclass
class TokenRows:
    """Token ids `[CLS] text [SEP]`, one row a text, padded on the right: what the text towers read.

    `buckets` splits the rows into groups of (rows, width), whose rows are no longer than the group's width: each group
    is encoded at its own width. Empty: all rows are one group. It is static, so every new value costs a compilation.
    """

    tokens: jax.Array  # int32 [rows, width]
    lengths: jax.Array  # int32 [rows]
    buckets: tuple[tuple[int, int], ...] = struct.field(pytree_node=False, default=())

    def take(self, rows: jax.Array, buckets: tuple[tuple[int, int], ...] = ()) -> "TokenRows":
        """The given rows, in their order, which must fit `buckets`."""
        return TokenRows(self.tokens[rows], self.lengths[rows], buckets)
