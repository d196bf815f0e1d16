"""Decoder weights by a table, one row a tensor: the names of Llama, Qwen2 and Qwen3 in transformers, and ours."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.encoder.table import TensorRow, dense_rows, params_from_rows, tensors_from_rows
from qrag_jax.types import InputError

# Old files hold the rotary frequencies, which follow from the config.
_FREQUENCIES = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
_IGNORED = re.compile(_FREQUENCIES)
_IGNORED_TIED = re.compile(rf"{_FREQUENCIES}|lm_head\.weight")


def decoder_table(config: DecoderConfig) -> tuple[TensorRow, ...]:
    """A row for every tensor of a decoder. Layers are stacked. Tied embeddings leave out the output layer."""
    d, vocab = config.hidden_size, config.vocab_size
    layer = _layer_rows(config)
    rows = [TensorRow("model.embed_tokens.weight", ("embed", "embedding"), (vocab, d))]
    for index in range(config.num_layers):
        own, place = f"model.layers.{index}", (index, config.num_layers)
        rows += [replace(row, name=f"{own}.{row.name}", path=("layers", *row.path), place=place) for row in layer]
    rows.append(_norm_row("model.norm", "norm", d))
    return tuple(rows if config.tie_embeddings else [*rows, *dense_rows("lm_head", ("head",), d, vocab, bias=False)])


def _layer_rows(config: DecoderConfig) -> list[TensorRow]:
    """The rows of one layer, by names inside it."""
    d, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = [_norm_row("input_layernorm", "attention_norm", d)]
    for name, num_out in (("query", queries), ("key", keys), ("value", keys)):
        rows += dense_rows(f"self_attn.{name[0]}_proj", (name,), d, num_out, config.qkv_bias)
    rows += dense_rows("self_attn.o_proj", ("output",), queries, d, config.output_bias)
    if config.qk_norm:
        rows += [_norm_row(f"self_attn.{name[0]}_norm", f"{name}_norm", config.head_dim) for name in ("query", "key")]
    rows.append(_norm_row("post_attention_layernorm", "mlp_norm", d))
    for name, num_in, num_out in (("gate", d, inner), ("up", d, inner), ("down", inner, d)):
        rows += dense_rows(f"mlp.{name}_proj", (name,), num_in, num_out, config.mlp_bias)
    return rows


def _norm_row(theirs: str, ours: str, size: int) -> TensorRow:
    return TensorRow(f"{theirs}.weight", (ours, "scale"), (size,))


def decoder_params_from_tensors(
    config: DecoderConfig, tensors: Mapping[str, np.ndarray], source: str = "tensors", dtype: DTypeLike = np.float32
) -> dict[str, Any]:
    """Our parameters (`network.Params` as NumPy arrays, kernels [in, out]) from tensors by the names of transformers.

    Known and ignored: rotary frequencies, and an output layer beside tied embeddings (transformers ties it as well).

    Args:
        tensors: each is asked for once and let go.
        source: opens the message of an error.
    """
    if config.num_layers > len(tensors):  # a table of so many layers is not even made
        raise InputError(f"{config.num_layers} layers are declared, but {len(tensors)} tensors are there", file=source)
    ignored = _IGNORED_TIED if config.tie_embeddings else _IGNORED
    return params_from_rows(decoder_table(config), tensors, ignored, source, dtype)


def tensors_from_decoder_params(
    config: DecoderConfig, params: Mapping[str, Any], dtype: DTypeLike = np.float32
) -> dict[str, np.ndarray]:
    """The inverse of `decoder_params_from_tensors`: tensors by the names of transformers."""
    return tensors_from_rows(decoder_table(config), params, "decoder", dtype)
