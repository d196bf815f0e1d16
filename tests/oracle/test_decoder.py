"""The decoders against transformers on torch: tiny random models of every family and scaling, layer by layer."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qrag_jax.models.decoder.causal_lm import Decoder, all_logits, extend, init_cache
from qrag_jax.models.decoder.config import DecoderConfig, RopeScaling

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
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn, steep, given factor": {
        "factor": 4.0, "original_max_position_embeddings": ORIGINAL, "attention_factor": 1.5, "beta_fast": 4.0,
        "beta_slow": 0.5,
    },
    "yarn, not truncated, two scales": {
        "factor": 4.0, "original_max_position_embeddings": ORIGINAL, "truncate": False, "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
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
    if scaling == "dynamic":
        options["max_position_embeddings"] = ORIGINAL
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms are trivial at the start
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def our_config(model) -> DecoderConfig:
    theirs = model.config
    rope = dict(theirs.rope_parameters)
    kind, theta = rope.pop("rope_type"), rope.pop("rope_theta")
    original = rope.pop("original_max_position_embeddings", ORIGINAL if kind == "dynamic" else None)
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
    params = {}
    for name, tensor in model.named_parameters():
        *before, module, leaf = name.split(".")
        place = params.setdefault(f"layer_{before[2]}", {}) if "layers" in before else params
        value = jnp.asarray(tensor.detach().numpy())
        if leaf == "weight":
            leaf = "embedding" if module == "embed_tokens" else "scale" if value.ndim == 1 else "kernel"
        place.setdefault(NAMES[module], {})[leaf] = value.T if leaf == "kernel" else value
    return params


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
    import torch

    model, config, params = tiny
    tokens, pads = padded()
    expected = []
    for module in [model.model.embed_tokens, *model.model.layers]:
        module.register_forward_hook(lambda _, __, made: expected.append(made.numpy()))
    with torch.no_grad():
        logits = model(**torch_inputs(tokens, pads), use_cache=False).logits.numpy()

    apply = jax.jit(
        partial(
            Decoder(config).apply,
            method="everything",
            rope_length=max(LENGTHS),
            capture_intermediates=lambda _, method: method == "__call__",
            mutable=["intermediates"],
        )
    )
    found, captured = apply({"params": params}, tokens, pads)
    captured = captured["intermediates"]
    ours = [captured["embed"]["__call__"][0]]
    ours += [captured[f"layer_{index}"]["__call__"][0][0] for index in range(config.num_layers)]
    real = np.arange(tokens.shape[1]) >= np.asarray(pads)[:, None]
    assert len(ours) == len(expected) == 3
    for layer, (mine, theirs) in enumerate(zip([*ours, found], [*expected, logits], strict=True)):
        np.testing.assert_allclose(np.asarray(mine)[real], theirs[real], atol=2e-5, rtol=2e-5, err_msg=f"layer {layer}")


# Of every family one, and the scaling that hangs on the length of the text; the others: `test_greedy_continuation`.
@pytest.mark.parametrize("tiny", ["llama, one kv head", "qwen2", "qwen3, yarn", "dynamic"], indirect=True)
@pytest.mark.parametrize("sizes", [(40,), (13, 1, 20, 6)])
def test_prompts_read_in_chunks(tiny, sizes):
    """In one piece and in chunks: the logits that transformers has in one piece."""
    import torch

    model, config, params = tiny
    tokens, pads = padded()
    with torch.no_grad():
        expected = model(**torch_inputs(tokens, pads), use_cache=False).logits.numpy()
    run = jax.jit(extend, static_argnums=0, static_argnames="rope_length", donate_argnums=4)
    cache, start = init_cache(config, len(tokens), 48), 0
    for size in sizes:
        piece = tokens[:, start : start + size]
        logits, cache = run(config, params, piece, pads, cache, jnp.int32(start), rope_length=max(LENGTHS))
        start += size
        real = np.asarray(pads) < start
        np.testing.assert_allclose(logits[real], expected[real, start - 1], atol=2e-5, rtol=2e-5)


def test_greedy_continuation(tiny):
    """The logits of the prompt, and the tokens that follow it."""
    import torch

    model, config, params = tiny
    if config.rope_scaling.kind == "dynamic":
        pytest.skip("transformers rotates later tokens by other frequencies than those it has cached")
    tokens, pads = padded()
    inputs = torch_inputs(tokens, pads)
    del inputs["position_ids"]
    with torch.no_grad():
        prompt = model(**torch_inputs(tokens, pads), use_cache=False).logits[:, -1].numpy()
        expected = model.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    run = jax.jit(extend, static_argnums=0, donate_argnums=4)
    cache, start, new = init_cache(config, len(tokens), 64), 0, tokens
    found = []
    for _ in range(12):
        logits, cache = run(config, params, new, pads, cache, jnp.int32(start))
        if start == 0:
            np.testing.assert_allclose(logits, prompt, atol=2e-5, rtol=2e-5)
        start += new.shape[1]
        new = jnp.argmax(logits, axis=-1).astype(jnp.int32)[:, None]
        found.append(new)
    np.testing.assert_array_equal(np.concatenate(found, axis=1), expected[:, tokens.shape[1] :].numpy())


def test_dynamic_scaling_within_the_original_length():
    """There nothing is stretched: the default length, `max_positions`, is the original one."""
    import torch

    model = torch_model("dynamic")
    config, params = our_config(model), our_params(model)
    tokens, pads = padded()[0][:, :ORIGINAL], jnp.zeros(len(LENGTHS), jnp.int32)
    with torch.no_grad():
        expected = model(**torch_inputs(tokens, pads), use_cache=False).logits.numpy()
    found = jax.jit(all_logits, static_argnums=0)(config, params, tokens, pads)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)
