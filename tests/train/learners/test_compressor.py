import json
from dataclasses import replace
from functools import partial

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from support.headed_documents import DIM, hashed_vectors, headed_document
from support.tiers import slow_but

from qrag_jax.chunking.tree.parent_vectors import mean_of_children
from qrag_jax.models.compressor import compress_parents, compressor_parents, load_compressor
from qrag_jax.train.learners.compressor import (
    Candidate,
    CompressorConfig,
    deal_sections,
    fit_compressor,
    places_of,
    ranking_loss,
    recalls,
    squared_distance,
    train_candidate,
)
from qrag_jax.train.learners.compressor_data import Section, Shape, ask_sections
from qrag_jax.types import InputError, UsageError
from qrag_jax.unit_rows import unit_rows

QUICK = CompressorConfig(
    kinds=("mlp", "attention"),
    losses=("ranking",),
    strengths=(0.01,),
    hidden=8,
    num_updates=30,
    shape=Shape(num_sections=8, num_children=6),
    num_parts=3,
)
DOCUMENTS = [headed_document(number) for number in range(9)]


def targets(texts):
    return unit_rows(hashed_vectors(texts))


def fit(documents=DOCUMENTS, config=QUICK, **given):
    return fit_compressor(
        documents, hashed_vectors, lambda text: len(text.split()) + 2, targets, "a" * 64, "minilm", config, **given
    )


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    chex.clear_trace_counter()
    out = tmp_path_factory.mktemp("fit") / "run"
    return fit(out=out), out


def half_noise(number=48, seed=0):
    """Sections of three sentences about their topic, which ask, and three that are noise; a sign tells them apart."""
    draw = np.random.default_rng(seed)
    found = []
    for i in range(number):
        topic = draw.normal(size=DIM)
        topical = topic + 0.3 * draw.normal(size=(3, DIM)) + 3 * np.eye(DIM)[0]
        noise = 2 * draw.normal(size=(3, DIM)) + 6 * np.eye(DIM)[1]
        children = unit_rows(np.concatenate([topical, noise]).astype(np.float32))
        num_tokens = np.array([8] * 3 + [7] * 3)
        target = mean_of_children(children[:3], num_tokens[:3], np.zeros(3, int))[0]
        found.append(Section(i // 4, children, num_tokens, target))
    return found


@pytest.mark.parametrize("loss", slow_but(["distance"], ["distance", "ranking"]))
def test_attention_learns_which_children_count(loss):
    config = replace(QUICK, num_updates=60, learning_rate=0.02, shape=Shape(24, 6, 1))
    params = train_candidate(half_noise(), Candidate("attention", loss, 0.01), config)
    asked = ask_sections(half_noise(seed=1), 1, 0)
    found, by_mean = ((_recall_1(asked, own)) for own in (params, None))
    assert found > by_mean + 0.2


def _recall_1(asked, params):
    families = [(one.children, one.num_tokens, np.zeros(len(one.children), int)) for one in asked.sections]
    make = mean_of_children if params is None else partial(compress_parents, params)
    vectors = np.concatenate([make(*own) for own in families])
    return recalls(places_of(asked.questions @ vectors.T, asked.right))[0]


def test_squared_distance_by_hand():
    found, wanted = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 1.0], [0.0, 1.0]])
    assert float(squared_distance(found, wanted)) == 1  # (2 + 0) / 2


def test_ranking_by_hand():
    """One question at its own section with score 1, the other section 0: log(1 + e^-1); at temperature 1/2 e^-2."""
    found = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    questions = jnp.array([[[1.0, 0.0]], [[7.0, 7.0]]])
    asked = jnp.array([[True], [False]])
    for temperature, score in ((1.0, 1), (0.5, 2)):
        wanted = np.log1p(np.exp(-score))
        np.testing.assert_allclose(ranking_loss(found, questions, asked, temperature), wanted, rtol=1e-6)


def test_ranking_is_that_of_a_slow_reading():
    draw = np.random.default_rng(0)
    found, questions = draw.normal(size=(4, 3)), draw.normal(size=(4, 2, 3))
    asked = np.array([[True, True], [False, True], [True, False], [False, False]])
    total = []
    for p in range(4):
        for q in range(2):
            if asked[p, q]:
                scores = [questions[p, q] @ found[n] / 0.3 for n in range(4)]
                total.append(np.log(np.exp(scores).sum()) - scores[p])
    given = (jnp.asarray(one, jnp.float32) for one in (found, questions))
    np.testing.assert_allclose(ranking_loss(*given, jnp.asarray(asked), 0.3), np.mean(total), rtol=1e-5)


def test_places_are_those_of_a_stable_sort():
    scores = np.random.default_rng(0).integers(0, 4, (50, 7)).astype(np.float32)  # many are equal
    right = np.random.default_rng(1).integers(0, 7, 50)
    order = np.argsort(-scores, axis=1, kind="stable")
    assert places_of(scores, right).tolist() == [row.tolist().index(one) for row, one in zip(order, right, strict=True)]
    assert recalls(np.array([0, 1, 4, 5])) == (0.25, 0.75)


def test_no_two_parts_share_a_document():
    sections = [Section(i % 7, *[np.zeros(1)] * 3) for i in range(40)]
    parts = deal_sections(sections, 3, 0)
    assert {
        len({part for one, part in zip(sections, parts, strict=True) if one.document == own}) for own in range(7)
    } == {1}
    assert set(parts) == {0, 1, 2}
    assert deal_sections(sections, 3, 1).tolist() != parts.tolist()


def test_all_candidates_are_tried_and_the_best_is_chosen(fitted):
    own = fitted[0]
    assert list(own.tried) == [Candidate("mlp", "ranking", 0.01), Candidate("attention", "ranking", 0.01)]
    assert sum(own.tried[own.chosen]) == max(map(sum, own.tried.values()))
    assert own.compressor.kind == own.chosen.kind
    assert list(own.places) == ["compressor", "mean", "target", "best_child"]
    assert len({len(places) for places in own.places.values()}) == 1
    assert all((places < own.num_sections).all() for places in own.places.values())


def test_the_run_loads_as_the_same_compressor(fitted):
    compressor, out = fitted[0].compressor, fitted[1]
    again = load_compressor(out)
    assert again.identity == compressor.identity and again.trained_on["num_documents"] == 9
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["data"]["num_documents"] == 9
    assert lines[-1]["step"] == 30 and {"loss", "distance", "ranking"} <= lines[-1].keys()
    vectors = unit_rows(np.random.default_rng(0).normal(size=(3, DIM)).astype(np.float32))
    made = [compressor_parents(one, "a" * 64).of_children for one in (compressor, again)]
    first, second = (one(vectors, np.array([1, 2, 3]), np.array([0, 0, 1])) for one in made)
    np.testing.assert_array_equal(first, second)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_compressor(fitted):
    assert fit().compressor.identity == fitted[0].compressor.identity
    assert fit(config=replace(QUICK, seed=1)).compressor.identity != fitted[0].compressor.identity


def test_a_run_folder_that_holds_a_run_is_refused(fitted):
    with pytest.raises(UsageError, match="already contains a trained run"):
        fit(out=fitted[1])


def test_too_few_documents_are_refused():
    with pytest.raises(InputError, match="documents with a section of two sentences: 2; training needs 3"):
        fit(DOCUMENTS[:2])


def test_sentences_too_short_to_ask_are_refused():
    with pytest.raises(InputError, match="held-out documents have no sentence of 8 or more tokens"):
        fit_compressor(DOCUMENTS, hashed_vectors, lambda text: 3, targets, "a" * 64, "minilm", QUICK)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_updates": 0}, "num_updates 0: at least 1"),
        ({"num_parts": 2}, "num_parts 2: at least 3"),
        ({"temperature": 0.0}, "temperature 0.0: must lie in"),
        ({"strengths": ()}, "strengths: give at least one"),
        ({"strengths": (-1.0,)}, "strengths -1.0: at least 0"),
        ({"kinds": ("lstm",)}, r"kinds=\['lstm'\]: give at least one of mlp, attention, both"),
        ({"losses": ()}, r"losses=\[\]: give at least one of distance, ranking"),
    ],
)
def test_a_wrong_config_is_refused(changed, message):
    with pytest.raises(UsageError, match=message):
        replace(QUICK, **changed)
