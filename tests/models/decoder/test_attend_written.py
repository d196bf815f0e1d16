"""Attention over the written part of a cache, block by block, beside attention over all of it."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import decoder_config, random_decoder_params
from support.networks import np_jit

from qrag_jax.models.decoder import causal_lm as network
from qrag_jax.models.decoder.causal_lm import attend_grouped, attend_written, extend, init_cache

SLOTS = 8


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(network, "_SLOTS", SLOTS)


def drawn(batch, heads, kv_heads, length, slots, size=4):
    rng = np.random.default_rng(0)
    query = jnp.asarray(rng.standard_normal((batch, heads, length, size)), jnp.float32)
    keys, values = (jnp.asarray(rng.standard_normal((kv_heads * batch, slots, size)), jnp.float32) for _ in range(2))
    return query, keys, values


def causal(pads, start, length, slots):
    own = start + np.arange(length)
    return jnp.asarray((np.arange(slots) <= own[:, None])[None] & (np.arange(slots) >= np.asarray(pads)[:, None, None]))


def test_by_hand(small_blocks):
    """Two slots with equal logits, in different blocks, mix their values evenly; what is not written is not read."""
    query = np.ones((1, 1, 1, 1), np.float32)
    keys, values = np.zeros((2, 1, 3 * SLOTS, 1), np.float32)
    keys[0, 2 * SLOTS :] = values[0, 2 * SLOTS :] = np.nan
    values[0, [0, SLOTS], 0] = 2, 4
    mask = np.isin(np.arange(3 * SLOTS), [0, SLOTS])[None, None]
    np.testing.assert_allclose(np_jit(attend_written)(query, keys, values, mask, np.int32(2 * SLOTS)), [[[[3.0]]]])


@pytest.mark.parametrize(("start", "length"), [(0, 8), (3, 1), (7, 9), (16, 5), (23, 1)])
def test_as_over_the_whole_cache(small_blocks, start, length):
    query, keys, values = drawn(2, 4, 2, length, 24)
    mask = causal([0, start], start, length, 24)
    expected = np_jit(attend_grouped)(query, keys, values, mask)
    found = np_jit(attend_written)(query, keys, values, mask, np.int32(start + length))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


def test_logits_far_apart_stay_finite(small_blocks):
    """The largest logit comes last, then first: neither block's weights overflow."""
    query, keys, values = drawn(1, 1, 1, 1, 16)
    mask, ones = np.ones((1, 1, 16), bool), np.ones(query.shape, np.float32)
    written, grouped = np_jit(attend_written), np_jit(attend_grouped)
    for sign in (1, -1):
        steep = np.broadcast_to(np.float32(sign) * np.linspace(-300, 300, 16, dtype=np.float32)[:, None], keys.shape)
        found = written(ones, steep, values, mask, np.int32(16))
        np.testing.assert_allclose(found, grouped(ones, steep, values, mask), rtol=1e-6)


def test_a_decoder_gives_the_same_logits(small_blocks, monkeypatch):
    config = decoder_config("qwen2")
    params, tokens = random_decoder_params(config), np.arange(1, 21, dtype=np.int32)[None]
    pads = np.zeros(1, np.int32)

    def read(pieces):
        cache, start = init_cache(config, 1, 24), 0
        run = np_jit(partial(extend, config))
        for piece in pieces:
            logits, cache = run(params, tokens[:, start : start + piece], pads, cache, np.int32(start))
            start += piece
        return logits

    by_blocks = read([9, 8, 3])
    monkeypatch.setattr(network, "_SLOTS", 512)  # the cache is smaller: attended to as a whole
    np.testing.assert_allclose(by_blocks, read([20]), rtol=1e-4, atol=1e-5)
