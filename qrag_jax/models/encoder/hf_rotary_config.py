"""`config.json` of NomicBERT, ModernBERT and Qwen3 as encoders, read and written.

Transformers is not asked: these files state what they need, and what they may leave out has one default each.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qrag_jax.models.encoder.config import Activation, EncoderConfig, Family
from qrag_jax.models.weights.config_limits import size_problem
from qrag_jax.types import InputError

_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "swiglu": "silu",
}  # fmt: skip
_WRITTEN = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "silu": "silu"}
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
}
# Names in NomicBERT's files on the hub, which transformers has no part in.
_NOMIC_NAMES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions", "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function", "rope_theta": "rotary_emb_base",
}  # fmt: skip
# The only values that the network computes; another value is refused.
_FIXED: Mapping[str, Mapping[str, Any]] = {
    "nomic_bert": {
        "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "use_rms_norm": False,
        "causal": False, "parallel_block": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "num_experts": 0,
    },
    "modernbert": {"norm_bias": False, "attention_bias": False, "mlp_bias": False, "rope_scaling": None},
    "qwen3": {"attention_bias": False, "use_sliding_window": False, "rope_scaling": None},
}  # fmt: skip
_EPS = {"nomic_bert": "layer_norm_eps", "modernbert": "norm_eps", "qwen3": "rms_norm_eps"}
_ACT = {"nomic_bert": "hidden_act", "modernbert": "hidden_activation", "qwen3": "hidden_act"}
_NUM_EVERY, _LOCAL = 3, 128  # of ModernBERT, where a file does not say
_THETAS = {"nomic_bert": 1000.0, "modernbert": 160_000.0, "qwen3": 1_000_000.0}
_CLASSES = {"nomic_bert": "NomicBertModel", "modernbert": "ModernBertModel", "qwen3": "Qwen3Model"}


def read_rotary_config(values: Mapping[str, Any], path: Path, **pooled: Any) -> EncoderConfig:
    """The encoder of a `config.json` of these families.

    Args:
        values: content of the file.
        path: of the file, for errors.
        pooled: pooling and normalisation.

    Raises:
        InputError: a size is missing or no size, or the model needs something that is not computed here; the message
            names each field.
    """
    family: Family = values["model_type"]
    if family == "nomic_bert" and "n_embd" in values:
        values = {**values, **{ours: values[theirs] for ours, theirs in _NOMIC_NAMES.items() if theirs in values}}
    problems = []
    sizes = {}
    for ours, theirs in _SIZES.items():
        value = values.get(theirs)
        if type(value) is not int or value < 1:
            problems.append(f"{theirs} is {value!r}, a positive integer is needed")
        elif problem := size_problem(ours, value, theirs):
            problems.append(problem)
        sizes[ours] = value
    for name, needed in _FIXED[family].items():
        if (value := values.get(name, needed)) != needed and value:
            problems.append(f"{name} is {value!r}, only {needed!r} is read")
    if problems:
        raise InputError(f"{path}: " + "; ".join(problems))
    act, eps = str(values.get(_ACT[family], "gelu")), values.get(_EPS[family], 1e-5)
    if act not in _ACTIVATIONS:
        raise InputError(f"{path}: {_ACT[family]} is {act!r}, choose one of {', '.join(_ACTIVATIONS)}")
    return EncoderConfig(
        **sizes,
        **pooled,
        **_READERS[family](values, path),
        family=family,
        layer_norm_eps=_number(eps, _EPS[family], path),
        activation=_ACTIVATIONS[act],
        type_vocab_size=_size(values, "type_vocab_size", 2, path) if family == "nomic_bert" else 0,
    )


def _nomic(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    return {"rope_theta": _theta(values, path, values.get("rope_parameters"))}


def _modernbert(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    every, kinds = values.get("global_attn_every_n_layers"), values.get("layer_types")
    num_layers = values["num_hidden_layers"]
    if every is None and isinstance(kinds, list):
        every = next((number for number in range(1, len(kinds)) if kinds[number] == "full_attention"), num_layers)
    every = _NUM_EVERY if every is None else every
    if type(every) is not int or every < 1:
        raise InputError(f"{path}: global_attn_every_n_layers is {every!r}, a positive integer is needed")
    expected = ["sliding_attention" if number % every else "full_attention" for number in range(num_layers)]
    if kinds not in (None, expected):
        raise InputError(f"{path}: layer_types has no regular order; only every n-th full_attention is read")
    ropes = values.get("rope_parameters") or {}
    if not isinstance(ropes, Mapping):
        raise InputError(f"{path}: rope_parameters is {ropes!r}, an object is needed")
    window = _size(values, "local_attention", _LOCAL, path)
    return {
        "rope_theta": _theta(values, path, ropes.get("full_attention"), "global_rope_theta"),
        "local_rope_theta": _theta(values, path, ropes.get("sliding_attention"), "local_rope_theta", 10_000.0),
        "local_window": window // 2 if every > 1 else 0,
        "global_every": every,
    }


def _qwen3(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    heads = _size(values, "num_attention_heads", None, path)
    return {
        "num_kv_heads": _size(values, "num_key_value_heads", heads, path),
        "head_dim": _size(values, "head_dim", 128, path),
        "rope_theta": _theta(values, path, values.get("rope_parameters")),
    }


_READERS: Mapping[str, Callable[[Mapping[str, Any], Path], dict[str, Any]]] = {
    "nomic_bert": _nomic, "modernbert": _modernbert, "qwen3": _qwen3,
}  # fmt: skip


def _size(values: Mapping[str, Any], name: str, default: int | None, path: Path) -> int:
    value: Any = values.get(name, default)
    if type(value) is not int or value < 1:
        raise InputError(f"{path}: {name} is {value!r}, a positive integer is needed")
    return value


def _number(value: Any, name: str, path: Path) -> float:
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise InputError(f"{path}: {name} is {value!r}, a positive number is needed")
    return float(value)


def _theta(
    values: Mapping[str, Any], path: Path, rope: Any, name: str = "rope_theta", default: float | None = None
) -> float:
    """Base of the rotary frequencies: transformers 5 writes `rope_parameters`, older files the number itself."""
    rope = {} if rope is None else rope
    if not isinstance(rope, Mapping) or rope.get("rope_type", "default") != "default":
        raise InputError(f"{path}: rope_parameters is {rope!r}, only rope_type 'default' is read")
    value = rope.get("rope_theta", values.get(name, default or _THETAS[values["model_type"]]))
    return _number(value, name, path)


def rotary_config(config: EncoderConfig, ids: Mapping[str, int | None]) -> dict[str, Any]:
    """The `config.json` of an encoder of these families, as transformers 5 writes it.

    Args:
        ids: of special tokens, by their names in the file.
    """
    family = config.family
    rope = lambda theta: {"rope_theta": theta, "rope_type": "default"}  # noqa: E731
    values: dict[str, Any] = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        **ids,
        _EPS[family]: config.layer_norm_eps,
        _ACT[family]: _WRITTEN[config.activation],
        "rope_parameters": rope(config.rope_theta),
        "dtype": "float32",
    }
    if family == "nomic_bert":
        values |= {"type_vocab_size": config.type_vocab_size}
    elif family == "modernbert":
        values |= {
            "global_attn_every_n_layers": config.global_every,
            "layer_types": ["sliding_attention" if kind.is_local else "full_attention" for kind in config.kinds],
            "local_attention": 2 * config.local_window,
            "rope_parameters": {
                "full_attention": rope(config.rope_theta),
                "sliding_attention": rope(config.local_rope_theta),
            },
        }
    else:
        values |= {"num_key_value_heads": config.num_key_heads, "head_dim": config.head_size}
    return values
