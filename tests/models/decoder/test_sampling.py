"""Choosing tokens: sets by hand and by sorting, frequencies of draws, log-probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from support.networks import np_jit

from qrag_jax.models.decoder.sampling import draw_tokens, draw_unfiltered, keep_top_k, keep_top_p, log_probabilities
from qrag_jax.models.decoder.steps import Draws
from qrag_jax.types import Sampling

pytestmark = pytest.mark.usefixtures("strict_promotion")

draw, unfiltered = np_jit(draw_tokens), np_jit(draw_unfiltered)
top_k, top_p = np_jit(keep_top_k, static_argnums=1), np_jit(keep_top_p, static_argnums=1)
log_probs = np_jit(log_probabilities)
HAND = np.log(np.array([[0.5, 0.25, 0.125, 0.125], [0.1, 0.2, 0.3, 0.4]], np.float32))


def slow_top_k(row, k):
    return row >= np.sort(row)[::-1][min(k, len(row)) - 1]


def slow_top_p(row, p):
    """The shortest run of sorted tokens that reaches p, and what ties with its last one."""
    probabilities = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
    order = np.argsort(-probabilities, kind="stable")
    needed = int(np.argmax(np.cumsum(probabilities[order]) >= p)) + 1
    return row >= row[order[needed - 1]]


def slow_probabilities(row, temperature, top_k, top_p):
    scaled = row.astype(np.float64) / temperature
    if top_k:
        scaled = np.where(slow_top_k(scaled, top_k), scaled, -np.inf)
    if top_p < 1:
        scaled = np.where(slow_top_p(scaled, top_p), scaled, -np.inf)
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def many_draws(row, count, *settings):
    keys = jax.random.split(jax.random.key(3), count)
    return draw(keys, np.tile(row, (count, 1)), *settings)


@pytest.mark.parametrize(
    ("k", "kept"),
    [
        (1, [[1, 0, 0, 0], [0, 0, 0, 1]]),
        (2, [[1, 1, 0, 0], [0, 0, 1, 1]]),
        (3, [[1, 1, 1, 1], [0, 1, 1, 1]]),  # the third and the fourth of the first row tie
        (9, [[1, 1, 1, 1], [1, 1, 1, 1]]),
    ],
)
def test_top_k_by_hand(k, kept):
    np.testing.assert_array_equal(top_k(jnp.asarray(HAND), k), np.array(kept, bool))


@pytest.mark.parametrize(
    ("p", "kept"),
    [
        (0.01, [[1, 0, 0, 0], [0, 0, 0, 1]]),
        (0.45, [[1, 0, 0, 0], [0, 0, 1, 1]]),
        (0.6, [[1, 1, 0, 0], [0, 0, 1, 1]]),
        (0.8, [[1, 1, 1, 1], [0, 1, 1, 1]]),
        (0.999, [[1, 1, 1, 1], [1, 1, 1, 1]]),
    ],
)
def test_top_p_by_hand(p, kept):
    np.testing.assert_array_equal(top_p(jnp.asarray(HAND), p), np.array(kept, bool))


@pytest.mark.parametrize("seed", range(3))
def test_sets_are_those_of_sorting(seed):
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(4, 57)) * 3).astype(np.float32)
    rows[1] = np.round(rows[1])  # ties, zeros of both signs
    for k in (1, 2, 7, 56, 57):
        np.testing.assert_array_equal(top_k(jnp.asarray(rows), k), [slow_top_k(row, k) for row in rows])
    for p in (0.05, 0.3, 0.7, 0.97):
        np.testing.assert_array_equal(top_p(jnp.asarray(rows), p), [slow_top_p(row, p) for row in rows])


@pytest.mark.parametrize("settings", [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 4, 1.0), (1.0, 0, 0.7), (1.5, 5, 0.8)])
def test_tokens_come_as_often_as_their_probabilities(settings):
    row = np.array([1.0, 0.3, -0.7, 2.0, 0.0, -3.0, 1.4], np.float32)
    expected = slow_probabilities(row, *settings)
    drawn = np.bincount(many_draws(row, 20_000, *settings), minlength=7)
    assert drawn[expected == 0].sum() == 0
    possible = expected > 0
    if possible.sum() > 1:
        assert stats.chisquare(drawn[possible], 20_000 * expected[possible]).pvalue > 1e-3


def test_without_filters_the_faster_function_draws_the_same():
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(50, 11)), jnp.float32)
    keys = jax.random.split(jax.random.key(1), 50)
    np.testing.assert_array_equal(draw(keys, rows, 0.8, 0, 1.0), unfiltered(keys, rows, 0.8))


def test_a_row_is_drawn_by_its_own_key_alone():
    rows = jnp.asarray(np.random.default_rng(2).normal(size=(6, 11)), jnp.float32)
    keys = jax.random.split(jax.random.key(1), 6)
    together = draw(keys, rows, 1.0, 5, 0.9)
    alone = [draw(keys[i : i + 1], rows[i : i + 1], 1.0, 5, 0.9)[0] for i in range(6)]
    np.testing.assert_array_equal(together, alone)


def test_the_most_likely_token_always_stays():
    row = np.array([0.0, 9.0, 1.0], np.float32)
    assert set(many_draws(row, 100, 1.0, 1, 1.0)) == {1}
    assert set(many_draws(row, 100, 1.0, 0, 1e-6)) == {1}
    assert set(many_draws(row, 100, 1e-4, 0, 1.0)) == {1}


def test_log_probabilities_are_those_of_softmax():
    np.testing.assert_allclose(log_probs(HAND, np.array([1, 2], np.int32)), np.log([0.25, 0.3]), rtol=1e-6)
    large = np.array([[1000.0, 1000.0]], np.float32)
    np.testing.assert_allclose(log_probs(large, np.array([0], np.int32)), [np.log(0.5)], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_show(bad):
    assert np.isnan(log_probs(np.array([[0.0, bad, 1.0]], np.float32), np.array([1], np.int32)))[0]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-37, 1e-38, 1e-39, 1e-50, 0.0])
def test_near_no_temperature_the_most_likely_token_is_drawn(temperature):
    rows = jnp.array([[1.0, 2.0, 9.0, 3.0], [-900.0, 1e4, 0.0, 9999.5]])
    keys = jax.random.split(jax.random.key(0), 2)
    for settings in ((0, 1.0), (3, 0.9), (0, 0.5), (2, 1.0)):
        np.testing.assert_array_equal(draw(keys, rows, np.float32(temperature), *settings), [2, 1])
    np.testing.assert_array_equal(unfiltered(keys, rows, np.float32(temperature)), [2, 1])


@pytest.mark.parametrize("temperature", [1e-45, 1e37, 1e38, 1e39, 1e300])
def test_no_temperature_draws_what_is_masked(temperature):
    given = Draws.of(Sampling(temperature=temperature)).temperature
    logits = np.tile(np.array([-np.inf, -np.inf, -np.inf, 1, 0], np.float32), (64, 1))
    keys = jax.random.split(jax.random.key(0), 64)
    for drawn in (
        unfiltered(keys, logits, given),
        draw(keys, logits, given, 3, 0.9),
    ):
        assert set(drawn.tolist()) == ({3} if temperature < 1 else {3, 4})
