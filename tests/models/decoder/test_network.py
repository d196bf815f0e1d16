from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import random_decoder_params

from qrag_jax.models.decoder import network
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.network import token_logprobs

SHAPE = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_layers": 2, "num_heads": 4}
SHAPE |= {"num_kv_heads": 2, "head_dim": 8, "max_positions": 64}
FAMILIES = {"llama": {"tie_embeddings": True}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}


logprobs_of = jax.jit(token_logprobs, static_argnames="config")


def make(family):
    config = DecoderConfig(family=family, **SHAPE, **FAMILIES[family])
    return config, random_decoder_params(config)


def logprobs_and_gradient(params, tokens, segments, *, config):
    """(log-probabilities, gradient of their sum)."""

    def total(params):
        found = token_logprobs(params, tokens, segments, config=config)
        return found.sum(), found

    gradient, found = jax.grad(total, has_aux=True)(params)
    return found, gradient


logprobs_and_gradient_of = jax.jit(logprobs_and_gradient, static_argnames="config")


def read_slowly(params, tokens, config):
    """Log-probabilities of one text, a loop over layers, heads and places in float64."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    pairs = config.head_dim // 2
    frequencies = config.rope_theta ** (-np.arange(pairs) / pairs)

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * scale

    def turn(x, place):
        real, imaginary = x[:pairs], x[pairs:]
        turned = (real + 1j * imaginary) * np.exp(1j * place * frequencies)
        return np.concatenate([turned.real, turned.imag])

    def layer(hidden, own):

        def project(x, name):
            return x @ own[name]["kernel"] + own[name].get("bias", 0)

        def heads(x, name):
            split = project(x, name).reshape(len(tokens), -1, config.head_dim)
            scale = own.get(f"{name}_norm")
            return split if scale is None else norm(split, scale["scale"])

        inner = norm(hidden, own["attention_norm"]["scale"])
        query, key, value = (heads(inner, name) for name in ("query", "key", "value"))
        mixed = np.zeros_like(query)
        for place in range(len(tokens)):
            for head in range(config.num_heads):
                shared = head // (config.num_heads // config.num_kv_heads)
                asked = turn(query[place, head], place)
                scores = [asked @ turn(key[other, shared], other) for other in range(place + 1)]
                weights = np.exp(np.array(scores) / np.sqrt(config.head_dim))
                mixed[place, head] = weights @ value[: place + 1, shared] / weights.sum()
        hidden = hidden + project(mixed.reshape(len(tokens), -1), "output")
        inner = norm(hidden, own["mlp_norm"]["scale"])
        gate = project(inner, "gate")
        return hidden + project(gate / (1 + np.exp(-gate)) * project(inner, "up"), "down")

    hidden = params["embed"]["embedding"][tokens]
    for number in range(config.num_layers):
        hidden = layer(hidden, jax.tree.map(itemgetter(number), params["layers"]))
    hidden = norm(hidden, params["norm"]["scale"])
    logits = hidden @ (params["head"]["kernel"] if "head" in params else params["embed"]["embedding"].T)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.array([0.0] + [logprobs[place, token] for place, token in enumerate(tokens[1:])])


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_a_slow_reading(family):
    config, params = make(family)
    tokens = np.random.default_rng(0).integers(0, 50, (2, 9))
    logprobs = logprobs_of(params, jnp.asarray(tokens, jnp.int32), jnp.ones((2, 9), jnp.int32), config=config)
    expected = [read_slowly(params, row, config) for row in tokens]
    np.testing.assert_allclose(logprobs, expected, atol=1e-5)


def test_packed_texts_have_the_logprobs_and_gradients_of_single_ones():
    config, params = make("qwen2")
    one, other = (np.random.default_rng(1).integers(0, 50, length) for length in (8, 9))

    def read(*rows):
        """Each row is some texts, one after the other; what fills it up is no text."""
        tokens, segments = np.full((2, 19), 7, np.int32), np.zeros((2, 19), np.int32)
        for row, texts in enumerate(rows):
            text = np.concatenate(texts)
            tokens[row, : len(text)] = text
            segments[row, : len(text)] = np.repeat([1, 2][: len(texts)], [len(each) for each in texts])
        return logprobs_and_gradient_of(params, jnp.asarray(tokens), jnp.asarray(segments), config=config)

    (packed, of_packed), (single, of_single) = read([one, other]), read([one], [other])
    np.testing.assert_allclose(packed[0, :17], np.concatenate([single[0, :8], single[1, :9]]), atol=1e-6)
    assert not packed[0, 17:].any() and not packed[1].any() and packed[0, 1:8].all() and packed[0, 9:17].all()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), of_packed, of_single)


def test_small_blocks_change_nothing(monkeypatch):
    config, params = make("qwen2")
    tokens = jnp.asarray(np.random.default_rng(2).integers(0, 50, (2, 19)), jnp.int32)
    segments = jnp.asarray([[1] * 19, [1] * 7 + [2] * 10 + [0] * 2], jnp.int32)
    whole = logprobs_and_gradient_of(params, tokens, segments, config=config)
    monkeypatch.setattr(network, "_QUERIES", 4)
    monkeypatch.setattr(network, "_ROWS", 8)
    anew = jax.jit(lambda *given: logprobs_and_gradient(*given, config=config))  # compiled with these numbers
    found = anew(params, tokens, segments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, whole)


def test_lora_adds_the_product_of_its_two_matrices():
    config, params = make("llama")
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 50, (2, 9)), jnp.int32)
    segments = jnp.ones_like(tokens)
    kernel = np.asarray(params["layers"]["query"]["kernel"])
    rng = np.random.default_rng(4)
    a, b = (rng.normal(size=size).astype(np.float32) for size in ((2, 16, 3), (2, 3, kernel.shape[2])))

    def with_query(**leaves):
        return {**params, "layers": {**params["layers"], "query": leaves}}

    split = logprobs_of(with_query(kernel=kernel, lora_a=a, lora_b=b), tokens, segments, config=config)
    merged = logprobs_of(with_query(kernel=kernel + a @ b), tokens, segments, config=config)
    np.testing.assert_allclose(split, merged, atol=1e-5)
    plain = logprobs_of(params, tokens, segments, config=config)
    assert np.abs(split - plain).max() > 0.01
