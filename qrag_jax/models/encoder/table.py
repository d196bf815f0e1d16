"""Encoder weights by a table, one row a tensor: Hugging Face names and shapes to our parameters and back.

Nothing missing, nothing left over, every shape checked, all errors raised together. `params_from_rows` and
`tensors_from_rows` do so for the table of any model; decoders have theirs in `decoder_table`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from numpy.typing import DTypeLike

from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.models.encoder.text_encoder import NUM_BUCKETS, Params
from qrag_jax.types import InputError

POOLER = ("pooler.dense.weight", "pooler.dense.bias")
# Pre-training heads are in the files of some base models.
_IGNORED = re.compile(r"embeddings\.position_ids|pooler\..*|lm_head\..*|cls\.(predictions|seq_relationship)\..*")
_PREFIXES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "mpnet": "mpnet."}
_ATTENTION = {"query": "self.query", "key": "self.key", "value": "self.value", "attention_output": "output.dense"}
_MPNET_ATTENTION = {"query": "attn.q", "key": "attn.k", "value": "attn.v", "attention_output": "attn.o"}


@dataclass(frozen=True)
class TensorRow:
    """One tensor: its Hugging Face name, our path, the shape on file, and whether ours is its transpose.

    With a `place` (number, count) ours is an entry of a stack of so many tensors, whose first axis counts them.
    """

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]
    transposed: bool = False
    place: tuple[int, int] | None = None

    @property
    def our_shape(self) -> tuple[int, ...]:
        """Shape of our parameter, which is the whole stack where there is one."""
        own = self.shape[::-1] if self.transposed else self.shape
        return own if self.place is None else (self.place[1], *own)


def weight_table(config: EncoderConfig) -> tuple[TensorRow, ...]:
    """The rows of an encoder with `config.num_layers` layers; the pooler head is not part of it."""
    d, inner = config.hidden_size, config.intermediate_size
    is_mpnet = config.family == "mpnet"
    attention, norm = (_MPNET_ATTENTION, "LayerNorm") if is_mpnet else (_ATTENTION, "output.LayerNorm")
    rows = _embedding_rows(config)
    for index in range(config.num_layers):
        theirs, ours = f"encoder.layer.{index}", f"layer_{index}"
        for name, their_name in attention.items():
            rows += dense_rows(f"{theirs}.attention.{their_name}", (ours, name), d, d)
        rows += _norm_rows(f"{theirs}.attention.{norm}", (ours, "attention_norm"), d)
        rows += dense_rows(f"{theirs}.intermediate.dense", (ours, "intermediate"), d, inner)
        rows += dense_rows(f"{theirs}.output.dense", (ours, "output"), inner, d)
        rows += _norm_rows(f"{theirs}.output.LayerNorm", (ours, "output_norm"), d)
    return tuple(rows)


def _embedding_rows(config: EncoderConfig) -> list[TensorRow]:
    d = config.hidden_size
    num_positions = config.first_position + config.max_positions
    tables = [
        ("embeddings.word_embeddings", "word_embeddings", (config.vocab_size, d)),
        ("embeddings.position_embeddings", "position_embeddings", (num_positions, d)),
    ]
    if config.type_vocab_size:
        tables.append(("embeddings.token_type_embeddings", "type_embeddings", (config.type_vocab_size, d)))
    if config.family == "mpnet":
        tables.append(("encoder.relative_attention_bias", "relative_bias", (NUM_BUCKETS, config.num_heads)))
    rows = [TensorRow(f"{theirs}.weight", (ours, "embedding"), shape) for theirs, ours, shape in tables]
    return rows + _norm_rows("embeddings.LayerNorm", ("embeddings_norm",), d)


def dense_rows(theirs: str, ours: tuple[str, ...], num_in: int, num_out: int, bias: bool = True) -> list[TensorRow]:
    """The rows of a linear layer: its weights, [out, in] on file and [in, out] here, and its bias."""
    rows = [TensorRow(f"{theirs}.weight", (*ours, "kernel"), (num_out, num_in), transposed=True)]
    return [*rows, TensorRow(f"{theirs}.bias", (*ours, "bias"), (num_out,))] if bias else rows


def _norm_rows(theirs: str, ours: tuple[str, ...], size: int) -> list[TensorRow]:
    return [
        TensorRow(f"{theirs}.weight", (*ours, "scale"), (size,)),
        TensorRow(f"{theirs}.bias", (*ours, "bias"), (size,)),
    ]


def params_from_tensors(
    config: EncoderConfig, tensors: Mapping[str, np.ndarray], source: str = "tensors"
) -> dict[str, Any]:
    """Our parameters (nested dict of float32 NumPy arrays) from tensors by Hugging Face names.

    Known and ignored: the family's prefix (`bert.`, `roberta.`, `mpnet.`), `embeddings.position_ids`, `pooler.*`, and
    the heads of pre-training (`lm_head.*`, `cls.predictions.*`, `cls.seq_relationship.*`).
    """
    if config.num_layers > len(tensors):  # a table of so many layers is not even made
        raise InputError(f"{config.num_layers} layers are declared, but {len(tensors)} tensors are there", file=source)
    return params_from_rows(weight_table(config), without_prefix(config, tensors, source), _IGNORED, source)


def tensors_from_params(config: EncoderConfig, params: Params) -> dict[str, np.ndarray]:
    """The inverse of `params_from_tensors`: float32 tensors by Hugging Face names."""
    return tensors_from_rows(weight_table(config), params, "encoder")


def params_from_rows(
    rows: Sequence[TensorRow],
    tensors: Mapping[str, np.ndarray],
    ignored: re.Pattern[str],
    source: str,
    dtype: DTypeLike = np.float32,
) -> dict[str, Any]:
    """Our parameters (nested dict of NumPy arrays) from tensors by the names of a table.

    Args:
        rows: the table; every row is needed.
        tensors: each is asked for once and let go, so a mapping that reads them from a file holds few at a time: a
            thread a core takes them.
        ignored: names that may be there and are not read.
    """
    problems = []
    missing = [row.name for row in rows if row.name not in tensors]
    if missing:
        problems.append(f"missing: {', '.join(missing)}")
    known = {row.name for row in rows}
    left_over = sorted(name for name in tensors if name not in known and not ignored.fullmatch(name))
    if left_over:
        problems.append(f"left over: {', '.join(left_over)}")

    present = [row for row in rows if row.name in tensors]
    made: dict[tuple[str, ...], np.ndarray] = {}
    lock = Lock()

    def read(row: TensorRow) -> str | None:
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs: refused as not finite
            tensor = tensors[row.name]
            if problem := tensor_problem(row.name, tensor, row.shape):
                return problem
            with lock:
                if row.path not in made:
                    made[row.path] = np.empty(row.our_shape, dtype)
            own = made[row.path] if row.place is None else made[row.path][row.place[0]]
            own[...] = tensor.T if row.transposed else tensor
            return None

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(allowed) as pool:
        problems += filter(None, pool.map(read, present))
    if problems:
        raise InputError(f"{source}: the tensors do not fit the config; " + "; ".join(problems))
    return unflatten_dict(made)


def tensors_from_rows(
    rows: Sequence[TensorRow], params: Params, what: str, dtype: DTypeLike = np.float32
) -> dict[str, np.ndarray]:
    """The inverse of `params_from_rows`: tensors by the names of a table.

    Args:
        what: the model's kind, for the message.
    """
    flat = flatten_dict(params)
    paths = {row.path: row.our_shape for row in rows}
    problems = [f"missing: {'/'.join(path)}" for path in paths if path not in flat]
    problems += [f"left over: {'/'.join(path)}" for path in sorted(flat) if path not in paths]
    for path, shape in paths.items():
        if path in flat and (problem := tensor_problem("/".join(path), np.asarray(flat[path]), shape)):
            problems.append(problem)
    if problems:
        raise InputError(f"parameters do not fit the {what} config; " + "; ".join(problems))
    tensors = {}
    for row in rows:
        array = np.asarray(flat[row.path])
        array = array if row.place is None else array[row.place[0]]
        tensors[row.name] = np.ascontiguousarray(array.T if row.transposed else array, dtype=dtype)
    return tensors


def tensor_problem(name: str, tensor: np.ndarray, shape: tuple[int, ...]) -> str | None:
    """The problem of a tensor, or None."""
    if tensor.shape != shape:
        return f"{name}: shape {tensor.shape}, needed {shape}"
    if tensor.dtype.kind != "f" and tensor.dtype.name != "bfloat16":
        return f"{name}: dtype {tensor.dtype}, a float is needed"
    # The sum is cheaper than a mask and is not finite whenever an entry is not.
    if not np.isfinite(tensor.sum(dtype=np.float64)):
        return f"{name}: contains NaN or infinity"
    if tensor.dtype == np.float64 and (np.abs(tensor) > np.finfo(np.float32).max).any():
        return f"{name}: contains numbers beyond float32"
    return None


def without_prefix(
    config: EncoderConfig, tensors: Mapping[str, np.ndarray], source: str = "tensors"
) -> dict[str, np.ndarray]:
    """Tensors by their names without the family's optional prefix; a name that is there twice raises InputError."""
    prefix = _PREFIXES[config.family]
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    if len(named) != len(tensors):
        raise InputError(f"some tensors occur twice, with and without the prefix {prefix!r}", file=source)
    return named
