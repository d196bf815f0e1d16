"""Small decoders of every family, with parameters in which nothing is trivial; and a slow one to compare with."""

import math
from functools import cache, partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.models.decoder.config import DecoderConfig, RopeScaling
from qrag_jax.models.decoder.network import (
    attend_packed,
    hidden_states,
    init_params,
    segment_positions,
    vocabulary_logits,
)
from qrag_jax.models.decoder.rotary import inverse_frequencies

FAMILIES = {
    "llama": {"tie_embeddings": True},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 6},
}
SCALINGS = {
    "linear": RopeScaling("linear", 2.0),
    "yarn": RopeScaling("yarn", 4.0, original_max_positions=8, beta_fast=2.0, beta_slow=0.5),
    "llama3": RopeScaling("llama3", 4.0, original_max_positions=16, low_freq_factor=1.0, high_freq_factor=2.0),
}


def decoder_config(family="llama", **changes) -> DecoderConfig:
    sizes = {
        "vocab_size": 13, "hidden_size": 16, "intermediate_size": 24, "num_layers": 2, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 4, "max_positions": 32, "norm_eps": 1e-5,
    }  # fmt: skip
    return DecoderConfig(**{"family": family, **sizes, **FAMILIES[family], **changes})


@cache
def decoder_shapes(config: DecoderConfig):
    return jax.eval_shape(partial(init_params, config), jax.random.key(0))


def random_decoder_params(config: DecoderConfig, seed=0):
    """Biases and norms are no zeros and ones, so that a forgotten one shows; nothing is compiled."""
    rng = np.random.default_rng(seed)
    draw = lambda leaf: jnp.asarray(rng.normal(0.1, 0.4, leaf.shape), leaf.dtype)  # noqa: E731
    return jax.tree.map(draw, decoder_shapes(config))


def padded_rows(rows, length=None):
    """Rows of unequal length, padded on the left with a token that is no padding elsewhere -> (tokens, pads)."""
    length = length or max(map(len, rows))
    tokens = [[5] * (length - len(row)) + list(row) for row in rows]
    return jnp.asarray(tokens, jnp.int32), jnp.asarray([length - len(row) for row in rows], jnp.int32)


def random_rows(lengths, vocab_size=13, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


@partial(jax.jit, static_argnums=0)
def all_logits(config: DecoderConfig, params, tokens, pads):
    """Logits of the token after every one of rows that are padded on the left."""
    tokens, pads = jnp.asarray(tokens), jnp.asarray(pads)
    segments = (jnp.arange(tokens.shape[1]) >= pads[:, None]).astype(jnp.int32)
    hidden, _ = hidden_states(
        params,
        tokens,
        segment_positions(segments),
        lambda query, key, value, _, cache: (attend_packed(query, key, value, segments), cache),
        config=config,
    )
    return vocabulary_logits(params, hidden)


def numpy_decoder(config: DecoderConfig, params, tokens) -> np.ndarray:
    """Logits [L, vocab] of one row, position by position and head by head, in float64."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    frequencies, factor = inverse_frequencies(config)
    size, group = config.head_dim, config.num_heads // config.num_kv_heads

    def dense(layer, name, x):
        return x @ layer[name]["kernel"] + layer[name].get("bias", 0)

    def norm(values, x):
        return x / math.sqrt((x**2).mean() + config.norm_eps) * values["scale"]

    def head(layer, name, x, index, place):
        part = dense(layer, name, x)[index * size : (index + 1) * size]
        part = norm(layer[f"{name}_norm"], part) if config.qk_norm else part
        as_complex = (part[: size // 2] + 1j * part[size // 2 :]) * np.exp(1j * place * frequencies) * factor
        return np.concatenate([as_complex.real, as_complex.imag])

    rows = [p["embed"]["embedding"][token] for token in tokens]
    for number in range(config.num_layers):
        layer = jax.tree.map(itemgetter(number), p["layers"])
        inner = [norm(layer["attention_norm"], row) for row in rows]
        attended = []
        shared = range(config.num_kv_heads)
        keys = [np.array([head(layer, "key", x, each, place) for place, x in enumerate(inner)]) for each in shared]
        values = [
            np.array([dense(layer, "value", x)[each * size : (each + 1) * size] for x in inner]) for each in shared
        ]
        for here, x in enumerate(inner):
            heads = []
            for index in range(config.num_heads):
                query, seen = head(layer, "query", x, index, here), slice(here + 1)
                weights = np.exp(keys[index // group][seen] @ query / math.sqrt(size))
                heads.append(weights / weights.sum() @ values[index // group][seen])
            attended.append(rows[here] + dense(layer, "output", np.concatenate(heads)))
        rows = []
        for row in attended:
            x = norm(layer["mlp_norm"], row)
            gate = dense(layer, "gate", x)
            rows.append(row + dense(layer, "down", gate / (1 + np.exp(-gate)) * dense(layer, "up", x)))
    kernel = p["embed"]["embedding"].T if config.tie_embeddings else p["head"]["kernel"]
    return np.stack([norm(p["norm"], row) @ kernel for row in rows])
