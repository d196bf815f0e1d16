"""Matrices of few bits a number: codes, and a scale (and a least number) for every group of inputs of an output.

    number[i, o] = scale[i // group, o] * code[i, o] + min[i // group, o]

They lie in tiles of `LANES` outputs, so that neighbouring outputs, which a processor computes together, stand side by
side: codes [tiles, num_in, LANES] int8, or two a byte: in a group of 2h inputs, byte i holds input i in its low half
and input i + h in its high one. Scales and mins are float16 [tiles, num_in / group, LANES].

On CPU the products come from `kernels.py`, if Numba is there (extra `cpu`). Everywhere else the numbers are written out
and multiplied as any matrix.
"""

import contextlib
import importlib.util
import math
import mmap
import pickle  # noqa: TID251 (its error alone)
import platform
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from qrag_jax.types import InputError, UsageError

LANES = 64
GROUP = 32  # of `quantise`
_ROWS_AT_ONCE = 4
_MULTIPLY = "qrag_jax_block_multiply"
_LARGEST_CODE = 127
_GROUPS = (16, 32)  # that the kernels know

AnyArray = Any  # an array of NumPy or JAX, or its shape


@struct.dataclass
class BlockMatrix:
    """A matrix [num_in, num_out]; see above.

    Attributes:
        codes: int8 [tiles, num_in, LANES], or uint8 [tiles, num_in / 2, LANES] with two codes of [0, 16) a byte.
        scales: float16 [tiles, groups, LANES].
        mins: likewise; None is 0.
        num_out: outputs; what the last tile has beyond them is 0.
    """

    codes: AnyArray
    scales: AnyArray
    mins: AnyArray | None
    num_out: int = struct.field(pytree_node=False)

    @property
    def is_packed(self) -> bool:
        """True if two codes share a byte."""
        return self.codes.dtype == np.uint8

    @property
    def num_in(self) -> int:
        """Inputs."""
        return self.codes.shape[1] * (2 if self.is_packed else 1)

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.num_in // self.scales.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(num_in, num_out), as of a kernel."""
        return self.num_in, self.num_out

    @property
    def num_bytes(self) -> int:
        """Bytes of all of it."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))


class Rows(NamedTuple):
    """Some rows of a matrix as files hold them, a row an output.

    Attributes:
        codes: [n, num_in], int8; of 4 bits uint8 below 16.
        scales: [n, groups] of 16 or 32 inputs.
        mins: likewise, or None.
    """

    codes: np.ndarray
    scales: np.ndarray
    mins: np.ndarray | None = None


def block_matrix(parts: Iterable[Rows], num_out: int, *, bits: Literal[4, 8] = 8) -> BlockMatrix:
    """A matrix (NumPy arrays) from its rows.

    Args:
        parts: in order; all but the last of a multiple of `LANES` rows.
        num_out: rows of all of them together.
    """
    made: list[np.ndarray] = []
    first = 0
    for codes, scales, mins in parts:
        leaves = [_in_bytes(codes, scales, bits), scales.astype(np.float16)]
        leaves += [] if mins is None else [mins.astype(np.float16)]
        if not made:
            made = [_empty((-(-num_out // LANES), leaf.shape[1], LANES), leaf.dtype) for leaf in leaves]
        for leaf, whole in zip(leaves, made, strict=True):
            tiles = whole[first // LANES : -(-(first + len(leaf)) // LANES)]
            tiles[:] = _tiled(leaf)
        first += len(codes)
    return BlockMatrix(made[0], made[1], made[2] if len(made) == 3 else None, num_out)


def _empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Zeros in memory of their own: JAX takes them without a copy, and they go back to the system when they are let go.

    In large pages where the system has them, as each product reads all of it.
    """
    size = max(1, math.prod(shape) * dtype.itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


def _in_bytes(codes: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    if bits == 8:
        return codes.astype(np.int8, copy=False)
    low, high = np.moveaxis(codes.reshape(*scales.shape, 2, -1), 2, 0)
    return (low | (high << 4)).reshape(len(codes), -1)


def _tiled(rows: np.ndarray) -> np.ndarray:
    """[n, k] -> [tiles, k, LANES]; what is not there is 0."""
    padded = rows if len(rows) % LANES == 0 else np.pad(rows, ((0, -len(rows) % LANES), (0, 0)))
    return padded.reshape(-1, LANES, rows.shape[1]).swapaxes(1, 2)


def quantise(rows: Float[np.ndarray, "n num_in"]) -> Rows:
    """The nearest rows of 8 bits: in groups of 32 inputs, scale = largest size / 127, as Q8_0 of llama.cpp.

    No number is off by more than half a scale. The inputs must be a multiple of 32.
    """
    groups = np.asarray(rows, np.float32).reshape(len(rows), -1, GROUP)
    # Rounded first, upwards: codes are of the scale that is kept, and none is beyond the largest. Near 0, where float16
    # has few numbers, the nearest one may be half as large.
    exact = np.abs(groups).max(axis=2) / np.float32(_LARGEST_CODE)
    scales = exact.astype(np.float16)
    scales = np.where(scales < exact, np.nextafter(scales, np.float16(np.inf)), scales)
    divisors = np.where(scales > 0, scales, np.float16(1)).astype(np.float32)
    codes = np.clip(np.rint(groups / divisors[..., None]), -_LARGEST_CODE, _LARGEST_CODE)
    return Rows((codes * (scales > 0)[..., None]).astype(np.int8).reshape(rows.shape), scales)


def same_form(matrices: Sequence[Any]) -> bool:
    """True if all are block matrices that `concatenated` can make one of."""
    if not all(isinstance(each, BlockMatrix) and each.num_out % LANES == 0 for each in matrices):
        return False
    return len({(each.is_packed, each.num_in, each.group, each.mins is None) for each in matrices}) == 1


def concatenated(matrices: Sequence[BlockMatrix]) -> BlockMatrix:
    """One matrix with the outputs of all, of `same_form`; of JAX where they are, else of NumPy."""
    join = jnp.concatenate if isinstance(matrices[0].codes, jax.Array) else _concatenate
    codes, scales = (join([getattr(each, part) for each in matrices]) for part in ("codes", "scales"))
    mins = [each.mins for each in matrices if each.mins is not None]
    return BlockMatrix(codes, scales, join(mins) if mins else None, sum(each.num_out for each in matrices))


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    whole = _empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    return np.concatenate(arrays, out=whole)


def dequantised(matrix: BlockMatrix) -> Float[Array, "num_in num_out"]:
    """All numbers, float32."""
    return jnp.swapaxes(_tile_numbers(matrix.codes, matrix), 0, 1).reshape(matrix.num_in, -1)[:, : matrix.num_out]


def _tile_numbers(codes: Any, matrix: BlockMatrix) -> Float[Array, "tiles num_in lanes"]:
    tiles, groups, lanes = matrix.scales.shape
    own = codes.reshape(tiles, groups, -1, lanes)
    if matrix.is_packed:
        own = jnp.concatenate([own & 15, own >> 4], axis=2)
    numbers = own.astype(jnp.float32) * matrix.scales.astype(jnp.float32)[:, :, None]
    if matrix.mins is not None:
        numbers += matrix.mins.astype(jnp.float32)[:, :, None]
    return numbers.reshape(tiles, -1, lanes)


def columns(matrix: BlockMatrix, ids: Int[Array, "*ids"]) -> Float[Array, "*ids num_in"]:
    """The columns of some outputs, float32: of an output layer that is the embedding table too, embeddings."""
    tiles, lanes = ids // LANES, ids % LANES
    one = BlockMatrix(*(leaf if leaf is None else leaf[tiles, :, lanes].reshape(-1, leaf.shape[1])[..., None]
                        for leaf in (matrix.codes, matrix.scales, matrix.mins)), num_out=1)  # fmt: skip
    return _tile_numbers(one.codes, one).reshape(*ids.shape, -1)


def product(rows: Float[Array, "*rows num_in"], matrix: BlockMatrix) -> Float[Array, "*rows num_out"]:
    """`rows @ dequantised(matrix)`, float32 (TPUs may round factors, as in any product).

    The arrays of the matrix must be on one device.
    """
    flat = rows.reshape(-1, matrix.num_in).astype(jnp.float32)
    if jax.default_backend() == "cpu" and is_compiled():
        made = jax.lax.platform_dependent(flat, matrix, cpu=_product_on_cpu, default=_plain_product)
    else:
        made = _plain_product(flat, matrix)
    return made.reshape(*rows.shape[:-1], matrix.num_out)


def _plain_product(rows: Float[Array, "n num_in"], matrix: BlockMatrix) -> Float[Array, "n num_out"]:
    rows, matrix = jax.lax.optimization_barrier((rows, matrix))  # see `_product_on_cpu`
    return rows @ dequantised(matrix)


def _product_on_cpu(rows: Float[Array, "n num_in"], matrix: BlockMatrix) -> Float[Array, "n num_out"]:
    _check_form(matrix)
    mins = () if matrix.mins is None else (matrix.mins,)
    num_out = matrix.codes.shape[0] * LANES
    if not len(rows):
        return jnp.zeros((0, matrix.num_out), jnp.float32)
    padded = rows if len(rows) == 1 else jnp.pad(rows, ((0, -len(rows) % _ROWS_AT_ONCE), (0, 0)))
    shape = jax.ShapeDtypeStruct((len(padded), num_out), jnp.float32)
    made = jax.ffi.ffi_call(_MULTIPLY, shape)(matrix.codes, matrix.scales, padded, *mins)
    return made[: len(rows), : matrix.num_out]


def _check_form(matrix: BlockMatrix) -> None:
    """The kernels read memory by the form that matrices have: what was cast or cut would be read beyond its end."""
    tiles, height, groups = *matrix.codes.shape[:2], matrix.scales.shape[1]
    is_whole = matrix.group in _GROUPS and groups * matrix.group == matrix.num_in
    shapes = matrix.codes.shape == (tiles, height, LANES) and matrix.scales.shape == (tiles, groups, LANES)
    scales = (matrix.scales,) if matrix.mins is None else (matrix.scales, matrix.mins)
    dtypes = matrix.codes.dtype in (np.int8, np.uint8) and all(each.dtype == np.float16 for each in scales)
    if not (is_whole and shapes and dtypes and matrix.scales.shape == scales[-1].shape):
        shown = ", ".join(f"{each.dtype}{list(each.shape)}" for each in (matrix.codes, *scales))
        raise UsageError(
            f"a block matrix of {shown}: codes must be int8 or uint8 [tiles, inputs, {LANES}], scales and mins float16 "
            f"[tiles, groups, {LANES}], of groups of 16 or 32 inputs; load it again, do not cast"
        )


@cache
def is_compiled() -> bool:
    """True if products on CPU are compiled: Numba is there, and the processor converts float16 itself (as
    all but x86 without F16C). The first call compiles, or loads that.
    """
    if importlib.util.find_spec("numba") is None:
        return False
    kernels = _kernels()
    if kernels is None:
        return False
    jax.ffi.register_ffi_target(_MULTIPLY, jax.ffi.pycapsule(kernels.multiply.address), platform="cpu")
    return True


def _kernels() -> Any:
    try:
        if not _converts_halves():
            return None
        from qrag_jax.models.blocks import kernels
    except ImportError as error:
        raise UsageError(
            f"Numba is installed and cannot be used: {error}; install one that fits, or remove it"
        ) from error
    except (EOFError, pickle.UnpicklingError) as error:
        kept = Path(__file__).parent / "__pycache__"
        raise InputError(
            f"what Numba compiled is damaged ({error}): remove {kept}/kernels.*.nb* (where that cannot be written, the "
            "folder in NUMBA_CACHE_DIR or ~/.cache/numba)"
        ) from error
    return kernels


def _converts_halves() -> bool:
    """False where LLVM would call a function for it that nobody brings: that ends the process."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    from numba.core.registry import cpu_target

    context: Any = cpu_target.target_context
    _, _, features = context.codegen().magic_tuple()
    return "+f16c" in features
