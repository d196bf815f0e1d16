from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qrag_jax.models.decoder import network
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.network import init_params, token_logprobs

SHAPE = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_layers": 2, "num_heads": 4}
SHAPE |= {"num_kv_heads": 2, "head_dim": 8, "max_positions": 64}
FAMILIES = {"llama": {"tie_embeddings": True}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}


def make(family):
    config = DecoderConfig(family=family, **SHAPE, **FAMILIES[family])
    params = init_params(config, jax.random.key(0))

    def add_noise(x):  # to norms and biases too
        return x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape)

    return config, jax.tree.map(add_noise, params)


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
    logprobs = token_logprobs(params, jnp.asarray(tokens), jnp.ones((2, 9), jnp.int32), config=config)
    expected = [read_slowly(params, row, config) for row in tokens]
    np.testing.assert_allclose(logprobs, expected, atol=1e-5)


def test_packed_texts_have_the_logprobs_and_gradients_of_single_ones():
    config, params = make("llama")
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 50, (1, 20)), jnp.int32)
    segments = jnp.asarray([[1] * 8 + [2] * 9 + [0] * 3], jnp.int32)

    def packed(params):
        return token_logprobs(params, tokens, segments, config=config)

    def single(params):
        rows = [tokens[:, :8], tokens[:, 8:17]]
        found = [token_logprobs(params, row, jnp.ones_like(row), config=config) for row in rows]
        return jnp.concatenate([*found, jnp.zeros((1, 3))], axis=1)

    np.testing.assert_allclose(packed(params), single(params), atol=1e-6)
    of_packed, of_single = (jax.grad(lambda p, f=f: f(p).sum())(params) for f in (packed, single))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), of_packed, of_single)


def test_small_blocks_change_nothing(monkeypatch):
    config, params = make("qwen2")
    tokens = jnp.asarray(np.random.default_rng(2).integers(0, 50, (2, 19)), jnp.int32)
    segments = jnp.asarray([[1] * 19, [1] * 7 + [2] * 10 + [0] * 2], jnp.int32)

    def value_and_gradient():
        return jax.value_and_grad(lambda p: token_logprobs(p, tokens, segments, config=config).sum())(params)

    whole = value_and_gradient()
    monkeypatch.setattr(network, "_QUERIES", 4)
    monkeypatch.setattr(network, "_ROWS", 8)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), value_and_gradient(), whole)


def test_lora_adds_the_product_of_its_two_matrices():
    config, params = make("llama")
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 50, (1, 9)), jnp.int32)
    segments = jnp.ones_like(tokens)
    kernel = params["layers"]["query"]["kernel"]
    a, b = (jax.random.normal(jax.random.key(i), s) for i, s in ((1, (2, 16, 3)), (2, (2, 3, kernel.shape[2]))))

    def with_query(**leaves):
        return {**params, "layers": {**params["layers"], "query": leaves}}

    split = token_logprobs(with_query(kernel=kernel, lora_a=a, lora_b=b), tokens, segments, config=config)
    merged = token_logprobs(with_query(kernel=kernel + a @ b), tokens, segments, config=config)
    np.testing.assert_allclose(split, merged, atol=1e-5)
    plain = token_logprobs(params, tokens, segments, config=config)
    assert np.abs(split - plain).max() > 0.01
