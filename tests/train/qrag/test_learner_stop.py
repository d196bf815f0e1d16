"""The Q learner where episodes end early: by the learned STOP, or by completion."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import linear_network, make_batch, random_params
from support.tiers import slow_but

from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag.env import Batch, EnvConfig, rollout
from qrag_jax.qrag.policy import make_boltzmann
from qrag_jax.train.optimise import ScheduleConfig
from qrag_jax.train.qrag.learner import LearnerConfig, make_learner, q_loss
from qrag_jax.train.qrag.returns import state_value

pytestmark = pytest.mark.usefixtures("strict_promotion")
STOP = EnvConfig(num_steps=3, reward="at_end", stop=True)
TWO_HEADS = EnvConfig(num_steps=3, reward="at_end", stop=True, num_q_heads=2)
COMPLETION = EnvConfig(num_steps=3, end_at_completion=True, fact_reward=0.25)
NOW = jnp.float32(0.5), jnp.float32(0.4)  # temperature and epsilon
BATCH = make_batch(size=12, shortest=3, num_gold=1)


def parameters(seed=0):
    stop = np.random.default_rng(seed + 10).normal(size=8) * 0.5
    return random_params(linear_network(), seed) | {"stop": jnp.asarray(stop, jnp.float32)}


@cache
def compiled(env, soft_trace, reencode):
    """(params, target params, key) -> ((loss, metrics), gradient), and the same rollout by itself."""
    config = LearnerConfig(gamma=0.9, lambda_=0.4, soft_trace=soft_trace, reencode=reencode)

    def value(q, allowed):
        return jax.vmap(lambda q, allowed: state_value(q, allowed, NOW[0]))(q, allowed)

    def loss(params, target, key):
        return q_loss(linear_network(), params, target, BATCH, key, *NOW, env, config)

    def run(params, target, key):
        played = rollout(linear_network(), params, BATCH, key, make_boltzmann(*NOW), env, target, value)
        return jax.value_and_grad(loss, has_aux=True)(params, target, key), played

    return jax.jit(run)


def loop_over_alive_steps(played, num_q_heads, soft_trace=False):
    """Squared errors, targets and Q values of the steps up to the end of each episode, from the recursion."""
    errors, targets, values = [], [], []
    for env in range(len(played.rewards)):
        end = int(np.flatnonzero(played.continues[env] == 0)[0])
        g = 0.0
        for t in reversed(range(end + 1)):
            reward = float(played.rewards[env, t])
            if t == end:
                g = reward
            else:
                bonus = -0.5 * float(played.log_probs[env, t + 1]) if soft_trace else 0.0
                g = reward + 0.9 * (0.6 * float(played.next_values[env, t]) + 0.4 * (g + bonus))
            q = np.asarray(played.q_values[env, t], np.float64)
            errors.append(np.mean((num_q_heads * q - g) ** 2))
            targets.append(g)
            values.append(q.sum())
    return errors, targets, values


@pytest.mark.parametrize(
    ("env", "soft_trace"),
    slow_but(
        [(STOP, True)],
        [(STOP, False), (STOP, True), (TWO_HEADS, False), (COMPLETION, False)],
        [(TWO_HEADS, False), (COMPLETION, False)],
    ),
)
def test_the_loss_is_that_of_the_steps_up_to_the_end(env, soft_trace):
    ((loss, metrics), gradient), played = compiled(env, soft_trace, False)(
        parameters(), parameters(1), jax.random.key(0)
    )
    played = jax.tree.map(np.asarray, played)
    errors, targets, values = loop_over_alive_steps(played, env.num_q_heads, soft_trace)
    assert 12 < len(errors) < 36  # some episodes end early, and not all
    assert float(loss) == pytest.approx(np.mean(errors), rel=1e-4)
    assert float(metrics["target"]) == pytest.approx(np.mean(targets), rel=1e-4)
    assert float(metrics["q"]) == pytest.approx(np.mean(values), rel=1e-4)
    assert float(metrics["return"]) == pytest.approx(played.rewards.sum() / 12, rel=1e-5)
    complete, taken = [], []
    for env_number in range(12):
        end = int(np.flatnonzero(played.continues[env_number] == 0)[0])
        picks = played.actions[env_number, : end + 1][~played.stops[env_number, : end + 1]]
        complete.append(bool(np.asarray(BATCH.gold)[env_number, picks].any()))
        taken.append(len(picks))
    assert float(metrics["complete"]) == pytest.approx(np.mean(complete))
    assert ("taken" in metrics) == env.stop
    if env.stop:
        assert float(metrics["taken"]) == pytest.approx(np.mean(taken))
        assert float(jnp.abs(gradient["stop"]).min()) > 1e-4  # the vector of STOP learns
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_encoding_again_has_the_same_loss_and_gradient():
    arguments = (parameters(), parameters(1), jax.random.key(0))
    one, other = (compiled(TWO_HEADS, False, again)(*arguments) for again in (False, True))
    np.testing.assert_allclose(one[0][0][0], other[0][0][0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one[0][1], other[0][1])


def hidden_task():
    """One gold chunk among four, told by a component of its vector: one pick finds it, and the next is too many."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(64, 6)).astype(np.float32) * 0.1
    vectors[:16, 0] = 1.0
    chunks = np.stack([rng.permutation([rng.integers(0, 16), *rng.choice(48, 3, False) + 16]) for _ in range(32)])
    places = np.tile(np.arange(4, dtype=np.int32), (32, 1))
    return Batch(
        VectorRows(jnp.asarray(vectors)),
        VectorRows(jnp.ones((32, 6))),
        jnp.asarray(chunks, jnp.int32),
        jnp.asarray(places),
        jnp.full(32, 4, jnp.int32),
        jnp.ones((32, 4), bool),
        jnp.asarray(chunks < 16),
        jnp.arange(32, dtype=jnp.int32),
    )


def test_when_to_stop_is_learned():
    """Two picks pay 0.75 at most; who stops after the first gets 1."""
    env, batch, num_updates = EnvConfig(num_steps=2, reward="at_end", stop=True), hidden_task(), 200
    config = LearnerConfig(
        learning_rate=ScheduleConfig(2e-2, 1e-3),
        temperature=ScheduleConfig(0.1, 0.01),
        epsilon=ScheduleConfig(0.5, 0.0),
        weight_decay=0.0,
    )
    learner = make_learner(linear_network(), env, config, num_updates)
    params = random_params(linear_network(), scale=0.1) | {"stop": jnp.zeros(8)}
    state = learner.init(params, jax.random.key(0))

    @jax.jit
    def run(state):
        return jax.lax.scan(lambda state, _: learner.update(state, batch), state, length=num_updates)

    _, metrics = run(state)
    first, last = (
        {name: float(x[part].mean()) for name, x in metrics.items()} for part in (slice(10), slice(-10, None))
    )
    assert first["return"] < 0.75 < 0.97 < last["return"]
    assert last["taken"] < 1.05 and last["complete"] > 0.97
