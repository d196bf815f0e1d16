"""Rerankers learn to put the passage that answers first: the loss by hand, both ways to train, files of pairs."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.encoders import random_encoder

from qrag_jax.data.questions.pairs import PairGroup, read_pairs
from qrag_jax.models.encoder.classifier import PairScorer, load_classifier, new_classifier
from qrag_jax.models.encoder.text_encoder import init_encoder
from qrag_jax.service import RerankerRequest
from qrag_jax.service.learners import train_reranker
from qrag_jax.train.learners.reranker import (
    RerankerConfig,
    _Sampler,
    add_lora,
    first_places,
    fit_reranker,
    group_scores,
    passages_of,
)
from qrag_jax.train.lora import join_trained, merge_lora
from qrag_jax.train.trainer import Hooks
from qrag_jax.types import InputError, UsageError

PLACES = ["hall", "garden", "kitchen", "tower"]
THINGS = ["key", "milk", "book", "lamp", "ring", "coat"]
GROUPS = [
    PairGroup(f"{ask} the {thing}", f"the {thing} is in the {place}", (f"the {other} is in the {place}",))
    for ask in ("where is", "find") for thing in THINGS for place in PLACES for other in THINGS[:2] if other != thing
]  # fmt: skip
TEXTS = [text for group in GROUPS for text in (group.question, group.positive, *group.negatives)]


def small():
    loaded = random_encoder("bert", TEXTS, num_layers=1)
    return new_classifier(replace(loaded, params=init_encoder(jax.random.key(1), loaded.config)), jax.random.key(0))


@pytest.mark.parametrize("rank", [0, 4])
def test_learns(rank):
    config = RerankerConfig(epochs=12, learning_rate=5e-3, others=2, lora_rank=rank, max_tokens=32)
    start = small()
    fitted = fit_reranker(GROUPS, start, config, Hooks(), lambda *_: None)
    assert fitted.num_groups + len(fitted.first) == len(GROUPS) and fitted.num_cut == 0
    learnt, before = (first_places(GROUPS, GROUPS, one, config).mean() for one in (fitted.classifier, start))
    assert learnt > before + 0.15
    differ = lambda a, b: bool((np.asarray(a) != np.asarray(b)).any())  # noqa: E731
    moved = jax.tree.map(differ, fitted.classifier.params, start.params)
    assert moved["head"]["output"]["kernel"] and moved["encoder"]["layer_0"]["query"]["kernel"]
    assert moved["encoder"]["word_embeddings"]["embedding"] == (rank == 0)


def test_every_cut_passage_counts_and_equal_questions_are_one():
    long = PairGroup("where is the key", "the key is here", ("the hall " * 40, "a hall"))
    assert _Sampler([long, *GROUPS], replace(small(), window=32), RerankerConfig()).num_cut == 1
    with pytest.raises(InputError, match="1 questions with passages; give at least 10"):
        fit_reranker([replace(long, positive=f"key {n}") for n in range(12)], small(), RerankerConfig(), Hooks(), print)


def test_low_rank_changes_by_hand():
    encoder = {"layer_0": {"query": {"kernel": np.ones((3, 2), np.float32), "bias": np.zeros(2)}}}
    lora = add_lora(encoder, 1, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, merge_lora(join_trained(lora, encoder)), encoder)  # B is 0
    own = lora["layer_0"]["query"]
    own |= {"lora_a": np.array([[1.0], [2.0], [3.0]]), "lora_b": np.array([[10.0, 20.0]])}
    merged = merge_lora(join_trained(lora, encoder))["layer_0"]["query"]["kernel"]
    np.testing.assert_array_equal(merged, [[11, 21], [21, 41], [31, 61]])


def test_batches_depend_on_the_seed_and_the_update_alone():
    config = RerankerConfig(questions=4, others=2)
    one, other = (_Sampler(GROUPS, small(), config) for _ in range(2))
    for number in (0, 7):
        jax.tree.map(np.testing.assert_array_equal, one.batch(number), other.batch(number))
    assert not np.array_equal(one.batch(0).tokens, one.batch(1).tokens)
    batch = one.batch(3)
    assert batch.lengths.shape == (4, 3) and batch.tokens.shape[:2] == (4, 3)
    scores = group_scores(small(), small().params, jax.tree.map(jnp.asarray, batch))
    assert scores.shape == (4, 3)


def test_missing_negatives_are_passages_of_others():
    group = PairGroup("where is the key", "the key is in the hall", ())
    passages = passages_of(group, GROUPS, 3, [0])
    others = [one for one in GROUPS if one.question != group.question]
    assert passages[0] == group.positive and len(passages) == 4
    assert set(passages[1:]) <= {one.positive for one in others}
    with pytest.raises(InputError, match="no other passage to compare with; add negatives"):
        passages_of(group, [group], 1, [0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"positive": "a"}, "p.jsonl:2: question must be a text that is not empty"),
        ({"question": "q", "positive": " "}, "p.jsonl:2: positive must be"),
        ({"question": "q", "positive": "a", "negatives": "b"}, "p.jsonl:2: negatives must be a list, got"),
        ({"question": "q", "positive": "a", "negatives": ["b", 3]}, r"p.jsonl:2: negatives\[1\] must be"),
        ({"question": "q", "positive": "a", "negatives": ["a"]}, r"negatives\[0\] is the positive passage"),
    ],
)
def test_bad_pairs_are_named(tmp_path, line, message):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"question": "q", "positive": "a"}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(InputError, match=message):
        read_pairs([path])


def test_run_folder_is_a_model(tmp_path):
    from qrag_jax.models.encoder.weights import save_encoder

    loaded = random_encoder("bert", TEXTS, num_layers=1)
    save_encoder(tmp_path / "start", loaded.config, loaded.params, loaded.tokenizer)
    lines = [{"question": one.question, "positive": one.positive, "negatives": list(one.negatives)} for one in GROUPS]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = RerankerRequest((str(tmp_path / "p.jsonl"),), str(tmp_path / "start"), epochs=1)
    row = train_reranker(request, tmp_path / "run")
    assert row["n_questions"] + row["held_out_questions"] == len(GROUPS)
    assert json.loads((tmp_path / "run/results.json").read_text())["first"] == row["first"]
    scores = PairScorer(load_classifier(tmp_path / "run"))("where is the key", ["the key is in the hall", "the milk"])
    assert np.isfinite(scores).all()
    with pytest.raises(UsageError, match="already contains a model"):
        train_reranker(request, tmp_path / "run")
    with pytest.raises(InputError, match="1 questions with passages; give at least 10"):
        fit_reranker(GROUPS[:2], small(), RerankerConfig(), Hooks(), lambda *_: None)
