"""`config.json` of Llama, Qwen2 and Qwen3 as transformers 4 and 5 write it, read and written.

Transformers itself is not asked: importing it takes longer than reading a small model.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from qrag_jax.files.whole_file import read_json
from qrag_jax.models.decoder.config import DecoderConfig, DecoderFamily, RopeScaling
from qrag_jax.models.weights.config_limits import size_problem
from qrag_jax.types import InputError

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_positions",
}
_BOUNDED = {**_SIZES, "num_key_value_heads": "num_kv_heads", "head_dim": "head_dim"}
_CLASSES: dict[DecoderFamily, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Where config.json names none; null is as many as there are heads.
_QWEN_KV_HEADS = 32
_QWEN3_HEAD_DIM = 128
# Numbers of each kind of stretch; RopeScaling calls them the same. "dynamic" is read as "default": it stretches only
# texts beyond max_position_embeddings, and those are refused.
_ROPE_NAMES = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_ROPE_OPTIONAL = ("beta_fast", "beta_slow", "attention_factor")


def read_decoder_config(folder: Path) -> DecoderConfig:
    """The decoder that the `config.json` of a folder describes."""
    path = folder / "config.json"
    return decoder_config(read_json(path), str(path))


def decoder_config(values: Mapping[str, Any], source: str = "config.json") -> DecoderConfig:
    """The decoder of the fields of a `config.json`. Fields that are absent have the defaults of transformers."""
    problems = _problems(values)
    if problems:
        raise InputError(f"{source}: " + "; ".join(problems))
    family: DecoderFamily = values["model_type"]
    sizes = {ours: values[theirs] for theirs, ours in _SIZES.items()}
    num_heads = sizes["num_heads"]
    rope = _rope_values(values)
    biased = bool(values.get("attention_bias") or False)
    num_kv_heads = values.get("num_key_value_heads", None if family == "llama" else _QWEN_KV_HEADS)
    try:
        return DecoderConfig(
            family=family,
            **sizes,
            num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
            head_dim=values.get("head_dim")
            or (_QWEN3_HEAD_DIM if family == "qwen3" else sizes["hidden_size"] // num_heads),
            norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta", values.get("rope_theta", 10_000.0))),
            rope_scaling=_rope_scaling(rope, sizes["max_positions"]),
            tie_embeddings=bool(values.get("tie_word_embeddings", False)),
            qkv_bias=True if family == "qwen2" else biased,
            output_bias=False if family == "qwen2" else biased,
            mlp_bias=family == "llama" and bool(values.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
        )
    except InputError as error:
        raise InputError(str(error), file=source) from error


def _problems(values: Mapping[str, Any]) -> list[str]:
    problems = []
    family = values.get("model_type")
    if not isinstance(family, str) or family not in _CLASSES:
        problems.append(f"model_type is {family!r}, only {', '.join(_CLASSES)} are read")
    for name in _SIZES:
        if not _is_size(values.get(name)):
            problems.append(f"{name} is {values.get(name)!r}, a positive integer is needed")
    for name in ("num_key_value_heads", "head_dim"):
        if values.get(name) is not None and not _is_size(values[name]):
            problems.append(f"{name} is {values[name]!r}, a positive integer is needed")
    problems += [found for name, ours in _BOUNDED.items() if (found := size_problem(ours, values.get(name), name))]
    size, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if family != "qwen3" and values.get("head_dim") is None and _is_size(size) and _is_size(heads) and size % heads:
        problems.append(f"hidden_size {size} is not a multiple of num_attention_heads {heads}, and head_dim is missing")
    for name in ("rms_norm_eps", "rope_theta"):
        if name in values and not _is_number(values[name]):
            problems.append(f"{name} is {values[name]!r}, a positive number is needed")
    for name in ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window"):
        if values.get(name) not in (None, True, False):
            problems.append(f"{name} is {values[name]!r}, true or false is needed")
    if values.get("is_causal") not in (None, True):
        problems.append(f"is_causal is {values['is_causal']!r}, only causal decoders are supported")
    if values.get("hidden_act", "silu") not in ("silu", "swish"):
        problems.append(f"hidden_act is {values['hidden_act']!r}, only 'silu' is supported")
    if values.get("quantization_config") is not None:
        problems.append("quantization_config: quantised tensors are read from GGUF files only")
    return problems + _window_problems(values) + _rope_problems(values)


def _window_problems(values: Mapping[str, Any]) -> list[str]:
    """Layers that look back a bounded way."""
    kinds, num_layers = values.get("layer_types"), values.get("num_hidden_layers")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != num_layers:
            return [f"layer_types is {kinds!r:.100}, a list of an entry for each of {num_layers!r} layers is needed"]
        other = sorted({str(kind) for kind in kinds if kind != "full_attention"})
        return [f"layer_types has {', '.join(other)}, only full_attention is supported"] if other else []
    first = values.get("max_window_layers", 0)
    in_use = values.get("use_sliding_window") and values.get("sliding_window") is not None
    if in_use and not (_is_size(num_layers) and _is_size(first) and first >= num_layers):
        return [
            f"use_sliding_window with sliding_window {values['sliding_window']!r}: only full attention is supported"
        ]
    return []


def _rope_values(values: Mapping[str, Any]) -> Any:
    """The settings of the rotation by positions: `rope_parameters` of transformers 5, `rope_scaling` before."""
    return values.get("rope_scaling") or values.get("rope_parameters") or {}


def _rope_kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _rope_problems(values: Mapping[str, Any]) -> list[str]:
    rope = _rope_values(values)
    if not isinstance(rope, Mapping):
        return [f"rope_scaling is {rope!r}, an object is needed"]
    if nested := sorted(str(name) for name, value in rope.items() if isinstance(value, Mapping)):
        return [f"rope_parameters differ by kind of layer ({', '.join(nested)}): only one for all layers is supported"]
    kind = _rope_kind(rope)
    if not isinstance(kind, str) or kind not in _ROPE_NAMES:
        return [f"rope_type is {kind!r}, only {', '.join(_ROPE_NAMES)} are supported"]
    problems = []
    share = rope.get("partial_rotary_factor", values.get("partial_rotary_factor"))
    if share not in (None, 1):
        problems.append(f"partial_rotary_factor is {share!r}, only whole heads are turned")
    for name in ("rope_theta", *_ROPE_NAMES[kind]):
        value = rope.get(name)
        if value is None and name not in ("rope_theta", *_ROPE_OPTIONAL):
            problems.append(f"rope {kind}: {name} is missing")
        is_null = value is None and name == "rope_theta" and name in rope
        if is_null or (value is not None and not _is_number(value)):
            problems.append(f"rope {kind}: {name} is {value!r}, a positive number is needed")
    if kind == "yarn" and rope.get("mscale") and rope.get("mscale_all_dim"):
        problems.append("rope yarn: mscale and mscale_all_dim, DeepSeek's form, are not supported")
    if rope.get("truncate") not in (None, True, False):
        problems.append(f"rope {kind}: truncate is {rope['truncate']!r}, true or false is needed")
    length = rope.get("original_max_position_embeddings")
    if length is not None and not _is_size(length):
        problems.append(f"rope {kind}: original_max_position_embeddings is {length!r}, a positive integer is needed")
    return problems


def _rope_scaling(rope: Mapping[str, Any], max_positions: int) -> RopeScaling:
    kind = _rope_kind(rope)
    if kind == "dynamic":
        return RopeScaling()
    numbers: dict[str, Any] = {name: float(rope[name]) for name in _ROPE_NAMES[kind] if rope.get(name) is not None}
    original = 0
    if kind in ("yarn", "llama3"):
        original = rope.get("original_max_position_embeddings") or max_positions
    truncate = rope.get("truncate") in (None, True) if kind == "yarn" else True
    return RopeScaling(kind=kind, original_max_positions=original, truncate=truncate, **numbers)


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= sys.float_info.max


def hf_decoder_config(config: DecoderConfig, dtype: str = "float32") -> dict[str, Any]:
    """The `config.json` of a decoder, in names that transformers 4 and 5 read."""
    expected = {
        "llama": {"qk_norm": False, "output_bias": config.qkv_bias},
        "qwen2": {"qk_norm": False, "qkv_bias": True, "output_bias": False, "mlp_bias": False},
        "qwen3": {"qk_norm": True, "output_bias": config.qkv_bias, "mlp_bias": False},
    }[config.family]
    wrong = [f"{name} {getattr(config, name)}" for name, need in expected.items() if getattr(config, name) != need]
    if wrong:
        raise InputError(f"{config.family}: transformers has none with {', '.join(wrong)}; save as another family")
    scaling = config.rope_scaling
    values: dict[str, Any] = {
        "architectures": [_CLASSES[config.family]],
        "model_type": config.family,
        **{theirs: getattr(config, ours) for theirs, ours in _SIZES.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": _hf_rope(scaling),
        "tie_word_embeddings": config.tie_embeddings,
        "dtype": dtype,
    }
    if config.family != "qwen2":
        values["attention_bias"] = config.qkv_bias
    if config.family == "llama":
        values["mlp_bias"] = config.mlp_bias
    else:
        values["use_sliding_window"] = False
    return values


def _hf_rope(scaling: RopeScaling) -> dict[str, Any] | None:
    if scaling.kind == "default":
        return None
    values: dict[str, Any] = {"rope_type": scaling.kind}
    for name in _ROPE_NAMES[scaling.kind]:
        if (value := getattr(scaling, name)) is not None:
            values[name] = value
    if scaling.kind in ("yarn", "llama3"):
        values["original_max_position_embeddings"] = scaling.original_max_positions
    if scaling.kind == "yarn":
        values["truncate"] = scaling.truncate
    return values
