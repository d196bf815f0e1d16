"""Training of routers: ridge against its definition, folds by document, and how little a router may lose."""

import numpy as np
import pytest

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.names import ROUTER_METHODS
from qrag_jax.search.levels.router import route
from qrag_jax.search.levels.router_training import deal_groups, fit_router, logistic, ridge
from qrag_jax.types import InputError

RANGES = (LevelRange(1, 1), LevelRange(2, 2))


def groups_of(num, of=4):
    return [f"d{number // of}" for number in range(num)]


def fit(features, recall, groups=None, **more):
    groups = groups or groups_of(len(recall))
    return fit_router(features, recall, groups, RANGES, names=("a", "b", "c"), kind="profiles", **more)


def sided(num=80, noise=0.0, seed=0):
    """Questions whose first number tells which of two ranges holds their evidence."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num, 3))
    first = (features[:, 0] > 0).astype(float)
    swapped = rng.random(num) < noise
    first[swapped] = 1 - first[swapped]
    return features, np.stack([first, 1 - first], axis=1)


def test_ridge_by_hand():
    """One number of -1 and 1, targets 0 and 1: z^T z = 2, so w = (z^T y) / (2 + strength * 2) = 1 / 4 at 1."""
    mean, scale, weights, bias = ridge(np.array([[2.0], [4.0]]), np.array([[0.0], [1.0]]), 1.0)
    assert (mean.item(), scale.item(), bias.item()) == (3.0, 1.0, 0.5)
    assert np.isclose(weights.item(), 0.25)


def test_ridge_has_no_slope_where_its_loss_is_least():
    rng = np.random.default_rng(1)
    x, y, strength = rng.normal(size=(12, 4)), rng.random((12, 2)), 0.3
    mean, scale, weights, bias = ridge(x, y, strength)
    z = (x - mean) / scale
    slope = 2 * z.T @ (z @ weights - (y - bias)) + 2 * strength * len(x) * weights
    assert np.abs(slope).max() < 1e-9


def test_the_dual_form_gives_the_same_weights():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(6, 20)), rng.random((6, 2))
    mean, scale, weights, bias = ridge(x, y, 0.5)
    z = (x - mean) / scale
    assert np.allclose(weights, np.linalg.solve(z.T @ z + 0.5 * 6 * np.eye(20), z.T @ (y - bias)))


def test_a_number_that_never_changes_is_no_division_by_zero():
    mean, scale, weights, _ = ridge(np.ones((4, 1)), np.eye(4)[:, :2], 1.0)
    assert scale.item() == 1 and not weights.any()


def test_a_classifier_by_hand():
    """z of -1 and 1, each the best of one range: by symmetry weights (-w, w) and biases (0, 0).

    The loss log(1 + e^(-2w)) + strength * w^2 has its least where 2 / (1 + e^(2w)) = 2 * strength * w; at a strength
    of 1 / (1 + e^2) that is w = 1.
    """
    mean, scale, weights, bias = logistic(np.array([[2.0], [4.0]]), np.eye(2), 1 / (1 + np.exp(2)))
    assert (mean.item(), scale.item()) == (3.0, 1.0)
    assert np.allclose(weights, [[-1.0, 1.0]], atol=1e-4) and np.isclose(*bias, atol=1e-4)


def test_a_classifier_has_no_slope_where_its_loss_is_least():
    """Slow reading: the loss of each question in a loop, its slope by differences."""
    rng = np.random.default_rng(4)
    x, recall, strength = rng.normal(size=(12, 2)), rng.integers(0, 3, (12, 3)) / 2, 0.2
    mean, scale, weights, bias = logistic(x, recall, strength)

    def loss(weights, bias):
        values = []
        for row, known in zip((x - mean) / scale, recall, strict=True):
            if known.min() == known.max():
                continue
            best, logits = np.flatnonzero(known == known.max()), bias + row @ weights
            values.append(np.log(np.exp(logits).sum()) - logits[best].mean())
        return np.mean(values) + strength * (weights**2).sum() / 2

    for place in np.ndindex(*weights.shape):
        step = np.zeros_like(weights)
        step[place] = 1e-3
        assert abs(loss(weights + step, bias) - loss(weights - step, bias)) / 2e-3 < 1e-3
    for step in 1e-3 * np.eye(3):
        assert abs(loss(weights, bias + step) - loss(weights, bias - step)) / 2e-3 < 1e-3


def test_a_classifier_never_chooses_what_was_never_best_and_learns_nothing_from_equals():
    features, recall = sided(20)
    recall = np.insert(recall, 1, -1.0, axis=1)
    _, _, weights, bias = logistic(features, recall, 0.1)
    assert not weights[:, 1].any() and bias[1] < bias[[0, 2]].min() - 100
    equals = np.vstack([recall, np.full((5, 3), 0.5)])
    more = np.vstack([features, np.tile(features.mean(axis=0), (5, 1))])
    scaled = logistic(more, equals, 0.1)
    assert (
        np.argmax(scaled[3] + (features - scaled[0]) / scaled[1] @ scaled[2], axis=1).tolist()
        == np.argmax(bias + (features - features.mean(axis=0)) / features.std(axis=0) @ weights, axis=1).tolist()
    )
    _, _, weights, bias = logistic(features, np.ones((20, 2)), 0.1)
    assert not weights.any() and not bias.any()


@pytest.mark.parametrize("method", ROUTER_METHODS)
def test_a_router_finds_what_there_is_to_find(method):
    features, recall = sided()
    found = fit(features, recall, method=method)
    assert np.isfinite(found.router.margin)
    assert found.held_out > found.fallback_held_out + 0.2
    fresh, wanted = sided(seed=7)
    chosen = wanted[np.arange(len(wanted)), route(found.router, fresh)]
    assert chosen.mean() > 0.85


@pytest.mark.parametrize("method", ROUTER_METHODS)
def test_a_router_that_knows_nothing_is_its_fallback(method):
    rng = np.random.default_rng(3)
    features, recall = rng.normal(size=(60, 30)), rng.random((60, 2)) * [1.0, 0.6]
    found = fit(features, recall, method=method)
    assert found.router.margin == np.inf and found.router.fallback == 0
    assert (route(found.router, features) == 0).all()
    assert found.held_out == found.fallback_held_out


def test_folds_keep_groups_together_and_are_of_one_size():
    groups = [f"d{number % 11}" for number in range(100)]
    folds = deal_groups(groups, 5, 0)
    assert all(len({folds[i] for i in range(100) if groups[i] == name}) == 1 for name in groups)
    assert np.ptp(np.bincount(folds, minlength=5)) <= 10
    assert np.array_equal(folds, deal_groups(groups, 5, 0))
    assert not np.array_equal(folds, deal_groups(groups, 5, 1))


def test_questions_about_one_document_are_refused():
    features, recall = sided(8)
    with pytest.raises(InputError, match="about 1 document"):
        fit(features, recall, ["a"] * 8)
