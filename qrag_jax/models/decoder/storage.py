"""How the matrices of a decoder are kept: as numbers, or in blocks of few bits that products take as they are."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.models.blocks.matrix import GROUP, LANES, BlockMatrix, Rows, block_matrix, quantise
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.gguf_weights import GGUFTensors
from qrag_jax.models.encoder.table import TensorRow, read_row, tensor_problem
from qrag_jax.models.gguf.unpack import CODE_BITS, FileRows, block_numbers, unpack_blocks
from qrag_jax.names import STORAGES, Storage
from qrag_jax.types import UsageError

_ROWS_AT_ONCE = LANES  # of a file: what is made of them stays in the cache of a core
_PLAIN = {"F32": jnp.dtype("float32"), "F16": jnp.dtype("float16"), "BF16": jnp.dtype("bfloat16")}

# Bits of scales and mins for a number: float16, of groups of 32, or of 16 (Q6_K).
_SCALE_BITS = {kind: 1.0 for kind in CODE_BITS} | {"Q5_0": 0.5, "Q8_0": 0.5}

Make = Callable[[TensorRow], tuple[Any, str | None] | None]


def float_dtype(storage: Storage) -> Any:
    """The dtype of what is not kept in blocks: norms, biases, and matrices of "float32" and "bfloat16"."""
    if storage not in STORAGES:
        raise UsageError(f"storage {storage!r}: choose one of {', '.join(STORAGES)}")
    return jnp.dtype("bfloat16" if storage == "bfloat16" else "float32")


def has_blocks(params: Any) -> bool:
    """True if any matrix is kept in blocks."""
    is_block = lambda leaf: isinstance(leaf, BlockMatrix | FileRows)  # noqa: E731
    return any(map(is_block, jax.tree.leaves(params, is_leaf=is_block)))


def stored_bytes(config: DecoderConfig, row: TensorRow, storage: Storage, kind: str | None = None) -> int:
    """Bytes that a tensor takes; `kind` is its format in a GGUF file, which "file" hangs on."""
    numbers, plain = math.prod(row.shape), float_dtype(storage).itemsize
    if len(row.shape) != 2 or storage not in ("int8", "file"):
        return numbers * plain
    in_tiles = -(-row.shape[0] // LANES) * LANES * row.shape[1]
    if storage == "file" and kind in _PLAIN:
        return numbers * _PLAIN[kind].itemsize
    if storage == "file" and kind in CODE_BITS:
        if _is_looked_up(config, row):
            per_block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
            return numbers // per_block * block_bytes
        return int(in_tiles * (CODE_BITS[kind] + _SCALE_BITS[kind]) / 8)
    return int(in_tiles * (8 + 16 / GROUP) / 8) if row.shape[1] % GROUP == 0 else numbers * plain


def _is_looked_up(config: DecoderConfig, row: TensorRow) -> bool:
    """True for embeddings that are no output layer too."""
    return not (row.transposed or config.tie_embeddings)


def maker(config: DecoderConfig, tensors: Mapping[str, np.ndarray], storage: Storage) -> Make | None:
    """A function that makes the matrices of "int8" and "file", for `params_from_rows`; None for plain numbers.

    "int8": groups of 32 inputs with a scale. "file": a GGUF file's own codes and scales, so that the numbers are those
    of "float32" (but for the scales of K formats, which float16 rounds); formats that `CODE_BITS` does not name as
    "int8"; floats in the dtype of the file; embeddings that are no output layer as `FileRows`. A matrix whose inputs
    are no multiple of 32 is kept in float32.
    """
    if storage not in ("int8", "file"):
        return None
    if storage == "file" and not isinstance(tensors, GGUFTensors):
        raise UsageError("storage 'file' works only with .gguf files: choose float32, bfloat16 or int8 for a folder")

    kinds = tensors.kinds if isinstance(tensors, GGUFTensors) else {}

    def make(row: TensorRow) -> tuple[Any, str | None] | None:
        if len(row.shape) != 2:
            return None
        kind = kinds.get(row.name)
        if (
            isinstance(tensors, GGUFTensors)
            and kind in CODE_BITS
            and row.shape[1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0] == 0
        ):
            made = _of_file(config, row, tensors, kind, storage)
            tensors.let_go(row.name)
            return made
        if storage == "file" and kind in _PLAIN:
            return read_row(row, tensors[row.name], _PLAIN[kind])
        if row.shape[1] % GROUP:
            return None
        return _of_numbers(row, tensors[row.name])

    return make


def _of_numbers(row: TensorRow, tensor: np.ndarray) -> tuple[Any, str | None]:
    if problem := tensor_problem(row.name, tensor, row.shape):
        return None, problem
    return _checked(row, block_matrix(map(quantise, _parts(tensor)), len(tensor)))


def _of_file(
    config: DecoderConfig, row: TensorRow, tensors: GGUFTensors, kind: str, storage: Storage
) -> tuple[Any, str | None]:
    """Never all numbers of a tensor at once: those of a table of tokens are a large part of a model."""
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = tensors.raw_rows(row.name)
    shape = len(raw), raw.shape[1] // block_bytes * per_block
    if shape != row.shape:
        return None, f"{row.name}: shape {shape}, needed {row.shape}"
    if storage == "int8":
        numbers = (block_numbers(kind, part.reshape(-1, block_bytes)).reshape(len(part), -1) for part in _parts(raw))
        return _checked(row, block_matrix(map(quantise, numbers), len(raw)))
    if _is_looked_up(config, row):
        scales = (unpack_blocks(kind, part.reshape(-1, block_bytes)) for part in _parts(raw))
        finite = all(np.isfinite(each.scales).all() and _is_finite(each.mins) for each in scales)
        return FileRows(raw.reshape(len(raw), -1, block_bytes).copy(), kind), None if finite else _not_finite(row)

    def unpacked() -> Iterator[Rows]:
        for part in _parts(raw):
            codes, scales, mins = unpack_blocks(kind, part.reshape(-1, block_bytes))
            by_row = len(part), -1
            yield Rows(codes.reshape(by_row), scales.reshape(by_row), None if mins is None else mins.reshape(by_row))

    return _checked(row, block_matrix(unpacked(), len(raw), bits=CODE_BITS[kind]))


def _parts(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[first : first + _ROWS_AT_ONCE] for first in range(0, len(rows), _ROWS_AT_ONCE))


def _checked(row: TensorRow, matrix: BlockMatrix) -> tuple[Any, str | None]:
    is_finite = np.isfinite(matrix.scales).all() and _is_finite(matrix.mins)
    return matrix, None if is_finite else _not_finite(row)


def _is_finite(mins: np.ndarray | None) -> bool:
    return mins is None or bool(np.isfinite(mins).all())


def _not_finite(row: TensorRow) -> str:
    return f"{row.name}: contains NaN or infinity"
