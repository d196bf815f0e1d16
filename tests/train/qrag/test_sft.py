import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from support.networks import (
    linear_network,
    make_batch,
    position_by_definition,
    random_params,
    rotated_by_definition,
    select_environments,
    table_batch,
    table_env,
    table_network,
    table_params,
)
from support.tiers import slow_but

from qrag_jax.qrag.env import EnvConfig
from qrag_jax.train.optimise import ScheduleConfig
from qrag_jax.train.qrag.label_losses import trajectory_loss
from qrag_jax.train.qrag.learner import LearnerConfig, make_learner
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
NETWORKS = {"table": table_network, "linear": linear_network}


@cache
def compiled(kind, env):
    """(params, batch, key) -> (loss, metrics)."""
    return jax.jit(lambda params, batch, key: trajectory_loss(NETWORKS[kind](), params, batch, key, env))


@cache
def compiled_gradient(kind, env):
    """(params, batch, key) -> gradient."""

    def loss(params, batch, key):
        return trajectory_loss(NETWORKS[kind](), params, batch, key, env)[0]

    return jax.jit(jax.grad(loss))


def loss_of(params, batch, env, key=0, kind="linear"):
    loss, metrics = compiled(kind, env)(params, batch, jax.random.key(key))
    assert float(metrics["loss"]) == float(loss)
    return float(loss), float(metrics["complete"])


# --- by hand

# Three chunks, 0 and 1 gold. At first p(0) + p(1) = (1 + 2) / 6; then p(1) = 1 / 4 after 0, p(0) = 3 / 4 after 1.
TABLE = {
    (): {0: 0.0, 1: math.log(2), 2: math.log(3)},
    (0,): {0: 9.0, 1: 0.0, 2: math.log(3)},  # what is taken does not count
    (1,): {0: math.log(3), 1: 9.0, 2: 0.0},
}
ORDERS = ((math.log(2) + math.log(4)) / 2, (math.log(2) + math.log(4 / 3)) / 2)


def test_the_loss_by_hand_in_either_order():
    env, batch = table_env(num_steps=2), table_batch(3, gold=(0, 1))
    found = [loss_of(table_params(TABLE), batch, env, key, "table")[0] for key in range(12)]
    nearest = [min(ORDERS, key=lambda loss: abs(loss - value)) for value in found]
    np.testing.assert_allclose(found, nearest, rtol=1e-6)
    assert set(nearest) == set(ORDERS)  # the order is drawn


def test_both_orders_are_equally_likely():
    batch = select_environments(table_batch(3, gold=(0, 1)), [0] * 2000)
    batch = batch.replace(env=jnp.arange(2000, dtype=jnp.int32))
    loss, complete = loss_of(table_params(TABLE), batch, table_env(num_steps=2), kind="table")
    # Standard error of a share of 1/2 is 0.011; the two losses are 0.55 apart.
    assert loss == pytest.approx(sum(ORDERS) / 2, abs=0.03)
    assert complete == 0  # the best first chunk is wrong


def test_steps_after_completion_are_not_counted():
    """One gold chunk and three steps: the loss is that of the first step, whatever Q says later."""
    batch, env = table_batch(3, gold=(1,)), table_env(num_steps=3)
    assert loss_of(table_params(TABLE), batch, env, kind="table")[0] == pytest.approx(math.log(3), rel=1e-6)
    gradient = compiled_gradient("table", env)(table_params(TABLE), batch, jax.random.key(0))
    later = np.asarray(gradient["q"]).copy()
    later[0, 0] = 0  # the state in which nothing is taken
    assert (later == 0).all() and np.isfinite(gradient["q"]).all()


def test_the_mean_is_over_steps_not_over_environments():
    batch = table_batch(3, 2, gold=(0, 1))
    batch = batch.replace(gold=batch.gold.at[1, 0].set(False))  # the second has one gold chunk: three steps in all
    loss, _ = loss_of(table_params(TABLE, TABLE), batch, table_env(num_steps=2), kind="table")
    expected = [(2 * order + math.log(3)) / 3 for order in ORDERS]
    assert min(abs(loss - value) for value in expected) < 1e-6


@pytest.mark.parametrize(
    ("first", "second", "complete"),
    [
        ({0: 1.0, 2: 0.5}, {1: 1.0, 0: 1.0}, 1.0),
        ({1: 1.0, 2: 0.5}, {1: 1.0, 0: 1.0}, 1.0),
        ({2: 1.0}, {1: 1.0, 0: 1.0}, 0.0),  # wrong at first
        ({0: 1.0}, {2: 1.0}, 0.0),  # wrong at last
    ],
)
def test_complete_is_right_at_every_step(first, second, complete):
    """Counted along the drawn gold trajectory; a third step, after completion, cannot be wrong."""
    params = table_params({(): first, (0,): second, (1,): second, (0, 1): {2: 1.0}})
    batch = table_batch(4, gold=(0, 1))
    assert loss_of(params, batch, table_env(num_steps=3), kind="table")[1] == complete


# --- the definition


def by_definition(params, batch, env, key):
    """-log of the share that softmax gives to the gold that is left, along the trajectory that the key draws."""
    losses, right = [], []
    for number in range(len(batch.chunks)):
        rows = np.asarray(batch.table.vectors, np.float64)[np.asarray(batch.chunks)[number]]
        actions = rows @ np.asarray(params["action"])
        indices, length = np.asarray(batch.indices)[number], int(batch.lengths[number])
        asked = np.asarray(batch.questions.vectors, np.float64)[number] @ np.asarray(params["state"]["question"])
        gold, free = (np.asarray(x)[number].copy() for x in (batch.gold, batch.valid))
        taken, best = [], []
        for t in range(min(env.num_steps, gold.sum())):
            left = np.flatnonzero(gold & free)
            ranks = enumerate(sorted(taken), start=1)
            state = asked + sum(rank * rows[slot] @ np.asarray(params["state"]["chunk"]) for rank, slot in ranks)
            q = {}
            for slot in np.flatnonzero(free).tolist():
                position = position_by_definition(env.positions, indices[slot], indices[taken].tolist(), length)
                q[slot] = state @ rotated_by_definition(actions[slot], position, env.num_q_heads)
            losses.append(logsumexp(list(q.values())) - logsumexp([q[slot] for slot in left]))
            best.append(max(q, key=lambda slot: q[slot]) in left)
            step_key = jax.random.fold_in(jax.random.fold_in(key, int(batch.env[number])), t)
            mask = np.isin(np.arange(len(gold)), left)
            grown = int(jax.random.categorical(step_key, jnp.where(mask, 0.0, -jnp.inf)))
            taken.append(grown)
            free[grown] = False
        right.append(all(best))
    return np.mean(losses), np.mean(right)


@pytest.mark.parametrize("env", [EnvConfig(num_steps=3), EnvConfig(num_steps=3, positions="absolute", num_q_heads=2)])
@pytest.mark.parametrize("num_gold", slow_but([2], [2, 4]))
def test_the_loss_against_its_definition(env, num_gold):
    """Fewer gold chunks than steps, and more; documents of unequal length, some with a part of their gold only."""
    batch, params = make_batch(size=6, num_gold=num_gold), random_params(linear_network(), scale=0.2)
    rarer = batch.gold & (jnp.cumsum(batch.gold, axis=1) <= 1)
    batch = batch.replace(gold=batch.gold.at[3].set(rarer[3]))
    expected, complete = by_definition(params, batch, env, jax.random.key(5))
    found = loss_of(params, batch, env, key=5)
    np.testing.assert_allclose(found, (expected, complete), rtol=1e-4)


def test_the_gradient_against_differences():
    env, batch, params = EnvConfig(num_steps=3), make_batch(), random_params(linear_network(), scale=0.2)
    gradient = compiled_gradient("linear", env)(params, batch, jax.random.key(0))
    leaves, shape = jax.tree.flatten(params)
    for number, (leaf, slope) in enumerate(zip(leaves, jax.tree.leaves(gradient), strict=True)):
        direction = np.random.default_rng(number).normal(size=leaf.shape).astype(np.float32)
        moved = [
            loss_of(
                jax.tree.unflatten(shape, [*leaves[:number], leaf + step * direction, *leaves[number + 1 :]]),
                batch,
                env,
            )[0]
            for step in (1e-2, -1e-2)
        ]
        assert float((slope * direction).sum()) == pytest.approx((moved[0] - moved[1]) / 2e-2, rel=0.02, abs=1e-3)
        assert float(jnp.abs(slope).max()) > 1e-3


def test_a_loss_is_a_function_of_the_key():
    env, batch, params = EnvConfig(num_steps=3), make_batch(), random_params(linear_network())
    losses = [loss_of(params, batch, env, key)[0] for key in (0, 0, 1, 2)]
    assert losses[0] == losses[1] and len(set(losses)) > 1


def test_draws_depend_on_the_number_of_the_environment():
    env, batch, params = EnvConfig(num_steps=3), make_batch(num_gold=3), random_params(linear_network())
    same = [loss_of(params, select_environments(batch, rows), env)[0] for rows in ([0, 1, 2, 3], [3, 1, 0, 2])]
    assert same[0] == pytest.approx(same[1], rel=1e-5)
    others = [loss_of(params, batch.replace(env=batch.env + shift), env)[0] for shift in range(1, 5)]
    assert len({*others, same[0]}) > 1


# --- in the learner


def test_a_learner_trains_on_it():
    env, batch = EnvConfig(num_steps=2), make_batch(size=8)
    config = LearnerConfig(objective="sft", learning_rate=ScheduleConfig(1e-2, 1e-2), weight_decay=0.0)
    learner = make_learner(linear_network(), env, config, 40)
    state = learner.init(random_params(linear_network(), scale=0.1), jax.random.key(0))

    @jax.jit
    def run(state):
        return jax.lax.scan(lambda state, _: learner.update(state, batch), state, length=40)

    state, metrics = run(state)
    assert set(metrics) == {"loss", "complete", "steps", "grad_norm", "learning_rate"}
    assert float(metrics["loss"][-1]) < 0.5 * float(metrics["loss"][0])
    assert float(metrics["complete"][-1]) > float(metrics["complete"][0])
    assert int(state.step) == 40


def test_the_learner_draws_anew_at_every_step():
    config = LearnerConfig(objective="sft", learning_rate=ScheduleConfig(0.0, 0.0), weight_decay=0.0)
    batch, params = make_batch(), random_params(linear_network())
    learner = make_learner(linear_network(), EnvConfig(num_steps=2), config, 4)
    update, state, losses = jax.jit(learner.update), learner.init(params, jax.random.key(3)), []
    for _ in range(4):
        state, metrics = update(state, batch)
        losses.append(float(metrics["loss"]))
    assert len(set(losses)) > 1
    jax.tree.map(np.testing.assert_array_equal, state.params, params)  # a rate of 0 moves nothing


def test_a_learned_stop_is_refused():
    env = EnvConfig(num_steps=2, reward="at_end", stop=True)
    with pytest.raises(UsageError, match="learner.objective=sft learns STOP as a class"):
        make_learner(linear_network(), env, LearnerConfig(objective="sft"), 4)
