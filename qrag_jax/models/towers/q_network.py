"""The two-tower Q network as a bundle of pure functions; text and latent towers fill the same three slots."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

PyTree = Any
AnyArray = Any  # a NumPy array on the host, a JAX array on the device and inside jit


class Network(NamedTuple):
    """Two towers that meet in an inner product: `Q(s, a) = <states(s), R(rho) actions(a)>`.

    Attributes:
        init: key -> params, a dict with the subtrees `state` and `action`.
        actions: (params, table) -> [rows, dim], one vector for every row of the chunk table, unrotated.
        states: (params, questions, table, taken int32 [batch, t]) -> [batch, dim]; `taken` names table rows in
            document order. `t` is static: states of different steps have different shapes.
        dim: width of the vectors that meet.
        num_unrotated: leading components of them that positions do not turn; with some there is one Q head.
    """

    init: Callable[[jax.Array], PyTree]
    actions: Callable[[PyTree, PyTree], jax.Array]
    states: Callable[[PyTree, PyTree, PyTree, jax.Array], jax.Array]
    dim: int
    num_unrotated: int = 0

    @property
    def num_rotated(self) -> int:
        """Components that positions turn."""
        return self.dim - self.num_unrotated


@struct.dataclass
class VectorRows:
    """Frozen text vectors, one row per text: the inputs of latent towers."""

    vectors: AnyArray  # float32 [rows, dim]

    def take(self, rows: jax.Array) -> "VectorRows":
        """The given rows, in their order; a negative index gives an arbitrary row."""
        return VectorRows(self.vectors[rows])


@struct.dataclass
class TokenRows:
    """Token ids `[CLS] text [SEP]`, one row per text, padded on the right: the inputs of text towers."""

    tokens: AnyArray  # int32 [rows, width]
    lengths: AnyArray  # int32 [rows]

    def take(self, rows: jax.Array) -> "TokenRows":
        """The given rows, in their order; of a negative one no token is valid, so that encoding it costs little."""
        return TokenRows(self.tokens[rows], jnp.where(rows >= 0, self.lengths[rows], 0))
