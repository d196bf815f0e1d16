"""Block formats of GGUF files, taken apart into codes and their scales: number = scale * code + min.

Of a block of 32 numbers (Q4_0 to Q8_0), or of 256 in sub-blocks (the K formats). The functions take the bytes of whole
blocks as NumPy or JAX arrays, uint8 [blocks, bytes of a block], and give arrays of the same kind. What they read is
laid out in ggml's ggml-common.h; `gguf.dequantize` is what the tests compare with.

Rows of a tensor that stay as they are in a GGUF file, and become numbers when they are looked up.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

AnyArray = Any  # of NumPy or of JAX


class Unpacked(NamedTuple):
    """Blocks in parts.

    Attributes:
        codes: int8 or uint8 [blocks, numbers of a block].
        scales: float32 [blocks, groups]; neighbouring numbers share one.
        mins: likewise, or None for 0.
    """

    codes: AnyArray
    scales: AnyArray
    mins: AnyArray | None


def unpack_blocks(kind: str, blocks: AnyArray, xp: Any = np) -> Unpacked:
    """Takes blocks of one of `CODE_BITS` apart.

    Args:
        blocks: uint8 [blocks, bytes of a block].
        xp: numpy or jax.numpy, whichever `blocks` are of.
    """
    return _UNPACK[kind](blocks, xp)


def block_numbers(kind: str, blocks: AnyArray, xp: Any = np) -> AnyArray:
    """The numbers of blocks, float32 [blocks, numbers of a block]; see `unpack_blocks`."""
    codes, scales, mins = unpack_blocks(kind, blocks, xp)
    numbers = codes.reshape(*scales.shape, -1).astype(xp.float32) * scales[..., None]
    return (numbers if mins is None else numbers + mins[..., None]).reshape(len(blocks), -1)


def _halves(blocks: AnyArray, first: int, xp: Any) -> AnyArray:
    """The float16 number at byte `first` of each block, float32 [blocks, 1]."""
    pair = blocks[:, first : first + 2]
    if xp is np:
        return np.ascontiguousarray(pair).view("<f2").astype(np.float32)
    import jax

    return jax.lax.bitcast_convert_type(pair, xp.float16).astype(xp.float32)[:, None]


def _nibbles(packed: AnyArray, xp: Any) -> AnyArray:
    """[..., n] bytes -> [..., 2n] codes: first the low halves, then the high ones."""
    return xp.concatenate([packed & 15, packed >> 4], axis=-1)


def _bits(packed: AnyArray, xp: Any) -> AnyArray:
    """4 bytes -> their 32 bits, the lowest first."""
    return xp.unpackbits(packed, axis=1, bitorder="little")


def _q4_0(blocks: AnyArray, xp: Any) -> Unpacked:
    scales = _halves(blocks, 0, xp)
    return Unpacked(_nibbles(blocks[:, 2:], xp), scales, scales * -8)


def _q4_1(blocks: AnyArray, xp: Any) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 4:], xp), _halves(blocks, 0, xp), _halves(blocks, 2, xp))


def _q5_0(blocks: AnyArray, xp: Any) -> Unpacked:
    codes = _nibbles(blocks[:, 6:], xp) | (_bits(blocks[:, 2:6], xp) << 4)
    return Unpacked(codes.astype(xp.int8) - xp.int8(16), _halves(blocks, 0, xp), None)


def _q5_1(blocks: AnyArray, xp: Any) -> Unpacked:
    codes = _nibbles(blocks[:, 8:], xp) | (_bits(blocks[:, 4:8], xp) << 4)
    return Unpacked(codes.astype(xp.int8), _halves(blocks, 0, xp), _halves(blocks, 2, xp))


def _q8_0(blocks: AnyArray, xp: Any) -> Unpacked:
    codes = blocks[:, 2:]
    if xp is np:
        codes = codes.view(np.int8)
    else:
        import jax

        codes = jax.lax.bitcast_convert_type(codes, xp.int8)
    return Unpacked(codes, _halves(blocks, 0, xp), None)


def _six_bits(packed: AnyArray, xp: Any) -> tuple[AnyArray, AnyArray]:
    """12 bytes of Q4_K and Q5_K -> 8 scales and 8 mins of 6 bits each: the last four are spread over spare bits."""
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = xp.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    mins = xp.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return scales.astype(xp.float32), mins.astype(xp.float32)


def _q4_k(blocks: AnyArray, xp: Any) -> Unpacked:
    scales, mins = _six_bits(blocks[:, 4:16], xp)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32), xp).reshape(-1, 256)
    return Unpacked(codes, scales * _halves(blocks, 0, xp), -mins * _halves(blocks, 2, xp))


def _q5_k(blocks: AnyArray, xp: Any) -> Unpacked:
    scales, mins = _six_bits(blocks[:, 4:16], xp)
    # Bit j of byte l is the fifth bit of number l of sub-block j.
    fifth = (blocks[:, None, 16:48] >> xp.arange(8, dtype=xp.uint8)[:, None]) & 1
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32), xp).reshape(-1, 8, 32) | (fifth << 4)
    unpacked = scales * _halves(blocks, 0, xp), -mins * _halves(blocks, 2, xp)
    return Unpacked(codes.reshape(-1, 256).astype(xp.int8), *unpacked)


def _q6_k(blocks: AnyArray, xp: Any) -> Unpacked:
    # Two halves of 128 numbers: 64 bytes of low bits, and 32 bytes that hold two high bits for each of four quarters.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64), xp).reshape(-1, 2, 4, 32)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> xp.arange(0, 8, 2, dtype=xp.uint8)[:, None]) & 3
    codes = (low | (high << 4)).reshape(-1, 256).astype(xp.int8) - xp.int8(32)
    own = blocks[:, 192:208]
    if xp is np:
        own = np.ascontiguousarray(own).view(np.int8)
    else:
        import jax

        own = jax.lax.bitcast_convert_type(own, xp.int8)
    return Unpacked(codes, own.astype(xp.float32) * _halves(blocks, 208, xp), None)


_UNPACK: dict[str, Callable[[AnyArray, Any], Unpacked]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}  # fmt: skip
# Bits that a code of each format is kept in.
CODE_BITS: dict[str, Literal[4, 8]] = {kind: 4 if kind in ("Q4_0", "Q4_1", "Q4_K") else 8 for kind in _UNPACK}


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
