"""Losses beside soft Q: what is right in every visited state, and what STOP pays there."""

import math
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
    trajectory,
)
from support.runs import make_config, make_task
from support.tiers import slow_but

from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag.batching import Packer, materialise
from qrag_jax.qrag.env import Batch, EnvConfig, rollout, stop_reward, visited_states
from qrag_jax.qrag.heads import fresh_heads
from qrag_jax.qrag.policy import make_boltzmann
from qrag_jax.train.optimise import ScheduleConfig
from qrag_jax.train.qrag.config import DataConfig, RunConfig, make_sampler
from qrag_jax.train.qrag.label_losses import (
    check_negatives,
    cross_entropy,
    ranking_loss,
    rest_of_documents,
    right_actions,
    stop_loss,
    trajectory_loss,
)
from qrag_jax.train.qrag.learner import LearnerConfig, make_learner, q_loss
from qrag_jax.train.qrag.loop import train
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
STOPPING = EnvConfig(num_steps=3, reward="at_end", stop=True, stop_head="affine", ranking_scale=2.0)
NOW = jnp.float32(0.5), jnp.float32(0.4)


def ranked_states(network, params, batch, played, env):
    """`ranking_loss` over the states of a rollout."""
    visited = list(visited_states(network, params, batch, played, env))
    return ranking_loss(network, params, batch, played, visited, env)


def stopped_states(network, params, batch, played, env):
    """`stop_loss` over them."""
    return stop_loss(batch, played, list(visited_states(network, params, batch, played, env)), env)


ranked_of, stopped_of, sft_of = (
    np_jit(function, static_argnums=(0, 4)) for function in (ranked_states, stopped_states, trajectory_loss)
)
cross_entropy_of = np_jit(cross_entropy)


@jax.jit
def play(params, batch):
    return rollout(linear_network(), params, batch, jax.random.key(0), make_boltzmann(*NOW), STOPPING)


def scaled(params, scale):
    return params | fresh_heads(8, 1, None, scale)


# --- by hand


def test_cross_entropy_by_hand():
    """exp(logits) = 1, 2, 3, 4; the last may not be chosen. Nothing right: 0."""
    logits = np.log(np.array([[1, 2, 3, 4]] * 3, np.float32))
    allowed = jnp.array([[True, True, True, False]] * 3)
    right = jnp.array([[True, False, False, False], [True, True, False, False], [False] * 4])
    np.testing.assert_allclose(cross_entropy_of(logits, allowed, right), [math.log(6), math.log(2), 0.0], atol=1e-6)


def test_what_is_right():
    batch = table_batch([3, 4], 2, gold=(0, 2))
    env = table_env(num_steps=3)
    left = [[True, False, False, False], [False, False, True, False]]
    taken = jnp.array([[2], [0]])
    right = np_jit(right_actions, static_argnums=3)
    np.testing.assert_array_equal(right(batch.gold, batch.valid, taken, env), left)
    stop = table_env(num_steps=3, reward="at_end", stop=True)
    taken = jnp.array([[0, 2], [0, 1]])
    found = right(batch.gold, batch.valid, taken, stop)
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
    loss, metrics = ranked_of(table_network(), params, batch, trajectory([[0, 1], [1, 0]]), env)
    share = lambda right, wrong: right**scale / (right**scale + wrong**scale)  # noqa: E731
    shares = [share(2, 3), share(4, 5), share(2, 3), share(3, 7)]
    assert float(loss) == pytest.approx(-np.mean(np.log(shares)), rel=1e-5)
    assert float(metrics["ranked"]) == 0 and float(metrics["ranking_scale"]) == pytest.approx(scale)
    # An episode that ended after its first step has one state.
    loss, _ = ranked_of(table_network(), params, batch, trajectory([[0, 1], [1, 0]], [[1, 0], [1, 1]]), env)
    assert float(loss) == pytest.approx(-np.mean(np.log([*shares[:1], *shares[2:]])), rel=1e-5)


def test_without_stop_a_finished_state_says_nothing():
    batch, env = table_batch(2, 2, gold=(0,)), table_env(num_steps=2)
    params = scaled(table_params(TABLE, TABLE), 1.0)
    loss = lambda params: ranked_states(table_network(), params, batch, trajectory([[0, 1], [1, 0]]), env)[0]  # noqa: E731
    # The only chunk that is left after 1 is right: log 1.
    value, slopes = np_jit(jax.value_and_grad(loss))(params)
    assert value == pytest.approx(-2 * math.log(0.4) / 4, rel=1e-5)
    slopes = slopes["q"]
    assert np.isfinite(slopes).all() and (slopes[:, 1] == 0).all() and (slopes[:, 0] != 0).any()


def test_stop_by_hand():
    """One gold of two chunks, two steps: STOP pays 1 after the gold, 0 after the other, and is not there at first."""
    batch, env = table_batch(2, 2, gold=(0,)), table_env(num_steps=2, reward="at_end", stop=True)
    params = table_params({(): {STOP: 9.0}, (0,): {STOP: 0.25}}, {(1,): {STOP: 0.5}})
    loss = stopped_of(table_network(), params, batch, trajectory([[0, 1], [1, 0]]), env)
    assert float(loss) == pytest.approx((0.75**2 + 0.5**2) / 4)


@pytest.mark.parametrize(
    ("taken", "penalty", "paid"),
    [((0,), True, 0.0), ((0, 2), True, 1.0), ((0, 1, 2), True, 0.5 + 1 / 3), ((0, 1, 2), False, 1.0), ((1,), True, 0)],
)
def test_what_stop_pays(taken, penalty, paid):
    env = EnvConfig(num_steps=4, reward="at_end", stop=True, penalty=penalty)
    gold = jnp.array([True, False, True, False])
    found = np_jit(stop_reward, static_argnums=2)(gold, np.array(taken, np.int32), env)
    assert found == pytest.approx(paid)


# --- relations


@cache
def compiled(reencode, losses, env=STOPPING):
    config = LearnerConfig(gamma=0.9, reencode=reencode, losses=dict(losses))
    return jax.jit(make_learner(linear_network(), env, config, 10).update)


def parameters(seed=0):
    heads = fresh_heads(8, 1, "affine", 2.0)
    heads["stop"]["vector"] = jnp.asarray(np.random.default_rng(seed).normal(size=8), jnp.float32)
    return random_params(linear_network(), seed, 0.2) | heads


begin = jax.jit(make_learner(linear_network(), STOPPING, LearnerConfig(), 10).init)


def state_of(params):
    return begin(params, jax.random.key(0))


ALL = (("ranking", 0.5), ("soft_q", 2.0), ("stop", 3.0))


@pytest.mark.slow
def test_losses_add_up_by_their_weights():
    batch = make_batch(size=6)
    _, metrics = compiled(False, ALL)(state_of(parameters()), batch)
    parts = {name: float(metrics[f"loss/{name}"]) for name, _ in ALL}
    assert float(metrics["loss"]) == pytest.approx(sum(weight * parts[name] for name, weight in ALL), rel=1e-5)
    assert all(value > 0 for value in parts.values())
    assert {"ranked", "ranking_scale"} <= set(metrics)


def test_soft_q_is_what_it_is_without_losses_beside_it():
    state, batch, key = state_of(parameters()), make_batch(size=6), jax.random.fold_in(jax.random.key(0), 0)
    env = replace(STOPPING, num_steps=2)
    _, metrics = compiled(False, ALL, env)(state, batch)
    config = LearnerConfig(gamma=0.9)
    now = np.float32(config.temperature.start), np.float32(config.epsilon.start)
    of = np_jit(lambda *given: q_loss(linear_network(), *given, env, config))
    alone, _ = of(state.params, state.target_params, batch, key, *now)
    assert float(metrics["loss/soft_q"]) == pytest.approx(float(alone), rel=1e-4)


@pytest.mark.slow
def test_encoding_again_trains_the_same():
    batch, state = make_batch(size=6), state_of(parameters())
    (one, _), (other, _) = (compiled(again, ALL)(state, batch) for again in (False, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one.params, other.params)


@pytest.mark.slow
def test_a_batch_in_parts_trains_the_same():
    """Episodes end early, so the parts have unlike numbers of states."""
    batch, state = make_batch(size=6), state_of(parameters())
    config = LearnerConfig(gamma=0.9, losses=dict(ALL), accumulate=2)
    tables = jax.tree.map(lambda x: np.stack([x] * 2), batch.table)
    split = jax.tree.map(lambda x: np.asarray(x).reshape(2, -1, *x.shape[1:]), batch.replace(table=None)).replace(
        table=tables
    )
    other, found = jax.jit(make_learner(linear_network(), STOPPING, config, 10).update)(state, split)
    one, metrics = compiled(False, ALL)(state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one.params, other.params)
    for name in ("loss", "loss/ranking", "loss/stop", "loss/soft_q"):
        assert float(found[name]) == pytest.approx(float(metrics[name]), rel=1e-4)


@pytest.mark.parametrize("name", slow_but(["ranking"], ["ranking", "stop"]))
def test_gradients_against_differences(name):
    loss_of = {"ranking": lambda *given: ranked_states(*given)[0], "stop": stopped_states}[name]
    batch, params = make_batch(size=6), parameters()
    played = play(params, batch)
    loss = jax.jit(lambda params: loss_of(linear_network(), params, batch, played, STOPPING))
    slopes = np_jit(jax.grad(lambda params: loss_of(linear_network(), params, batch, played, STOPPING)))(params)
    direction = jax.tree.map(lambda x: np.random.default_rng(3).normal(size=x.shape).astype(np.float32), params)
    moved = lambda step: float(loss(jax.tree.map(lambda x, d: np.asarray(x) + np.float32(step) * d, params, direction)))  # noqa: E731
    along = sum(float((s * d).sum()) for s, d in zip(*map(jax.tree.leaves, (slopes, direction)), strict=True))
    assert along == pytest.approx((moved(1e-3) - moved(-1e-3)) / 2e-3, rel=0.05, abs=1e-2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    assert np.abs(slopes["stop"]["bias"]).max() > 1e-3  # STOP has a bias of its own, that learns


@pytest.mark.slow
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
    loss, metrics = sft_of(table_network(), params, batch, jax.random.key(0), env)
    shares = [8 / (8 + 27), 64 / (64 + 125)]
    assert float(loss) == pytest.approx(-np.mean(np.log(shares)), rel=1e-5)
    assert float(metrics["steps"]) == 2 and float(metrics["complete"]) == 0
    assert float(metrics["ranking_scale"]) == pytest.approx(3)


# --- what a context leaves out of its document


def test_the_rest_by_hand():
    """Two negatives, of exp(z) 1 and 3: for 6 that are left out they stand 3 times each, for none not at all."""
    batch = table_batch(2, 2).replace(lengths=jnp.array([8, 2]))
    found = np_jit(rest_of_documents)(np.log(np.array([[1, 3]] * 2, np.float32)), batch)
    np.testing.assert_allclose(found, [math.log(12), -np.inf], rtol=1e-6)
    right = jnp.array([[True, False], [False, False]])
    none, rest = np.zeros((2, 2), np.float32), np.log(np.array([12, 12], np.float32))
    found = cross_entropy_of(none, np.ones((2, 2), bool), right, rest)
    np.testing.assert_allclose(found, [math.log(14), 0.0], atol=1e-6)  # nothing right: 0, whatever there is beside


@pytest.mark.parametrize("positions", slow_but([], ["relative", "none"], ["relative"]))
def test_negatives_that_are_the_rest_make_the_loss_of_the_document(positions):
    """A context of 5 chunks of 9, with the other 4 as negatives at their places: as if all 9 were in the context."""
    env = replace(STOPPING, positions=positions, num_q_heads=2)
    rng, size = np.random.default_rng(1), 3
    document = make_batch(size=size, chunks=9, shortest=9)
    shown = np.sort(np.stack([rng.choice(9, 5, replace=False) for _ in range(size)]), axis=1)
    left_out = np.stack([np.setdiff1d(np.arange(9), row) for row in shown])
    rows = np.asarray(document.chunks).copy()
    np.put_along_axis(rows, left_out, np.array([14, 15, 16, 17]), axis=1)  # the same texts, at places of their own
    gold = np.zeros((size, 9), bool)
    np.put_along_axis(gold, shown[:, [1, 3]], True, axis=1)
    places = np.tile(np.arange(9, dtype=np.int32), (size, 1))
    document = document.replace(
        chunks=jnp.asarray(rows), gold=jnp.asarray(gold), indices=jnp.asarray(places),
        lengths=jnp.asarray([9] * size, jnp.int32),
        table=VectorRows(jnp.asarray(rng.normal(size=(18, 6)), jnp.float32)),
    )  # fmt: skip
    cut = lambda x: jnp.asarray(np.take_along_axis(np.asarray(x), shown, axis=1))  # noqa: E731
    context = document.replace(
        **{name: cut(getattr(document, name)) for name in ("chunks", "indices", "valid", "gold")},
        negatives=VectorRows(document.table.vectors[14:]), places=jnp.asarray((left_out + 0.5) / 9, jnp.float32),
    )  # fmt: skip
    actions = np.array([[0, 1, 2], [3, 1, 0], [1, 4, 3]])
    heads = fresh_heads(8, 2, "affine", 2.0)
    params, network = random_params(linear_network(), scale=0.2) | heads, linear_network()
    played = trajectory(actions, [[1, 1, 1], [1, 1, 1], [1, 1, 0]])
    whole = played.replace(actions=jnp.asarray(np.take_along_axis(shown, actions, axis=1), jnp.int32))
    found, of = (
        np_jit(jax.value_and_grad(lambda params, b=b, p=p: ranked_states(network, params, b, p, env)[0]))(params)
        for b, p in ((context, played), (document, whole))
    )
    assert of[0] > 1.2 * ranked_of(network, params, context.replace(negatives=None), played, env)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, of)


@pytest.mark.slow
def test_negatives_say_nothing_of_a_context_that_is_its_document():
    """Of these environments only the first stands in a longer document; what is learned is finite for all."""
    batch, params = make_batch(size=4), parameters()
    places = jnp.asarray(np.random.default_rng(0).random((4, 2)), jnp.float32)
    more = batch.replace(negatives=VectorRows(batch.table.vectors[:8]), places=places)
    played = play(params, batch)
    loss = lambda params, batch, played: ranked_states(linear_network(), params, batch, played, STOPPING)[0]  # noqa: E731
    value, slopes = np_jit(jax.value_and_grad(loss))(params, more, played)
    loss = jax.jit(loss)
    assert float(value) > float(loss(params, batch, played))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    tail, own = jax.tree.map(lambda x: np.asarray(x)[1:], played), select_environments(batch, [1, 2, 3])
    with_them = own.replace(negatives=more.negatives, places=np.asarray(places)[1:])
    assert float(loss(params, with_them, tail)) == pytest.approx(float(loss(params, own, tail)), rel=1e-6)


def noisy(num_negatives, parts=1):
    """A run over texts of which all but the first two may stand anywhere."""
    task = make_task(size=14)
    config = make_config("latent", accumulate=parts, num_steps=1, learner=ranked(parts), env=RANKED)
    config = replace(config, data=replace(config.data, num_negatives=num_negatives, stretch=4.0))
    return config, replace(task, noise=np.arange(2, len(task.texts)))


RANKED = EnvConfig(num_steps=1, ranking_scale=2.0)


def ranked(parts=1):
    return LearnerConfig(losses={"ranking": 1.0}, accumulate=parts)


@pytest.mark.parametrize("parts", [1, 2])
def test_negatives_are_noise_drawn_for_every_update(parts):
    config, task = noisy(16, parts)
    sample = make_sampler(task, Packer(), config)
    first, second = sample(0), sample(1)
    shape = (2,) if parts == 2 else ()
    assert first.negatives.shape == (*shape, 16) and first.places.shape == (*first.chunks.shape[:-1], 16)
    assert first.negatives.min() >= 2 and len(np.unique(first.negatives)) == 16
    assert (first.places != second.places).any() and (0 <= first.places).all() and (first.places < 1).all()
    again = make_sampler(task, Packer(), config)(1)
    jax.tree.map(np.testing.assert_array_equal, second, again)
    plain = make_sampler(task, Packer(), replace(config, data=replace(config.data, num_negatives=None)))(0)
    assert plain.negatives is None
    np.testing.assert_array_equal(plain.chunks, first.chunks)
    if parts == 1:
        pool = VectorRows(np.arange(100, dtype=np.float32)[:, None])
        batch = np_jit(materialise)(pool, pool, first)
        np.testing.assert_array_equal(batch.negatives.vectors[:, 0], first.negatives)
        np.testing.assert_array_equal(batch.places, first.places)


@pytest.mark.full
@pytest.mark.slow
def test_a_run_with_negatives_in_parts_trains_as_whole():
    whole, parts = (train(*noisy(16, n)).params for n in (1, 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), whole, parts)
    without = train(*noisy(None)).params
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (whole, without)), strict=True))


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


@pytest.mark.full
def test_stop_is_learned_among_100_chunks_and_6_steps():
    """Two gold chunks told by their vectors: the run learns to take these two and to stop, with little exploration."""
    env = replace(STOPPING, num_steps=6, ranking_scale=5.0, positions="none", fact_reward=0.2)
    config = LearnerConfig(
        losses={"ranking": 1.0, "stop": 1.0}, learning_rate=ScheduleConfig(1e-2, 1e-3), weight_decay=0.0
    )
    learner = make_learner(linear_network(), env, config, 300)
    params = random_params(linear_network(), scale=0.1) | fresh_heads(8, 1, "affine", 5.0)

    @jax.jit
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


@pytest.mark.parametrize(
    ("number", "noise", "devices", "message"),
    [
        (16, None, 1, "data.num_negatives=16: texts has no haystack to draw from; set it to null"),
        (32, 20, 1, "data.num_negatives=32: the haystack has 20 sentences only"),
        (40, 50, 1, "data.num_negatives=40 must be a multiple of 16"),
        (16, 50, 3, "must be a multiple of 48: they go to 16 places of a document, on 3 devices"),
    ],
)
def test_negatives_that_are_refused(number, noise, devices, message):
    task = replace(make_task(), noise=None if noise is None else np.arange(noise))
    with pytest.raises(UsageError, match=message):
        check_negatives(task, number, devices)
    check_negatives(task, None, devices)


def test_negatives_need_a_longer_document_and_their_loss():
    with pytest.raises(UsageError, match="data.num_negatives=16 replace sentences that contexts leave out"):
        DataConfig(stretch=1.0, num_negatives=16)
    with pytest.raises(
        UsageError, match="data.num_negatives=16 work only with the loss ranking: give learner.losses.ranking"
    ):
        RunConfig(data=DataConfig(num_negatives=16))
    config, task = noisy(16)
    with pytest.raises(UsageError, match="data.num_negatives=16: texts has no haystack"):
        train(config, replace(task, noise=None))
