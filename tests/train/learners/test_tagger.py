import json
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.headed_documents import hashed_vectors, headed_document

from qrag_jax.measures.boundary_scores import Judged, score_points
from qrag_jax.models.tagger.predict import tagged_points
from qrag_jax.models.tagger.tagger import NUM_CLASSES, load_tagger, tagger_arrays
from qrag_jax.train.learners.fitting import deal_parts
from qrag_jax.train.learners.tagger import (
    TaggerConfig,
    best_threshold,
    fit_tagger,
    gold_classes,
    tagging_losses,
)
from qrag_jax.types import InputError, UsageError

QUICK = TaggerConfig(num_updates=60, strengths=(1e-2,), cue_strengths=(1e-3,), num_parts=3, batch_size=256)
DOCUMENTS = [headed_document(number) for number in range(12)]


def fit(documents=DOCUMENTS, config=QUICK, **given):
    return fit_tagger(documents, hashed_vectors, "a" * 64, "minilm", config, **given)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    chex.clear_trace_counter()
    out = tmp_path_factory.mktemp("fit") / "run"
    return fit(out=out), out


def f1_of(documents, found):
    rows = zip(documents, found, strict=True)
    return score_points([Judged(len(one.text), one.points, its) for one, its in rows])


def test_it_finds_the_sections_of_documents_that_it_never_saw(fitted):
    unseen = [headed_document(number) for number in range(100, 112)]
    score = f1_of(unseen, tagged_points(fitted[0].tagger, hashed_vectors)([one.text for one in unseen]))
    assert score.f1_any.mean > 0.95
    assert min(score.f1[1], score.f1[2]) > 0.9  # levels too


def test_what_was_held_out_tells_what_to_expect(fitted):
    assert f1_of(DOCUMENTS, fitted[0].held_out).f1_any.mean > 0.9


def test_labels_that_mean_nothing_are_not_found_where_they_were_held_out():
    """A tagger that looked at what it is scored on would find them."""
    rng = np.random.default_rng(0)
    drawn = [sorted(rng.choice(np.arange(1, len(one.text)), 4, replace=False).tolist()) for one in DOCUMENTS]
    noise = [
        replace(one, points=tuple((i, 1) for i in its), paths=(("t",),) * 4)
        for one, its in zip(DOCUMENTS, drawn, strict=True)
    ]
    assert f1_of(noise, fit(noise).held_out).f1_any.mean < 0.5


def test_the_run_loads_as_the_same_tagger(fitted):
    tagger, out = fitted[0].tagger, fitted[1]
    again = load_tagger(out)
    assert again.threshold == tagger.threshold
    for name, array in tagger_arrays(tagger).items():
        np.testing.assert_allclose(tagger_arrays(again)[name], array, rtol=1e-6, atol=1e-7)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["data"]["num_documents"] == 12
    assert lines[1]["loss"] > lines[-1]["loss"]
    unseen = [headed_document(number).text for number in range(100, 104)]
    assert tagged_points(again, hashed_vectors)(unseen) == tagged_points(tagger, hashed_vectors)(unseen)


def test_a_run_folder_that_holds_a_run_is_refused(fitted):
    with pytest.raises(UsageError, match="already contains a trained run"):
        fit(out=fitted[1])


def random_problem(gaps=20, features=5, cues=7, taggers=3):
    rng = np.random.default_rng(0)
    width = taggers * NUM_CLASSES
    shapes = {"weights": (features, width), "cues": (cues, width), "bias": (width,)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    rows = rng.normal(size=(gaps, features)), rng.integers(0, cues, (gaps, 2)), rng.integers(0, NUM_CLASSES, gaps)
    seen, strengths = rng.random((gaps, taggers)) < 0.6, rng.random((taggers, 2))
    return params, *rows, seen, strengths


def in_32_bits(x):
    return jnp.asarray(x.astype({"f": np.float32, "i": np.int32}.get(x.dtype.kind, x.dtype)))


losses = jax.jit(tagging_losses)


def slow_losses(params, features, cues, classes, seen, strengths):
    """The equation, tagger by tagger and gap by gap."""
    found = []
    for m in range(seen.shape[1]):
        own = slice(m * NUM_CLASSES, (m + 1) * NUM_CLASSES)
        total = 0.0
        for i in np.flatnonzero(seen[:, m]):
            z = features[i] @ params["weights"][:, own] + params["bias"][own]
            for cue in cues[i]:
                z = z + params["cues"][cue, own]
            total -= z[classes[i]] - np.log(np.exp(z).sum())
        squares = (params["weights"][:, own] ** 2).sum(), (params["cues"][:, own] ** 2).sum()
        found.append(total / seen[:, m].sum() + strengths[m] @ squares / 2)
    return np.array(found)


def test_the_loss_and_its_gradient_are_those_of_a_slow_reading():
    params, *rows = random_problem()
    on_device = [in_32_bits(x) for x in rows]
    as_jax = jax.tree.map(in_32_bits, params)
    np.testing.assert_allclose(losses(as_jax, *on_device), slow_losses(params, *rows), rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda params: tagging_losses(params, *on_device).sum()))(as_jax)
    step = 1e-5
    for name, place in (("weights", (2, 5)), ("cues", (3, 9)), ("bias", (0,)), ("weights", (4, 11))):
        sides = []
        for sign in (1, -1):
            moved = {key: array.copy() for key, array in params.items()}
            moved[name][place] += sign * step
            sides.append(slow_losses(moved, *rows).sum())
        assert float(gradient[name][place]) == pytest.approx((sides[0] - sides[1]) / 2 / step, abs=1e-4)


def test_taggers_side_by_side_are_taggers_alone():
    params, *rows = random_problem()
    params = jax.tree.map(in_32_bits, params)
    *rows, seen, strengths = [in_32_bits(x) for x in rows]
    together = losses(params, *rows, seen, strengths)
    for m in range(3):
        own = {name: array[..., 4 * m : 4 * m + 4] for name, array in params.items()}
        alone = losses(own, *rows, seen[:, m : m + 1], strengths[m : m + 1])
        assert float(alone[0]) == pytest.approx(float(together[m]), rel=1e-5)


def test_the_best_threshold_by_hand():
    """Sorted: .9 right, .8 wrong, .7 right, .2 wrong; three are there: F1 2/4, 2/5, 4/6, 4/7."""
    f1, threshold = best_threshold(np.array([0.2, 0.9, 0.7, 0.8]), np.array([False, True, True, False]))
    assert (f1, threshold) == (pytest.approx(4 / 5), pytest.approx(0.45))
    assert best_threshold(np.array([0.2, 0.4]), np.array([False, False])) == (0.0, 0.5)


def test_no_threshold_is_better_and_equal_probabilities_are_not_parted():
    rng = np.random.default_rng(3)
    for _ in range(30):
        probability, begins = rng.integers(1, 9, 25) / 10, rng.random(25) < 0.3
        f1, threshold = best_threshold(probability, begins)
        scores = []
        for t in [*np.linspace(0.001, 0.999, 150), threshold]:
            predicted = probability > t
            scores.append(2 * (predicted & begins).sum() / max(predicted.sum() + begins.sum(), 1))
        assert f1 == pytest.approx(max(scores)) and scores[-1] == pytest.approx(f1)


def test_deep_levels_count_as_the_deepest_and_the_first_sentence_as_nothing():
    document = headed_document(0)
    document = replace(document, points=((0, 1), (2, 5), (3, 2)), paths=(("t",),) * 3)
    classes = gold_classes(document)
    assert len(classes) == len(document.text) - 1
    assert classes[:4].tolist() == [0, 3, 2, 0]


def test_views_of_one_document_share_a_part_and_parts_are_as_equal_as_can_be():
    ids = [f"d{number}" for number in range(11)]
    parts = deal_parts(ids * 2, 4, 0)
    assert parts[:11].tolist() == parts[11:].tolist()
    assert sorted(np.bincount(parts[:11])) == [2, 3, 3, 3]
    assert set(deal_parts(ids[:2], 5, 0).tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "no document has a heading; training needs 2"),
        (DOCUMENTS[:1], "1 document has a heading"),
        (DOCUMENTS[:1] * 2, "1 document has a heading"),
        ([replace(one, points=((0, 1),), paths=(("t",),)) for one in DOCUMENTS], "after their first sentence"),
    ],
)
def test_documents_that_say_nothing_of_sections_are_refused(documents, message):
    with pytest.raises(InputError, match=message):
        fit(documents)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_parts": 1}, "num_parts 1: at least 2"),
        ({"num_updates": 0}, "num_updates 0: at least 1"),
        ({"strengths": ()}, "strengths: give at least one"),
        ({"cue_strengths": (-1.0,)}, "cue_strengths -1.0: at least 0"),
    ],
)
def test_configs_are_checked(given, message):
    with pytest.raises(UsageError, match=message):
        TaggerConfig(**given)
