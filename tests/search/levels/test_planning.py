"""Planners: what a router predicts and when it leaves its fallback, cost, run folders, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.level_documents import NAMES, embed, tiny_index

from qrag_jax.checkpoint import save_checkpoint
from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges
from qrag_jax.search.levels import router as planning
from qrag_jax.search.levels.planners import constant, plan_cost, rank_levels
from qrag_jax.search.levels.router import (
    Router,
    choose_ranges,
    load_router,
    make_planner,
    predict_recall,
    save_router,
)
from qrag_jax.types import InputError, UsageError

RANGES = (LevelRange(1, 1), LevelRange(3, 3), LevelRange(0, 3))


def router(**changes):
    """Of one number a question: the first word; whales want level 1, all else level 3."""
    weights = np.zeros((9, 3))
    weights[0, 0] = 0.5
    known = {
        "features": "vectors",
        "names": NAMES,
        "ranges": RANGES,
        "fallback": 1,
        "margin": 0.1,
        "mean": np.zeros(9),
        "scale": np.full(9, 2.0),
        "weights": weights,
        "bias": np.array([0.4, 0.5, 0.3]),
        "fingerprint": "",
    }
    return Router(**{**known, **changes})


def test_prediction_by_hand():
    """bias + weights * (x - mean) / scale: 0.4 + 0.5 * (2 - 1) / 2."""
    found = predict_recall(router(mean=np.ones(9)), np.array([[2.0, *[1.0] * 8]]))
    assert np.allclose(found, [[0.65, 0.5, 0.3]])


def test_the_fallback_stays_up_to_the_margin():
    predicted = np.array([[0.6, 0.5], [0.61, 0.5], [0.1, 0.5]])
    assert choose_ranges(predicted, 1, 0.105).tolist() == [1, 0, 1]
    assert choose_ranges(predicted, 1, np.inf).tolist() == [1, 1, 1]
    assert choose_ranges(predicted, 1, 0.0).tolist() == [0, 0, 1]


def test_features_of_another_size_are_refused():
    with pytest.raises(InputError, match="reads 9 numbers of a question, got 4"):
        predict_recall(router(), np.zeros((1, 4)))


@pytest.mark.parametrize(
    ("built", "sent", "full", "cost"),
    [(100, 50, 300, 0.5), (0, 0, 10, 0), (7, 3, 10, 1), (0, 0, 0, 0), (np.array([7, 3]), 3, 20, [0.5, 0.3])],
)
def test_cost_by_hand(built, sent, full, cost):
    assert np.array_equal(plan_cost(built, sent, full), cost)


def test_constant_names_one_range_for_all():
    assert constant(LevelRange(1, 2))(["a", "b"], ["head"]).ranges == [LevelRange(1, 2)] * 2


def test_a_planner_routes_by_the_vector():
    plan = make_planner(router(weights=np.where(router().weights, 9.0, 0)), tiny_index(), embed)
    assert list(plan(["whales", "tea"], []).ranges) == [LevelRange(1, 1), LevelRange(3, 3)]


def test_a_planner_by_profiles_searches_first():
    index = tiny_index()
    num = len(planning.profile_names(NAMES))
    weights = np.zeros((num, 3))
    weights[planning.profile_names(NAMES).index("digits"), 0] = 1.0
    own = router(features="profiles", mean=np.zeros(num), scale=np.ones(num), weights=weights)
    plan = make_planner(own, index, embed)
    assert list(plan(["whales 7", "whales"], []).ranges) == [LevelRange(1, 1), LevelRange(3, 3)]


def test_a_search_by_a_planner_is_the_search_in_its_range():
    index, levels = tiny_index(), LevelRange(2, 2)
    found, planned = rank_levels(index, "bees sing", embed, constant(levels), 3)
    wanted = index.rank("bees sing", embed(["bees sing"])[0], levels, 3)
    assert found.ids.tolist() == wanted.ids.tolist() and planned.levels == levels


def test_other_levels_are_refused():
    with pytest.raises(UsageError, match="trained on the levels a, b, but the index has document"):
        make_planner(router(names=("a", "b")), tiny_index(), embed)


def test_another_encoder_is_refused():
    index = tiny_index()
    index.corpus = replace(index.corpus, made_by=replace(index.corpus.made_by, fingerprint="mine"))
    with pytest.raises(InputError, match="the router has another one"):
        make_planner(router(fingerprint="other"), index, embed)


@pytest.mark.parametrize("margin", [0.1, np.inf])
def test_a_run_gives_the_router_back(tmp_path, margin):
    own = router(margin=margin, fingerprint="print", ranges=tuple(all_ranges(NAMES))[:3])
    save_router(own, tmp_path / "run")
    found = load_router(tmp_path / "run")
    assert {k: v for k, v in vars(found).items() if not isinstance(v, np.ndarray)} == {
        k: v for k, v in vars(own).items() if not isinstance(v, np.ndarray)
    }
    features = np.random.default_rng(0).normal(size=(4, 9))
    assert np.array_equal(predict_recall(found, features), predict_recall(own, features))


def test_a_folder_of_something_else_is_refused(tmp_path):
    save_checkpoint(tmp_path / "run", 0, {"x": np.ones(2)}, {}, metadata={"kind": "tagger"})
    with pytest.raises(UsageError, match="not a router; give a folder that `qrag train router --out` wrote"):
        load_router(tmp_path / "run")
    with pytest.raises(UsageError, match="nowhere: no such folder; give one that `qrag train router --out` wrote"):
        load_router(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": np.zeros(9)}, "scale is not positive"),
        ({"bias": np.array([0, np.nan, 0])}, "bias is not finite"),
        ({"weights": np.zeros((9, 2))}, r"weights is not \[9, 3\]"),
        ({"fallback": 3}, "fallback 3 of 3 ranges"),
        ({"margin": -1.0}, "margin -1"),
        ({"features": "profiles"}, "9 numbers of a profile"),
        ({"features": "smell"}, "of another version"),
        ({"names": ("document", "16")}, "is not a level"),
    ],
)
def test_a_router_that_cannot_be_is_damaged(changes, message):
    own = router(**changes)
    about = {
        "format": 1,
        "features": own.features,
        "names": list(own.names),
        "ranges": [f"{NAMES[one.least]}:{NAMES[one.most]}" for one in RANGES],
        "fallback": own.fallback,
        "margin": own.margin,
    }
    arrays = {name: getattr(own, name) for name in ("mean", "scale", "weights", "bias")}
    with pytest.raises(InputError, match=message) as refused:
        planning._checked(arrays, json.loads(json.dumps(about)), "RUN")
    assert "train it again" in str(refused.value)
