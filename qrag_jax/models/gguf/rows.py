"""Rows of a tensor that stay as they are in a GGUF file, and become numbers when they are looked up."""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from qrag_jax.models.gguf.unpack import block_numbers


@struct.dataclass
class FileRows:
    """A table of which a few rows are read at a time, such as token embeddings.

    Attributes:
        raw: uint8 [rows, blocks, bytes of a block].
        kind: format of the blocks, one of `unpack.CODE_BITS`.
    """

    raw: Any
    kind: str = struct.field(pytree_node=False)

    def rows(self, ids: Int[Array, "*ids"]) -> Float[Array, "*ids num_in"]:
        """The numbers of some rows, float32."""
        blocks = self.raw[ids].reshape(-1, self.raw.shape[-1])
        return block_numbers(self.kind, blocks, jnp).reshape(*ids.shape, -1)
