"""Tiny random decoders of transformers on torch, with nothing trivial in them, and their parameters as ours."""

import jax.numpy as jnp

from qrag_jax.models.decoder.config import DecoderConfig, RopeScaling

ORIGINAL = 16  # beyond it texts are stretched
SHAPE = {
    "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "head_dim": 6,
    "attn_implementation": "eager",
}  # fmt: skip
SCALINGS = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn, steep, given factor": {
        "factor": 4.0, "original_max_position_embeddings": ORIGINAL, "attention_factor": 1.5, "beta_fast": 4.0,
        "beta_slow": 0.5,
    },
    "yarn, not truncated": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL, "truncate": False},
    "llama3": {
        "factor": 4.0, "original_max_position_embeddings": ORIGINAL, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
}  # fmt: skip
MODELS = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one kv head": ("Llama", {"num_key_value_heads": 1}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 10}),
    "qwen3, tied, biases": ("Qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen2, yarn": ("Qwen2", {"scaling": "yarn"}),
    "qwen3, yarn": ("Qwen3", {"scaling": "yarn"}),
    **{kind: ("Llama", {"scaling": kind}) for kind in SCALINGS},
}


def torch_model(kind, **sizes):
    import torch
    import transformers

    torch.manual_seed(0)
    name, changes = MODELS[kind]
    options = {**SHAPE, **changes, **sizes}
    scaling = options.pop("scaling", None)
    options["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000.0}
    if scaling:
        options["rope_parameters"] |= {"rope_type": scaling.split(",")[0], **SCALINGS[scaling]}
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms are trivial at the start
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def our_config(model) -> DecoderConfig:
    theirs = model.config
    rope = dict(theirs.rope_parameters)
    kind, theta = rope.pop("rope_type"), rope.pop("rope_theta")
    original = rope.pop("original_max_position_embeddings", None)
    family = theirs.model_type
    bias = getattr(theirs, "attention_bias", False)
    return DecoderConfig(
        family, theirs.vocab_size, theirs.hidden_size, theirs.intermediate_size, theirs.num_hidden_layers,
        theirs.num_attention_heads, theirs.num_key_value_heads, model.model.layers[0].self_attn.head_dim,
        theirs.max_position_embeddings, theirs.rms_norm_eps, theta,
        RopeScaling(kind=kind, original_max_positions=original, **rope),
        tie_embeddings=theirs.tie_word_embeddings, qkv_bias=bias or family == "qwen2", output_bias=bias,
        mlp_bias=getattr(theirs, "mlp_bias", False), qk_norm=family == "qwen3",
    )  # fmt: skip


NAMES = {
    "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm", "q_proj": "query", "k_proj": "key",
    "v_proj": "value", "o_proj": "output", "q_norm": "query_norm", "k_norm": "key_norm", "gate_proj": "gate",
    "up_proj": "up", "down_proj": "down", "embed_tokens": "embed", "norm": "norm", "lm_head": "head",
}  # fmt: skip


def our_params(model):
    params, layers = {}, {}
    for name, tensor in model.named_parameters():
        *before, module, leaf = name.split(".")
        value = tensor.detach().numpy()
        if leaf == "weight":
            leaf = "embedding" if module == "embed_tokens" else "scale" if value.ndim == 1 else "kernel"
        value = value.T if leaf == "kernel" else value
        if "layers" in before:
            layers.setdefault(NAMES[module], {}).setdefault(leaf, []).append(value)
        else:
            params.setdefault(NAMES[module], {})[leaf] = jnp.asarray(value)
    stacked = {name: {leaf: jnp.stack(values) for leaf, values in leaves.items()} for name, leaves in layers.items()}
    return params | {"layers": stacked}
