"""The encoder in a GGUF file: its config from the metadata, its tensors by the names of transformers."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import processors

from qrag_jax.models.encoder.config import EncoderConfig, Family, Pooling
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.gguf.file import GGUFFields, GGUFFile, short
from qrag_jax.models.gguf.tokenizer import ends_of_gguf, tokenizer_from_gguf, word_pieces_from_gguf
from qrag_jax.types import InputError

_FAMILIES: Mapping[str, Family] = {"bert": "bert", "nomic-bert": "nomic_bert", "qwen3": "qwen3"}
_POOLING: Mapping[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
_NAMES: Mapping[Family, Mapping[str, str]] = {
    "bert": {
        "token_embd": "embeddings.word_embeddings", "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings", "token_embd_norm": "embeddings.LayerNorm",
        "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
    },
    "nomic_bert": {
        "token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm", "attn_qkv": "attn.Wqkv", "attn_output": "self_attn.o_proj",
        "attn_output_norm": "post_attention_layernorm", "ffn_up": "mlp.up_proj", "ffn_gate": "mlp.gate_proj",
        "ffn_down": "mlp.down_proj", "layer_output_norm": "post_mlp_layernorm",
    },
    "qwen3": {
        "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
}  # fmt: skip
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


def gguf_encoder_config(file: GGUFFile) -> EncoderConfig:
    """The config of the encoder in a GGUF file; its vectors have length 1, as llama.cpp gives them."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise InputError(f"{file.path}: general.architecture is {name!r}, only {known} are read as encoders")
    family, fields = _FAMILIES[name], GGUFFields(file, name)
    is_qwen = family == "qwen3"
    kind = fields.get("pooling_type")
    if kind not in (None, *_POOLING):
        raise fields.error("pooling_type", kind, "only 1 (mean), 2 (cls) and 3 (last) are read")
    words, types = (file.tensors.get(f"{table}.weight") for table in ("token_embd", "token_types"))
    if words is None:
        raise InputError(f"{file.path}: tensor token_embd.weight is missing; copy the file again")
    heads, size = fields.size("attention.head_count"), fields.size("embedding_length")
    own: dict[str, Any] = {}
    if is_qwen:
        own["num_kv_heads"] = fields.size("attention.head_count_kv", heads)
        own["head_dim"] = fields.size("attention.key_length", size // heads)
    if family != "bert":
        own["rope_theta"] = short(fields.number("rope.freq_base", 1e6 if is_qwen else 1e3))
        if fields.get("rope.scaling.type") not in (None, "none"):
            raise fields.error("rope.scaling.type", fields.get("rope.scaling.type"), "only none is read")
    return EncoderConfig(
        vocab_size=words.shape[0],
        hidden_size=size,
        num_layers=fields.size("block_count"),
        num_heads=heads,
        intermediate_size=fields.size("feed_forward_length"),
        max_positions=fields.size("context_length"),
        type_vocab_size=0 if is_qwen else (1 if types is None else types.shape[0]),
        layer_norm_eps=short(fields.number(f"attention.layer_norm_{'rms_' if is_qwen else ''}epsilon")),
        activation="gelu" if family == "bert" else "silu",
        pooling=("last" if is_qwen else "mean") if kind is None else _POOLING[kind],
        normalize=True,
        family=family,
        **own,
    )


def gguf_tensors(file: GGUFFile, config: EncoderConfig) -> dict[str, np.ndarray]:
    """The tensors, float32, by the names of transformers; names that we do not know stay as they are."""
    names, tensors = _NAMES[config.family], {}
    prefix = "encoder.layer" if config.family == "bert" else "layers"
    for theirs in file.tensors:
        match = _LAYER.fullmatch(theirs)
        stem, _, kind = (theirs if match is None else match[2]).rpartition(".")
        known = names.get(stem)
        layer = "" if match is None else f"{prefix}.{match[1]}."
        name = theirs if known is None else f"{layer}{known}.{kind}"
        if theirs != "output.weight":  # of a decoder's next token
            tensors[name] = file.read(theirs)
    return tensors


def gguf_text_tokenizer(file: GGUFFile) -> TextTokenizer:
    """The tokenizer of an encoder: WordPiece, or byte-level BPE that puts an end behind every text."""
    source = str(file.path)
    if file.metadata.get("tokenizer.ggml.model") == "bert":
        tokenizer, names = word_pieces_from_gguf(file.metadata, source)
        return TextTokenizer(tokenizer, source, names)
    tokenizer = tokenizer_from_gguf(file.metadata, source)
    _, end, _ = ends_of_gguf(file.metadata, source)
    if end is None:
        raise InputError("no tokenizer.ggml.eos_token_id, which ends every text; use another model", file=source)
    token = str(tokenizer.id_to_token(end))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {token}", pair=f"$A $B:1 {token}:1", special_tokens=[(token, end)]
    )
    return TextTokenizer(tokenizer, source, {"pad_token": token})
