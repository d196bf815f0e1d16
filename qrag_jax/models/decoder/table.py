"""Decoder weights by a table, one row a tensor: the names of Llama, Qwen2 and Qwen3 in transformers, and ours."""

import re
from collections.abc import Callable, Mapping
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
    """The rows of a decoder; with tied embeddings the output layer is none of them."""
    d, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = [TensorRow("model.embed_tokens.weight", ("embed", "embedding"), (config.vocab_size, d))]
    for index in range(config.num_layers):
        theirs, ours = f"model.layers.{index}", f"layer_{index}"
        rows.append(_norm_row(f"{theirs}.input_layernorm", (ours, "attention_norm"), d))
        for their_name, name, num_out in (("q", "query", queries), ("k", "key", keys), ("v", "value", keys)):
            rows += dense_rows(f"{theirs}.self_attn.{their_name}_proj", (ours, name), d, num_out, config.qkv_bias)
        rows += dense_rows(f"{theirs}.self_attn.o_proj", (ours, "output"), queries, d, config.output_bias)
        if config.qk_norm:
            rows.append(_norm_row(f"{theirs}.self_attn.q_norm", (ours, "query_norm"), config.head_dim))
            rows.append(_norm_row(f"{theirs}.self_attn.k_norm", (ours, "key_norm"), config.head_dim))
        rows.append(_norm_row(f"{theirs}.post_attention_layernorm", (ours, "mlp_norm"), d))
        for name, num_in, num_out in (("gate", d, inner), ("up", d, inner), ("down", inner, d)):
            rows += dense_rows(f"{theirs}.mlp.{name}_proj", (ours, name), num_in, num_out, config.mlp_bias)
    rows.append(_norm_row("model.norm", ("norm",), d))
    if not config.tie_embeddings:
        rows += dense_rows("lm_head", ("head",), d, config.vocab_size, bias=False)
    return tuple(rows)


def _norm_row(theirs: str, ours: tuple[str, ...], size: int) -> TensorRow:
    return TensorRow(f"{theirs}.weight", (*ours, "scale"), (size,))


def decoder_params_from_tensors(
    config: DecoderConfig,
    tensors: Mapping[str, np.ndarray],
    source: str = "tensors",
    dtype: DTypeLike = np.float32,
    make: Callable[[TensorRow], tuple[Any, str | None] | None] | None = None,
) -> dict[str, Any]:
    """Our parameters (nested dict of NumPy arrays, kernels [in, out]) from tensors by the names of transformers.

    Known and ignored: rotary frequencies, and an output layer beside tied embeddings (transformers ties it as well).

    Args:
        tensors: each is asked for once and let go.
        source: opens the message of an error.
        make: another way to a parameter; see `params_from_rows`.
    """
    if config.num_layers > len(tensors):  # a table of so many layers is not even made
        raise InputError(f"{config.num_layers} layers are declared, but {len(tensors)} tensors are there", file=source)
    ignored = _IGNORED_TIED if config.tie_embeddings else _IGNORED
    return params_from_rows(decoder_table(config), tensors, ignored, source, dtype, make)


def tensors_from_decoder_params(
    config: DecoderConfig, params: Mapping[str, Any], dtype: DTypeLike = np.float32
) -> dict[str, np.ndarray]:
    """The inverse of `decoder_params_from_tensors`: tensors by the names of transformers."""
    return tensors_from_rows(decoder_table(config), params, "decoder", dtype)
