"""Classifiers with one output: heads by hand, pairs of texts, folders that are written and read back."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.encoders import random_encoder

from qrag_jax.models.encoder.classifier import (
    PairScorer,
    has_classifier,
    load_classifier,
    new_classifier,
    save_classifier,
)
from qrag_jax.models.encoder.sources import is_encoder
from qrag_jax.models.encoder.text_encoder import encode_tokens
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.types import InputError

QUESTION = "where is the key ?"
PASSAGES = ["the key is here .", "a", "the door " * 60, ""]


@pytest.fixture(params=["bert", "roberta", "modernbert"])
def classifier(request):
    made = new_classifier(random_encoder(request.param, [QUESTION, *PASSAGES]), jax.random.key(0))
    rng = np.random.default_rng(1)
    head = jax.tree.map(lambda leaf: np.asarray(rng.normal(0.1, 0.5, leaf.shape), np.float32), made.params["head"])
    made.params["head"] = head
    return made


def test_head_by_hand(classifier):
    """The score of one pair, from the vector of its first token."""
    table, types = classifier.tokenizer.pairs(QUESTION, PASSAGES[:1], classifier.window)
    tokens, lengths, types = map(jnp.asarray, (table.tokens, table.lengths, types))
    read = jax.jit(encode_tokens, static_argnums=0)
    hidden = read(classifier.config, classifier.params["encoder"], tokens, lengths, types=types)
    head, x = classifier.params["head"], np.asarray(hidden, np.float64)[0, 0]
    x = x @ head["dense"]["kernel"]
    if classifier.config.family == "modernbert":
        x = x / 2 * (1 + np.array([math.erf(one / math.sqrt(2)) for one in x]))
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * head["norm"]["scale"]
    else:
        x = np.tanh(x + head["dense"]["bias"])
    expected = x @ head["output"]["kernel"][:, 0] + head["output"]["bias"][0]
    np.testing.assert_allclose(PairScorer(classifier)(QUESTION, PASSAGES[:1]), [expected], rtol=1e-4)


def test_neither_order_nor_neighbours_count(classifier):
    score, told = PairScorer(classifier), []
    together = score(QUESTION, PASSAGES, lambda *done: told.append(done))
    assert told[-1][0] == told[-1][1] == score.counts.num_tokens and score.counts.num_texts_cut == 1
    alone = [score(QUESTION, [passage])[0] for passage in PASSAGES]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(score(QUESTION, PASSAGES[::-1]), together[::-1], atol=1e-5)
    assert len(score(QUESTION, [])) == 0
    np.testing.assert_array_equal(score(QUESTION, ["a \ud800 key"]), score(QUESTION, ["a \ufffd key"]))


def test_rows_of_pairs(classifier):
    tokenizer = classifier.tokenizer
    table, types = tokenizer.pairs("where", ["the key"], 64)
    ids = [one.tolist() for one in tokenizer.ids(["where", "the key"])]
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    between = [sep, sep] if classifier.config.family == "roberta" else [sep]
    assert table.tokens[0].tolist() == [cls, *ids[0], *between, *ids[1], sep]
    expected = 0 if classifier.config.family == "roberta" else 1
    assert types[0].tolist() == [0] * (len(ids[0]) + 2) + [expected] * (len(table.tokens[0]) - len(ids[0]) - 2)
    with pytest.raises(InputError, match="so a window of 8 has no room for a passage"):
        tokenizer.pairs("where is the key ? where is the key ?", ["a"], 8)


def test_folder_is_read_back(classifier, tmp_path):
    save_classifier(tmp_path, classifier)
    assert has_classifier(tmp_path) and is_encoder(tmp_path)
    again = load_classifier(tmp_path)
    assert again.config == classifier.config and again.window == classifier.window
    jax.tree.map(np.testing.assert_array_equal, again.params, classifier.params)


def test_what_is_no_reranker_is_refused(classifier, tmp_path):
    save_classifier(tmp_path / "one", classifier)
    plain = random_encoder(classifier.config.family, PASSAGES)
    save_encoder(tmp_path / "plain", plain.config, plain.params, plain.tokenizer)
    assert not has_classifier(tmp_path / "plain")
    with pytest.raises(InputError, match="an encoder without a classifier, which cannot rerank"):
        load_classifier(tmp_path / "plain")
    from safetensors.numpy import load_file, save_file

    tensors = load_file(tmp_path / "one/model.safetensors")
    name = next(name for name in tensors if name.endswith(("out_proj.weight", "classifier.weight")))
    save_file(tensors | {name: np.tile(tensors[name], (2, 1))}, tmp_path / "one/model.safetensors")
    with pytest.raises(InputError, match="a classifier with 2 outputs; a reranker has one"):
        load_classifier(tmp_path / "one")
    save_file(tensors | {"head.dense.bias": tensors[name][0]}, tmp_path / "one/model.safetensors")
    with pytest.raises(InputError, match="left over: head.dense.bias"):
        load_classifier(tmp_path / "one")


def test_heads_that_compute_otherwise_are_refused(tmp_path):
    made = new_classifier(random_encoder("modernbert", PASSAGES), jax.random.key(0))
    save_classifier(tmp_path, made)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"classifier_activation": "relu"}))
    with pytest.raises(InputError, match="classifier_activation is 'relu', only 'gelu' is read"):
        load_classifier(tmp_path)


def test_the_pooler_of_an_encoder_begins_a_head():
    from dataclasses import replace

    loaded = random_encoder("bert", PASSAGES)
    pooler = {"pooler.dense.weight": np.ones((16, 16), np.float32), "pooler.dense.bias": np.zeros(16, np.float32)}
    head = new_classifier(replace(loaded, pooler=pooler), jax.random.key(0)).params["head"]
    np.testing.assert_array_equal(head["dense"]["kernel"], 1)
