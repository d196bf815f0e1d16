import math
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import LATENT, VECTOR, make_batch, random_params
from support.tiers import slow_but

from qrag_jax.models.towers.latent import LatentConfig
from qrag_jax.models.towers.prior import make_prior_network, unit
from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag.env import EnvConfig, observe, q_values
from qrag_jax.train.optimise import ScheduleConfig
from qrag_jax.train.qrag.learner import LearnerConfig, make_learner
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
CONFIG = replace(LATENT, prior=True, prior_beta=0.5, prior_rank=3)
MEAN, STD = np.linspace(-1, 1, VECTOR, dtype=np.float32), np.linspace(0.5, 2, VECTOR, dtype=np.float32)


@cache
def network():
    return make_prior_network(CONFIG, MEAN, STD)


@partial(jax.jit, static_argnames="env")
def q_of(params, batch, taken, env):
    towers = network()
    _, rotation = observe(batch, taken, env, towers.num_rotated)
    rows = towers.actions(params, batch.table)[batch.chunks]
    return q_values(towers, params, rows, batch, taken, rotation, env)[:, 0]


def test_unit_vectors():
    found = jax.jit(unit)(jnp.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    assert np.isfinite(jax.jit(jax.grad(lambda x: unit(x).sum()))(np.zeros(3, np.float32))).all()


def test_a_fresh_q_by_hand():
    """Mean 0: the question (1, 0), (3, 4) taken, beta 1/2: the state is (1.3, .4) at length 1."""
    config = LatentConfig(width=8, num_layers=1, num_heads=2, action_hidden=8, dim=4, prior=True)
    towers = make_prior_network(config, np.zeros(2, np.float32), np.ones(2, np.float32))
    params, table = jax.jit(towers.init)(jax.random.key(0)), VectorRows(jnp.array([[3.0, 4.0], [0.0, 2.0]]))
    state = jax.jit(towers.states)(params, VectorRows(jnp.array([[1.0, 0.0]])), table, np.array([[0]], np.int32))
    q = jax.jit(towers.actions)(params, table) @ state[0]
    expected = np.array([1.3 * 0.6 + 0.4 * 0.8, 0.4]) / math.hypot(1.3, 0.4)
    np.testing.assert_allclose(q, expected, rtol=1e-5)
    assert towers.dim == 2 + 1 + 4 and towers.num_rotated == 4


@pytest.mark.parametrize("positions", slow_but(["relative"], ["relative", "absolute", "none"], ["none"]))
@pytest.mark.parametrize("num_taken", slow_but([2], [0, 2]))
def test_update_0_is_the_search_of_the_vectors_whatever_the_positions(positions, num_taken):
    batch, env = make_batch(), EnvConfig(num_steps=3, positions=positions)
    taken = np.tile(np.arange(num_taken, dtype=np.int32), (4, 1))
    found = q_of(jax.jit(network().init)(jax.random.key(1)), batch, taken, env)
    unit_64 = lambda x: (x := np.asarray(x, np.float64) - MEAN) / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    chunks = unit_64(batch.table.vectors)[np.asarray(batch.chunks)]
    states = unit_64(batch.questions.vectors) + 0.5 * chunks[:, :num_taken].sum(axis=1)
    states /= np.linalg.norm(states, axis=-1, keepdims=True)
    np.testing.assert_allclose(found, np.einsum("bcv,bv->bc", chunks, states), atol=1e-5)


def test_positions_turn_the_last_components_alone():
    batch, params = make_batch(), random_params(network())
    taken = np.array([[0], [1], [0], [2]], np.int32)
    none, absolute = (np.asarray(q_of(params, batch, taken, EnvConfig(positions=p))) for p in ("none", "absolute"))
    towers = network()
    still = lambda x: x[..., : towers.num_unrotated]  # noqa: E731
    rows = np.take_along_axis(np.asarray(batch.chunks), taken, axis=1)
    states = np.asarray(jax.jit(towers.states)(params, batch.questions, batch.table, rows))
    actions = np.asarray(jax.jit(towers.actions)(params, batch.table))[np.asarray(batch.chunks)]
    fixed = np.einsum("bcd,bd->bc", still(actions), still(states))
    turned = np.einsum("bcd,bd->bc", actions[..., towers.num_unrotated :], states[:, towers.num_unrotated :])
    np.testing.assert_allclose(none, fixed + turned, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(absolute[1:, 0], none[1:, 0], rtol=1e-4, atol=1e-4)  # chunk 0 is not turned
    assert np.abs(absolute - none).max() > 1e-2


@pytest.mark.slow
def test_every_part_learns():
    """Corrections, bias and turned components are zero at first; none of them stays there."""
    batch, env = make_batch(size=8), EnvConfig(num_steps=2)
    config = LearnerConfig(learning_rate=ScheduleConfig(1e-2, 1e-2), weight_decay=0.0)
    towers = network()
    learner = make_learner(towers, env, config, 30)
    params = jax.jit(towers.init)(jax.random.key(0))

    @jax.jit
    def run(state):
        return jax.lax.scan(lambda state, _: learner.update(state, batch), state, length=30)

    state, metrics = run(jax.jit(learner.init)(params, jax.random.key(1)))
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), params, state.params)
    both = ("low", "high", "turned")
    for tower, names in (("state", ("beta", "scale", "bias", *both)), ("action", both)):
        assert min(jax.tree.leaves([moved[tower]["params"][name] for name in names])) > 1e-4
    assert float(metrics["loss"][-1]) < float(metrics["loss"][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"residual": True}, "residual=true and prior=true cannot both be set"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(UsageError, match=message):
        LatentConfig(prior=True, **options)


def test_heads_are_slices_of_what_is_turned():
    message = "env.num_q_heads=2 must be 1 for towers that rotate only part of each vector by position"
    with pytest.raises(UsageError, match=message):
        make_learner(network(), EnvConfig(num_q_heads=2), LearnerConfig(), 10)
    with pytest.raises(UsageError, match=message):
        q_of(random_params(network()), make_batch(), np.zeros((4, 0), np.int32), EnvConfig(num_q_heads=2))
