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
from numpy.typing import DTypeLike

from qrag_jax.models.encoder.config import NUM_BUCKETS, ROTARY, EncoderConfig, Family
from qrag_jax.models.weights.param_tree import Params, flatten, nest
from qrag_jax.types import InputError

POOLER = ("pooler.dense.weight", "pooler.dense.bias")
# Pre-training heads are in the files of some base models.
_IGNORED = re.compile(
    r"embeddings\.position_ids|pooler\..*|(lm_)?head\..*|decoder\..*|cls\.(predictions|seq_relationship)\..*"
)
PREFIXES: Mapping[Family, str] = {
    "bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "mpnet": "mpnet.", "nomic_bert": "nomic_bert.",
    "modernbert": "model.", "qwen3": "model.",
}  # fmt: skip
_ATTENTION = {"query": "self.query", "key": "self.key", "value": "self.value", "attention_output": "output.dense"}
_MPNET_ATTENTION = {"query": "attn.q", "key": "attn.k", "value": "attn.v", "attention_output": "attn.o"}
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "attention_output": "o_proj"}
_GATED = {"gate": "gate_proj", "intermediate": "up_proj", "output": "down_proj"}
_NORMS = {
    "nomic_bert": {"attention_norm": "post_attention_layernorm", "output_norm": "post_mlp_layernorm"},
    "qwen3": {"attention_norm": "input_layernorm", "output_norm": "post_attention_layernorm"},
}
# The names of NomicBERT's files on the hub, by parts of the names that transformers gives them.
_NOMIC = (
    ("encoder.layers", "layers"), ("emb_ln", "embeddings.LayerNorm"), ("attn.out_proj", "self_attn.o_proj"),
    ("mlp.fc11", "mlp.up_proj"), ("mlp.fc12", "mlp.gate_proj"), ("mlp.fc2", "mlp.down_proj"),
    ("norm1", "post_attention_layernorm"), ("norm2", "post_mlp_layernorm"),
)  # fmt: skip


@dataclass(frozen=True)
class TensorRow:
    """One tensor: its Hugging Face name, our path, the shape on file, and whether ours is its transpose.

    With a `place` (number, count) ours is an entry of a stack of so many tensors, whose first axis counts them. With a
    `part` (number, count) it is one of so many equal parts of the tensor on file, along its first axis; `shape` is that
    of the part.
    """

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]
    transposed: bool = False
    place: tuple[int, int] | None = None
    part: tuple[int, int] | None = None

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Shape of the tensor on file."""
        return self.shape if self.part is None else (self.part[1] * self.shape[0], *self.shape[1:])

    @property
    def our_shape(self) -> tuple[int, ...]:
        """Shape of our parameter, which is the whole stack where there is one."""
        own = self.shape[::-1] if self.transposed else self.shape
        return own if self.place is None else (self.place[1], *own)


def weight_table(config: EncoderConfig) -> tuple[TensorRow, ...]:
    """The rows of an encoder with `config.num_layers` layers; the pooler head is not part of it."""
    make = {"modernbert": _modernbert_layer, "nomic_bert": _gated_layer, "qwen3": _gated_layer}
    make_layer = make.get(config.family, _bert_layer)
    rows = _embedding_rows(config)
    for index in range(config.num_layers):
        rows += make_layer(config, index)
    if config.norms_first:
        rows += _norm_rows(config, "norm" if config.family == "qwen3" else "final_norm", ("final_norm",))
    if config.projection:
        rows += dense_rows("linear", ("projection",), config.hidden_size, config.projection, bias=False)
    return tuple(rows)


def _bert_layer(config: EncoderConfig, index: int) -> list[TensorRow]:
    d, inner = config.hidden_size, config.intermediate_size
    is_mpnet = config.family == "mpnet"
    attention, norm = (_MPNET_ATTENTION, "LayerNorm") if is_mpnet else (_ATTENTION, "output.LayerNorm")
    theirs, ours = f"encoder.layer.{index}", f"layer_{index}"
    rows = []
    for name, their_name in attention.items():
        rows += dense_rows(f"{theirs}.attention.{their_name}", (ours, name), d, d)
    rows += _norm_rows(config, f"{theirs}.attention.{norm}", (ours, "attention_norm"))
    rows += dense_rows(f"{theirs}.intermediate.dense", (ours, "intermediate"), d, inner)
    rows += dense_rows(f"{theirs}.output.dense", (ours, "output"), inner, d)
    return rows + _norm_rows(config, f"{theirs}.output.LayerNorm", (ours, "output_norm"))


def _gated_layer(config: EncoderConfig, index: int) -> list[TensorRow]:
    d, inner, size = config.hidden_size, config.intermediate_size, config.head_size
    heads, key_heads = config.num_heads * size, config.num_key_heads * size
    shapes = {"query": (d, heads), "key": (d, key_heads), "value": (d, key_heads), "attention_output": (heads, d)}
    shapes |= {"gate": (d, inner), "intermediate": (d, inner), "output": (inner, d)}
    theirs, ours = f"layers.{index}", f"layer_{index}"
    rows = []
    for part, names in (("self_attn", _PROJECTIONS), ("mlp", _GATED)):
        for name, their_name in names.items():
            rows += dense_rows(f"{theirs}.{part}.{their_name}", (ours, name), *shapes[name], bias=False)
    for name, their_name in _NORMS[config.family].items():
        rows += _norm_rows(config, f"{theirs}.{their_name}", (ours, name))
    if config.family == "qwen3":
        for name, their_name in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            rows.append(TensorRow(f"{theirs}.self_attn.{their_name}.weight", (ours, name, "scale"), (size,)))
    return rows


def _modernbert_layer(config: EncoderConfig, index: int) -> list[TensorRow]:
    d, inner = config.hidden_size, config.intermediate_size
    theirs, ours = f"layers.{index}", f"layer_{index}"
    whole = {"attn.Wo": ("attention_output", d), "mlp.Wo": ("output", inner)}
    joined = {"attn.Wqkv": (("query", "key", "value"), d), "mlp.Wi": (("gate", "intermediate"), inner)}
    rows = [
        TensorRow(f"{theirs}.{name}.weight", (ours, own, "kernel"), (d, size), transposed=True)
        for name, (own, size) in whole.items()
    ]
    for name, (parts, size) in joined.items():
        rows += [
            TensorRow(f"{theirs}.{name}.weight", (ours, own, "kernel"), (size, d), True, part=(number, len(parts)))
            for number, own in enumerate(parts)
        ]
    if config.kinds[index].is_normed:
        rows += _norm_rows(config, f"{theirs}.attn_norm", (ours, "attention_norm"))
    return rows + _norm_rows(config, f"{theirs}.mlp_norm", (ours, "output_norm"))


def _embedding_rows(config: EncoderConfig) -> list[TensorRow]:
    d = config.hidden_size
    words = {"modernbert": "embeddings.tok_embeddings", "qwen3": "embed_tokens"}
    tables = [(words.get(config.family, "embeddings.word_embeddings"), "word_embeddings", (config.vocab_size, d))]
    if config.family not in ROTARY:
        num_positions = config.first_position + config.max_positions
        tables.append(("embeddings.position_embeddings", "position_embeddings", (num_positions, d)))
    if config.has_types:
        tables.append(("embeddings.token_type_embeddings", "type_embeddings", (config.type_vocab_size, d)))
    if config.family == "mpnet":
        tables.append(("encoder.relative_attention_bias", "relative_bias", (NUM_BUCKETS, config.num_heads)))
    rows = [TensorRow(f"{theirs}.weight", (ours, "embedding"), shape) for theirs, ours, shape in tables]
    if config.family == "qwen3":
        return rows
    norm = "embeddings.norm" if config.family == "modernbert" else "embeddings.LayerNorm"
    return rows + _norm_rows(config, norm, ("embeddings_norm",))


def dense_rows(theirs: str, ours: tuple[str, ...], num_in: int, num_out: int, bias: bool = True) -> list[TensorRow]:
    """The rows of a linear layer: its weights, [out, in] on file and [in, out] here, and its bias."""
    rows = [TensorRow(f"{theirs}.weight", (*ours, "kernel"), (num_out, num_in), transposed=True)]
    return [*rows, TensorRow(f"{theirs}.bias", (*ours, "bias"), (num_out,))] if bias else rows


def _norm_rows(config: EncoderConfig, theirs: str, ours: tuple[str, ...]) -> list[TensorRow]:
    size = (config.hidden_size,)
    rows = [TensorRow(f"{theirs}.weight", (*ours, "scale"), size)]
    has_bias = config.family not in ("modernbert", "qwen3")
    return [*rows, TensorRow(f"{theirs}.bias", (*ours, "bias"), size)] if has_bias else rows


def params_from_tensors(
    config: EncoderConfig, tensors: Mapping[str, np.ndarray], source: str = "tensors"
) -> dict[str, Any]:
    """Our parameters (nested dict of float32 NumPy arrays) from tensors by Hugging Face names.

    Known and ignored: the family's prefix (such as `bert.`), `embeddings.position_ids`, `pooler.*`, and the heads of
    pre-training (`lm_head.*`, `head.*`, `decoder.*`, `cls.predictions.*`, `cls.seq_relationship.*`).
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
            if problem := tensor_problem(row.name, tensor, row.file_shape):
                return problem
            if row.part is not None:
                tensor = tensor[row.part[0] * row.shape[0] :][: row.shape[0]]
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
    return nest(made)


def tensors_from_rows(
    rows: Sequence[TensorRow], params: Params, what: str, dtype: DTypeLike = np.float32
) -> dict[str, np.ndarray]:
    """The inverse of `params_from_rows`: tensors by the names of a table.

    Args:
        what: the model's kind, for the message.
    """
    flat = flatten(params)
    paths = {row.path: row.our_shape for row in rows}
    problems = [f"missing: {'/'.join(path)}" for path in paths if path not in flat]
    problems += [f"left over: {'/'.join(path)}" for path in sorted(flat) if path not in paths]
    for path, shape in paths.items():
        if path in flat and (problem := tensor_problem("/".join(path), np.asarray(flat[path]), shape)):
            problems.append(problem)
    if problems:
        raise InputError(f"parameters do not fit the {what} config; " + "; ".join(problems))
    tensors: dict[str, np.ndarray] = {}
    for row in rows:
        array = np.asarray(flat[row.path])
        array = array if row.place is None else array[row.place[0]]
        array = np.ascontiguousarray(array.T if row.transposed else array, dtype=dtype)
        if row.part is None:
            tensors[row.name] = array
            continue
        whole = tensors.setdefault(row.name, np.empty(row.file_shape, dtype))
        whole[row.part[0] * row.shape[0] :][: row.shape[0]] = array
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
    """Tensors by their names without the family's optional prefix; a name that is there twice raises InputError.

    Those of NomicBERT's files on the hub get the names of transformers.
    """
    prefix = PREFIXES[config.family]
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    if len(named) != len(tensors):
        raise InputError(f"some tensors occur twice, with and without the prefix {prefix!r}", file=source)
    if config.family != "nomic_bert" or not any("Wqkv" in name for name in named):
        return named
    renamed = {}
    for name, tensor in named.items():
        for theirs, ours in _NOMIC:
            name = name.replace(theirs, ours)  # noqa: PLW2901
        if name.endswith("attn.Wqkv.weight") and tensor.ndim == 2 and len(tensor) % 3 == 0:
            parts = zip(("q_proj", "k_proj", "v_proj"), np.split(tensor, 3), strict=True)
            renamed |= {name.replace("attn.Wqkv", f"self_attn.{part}"): rows for part, rows in parts}
        else:
            renamed[name] = tensor
    return renamed
