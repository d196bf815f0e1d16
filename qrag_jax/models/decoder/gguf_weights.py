"""The decoder in a GGUF file: its config from the metadata, its tensors by the names of transformers.

Files of architecture "llama" hold the rows of queries and keys in another order: components k and k + head_dim / 2,
which turn together, stand next to each other there. They are put back. Files of Qwen2 and Qwen3 keep the order.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qrag_jax.models.decoder.config import DecoderConfig, DecoderFamily, RopeScaling
from qrag_jax.models.decoder.rotary import inverse_frequencies
from qrag_jax.models.gguf.file import GGUFFields, GGUFFile, short
from qrag_jax.types import InputError

_FAMILIES: dict[str, DecoderFamily] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_FREQUENCIES = "rope_freqs.weight"
_ABSENT = (  # not computed here when they are there and not 0
    "expert_count",
    "attention.sliding_window",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)
# Llama 3.1 to 3.3: a file holds what the formula gives, not its numbers.
_LLAMA3 = {"original_max_positions": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def gguf_decoder_config(file: GGUFFile) -> DecoderConfig:
    """The config of the decoder in a GGUF file."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise InputError(
            f"{file.path}: general.architecture is {name!r}, only {known} are read; the engine llamacpp reads more"
        )
    fields = GGUFFields(file, name)
    if fields.get("attention.causal") not in (None, True):
        raise fields.error("attention.causal", fields.get("attention.causal"), "only causal decoders are supported")
    if found := [key for key in _ABSENT if _is_set(fields.get(key))]:
        shown = ", ".join(f"{name}.{key} {fields.get(key)!r:.50}" for key in found)
        raise InputError(f"{file.path}: {shown}: not supported; use another model")
    num_heads, hidden_size = fields.size("attention.head_count"), fields.size("embedding_length")
    head_dim = fields.size("attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.size(key, head_dim) != head_dim:
            raise InputError(f"{file.path}: {name}.{key} is {fields.get(key)}, heads have {head_dim} components")
    has = file.tensors.__contains__
    config = DecoderConfig(
        family=_FAMILIES[name],
        vocab_size=_vocab_size(file, fields),
        hidden_size=hidden_size,
        intermediate_size=fields.size("feed_forward_length"),
        num_layers=fields.size("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.size("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_positions=fields.size("context_length"),
        norm_eps=short(fields.number("attention.layer_norm_rms_epsilon")),
        rope_theta=short(fields.number("rope.freq_base", 10_000.0)),
        rope_scaling=_rope_scaling(fields),
        tie_embeddings=not has("output.weight"),
        qkv_bias=has("blk.0.attn_q.bias"),
        output_bias=has("blk.0.attn_output.bias"),
        mlp_bias=has("blk.0.ffn_down.bias"),
        qk_norm=has("blk.0.attn_q_norm.weight"),
    )
    return _with_llama3(file, config) if has(_FREQUENCIES) else config


def _is_set(value: Any) -> bool:
    return value is not None and not (isinstance(value, int | float | str) and not value)


def _vocab_size(file: GGUFFile, fields: GGUFFields) -> int:
    """Rows of the embedding table, which the metadata may leave out."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise InputError(f"{file.path}: tensor token_embd.weight is missing; copy the file again")
    return fields.size("vocab_size", table.shape[0])


def _rope_scaling(fields: GGUFFields) -> RopeScaling:
    kind = fields.get("rope.scaling.type")
    # Older files name a linear factor and no type; 0 is none.
    stretch = "rope.scaling.factor"
    if fields.get(stretch) is None and fields.get("rope.scale_linear") is not None:
        stretch = "rope.scale_linear"
    if kind is None:
        kind = "linear" if _is_set(fields.get(stretch)) else "none"
    if isinstance(kind, str) and kind == "none":
        return RopeScaling()
    if not isinstance(kind, str) or kind not in ("linear", "yarn"):
        raise fields.error("rope.scaling.type", kind, "only none, linear and yarn are supported")
    if kind == "linear":
        factor = short(fields.number(stretch))
        return RopeScaling() if factor == 1 else RopeScaling(kind="linear", factor=factor)
    factor = short(fields.number("rope.scaling.factor"))
    attention = fields.number("rope.scaling.attn_factor", 1.0)
    if attention != 1:
        raise fields.error("rope.scaling.attn_factor", attention, "only 1 is supported")
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_positions=fields.size("rope.scaling.original_context_length"),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _with_llama3(file: GGUFFile, config: DecoderConfig) -> DecoderConfig:
    """The config whose rotary frequencies are the ones that the file divides by its factors."""
    divisors = file.read(_FREQUENCIES)
    scaling = RopeScaling(kind="llama3", factor=max(1.0, short(float(divisors.max()))), **_LLAMA3)
    plain, stretched = inverse_frequencies(config)[0], inverse_frequencies(replace(config, rope_scaling=scaling))[0]
    fits = divisors.shape == plain.shape and np.allclose(plain / stretched, divisors, rtol=1e-3)
    if config.rope_scaling.kind != "default" or not fits:
        raise InputError(
            f"{file.path}: {_FREQUENCIES} contains other factors than Llama 3.1 to 3.3; these are not supported"
        )
    return replace(config, rope_scaling=scaling)


class GGUFTensors(Mapping[str, np.ndarray]):
    """Tensors of a GGUF file by the names of transformers, float32; each is read when it is asked for.

    Names that we do not know stay as they are, so that they are found left over.
    """

    def __init__(self, file: GGUFFile, config: DecoderConfig) -> None:
        """Reads nothing yet; two tensors that mean the same one raise InputError."""
        self._file, self._config = file, config
        theirs = [name for name in file.tensors if name != _FREQUENCIES]
        self._names = {_hf_name(name): name for name in theirs}
        if len(self._names) != len(theirs):
            twice = ", ".join(name for name in theirs if self._names[_hf_name(name)] != name)
            raise InputError(f"{file.path}: tensors that occur twice, under two names: {twice}; copy the file again")

    def __getitem__(self, name: str) -> np.ndarray:
        theirs = self._names[name]
        return self._in_our_order(theirs, self._file.read(theirs))

    def _in_our_order(self, theirs: str, rows: np.ndarray) -> np.ndarray:
        match = _LAYER.fullmatch(theirs)
        heads = {"attn_q": self._config.num_heads, "attn_k": self._config.num_kv_heads}
        if self._config.family == "llama" and match is not None and match[2] in heads:
            return halves_from_pairs(rows, heads[match[2]])
        return rows

    def __contains__(self, name: object) -> bool:
        return name in self._names  # that of `Mapping` reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def halves_from_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows (2k, 2k + 1) of every head go to (k, k + head_dim / 2): first all first ones, then all second ones.

    A number of rows that is no multiple of `2 num_heads` is left alone: its shape is refused where it is compared.
    """
    if rows.shape[0] % (2 * num_heads):
        return rows
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _hf_name(name: str) -> str:
    match = _LAYER.fullmatch(name)
    if match is not None and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_NAMES[stem]}.{kind}" if stem in _NAMES else name
