"""The decoders against transformers on torch: tiny random models of every family and scaling, layer by layer."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import all_logits

from qrag_jax.models.decoder.config import DecoderConfig, RopeScaling
from qrag_jax.models.decoder.hf_config import decoder_config
from qrag_jax.models.decoder.network import token_logprobs
from qrag_jax.models.decoder.rollout import generate_groups

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("quick_compilation")]

LENGTHS = [40, 3, 1, 17]
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


def torch_model(kind):
    import torch
    import transformers

    torch.manual_seed(0)
    name, changes = MODELS[kind]
    options = {**SHAPE, **changes}
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


@pytest.fixture(scope="module", params=list(MODELS))
def tiny(request):
    model = torch_model(request.param)
    return model, our_config(model), our_params(model)


def padded():
    tokens = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (len(LENGTHS), max(LENGTHS)))
    return jnp.asarray(tokens, jnp.int32), jnp.asarray(max(LENGTHS) - np.asarray(LENGTHS), jnp.int32)


def torch_inputs(tokens, pads):
    import torch

    places = np.arange(tokens.shape[1]) - np.asarray(pads)[:, None]
    return {
        "input_ids": torch.tensor(np.asarray(tokens, np.int64)),
        "attention_mask": torch.tensor((places >= 0).astype(int)),
        "position_ids": torch.tensor(np.maximum(places, 0)),
    }


def test_every_layer_and_the_logits(tiny):
    """The logits after the first layer, and after all; each layer alone shows a fault of its own."""
    import torch

    model, config, params = tiny
    tokens, pads = padded()
    after = []
    for module in model.model.layers:
        module.register_forward_hook(lambda _, __, made: after.append(made))
    with torch.no_grad():
        logits = model(**torch_inputs(tokens, pads), use_cache=False).logits.numpy()
        early = model.lm_head(model.model.norm(after[0])).numpy()
    one = replace(config, num_layers=1), params | {"layers": jax.tree.map(lambda x: x[:1], params["layers"])}
    real = np.arange(tokens.shape[1]) >= np.asarray(pads)[:, None]
    for (own, weights), expected in ((one, early), ((config, params), logits)):
        found = all_logits(own, weights, tokens, pads)
        np.testing.assert_allclose(np.asarray(found)[real], expected[real], atol=2e-5, rtol=2e-5)


def test_log_probabilities_of_packed_texts(tiny):
    """A row for the learner holds all texts, as many as transformers has rows."""
    import torch

    model, config, params = tiny
    tokens, pads = padded()
    with torch.no_grad():
        logprobs = torch.log_softmax(model(**torch_inputs(tokens, pads), use_cache=False).logits, -1).numpy()
    texts = [np.asarray(row[pad:]) for row, pad in zip(tokens, np.asarray(pads), strict=True)]
    expected = [np.r_[0, own[np.arange(pad, own.shape[0] - 1), text[1:]]]
                for own, pad, text in zip(logprobs, np.asarray(pads), texts, strict=True)]  # fmt: skip
    row = jnp.asarray(np.concatenate([*texts, [0, 0]])[None], jnp.int32)
    segments = jnp.asarray(np.repeat([*range(1, 1 + len(texts)), 0], [*map(len, texts), 2])[None], jnp.int32)
    found = token_logprobs(params, row, segments, config=config)
    np.testing.assert_allclose(found[0], np.concatenate([*expected, [0, 0]]), atol=1e-4)
    half = token_logprobs(params, row, segments, config=config, dtype="bfloat16")
    assert np.isfinite(half).all() and np.abs(half - found).mean() < 0.05


def test_greedy_continuation(tiny):
    """The tokens that follow a prompt, of rows of unequal length."""
    model, config, params = tiny
    tokens, pads = padded()
    inputs = torch_inputs(tokens, pads)
    del inputs["position_ids"]
    expected = model.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    draw = jax.jit(partial(generate_groups, config=config, max_tokens=12, end_ids=(), temperature=0.0))
    found = draw(params, tokens, tokens.shape[1] - pads, jnp.zeros((len(LENGTHS), 1), jnp.uint32))
    np.testing.assert_array_equal(found.tokens[:, 0], expected[:, tokens.shape[1] :].numpy())


def test_dynamic_scaling_stretches_nothing_within_the_window():
    import torch
    import transformers

    rope = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, rope_parameters=rope)).eval()
    config, params = decoder_config(model.config.to_dict()), our_params(model)
    tokens, pads = padded()[0], jnp.zeros(len(LENGTHS), jnp.int32)
    with torch.no_grad():
        expected = model(**torch_inputs(tokens, pads), use_cache=False).logits.numpy()
    np.testing.assert_allclose(all_logits(config, params, tokens, pads), expected, atol=2e-5, rtol=2e-5)
