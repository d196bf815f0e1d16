"""The forward pass in NumPy equals that of JAX, and a search of an index imports no JAX."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from support.encoders import random_encoder

from qrag_jax.models.encoder import host_encoder
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.host_encoder import can_encode, encode_rows

TEXTS = ["who took the milk", "milk", "", "the garden the hall the kitchen the milk"]


def on_host(loaded):
    return replace(loaded, params=jax.tree.map(np.asarray, loaded.params))


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize(
    "changes",
    [
        {"normalize": True},
        {"pooling": "cls", "activation": "gelu_tanh", "dim": 5},
        {"pooling": "last", "activation": "silu", "layer_norm_eps": 1e-3},
    ],
)
def test_numpy_equals_jax(family, changes):
    embed = make_embedder(on_host(random_encoder(family, TEXTS, **changes)))
    mine, theirs = embed.questions(TEXTS), embed(TEXTS)
    assert mine.dtype == np.float32 and "_computed" in vars(embed)
    np.testing.assert_allclose(mine, theirs, atol=2e-6)
    assert np.ptp(theirs) > 0.1


def test_a_padding_token_within_a_text_takes_no_position():
    loaded = on_host(random_encoder("roberta", TEXTS))
    config, params = loaded.config, loaded.params
    (row,) = loaded.tokenizer.ids(["milk the"])
    split = np.array([row[0], config.padding_id, row[1]])
    assert host_encoder._places(config, split).tolist() == [2, 1, 3]
    assert host_encoder._places(replace(config, family="bert"), split).tolist() == [0, 1, 2]
    assert encode_rows(config, params, [split]).shape == (1, 16)


def test_a_text_has_the_same_vector_beside_others():
    loaded = on_host(random_encoder("bert", TEXTS))
    rows = [np.asarray(row) for row in loaded.tokenizer.ids(TEXTS) if len(row)]
    together = encode_rows(loaded.config, loaded.params, rows)
    alone = [encode_rows(loaded.config, loaded.params, [row])[0] for row in rows]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_erf_is_that_of_the_library():
    x = np.linspace(-6, 6, 20_001, dtype=np.float32)
    exact = np.array([math.erf(one) for one in x.tolist()])
    found = host_encoder._erf(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=1e-7)
    np.testing.assert_allclose(host_encoder._erf(np.float32([0, -0.0, 1e-6])), [0, 0, 2e-6 / math.sqrt(math.pi)])


def test_jax_computes_documents_many_questions_and_other_families(monkeypatch):
    used = []
    loaded = on_host(random_encoder("bert", TEXTS))
    embed = make_embedder(loaded)
    monkeypatch.setattr(
        "qrag_jax.models.encoder.embedder.encode_rows", lambda *given: used.append(given) or np.eye(32, 16)
    )
    embed(TEXTS)
    embed.questions([])
    embed.questions(["milk"] * 33)
    make_embedder(loaded, dtype="bfloat16").questions(["milk"])
    make_embedder(replace(loaded, params=jax.device_put(loaded.params))).questions(["milk"])
    make_embedder(on_host(random_encoder("mpnet", TEXTS))).questions(["milk"])
    assert not used and not can_encode(random_encoder("qwen3", TEXTS).config)
    embed.questions(["milk"] * 32)
    assert len(used) == 1


def test_questions_are_counted_and_cut_alike():
    loaded = on_host(random_encoder("bert", TEXTS))
    seen = []
    embed = make_embedder(loaded, window=5)
    embed.questions(TEXTS, lambda done, total: seen.append((done, total)))
    asked = embed.counts
    embed(TEXTS)
    assert (asked.num_texts, asked.num_texts_cut, seen) == (4, 2, [(4, 4)])
    assert (embed.counts.num_tokens, embed.counts.num_texts_cut) == (2 * asked.num_tokens, 4)
