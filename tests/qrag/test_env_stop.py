"""The learned STOP of `qrag/env.py`: one more action, with a vector of its own, that ends the episode."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from support.networks import (
    STOP,
    linear_network,
    make_batch,
    np_jit,
    random_params,
    select_environments,
    table_batch,
    table_env,
    table_network,
    table_params,
)

from qrag_jax.qrag import env as process
from qrag_jax.qrag.env import EnvConfig, observe, q_values, replay_q_values, rollout
from qrag_jax.qrag.policy import make_boltzmann, make_greedy
from qrag_jax.train.qrag.returns import state_value
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
CONFIG = EnvConfig(num_steps=3, reward="at_end", stop=True)
TEMPERATURE = 0.5
step_reward = np_jit(process.step_reward, static_argnums=3)
allowed_actions = np_jit(process.allowed_actions, static_argnums=2)


@partial(np_jit, static_argnames="config")
def q_of(params, batch, taken, config):
    """Q of all actions under linear towers."""
    rows = linear_network().actions(params, batch.table)[batch.chunks]
    _, rotation = observe(batch, taken, config, 8)
    return q_values(linear_network(), params, rows, batch, taken, rotation, config)


@np_jit
def states_of(params, batch, taken):
    rows = jnp.take_along_axis(batch.chunks, taken, axis=1)
    return linear_network().states(params, batch.questions, batch.table, rows)


def params_with_stop(seed=0, scale=0.5):
    stop = np.random.default_rng(seed + 10).normal(size=8) * scale
    return random_params(linear_network(), seed) | {"stop": jnp.asarray(stop, jnp.float32)}


def soft_value(q, allowed):
    return jax.vmap(lambda q, allowed: state_value(q, allowed, TEMPERATURE))(q, allowed)


@cache
def compiled(config=CONFIG):
    """A Boltzmann rollout of linear towers with a critic."""

    def run(params, critic, batch, key):
        policy = make_boltzmann(TEMPERATURE, 0.4)
        return rollout(linear_network(), params, batch, key, policy, config, critic, soft_value)

    return jax.jit(run)


def play(batch, config=CONFIG, key=0):
    played = compiled(config)(params_with_stop(), params_with_stop(1), batch, jax.random.key(key))
    return jax.tree.map(np.asarray, played)


BATCH = make_batch(size=12, shortest=3)


# --- rewards


def rewards_of(gold, picks, config, stop_at):
    """(rewards, continues) of the steps of an episode that takes `picks` and stops at step `stop_at` (from 0)."""
    found = [
        step_reward(
            np.asarray(gold, bool), np.asarray(picks[:t], np.int32), np.int32(pick), config, np.bool_(t == stop_at)
        )
        for t, pick in enumerate(picks)
    ]
    return [float(reward) for reward, _ in found], [float(going_on) for _, going_on in found]


GOLD = [0, 1, 0, 1, 0, 0]  # chunks 1 and 3


@pytest.mark.parametrize(
    ("penalty", "picks", "stop_at", "reward"),
    [
        # Two chunks of two: 0.5 + 0.5 * 2 / 2. The slot beside STOP plays no part, gold or not.
        (True, [1, 3, 0, 2], 2, 1.0),
        (True, [3, 1, 0, 2], 3, 0.5 + 1 / 3),
        (True, [0, 1, 3, 2], 3, 0.5 + 1 / 3),
        (True, [1, 3, 0, 2], 1, 0.0),  # one is missing, although the slot beside STOP is the other one
        (True, [1, 0, 3, 2], 2, 0.0),
        (True, [0, 2, 1, 3], 3, 0.0),
        (False, [1, 3, 0, 2], 2, 1.0),
        (False, [0, 1, 3, 2], 3, 1.0),
        (False, [0, 2, 1, 3], 3, 0.0),
        # Never stopping is paid at T, as without STOP.
        (True, [1, 3, 0, 2], None, 0.75),
        (False, [1, 0, 2, 3], None, 1.0),
        (True, [1, 0, 2, 4], None, 0.0),
    ],
)
def test_rewards_by_hand(penalty, picks, stop_at, reward):
    config = EnvConfig(num_steps=4, reward="at_end", penalty=penalty, stop=True)
    found, continues = rewards_of(GOLD, picks, config, stop_at)
    last = 3 if stop_at is None else stop_at
    np.testing.assert_allclose(found[: last + 1], [0.0] * last + [reward], rtol=1e-6)
    assert continues[: last + 1] == [1.0] * last + [0.0]


def test_stop_is_no_fact():
    """A gold chunk beside STOP pays no fact reward: it is not taken."""
    config = EnvConfig(num_steps=3, reward="at_end", fact_reward=0.25, stop=True)
    assert rewards_of(GOLD, [1, 3, 0], config, 1)[0][:2] == [0.25, 0.0]
    np.testing.assert_allclose(rewards_of(GOLD, [1, 3, 0], config, 2)[0], [0.25, 0.25, 1.0])


# --- episodes with Q values that are written down


def play_table(table, gold, num_steps=3, num_chunks=4):
    """The greedy episode of one question."""
    config, batch = table_env(num_steps=num_steps, reward="at_end", stop=True), table_batch(num_chunks, gold=gold)
    run = lambda params: rollout(table_network(), params, batch, jax.random.key(0), make_greedy(), config)  # noqa: E731
    return jax.tree.map(lambda x: np.asarray(x)[0], jax.jit(run)(table_params(table)))


def test_an_episode_by_hand():
    """Takes chunk 2, then 0, then stops; STOP is best from the beginning, but not at the first step."""
    played = play_table(
        {(): {2: 0.5, STOP: 9.0}, (2,): {0: 0.7, STOP: 0.6}, (0, 2): {1: 0.1, 3: 0.4, STOP: 0.8}}, (0, 2), 4
    )
    assert played.stops.tolist() == [False, False, True, False]
    assert played.actions.tolist()[:2] == [2, 0]
    assert sorted(played.actions.tolist()) == [0, 1, 2, 3]  # what stands for STOP and comes after it is free
    assert played.alive.tolist() == [1, 1, 1, 0]
    assert played.continues[:3].tolist() == [1, 1, 0]
    assert played.rewards.tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(played.q_values[:3, 0], [0.5, 0.7, 0.8])
    np.testing.assert_allclose(played.stop_q_values[:3, 0], [-np.inf, 0.6, 0.8])


def test_stop_loses_a_tie():
    """It stands behind the chunks, and ties go to the first."""
    played = play_table({(0,): {2: 0.6, STOP: 0.6}, (0, 2): {STOP: 0.1}}, (0,))
    assert played.stops.tolist() == [False, False, True] and played.actions[1] == 2


def test_nothing_is_paid_after_the_end():
    """It stops with nothing found at the second step; the dummy picks after that complete the set, unpaid."""
    played = play_table({(): {3: 1.0}, (3,): {STOP: 1.0}}, (0, 3))
    assert set(played.actions.tolist()) >= {0, 3}
    assert played.alive.tolist() == [1, 1, 0] and played.rewards.tolist() == [0, 0, 0]


# --- Q of STOP


@pytest.mark.parametrize("num_q_heads", [1, 2])
def test_q_of_stop_is_the_unrotated_product_of_every_head(num_q_heads):
    config = EnvConfig(num_steps=3, reward="at_end", stop=True, num_q_heads=num_q_heads)
    batch, params = make_batch(), params_with_stop()
    taken = np.array([[1, 4], [0, 2], [0, 1], [2, 3]], np.int32)
    q = q_of(params, batch, taken, config)
    expected = (states_of(params, batch, taken) * np.asarray(params["stop"])).reshape(4, num_q_heads, -1).sum(2)
    assert q.shape == (4, num_q_heads, 8)
    np.testing.assert_allclose(q[..., -1], expected, rtol=1e-5, atol=1e-6)
    without = q_of(params, batch, taken, EnvConfig(num_q_heads=num_q_heads))
    np.testing.assert_allclose(q[..., :-1], without, rtol=1e-6)


def test_stop_is_one_more_column_and_not_at_first():
    batch = make_batch(shortest=3)
    first = allowed_actions(batch.valid, np.zeros((4, 0), np.int32), CONFIG)
    np.testing.assert_array_equal(first[:, :-1], batch.valid)
    assert not first[:, -1].any()
    later = allowed_actions(batch.valid, np.full((4, 1), 2, np.int32), CONFIG)
    np.testing.assert_array_equal(later[:, :-1], np.asarray(batch.valid) & (np.arange(7) != 2))
    assert later[:, -1].all()
    np.testing.assert_array_equal(allowed_actions(batch.valid, np.zeros((4, 0), np.int32), EnvConfig()), batch.valid)


# --- what rollouts keep to


@pytest.mark.slow
def test_what_follows_stop_counts_for_nothing():
    ended = set()
    for key in range(4):
        played = play(BATCH, key=key)
        assert not played.stops[:, 0].any()
        for env in range(12):
            steps = np.flatnonzero(played.stops[env] & (played.alive[env] > 0))
            end = int(steps[0]) if len(steps) else 2
            ended.add((end, bool(len(steps))))
            np.testing.assert_array_equal(played.alive[env], np.arange(3) <= end)
            np.testing.assert_array_equal(played.rewards[env, end + 1 :], 0)
            np.testing.assert_array_equal(played.continues[env, : end + 1], np.arange(end + 1) < end)
            gold = set(np.flatnonzero(np.asarray(BATCH.gold)[env]).tolist())
            taken = played.actions[env, : end + (not len(steps))].tolist()
            paid = (0.5 + 0.5 * len(gold) / len(taken)) * (gold <= set(taken))
            np.testing.assert_allclose(played.rewards[env, : end + 1], [0.0] * end + [paid], rtol=1e-6)
    assert ended == {(1, True), (2, True), (2, False)}


@pytest.mark.slow
def test_dummy_picks_are_free_chunks():
    """Also in a document of exactly T chunks, where the last free one is left for STOP."""
    batch = BATCH.replace(valid=np.asarray(BATCH.valid) & (np.arange(7) < 3), lengths=np.full(12, 3, np.int32))
    for documents in (BATCH, batch):
        played = play(documents)
        assert played.stops.any()
        assert all(len(set(row)) == 3 for row in played.actions.tolist())
        assert np.take_along_axis(np.asarray(documents.valid), played.actions, axis=1).all()
        assert np.isfinite(played.next_values).all() and np.isfinite(played.log_probs).all()


def stop_by_hand(params, batch, played, t):
    """(state, Q of every chunk and of STOP) [12, 8] before step t, from q_values itself."""
    taken = np.sort(played.actions[:, :t], axis=1)
    return q_of(params, batch, taken, CONFIG)[:, 0], allowed_actions(batch.valid, taken, CONFIG)


def test_the_value_of_a_state_counts_stop():
    played = play(BATCH)
    for t in (1, 2):
        q, allowed = stop_by_hand(params_with_stop(1), BATCH, played, t)
        masked = np.where(allowed, q, -np.inf) / TEMPERATURE
        np.testing.assert_allclose(
            played.next_values[:, t - 1], TEMPERATURE * logsumexp(masked, axis=1), rtol=1e-4, atol=1e-5
        )
        without = TEMPERATURE * logsumexp(masked[:, :-1], axis=1)
        assert (played.next_values[:, t - 1] > without + 1e-3).any()
    np.testing.assert_array_equal(played.next_values[:, 2], 0)


@pytest.mark.slow
def test_the_policy_draws_stop_as_often_as_its_probability_says():
    """4,000 equal environments with draws of their own."""
    batch = select_environments(make_batch(), [1] * 4000).replace(env=jnp.arange(4000, dtype=jnp.int32))
    config = EnvConfig(num_steps=2, reward="at_end", stop=True)
    played = play(batch, config)
    first = played.actions[:, 0]
    for slot in np.unique(first):
        rows = np.flatnonzero(first == slot)
        if len(rows) < 400:
            continue
        q, allowed = (x[rows[0]] for x in stop_by_hand(params_with_stop(), batch, played, 1))
        expected = 0.6 * softmax(np.where(allowed, q, -np.inf) / TEMPERATURE) + 0.4 * allowed / allowed.sum()
        actions = np.where(played.stops[rows, 1], 7, played.actions[rows, 1])
        found = np.bincount(actions, minlength=8) / len(rows)
        np.testing.assert_allclose(found, expected, atol=4 * 0.5 / np.sqrt(len(rows)))
        np.testing.assert_allclose(np.exp(played.log_probs[rows, 1]), expected[actions], rtol=1e-3)
        assert 0.02 < expected[7] < 0.98


# --- the second pass and the gradient


@pytest.mark.slow
@pytest.mark.parametrize("num_q_heads", [1, 2])
def test_chosen_pairs_encoded_again_have_the_same_q(num_q_heads):
    config = EnvConfig(num_steps=3, reward="at_end", stop=True, num_q_heads=num_q_heads)
    params = params_with_stop()
    played = compiled(config)(params, params_with_stop(1), BATCH, jax.random.key(1))
    again = jax.jit(lambda played: replay_q_values(linear_network(), params, BATCH, played, config))(played)
    assert 0 < np.sum(played.stops) < 24 and again.shape == (12, 3, num_q_heads)
    np.testing.assert_allclose(again, played.q_values, rtol=1e-4, atol=1e-5)
    stops = np.asarray(played.stops)
    np.testing.assert_array_equal(np.asarray(played.q_values)[stops], np.asarray(played.stop_q_values)[stops])


def test_the_gradient_of_stop_is_the_state():
    """d Q(s, STOP) / d stop = s, summed over the steps that stopped; other steps leave the vector alone."""
    params, key = params_with_stop(), jax.random.key(1)

    @jax.jit
    def gradient(stop):
        def total(stop):
            policy = make_boltzmann(TEMPERATURE, 0.4)
            played = rollout(linear_network(), params | {"stop": stop}, BATCH, key, policy, CONFIG)
            return played.q_values.sum(), played

        return jax.grad(total, has_aux=True)(stop)

    found, played = gradient(params["stop"])
    expected = np.zeros(8)
    for env, t in np.argwhere(np.asarray(played.stops)):
        slots = np.sort(np.asarray(played.actions)[env, :t])
        alone = select_environments(BATCH, [env])
        expected += states_of(params, alone, slots[None])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(expected).min() > 1e-3


# --- refusals and what is off


def test_without_stop_nothing_stops():
    config = EnvConfig(num_steps=3, reward="at_end")
    played = play(BATCH, config)
    assert not played.stops.any() and (played.alive == 1).all()
    assert np.isneginf(played.stop_q_values).all() and played.stop_q_values.shape == (12, 3, 1)


def test_an_episode_that_ends_at_completion_is_alive_up_to_there():
    """A gold chunk that is taken after the end pays nothing, not even as a fact."""
    config = EnvConfig(num_steps=3, end_at_completion=True, fact_reward=0.25)
    played = play(
        BATCH.replace(gold=np.asarray(BATCH.gold) & (np.cumsum(BATCH.gold, axis=1) == 1)), config
    )  # one gold chunk
    paid = played.rewards > 0
    assert (paid.sum(1) <= 1).all() and len(set(paid.argmax(1)[paid.any(1)].tolist())) > 1
    for env in range(12):
        end = int(paid[env].argmax()) if paid[env].any() else 2
        np.testing.assert_array_equal(played.alive[env], np.arange(3) <= end)


@pytest.mark.parametrize("options", [{}, {"reward": "at_end", "end_at_completion": True}])
def test_stop_needs_the_reward_at_the_end(options):
    with pytest.raises(UsageError, match="env.stop=true .* set env.reward=at_end and env.end_at_completion=false"):
        EnvConfig(stop=True, **options)
