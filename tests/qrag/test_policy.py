from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from support.networks import np_jit

from qrag_jax.qrag import policy
from qrag_jax.qrag.policy import boltzmann_log_probs, make_boltzmann, make_greedy

Q = np.array([0.3, 1.2, -0.5, 0.9, 5.0, 0.31], np.float32)
ALLOWED = np.array([True, True, True, True, False, True])
greedy, log_probs_of = np_jit(policy.greedy), np_jit(boltzmann_log_probs, static_argnames="top_k")


def mixture(q, allowed, temperature, epsilon, top_k=None):
    """(1 - epsilon) softmax over the best k allowed chunks + epsilon uniform over all allowed chunks, in float64."""
    masked = np.where(allowed, q.astype(np.float64), -np.inf)
    if top_k is not None:
        best = np.argsort(-masked, kind="stable")[:top_k]
        masked = np.where(np.isin(np.arange(len(q)), best), masked, -np.inf)
    return (1 - epsilon) * softmax(masked / temperature) + epsilon * allowed / allowed.sum()


# Compiled once for all temperatures, epsilons and masks.
@partial(np_jit, static_argnames="top_k")
def boltzmann_draws(keys, q, allowed, temperature, epsilon, top_k=None):
    return make_boltzmann(temperature, epsilon, top_k)(keys, q, allowed)


def draws(q, allowed, num_draws, temperature=1.0, epsilon=0.0, top_k=None, seed=0):
    """Actions and log probabilities of many environments in the same state."""
    keys = jax.random.split(jax.random.key(seed), 20_000)
    tile = lambda x: np.broadcast_to(x, (20_000, len(x)))  # noqa: E731
    found = boltzmann_draws(keys, tile(q), tile(allowed), np.float32(temperature), np.float32(epsilon), top_k)
    return [x[:num_draws] for x in found]


@pytest.mark.usefixtures("strict_promotion")
def test_greedy_by_hand():
    assert greedy(jnp.asarray(Q), jnp.asarray(ALLOWED)) == 1  # chunk 4 is better but taken


@pytest.mark.usefixtures("strict_promotion")
def test_greedy_ties_go_to_the_first_in_document_order():
    q = np.array([0, 2, 2, 2], np.float32)
    assert greedy(q, np.ones(4, bool)) == 1
    assert greedy(q, np.array([True, False, False, True])) == 3


@given(st.integers(0, 1000))
def test_greedy_never_takes_a_masked_chunk(seed):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=6).astype(np.float32)
    allowed = rng.random(6) < 0.4
    allowed[rng.integers(6)] = True
    q[~allowed] = rng.choice([np.inf, np.nan, 3e38, -1.0])
    assert int(greedy(jnp.asarray(q), jnp.asarray(allowed))) == max(np.flatnonzero(allowed), key=lambda i: q[i])


def test_log_probs_by_hand():
    # Q / alpha = log 1, log 3 (and a masked chunk): 1/4, 3/4; epsilon 0.2: 0.8 * 1/4 + 0.2 / 2 = 0.3 and 0.7.
    q = jnp.array([0.0, 100.0, 0.5 * np.log(3)], jnp.float32)
    allowed = jnp.array([True, False, True])
    np.testing.assert_allclose(np.exp(log_probs_of(q, allowed, 0.5)), [0.25, 0, 0.75], rtol=1e-6)
    np.testing.assert_allclose(np.exp(log_probs_of(q, allowed, 0.5, 0.2)), [0.3, 0, 0.7], rtol=1e-6)


@given(st.floats(0.05, 5), st.floats(0, 1), st.sampled_from([None, 1, 2, 3, 6]), st.integers(0, 1000))
def test_log_probs_against_the_mixture(temperature, epsilon, top_k, seed):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=6).astype(np.float32)
    allowed = rng.random(6) < 0.6
    allowed[rng.integers(6)] = True
    found = log_probs_of(jnp.asarray(q), jnp.asarray(allowed), temperature, epsilon, top_k=top_k)
    expected = mixture(q, allowed, temperature, epsilon, top_k)
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-4, atol=1e-6)
    assert np.exp(np.asarray(found, np.float64)).sum() == pytest.approx(1, abs=1e-5)
    assert (np.asarray(found)[~allowed] == -np.inf).all()


def test_top_k_counts_allowed_chunks_only():
    # The best two allowed chunks are 1 and 3; the masked chunk 4 takes no place in the top two.
    found = np.exp(log_probs_of(jnp.asarray(Q), jnp.asarray(ALLOWED), 1.0, top_k=2))
    assert np.flatnonzero(found).tolist() == [1, 3]
    # Fewer allowed chunks than k: all of them.
    found = np.exp(log_probs_of(jnp.asarray(Q), jnp.asarray(np.arange(6) == 2), 1.0, top_k=2))
    np.testing.assert_allclose(found, np.arange(6) == 2)


@given(st.integers(1, 6), st.integers(0, 200))
def test_top_k_keeps_exactly_k_among_equals(top_k, seed):
    """The first in document order, as `greedy` has it; a state of equal values is where a fresh run starts."""
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 2, 6).astype(np.float32)
    allowed = rng.random(6) < 0.7
    allowed[rng.integers(6)] = True
    found = np.exp(log_probs_of(jnp.asarray(q), jnp.asarray(allowed), 1.0, top_k=top_k))
    order = sorted(np.flatnonzero(allowed), key=lambda i: (-q[i], i))
    assert np.flatnonzero(found).tolist() == sorted(order[:top_k])


def test_top_k_of_equal_values_is_uniform_over_k():
    found = np.exp(log_probs_of(np.zeros(6, np.float32), jnp.asarray(ALLOWED), 0.5, top_k=3))
    np.testing.assert_allclose(found, [1 / 3, 1 / 3, 1 / 3, 0, 0, 0], rtol=1e-6)


def test_a_low_temperature_is_greedy_and_a_high_one_uniform():
    low = np.exp(log_probs_of(jnp.asarray(Q), jnp.asarray(ALLOWED), 1e-6))
    np.testing.assert_allclose(low, np.arange(6) == 1)
    high = np.exp(log_probs_of(jnp.asarray(Q), jnp.asarray(ALLOWED), 1e6))
    np.testing.assert_allclose(high, ALLOWED / 5, atol=1e-5)


@pytest.mark.parametrize(("epsilon", "top_k"), [(0.0, None), (0.3, None), (0.3, 2)])
def test_frequencies_are_the_probabilities(epsilon, top_k):
    actions, _ = draws(Q, ALLOWED, 20_000, 0.5, epsilon, top_k)
    # Standard error at p = 1/2 is 0.0035.
    found = np.bincount(actions, minlength=6) / 20_000
    np.testing.assert_allclose(found, mixture(Q, ALLOWED, 0.5, epsilon, top_k), atol=0.015)


def test_reported_log_prob_is_that_of_the_action():
    actions, log_probs = draws(Q, ALLOWED, 50, 0.5, 0.1)
    np.testing.assert_allclose(np.exp(log_probs), mixture(Q, ALLOWED, 0.5, 0.1)[actions], rtol=1e-5)
    assert len(set(actions.tolist())) > 1


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("filler", [5.0, 3e38, np.inf, np.nan])
def test_masked_chunks_are_never_drawn(epsilon, filler):
    q = np.where(ALLOWED, Q, np.float32(filler))
    actions, log_probs = draws(q, ALLOWED, 20_000, 1.0, epsilon)
    assert set(actions.tolist()) == {0, 1, 2, 3, 5}
    assert np.isfinite(log_probs).all()


def test_epsilon_1_is_uniform_also_beyond_the_top_k():
    actions, _ = draws(Q, ALLOWED, 20_000, 1e-6, 1.0, 2)
    np.testing.assert_allclose(np.bincount(actions, minlength=6) / 20_000, ALLOWED / 5, atol=0.015)


def test_a_single_allowed_chunk_is_certain():
    actions, log_probs = draws(Q, np.arange(6) == 2, 20, 0.1, 0.5, 2)
    assert set(actions.tolist()) == {2}
    np.testing.assert_allclose(log_probs, 0.0, atol=1e-6)


def test_same_keys_same_draws_and_other_keys_others():
    one, again, other = (draws(Q, ALLOWED, 100, seed=seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_a_draw_depends_on_its_own_key_and_state_alone():
    """Row 1 of a batch draws what it draws alone, whatever stands in row 0."""
    keys = jax.random.split(jax.random.key(3), 2)
    q, allowed = np.stack([Q, Q]), np.stack([ALLOWED, ALLOWED])
    alone = boltzmann_draws(keys[1:], q[1:], allowed[1:], 1.0, 0.1)
    for row_0 in (q, np.stack([-Q, Q])):
        together = boltzmann_draws(keys, row_0, allowed, 1.0, 0.1)
        np.testing.assert_array_equal(together[0][1], alone[0][0])
        np.testing.assert_array_equal(together[1][1], alone[1][0])


def test_greedy_policy_ignores_its_keys():
    tile = lambda x: np.stack([x] * 3)  # noqa: E731
    for seed in range(2):
        actions, log_probs = np_jit(make_greedy())(jax.random.split(jax.random.key(seed), 3), tile(Q), tile(ALLOWED))
        assert actions.tolist() == [1, 1, 1] and log_probs.tolist() == [0, 0, 0] and actions.dtype == np.int32


def test_a_greedy_policy_over_chunks_alone_never_stops():
    """STOP stands in the last column: the best action of all, and not to be had."""
    q, allowed = np.array([[0.1, 0.7, 0.3, 9.0]], np.float32), np.array([[True, True, True, True]])
    keys, of_chunks = jax.random.split(jax.random.key(0), 1), np_jit(make_greedy(num_chunks=3))
    assert np_jit(make_greedy())(keys, q, allowed)[0].tolist() == [3]
    assert of_chunks(keys, q, allowed)[0].tolist() == [1]
    assert of_chunks(keys, q, np.array([[True, False, True, True]]))[0].tolist() == [2]


@pytest.mark.usefixtures("strict_promotion")
def test_policies_run_under_strict_promotion():
    keys = jax.random.split(jax.random.key(0), 1)
    for chosen in (make_greedy(), make_boltzmann(jnp.float32(0.5), jnp.float32(0.1), 2)):
        actions, log_probs = np_jit(chosen)(keys, Q[None], ALLOWED[None])
        assert actions.dtype == np.int32 and log_probs.dtype == np.float32
