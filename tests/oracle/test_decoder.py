"""The decoders against transformers on torch: tiny random models of every family and scaling, layer by layer."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import all_logits
from support.tiers import slow_but
from support.torch_decoders import MODELS, SHAPE, our_config, our_params, torch_model

from qrag_jax.models.decoder.hf_config import decoder_config
from qrag_jax.models.decoder.network import token_logprobs
from qrag_jax.models.decoder.rollout import generate_groups

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("quick_compilation")]

LENGTHS = [40, 3, 1, 17]
# The logits of each model are compared; what is made of logits is one code for all.
FEW = pytest.mark.parametrize(
    "tiny", slow_but(["llama", "qwen2, yarn", "qwen3"], MODELS, []), indirect=True, scope="module"
)


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


@FEW
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


@FEW
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
