"""Losses beside soft Q: what is right in every visited state, and what STOP pays there."""

import math
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import linear_network, make_batch, quick_compilation, quick_jit, random_params  # noqa: F401
from tiny_q import STOP, table_batch, table_env, table_network, table_params

from qrag_jax.models.towers.network import VectorRows
from qrag_jax.retrieval.mdp.env import Batch, EnvConfig, Rollout, rollout, stop_reward
from qrag_jax.retrieval.mdp.heads import fresh_heads
from qrag_jax.retrieval.mdp.policy import make_boltzmann
from qrag_jax.train.q.learner import LearnerConfig, make_learner, q_loss
from qrag_jax.train.q.ranking import cross_entropy, ranking_loss, right_actions, stop_loss
from qrag_jax.train.q.schedules import ScheduleConfig
from qrag_jax.train.q.sft import trajectory_loss
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
STOPPING = EnvConfig(num_steps=3, reward="at_end", stop=True, stop_head="affine", ranking_scale=2.0)
NOW = jnp.float32(0.5), jnp.float32(0.4)


def trajectory(actions, alive=None):
    """A rollout that took these chunks; of a rollout these losses read nothing but its actions and its end."""
    actions = jnp.asarray(actions, jnp.int32)
    alive = jnp.ones(actions.shape) if alive is None else jnp.asarray(alive, jnp.float32)
    none = jnp.zeros(actions.shape)
    return Rollout(
        actions, none, none[..., None], none[..., None], none, none, none > 0, alive, none, none
    )  # fmt: skip


def scaled(params, scale):
    return params | fresh_heads(8, 1, None, scale)


# --- by hand


def test_cross_entropy_by_hand():
    """exp(logits) = 1, 2, 3, 4; the last may not be chosen. Nothing right: 0."""
    logits = jnp.log(jnp.array([[1.0, 2.0, 3.0, 4.0]] * 3))
    allowed = jnp.array([[True, True, True, False]] * 3)
    right = jnp.array([[True, False, False, False], [True, True, False, False], [False] * 4])
    np.testing.assert_allclose(cross_entropy(logits, allowed, right), [math.log(6), math.log(2), 0.0], atol=1e-6)


def test_what_is_right():
    batch = table_batch([3, 4], 2, gold=(0, 2))
    env = table_env(num_steps=3)
    left = [[True, False, False, False], [False, False, True, False]]
    taken = jnp.array([[2], [0]])
    np.testing.assert_array_equal(right_actions(batch.gold, batch.valid, taken, env), left)
    stop = table_env(num_steps=3, reward="at_end", stop=True)
    taken = jnp.array([[0, 2], [0, 1]])
    found = right_actions(batch.gold, batch.valid, taken, stop)
    np.testing.assert_array_equal(found, [[False] * 4 + [True], [False, False, True, False, False]])


# Two chunks, 0 gold. Before: p(0) = 2^s / (2^s + 3^s) at scale s. After 0 only STOP is right, after 1 only 0.
TABLE = {
    (): {0: math.log(2), 1: math.log(3)},
    (0,): {1: math.log(5), STOP: math.log(4)},
    (1,): {0: math.log(3), STOP: math.log(7)},
}


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_ranking_by_hand(scale):
    batch = table_batch(2, 2, gold=(0,))
    params, env = scaled(table_params(TABLE, TABLE), scale), table_env(num_steps=2, reward="at_end", stop=True)
    loss, metrics = ranking_loss(table_network(), params, batch, trajectory([[0, 1], [1, 0]]), env)
    share = lambda right, wrong: right**scale / (right**scale + wrong**scale)  # noqa: E731
    shares = [share(2, 3), share(4, 5), share(2, 3), share(3, 7)]
    assert float(loss) == pytest.approx(-np.mean(np.log(shares)), rel=1e-5)
    assert float(metrics["ranked"]) == 0 and float(metrics["ranking_scale"]) == pytest.approx(scale)
    # An episode that ended after its first step has one state.
    loss, _ = ranking_loss(table_network(), params, batch, trajectory([[0, 1], [1, 0]], [[1, 0], [1, 1]]), env)
    assert float(loss) == pytest.approx(-np.mean(np.log([*shares[:1], *shares[2:]])), rel=1e-5)


def test_without_stop_a_finished_state_says_nothing():
    batch, env = table_batch(2, 2, gold=(0,)), table_env(num_steps=2)
    params = scaled(table_params(TABLE, TABLE), 1.0)
    loss = lambda params: ranking_loss(table_network(), params, batch, trajectory([[0, 1], [1, 0]]), env)[0]  # noqa: E731
    # The only chunk that is left after 1 is right: log 1.
    assert float(loss(params)) == pytest.approx(-2 * math.log(0.4) / 4, rel=1e-5)
    slopes = np.asarray(jax.grad(loss)(params)["q"])
    assert np.isfinite(slopes).all() and (slopes[:, 1] == 0).all() and (slopes[:, 0] != 0).any()


def test_stop_by_hand():
    """One gold of two chunks, two steps: STOP pays 1 after the gold, 0 after the other, and is not there at first."""
    batch, env = table_batch(2, 2, gold=(0,)), table_env(num_steps=2, reward="at_end", stop=True)
    params = table_params({(): {STOP: 9.0}, (0,): {STOP: 0.25}}, {(1,): {STOP: 0.5}})
    loss, metrics = stop_loss(table_network(), params, batch, trajectory([[0, 1], [1, 0]]), env)
    assert float(loss) == pytest.approx((0.75**2 + 0.5**2) / 4) and not metrics


@pytest.mark.parametrize(
    ("taken", "penalty", "paid"),
    [((0,), True, 0.0), ((0, 2), True, 1.0), ((0, 1, 2), True, 0.5 + 1 / 3), ((0, 1, 2), False, 1.0), ((1,), True, 0)],
)
def test_what_stop_pays(taken, penalty, paid):
    env = EnvConfig(num_steps=4, reward="at_end", stop=True, penalty=penalty)
    gold = jnp.array([True, False, True, False])
    assert float(stop_reward(gold, jnp.array(taken, jnp.int32), env)) == pytest.approx(paid)


# --- relations


@cache
def compiled(reencode, losses, objective="soft_q"):
    config = LearnerConfig(gamma=0.9, reencode=reencode, losses=dict(losses), objective=objective)
    return quick_jit(make_learner(linear_network(), STOPPING, config, 10).update)


def parameters(seed=0):
    heads = fresh_heads(8, 1, "affine", 2.0)
    heads["stop"]["vector"] = jnp.asarray(np.random.default_rng(seed).normal(size=8), jnp.float32)
    return random_params(linear_network(), seed, 0.2) | heads


def state_of(params):
    return make_learner(linear_network(), STOPPING, LearnerConfig(), 10).init(params, jax.random.key(0))


ALL = (("ranking", 0.5), ("soft_q", 2.0), ("stop", 3.0))


def test_losses_add_up_by_their_weights():
    batch = make_batch(size=6)
    _, metrics = compiled(False, ALL)(state_of(parameters()), batch)
    parts = {name: float(metrics[f"loss/{name}"]) for name, _ in ALL}
    assert float(metrics["loss"]) == pytest.approx(sum(weight * parts[name] for name, weight in ALL), rel=1e-5)
    assert all(value > 0 for value in parts.values())
    assert {"ranked", "ranking_scale"} <= set(metrics)


def test_soft_q_is_what_it_is_without_losses_beside_it():
    state, batch, key = state_of(parameters()), make_batch(size=6), jax.random.fold_in(jax.random.key(0), 0)
    _, metrics = compiled(False, ALL)(state, batch)
    config = LearnerConfig(gamma=0.9)
    now = jnp.float32(config.temperature.start), jnp.float32(config.epsilon.start)
    alone, _ = q_loss(
        linear_network(), state.params, state.target_params, batch, key, *now, STOPPING, config
    )  # fmt: skip
    assert float(metrics["loss/soft_q"]) == pytest.approx(float(alone), rel=1e-4)


def test_encoding_again_trains_the_same():
    batch, state = make_batch(size=6), state_of(parameters())
    (one, _), (other, _) = (compiled(again, ALL)(state, batch) for again in (False, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one.params, other.params)


def test_a_batch_in_parts_trains_the_same():
    """Episodes end early, so the parts have unlike numbers of states."""
    batch, state = make_batch(size=6), state_of(parameters())
    config = LearnerConfig(gamma=0.9, losses=dict(ALL), accumulate=2)
    tables = jax.tree.map(lambda x: jnp.stack([x] * 2), batch.table)
    split = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch.replace(table=None)).replace(table=tables)
    other, found = quick_jit(make_learner(linear_network(), STOPPING, config, 10).update)(state, split)
    one, metrics = compiled(False, ALL)(state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one.params, other.params)
    for name in ("loss", "loss/ranking", "loss/stop", "loss/soft_q"):
        assert float(found[name]) == pytest.approx(float(metrics[name]), rel=1e-4)


@pytest.mark.parametrize("name", ["ranking", "stop"])
def test_gradients_against_differences(name):
    loss_of = {"ranking": ranking_loss, "stop": stop_loss}[name]
    batch, params = make_batch(size=6), parameters()
    played = rollout(linear_network(), params, batch, jax.random.key(0), make_boltzmann(*NOW), STOPPING)
    loss = quick_jit(lambda params: loss_of(linear_network(), params, batch, played, STOPPING)[0])
    slopes = quick_jit(jax.grad(lambda params: loss_of(linear_network(), params, batch, played, STOPPING)[0]))(params)
    direction = jax.tree.map(lambda x: jnp.asarray(np.random.default_rng(3).normal(size=x.shape), jnp.float32), params)
    moved = lambda step: float(loss(jax.tree.map(lambda x, d: x + jnp.float32(step) * d, params, direction)))  # noqa: E731
    along = sum(float((s * d).sum()) for s, d in zip(*map(jax.tree.leaves, (slopes, direction)), strict=True))
    assert along == pytest.approx((moved(1e-3) - moved(-1e-3)) / 2e-3, rel=0.05, abs=1e-2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    assert float(jnp.abs(slopes["stop"]["bias"]).max()) > 1e-3  # STOP has a bias of its own, that learns


def test_a_weight_of_0_trains_nothing_on_a_loss():
    batch, state = make_batch(size=6), state_of(parameters())
    one, metrics = compiled(False, (("ranking", 0.0),))(state, batch)
    alone, _ = compiled(False, ())(state, batch)
    assert float(metrics["loss/ranking"]) > 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), one.params, alone.params)


def test_supervision_with_stop_as_a_class():
    """One gold chunk of two, two steps: the second state is finished, and STOP is right there."""
    batch = table_batch(2, gold=(0,))
    env = table_env(num_steps=2, reward="at_end", stop=True, ranking_scale=3.0)
    params = scaled(table_params(TABLE), 3.0)
    loss, metrics = trajectory_loss(table_network(), params, batch, jax.random.key(0), env)
    shares = [8 / (8 + 27), 64 / (64 + 125)]
    assert float(loss) == pytest.approx(-np.mean(np.log(shares)), rel=1e-5)
    assert float(metrics["steps"]) == 2 and float(metrics["complete"]) == 0
    assert float(metrics["ranking_scale"]) == pytest.approx(3)


# --- what it is for


def hidden_task(num_chunks=100, num_gold=2, size=16):
    """Gold chunks among many, told by a component of their vectors."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(256, 6)).astype(np.float32) * 0.2
    vectors[:32, 0] = 1.0
    rows = np.stack(
        [rng.permutation([*rng.choice(32, num_gold, False), *rng.choice(224, num_chunks - num_gold, False) + 32])
         for _ in range(size)]
    )  # fmt: skip
    places = np.tile(np.arange(num_chunks, dtype=np.int32), (size, 1))
    asked, full = VectorRows(jnp.ones((size, 6))), jnp.full(size, num_chunks, jnp.int32)
    return Batch(
        VectorRows(jnp.asarray(vectors)), asked, jnp.asarray(rows, jnp.int32), jnp.asarray(places), full,
        jnp.ones(rows.shape, bool), jnp.asarray(rows < 32), jnp.arange(size, dtype=jnp.int32),
    )  # fmt: skip


@pytest.mark.slow
def test_stop_is_learned_among_100_chunks_and_6_steps():
    """Two gold chunks told by their vectors: the run learns to take these two and to stop, with little exploration."""
    env = replace(STOPPING, num_steps=6, ranking_scale=5.0, positions="none", fact_reward=0.2)
    config = LearnerConfig(
        losses={"ranking": 1.0, "stop": 1.0}, learning_rate=ScheduleConfig(1e-2, 1e-3), weight_decay=0.0
    )
    learner = make_learner(linear_network(), env, config, 300)
    params = random_params(linear_network(), scale=0.1) | fresh_heads(8, 1, "affine", 5.0)

    @quick_jit
    def run(state):
        return jax.lax.scan(lambda state, _: learner.update(state, hidden_task()), state, length=300)

    _, metrics = run(learner.init(params, jax.random.key(0)))
    last = {name: float(x[-20:].mean()) for name, x in metrics.items()}
    assert last["complete"] > 0.95 and last["taken"] < 2.2 and last["ranked"] > 0.95


# --- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"losses": {"rank": 1.0}}, "losses.rank: objective=soft_q has the losses soft_q, ranking, stop"),
        ({"losses": {"ranking": -1.0}}, "losses.ranking=-1.0 must be at least 0 and finite"),
        ({"losses": {"stop": math.inf}}, "losses.stop=inf must be at least 0"),
        ({"losses": {"soft_q": 0.0}}, "give one of them a weight above 0"),
        ({"objective": "sft", "losses": {"ranking": 1.0}}, "losses.ranking: objective=sft has the losses sft"),
    ],
)
def test_weights_that_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        LearnerConfig(**options)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (EnvConfig(), {"losses": {"ranking": 1.0}}, "learner.losses.ranking needs env.ranking_scale"),
        (EnvConfig(), {"losses": {"stop": 1.0}}, "learner.losses.stop needs env.stop=true"),
        (
            EnvConfig(reward="at_end", stop=True),
            {"objective": "sft"},
            "learner.objective=sft learns STOP as a class of its cross-entropy: set env.ranking_scale",
        ),
    ],
)
def test_losses_that_do_not_fit_the_process(env, options, message):
    with pytest.raises(UsageError, match=message):
        make_learner(linear_network(), env, LearnerConfig(**options), 10)
