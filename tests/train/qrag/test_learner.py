import math
from dataclasses import replace
from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support.networks import NETWORKS, latent_network, linear_network, make_batch, random_params
from support.tiers import slow_but

from qrag_jax.models.towers.q_network import Network, VectorRows
from qrag_jax.qrag.env import Batch, EnvConfig, Rollout, rollout
from qrag_jax.qrag.policy import make_boltzmann
from qrag_jax.train.optimise import ScheduleConfig
from qrag_jax.train.qrag.learner import LearnerConfig, make_learner, q_loss, rollout_targets
from qrag_jax.train.qrag.returns import state_value
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
ENV = EnvConfig(num_steps=3)
SHORT = EnvConfig(num_steps=2)  # where the number of steps is of no matter: less to compile
CONFIG = LearnerConfig(temperature=ScheduleConfig(0.5, 0.5), epsilon=ScheduleConfig(0.3, 0.3))


def loss_and_rollout(kind, env, config):
    """(params, target params, batch, key) -> (loss, metrics, rollout), at temperature 0.5 and epsilon 0.3."""
    network, now = NETWORKS[kind](), (jnp.float32(0.5), jnp.float32(0.3))

    def value(q, allowed):
        one = lambda q, allowed: state_value(q, allowed, 0.5, config.value, config.top_k_actions)  # noqa: E731
        return jax.vmap(one)(q, allowed)

    def run(params, target, batch, key):
        loss, metrics = q_loss(network, params, target, batch, key, *now, env, config)
        policy = make_boltzmann(*now, config.top_k_actions)
        critic = target if config.target_network else params
        return loss, metrics, rollout(network, params, batch, key, policy, env, critic, value)

    return run


@cache
def compiled_loss(kind="linear", env=SHORT, config=CONFIG):
    """(params, target params, batch, key) -> ((loss, metrics and rollout), gradient)."""

    def loss(*arguments):
        loss, *others = loss_and_rollout(kind, env, config)(*arguments)
        return loss, others

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def parameters(kind="linear", seed=0):
    return random_params(NETWORKS[kind](), seed)


def largest_difference(one, other):
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), one, other)))


def largest(tree):
    return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


# --- targets


def played_by_hand():
    """One episode of 3 steps whose reward comes at the second one."""
    row = lambda *values: jnp.asarray([values], jnp.float32)  # noqa: E731
    return Rollout(
        actions=jnp.array([[0, 1, 2]], jnp.int32),
        positions=row(0, 0, 0),
        q_values=jnp.zeros((1, 3, 1)),
        stop_q_values=jnp.full((1, 3, 1), -jnp.inf),
        log_probs=row(-0.1, -0.7, -1.3),
        rewards=row(0, 1, 0),
        stops=jnp.zeros((1, 3), bool),
        alive=row(1, 1, 1),
        continues=row(1, 1, 0),
        next_values=row(0.4, 0.6, 0),
    )


def test_targets_by_hand():
    # G_2 = 0; G_1 = 1 + .5 (.5 * .6 + .5 * 0) = 1.15; G_0 = 0 + .5 (.5 * .4 + .5 * 1.15) = .3875
    targets = rollout_targets(played_by_hand(), jnp.float32(0.5), replace(CONFIG, gamma=0.5, lambda_=0.5))
    np.testing.assert_allclose(targets, [[0.3875, 1.15, 0]], rtol=1e-6)


def test_nothing_is_bootstrapped_where_an_episode_ends():
    """It ends at step 1 of 3, by completion: G_1 is the reward alone, whatever the values after it."""
    played = played_by_hand().replace(continues=jnp.array([[1.0, 0.0, 0.0]]))
    targets = rollout_targets(played, jnp.float32(0.5), replace(CONFIG, gamma=0.5, lambda_=0.5, soft_trace=True))
    g_0 = 0.5 * (0.5 * 0.4 + 0.5 * (1 + 0.35))
    np.testing.assert_allclose(targets[0, :2], [g_0, 1.0], rtol=1e-6)


def test_soft_trace_targets_by_hand():
    # The next action's -alpha log pi joins the sampled return: 0.5 * 1.3 at step 1, 0.5 * 0.7 at step 0.
    config = replace(CONFIG, gamma=0.5, lambda_=0.5, soft_trace=True)
    g_1 = 1 + 0.5 * (0.5 * 0.6 + 0.5 * (0 + 0.65))
    g_0 = 0.5 * (0.5 * 0.4 + 0.5 * (g_1 + 0.35))
    targets = rollout_targets(played_by_hand(), jnp.float32(0.5), config)
    np.testing.assert_allclose(targets, [[g_0, g_1, 0]], rtol=1e-6)


# --- the loss


def targets_in_a_loop(played, config, temperature=0.5):
    """Lambda-returns of every environment, from the recursion."""
    rows = []
    for env in range(len(played.rewards)):
        g, row = float(played.next_values[env, -1]), []
        for t in reversed(range(played.rewards.shape[1])):
            last = t == played.rewards.shape[1] - 1
            bonus = 0.0 if last or not config.soft_trace else -temperature * float(played.log_probs[env, t + 1])
            mixed = (1 - config.lambda_) * float(played.next_values[env, t]) + config.lambda_ * (g + bonus)
            g = float(played.rewards[env, t]) + config.gamma * float(played.continues[env, t]) * mixed
            row.append(g)
        rows.append(row[::-1])
    return np.array(rows)


@pytest.mark.parametrize(
    ("options", "num_q_heads"),
    [
        ({"value": "expected"}, 2),
        ({"soft_trace": True}, 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [({}, 2), ({"value": "hard"}, 1), ({"top_k_actions": 1}, 2)]
        ),
        *(
            pytest.param(*case, marks=pytest.mark.full)  # targets by hand have them too
            for case in [({}, 1), ({"gamma": 0.5}, 1), ({"lambda_": 1.0}, 1), ({"target_network": False}, 1)]
        ),
    ],
)
def test_the_loss_against_a_loop(options, num_q_heads):
    """Mean over environments and steps of (Q - G)^2 of the chosen pairs, each head on its own; every switch counts."""
    config, env = replace(CONFIG, **options), replace(ENV, num_q_heads=num_q_heads)
    batch = make_batch()
    run = jax.jit(loss_and_rollout("linear", env, config))
    arguments = (parameters(), parameters(seed=1), batch, jax.random.key(0))
    loss, metrics, played = run(*arguments)
    targets = targets_in_a_loop(played, config)
    q = np.asarray(played.q_values, np.float64)
    assert float(loss) == pytest.approx(np.mean((num_q_heads * q - targets[..., None]) ** 2), rel=1e-4)
    assert float(metrics["loss"]) == float(loss)
    assert float(metrics["target"]) == pytest.approx(targets.mean(), rel=1e-4, abs=1e-5)
    assert float(metrics["q"]) == pytest.approx(q.sum(-1).mean(), rel=1e-4, abs=1e-5)
    assert float(metrics["return"]) == pytest.approx(float(played.rewards.sum(1).mean()), rel=1e-5)
    gold = np.take_along_axis(np.asarray(batch.gold), np.asarray(played.actions), axis=1)
    assert float(metrics["complete"]) == pytest.approx((gold.sum(1) == 2).mean())
    if options and options.get("top_k_actions") is None and num_q_heads == 1:  # the same picks, other targets
        _, _, base = jax.jit(loss_and_rollout("linear", env, CONFIG))(*arguments)
        np.testing.assert_array_equal(base.actions, played.actions)
        assert np.abs(targets_in_a_loop(base, CONFIG) - targets).max() > 1e-3


# Positions and heads are the business of the environment, whatever the towers: linear ones meet all of them.
SECOND_PASS = [("linear", mode, heads, 3) for mode, heads in [("relative", 2), ("absolute", 1), ("none", 1)]]
SECOND_PASS += [("latent", "relative", 2, 2), ("text", "relative", 2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "positions", "num_q_heads", "num_steps"),
    slow_but([("linear", "relative", 2, 3)], SECOND_PASS, [("latent", "relative", 2, 2)]),
)
def test_encoding_again_has_the_same_loss_and_gradient(kind, positions, num_q_heads, num_steps):
    """Activations of the rollout kept, or the chosen pairs encoded a second time."""
    env = EnvConfig(num_steps=num_steps, positions=positions, num_q_heads=num_q_heads)
    target, batch, key = parameters(kind, seed=1), make_batch(kind), jax.random.key(0)

    @jax.jit
    def both(params):
        def loss(params, config):
            return loss_and_rollout(kind, env, config)(params, target, batch, key)[0]

        return [jax.value_and_grad(loss)(params, replace(CONFIG, reencode=again)) for again in (False, True)]

    (inside, gradient), (again, gradient_again) = both(parameters(kind))
    assert float(again) == pytest.approx(float(inside), rel=1e-5)
    assert largest_difference(gradient, gradient_again) < 1e-5 * max(1.0, largest(gradient))
    for tower in ("state", "action"):  # both towers learn
        assert largest(gradient[tower]) > 1e-3


@pytest.mark.parametrize("parts", slow_but([4], [2, 4], []))
def test_a_batch_in_parts_has_the_update_of_the_whole_one(parts):
    """Gradient, metrics and step are those of one part of all; the draws hang on the environments' numbers."""
    assert_parts_are_the_whole(parts, SHORT, CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "config"),
    [
        pytest.param(replace(ENV, end_at_completion=True), CONFIG, marks=pytest.mark.full),
        (replace(ENV, stop=True, reward="at_end"), CONFIG),
        (ENV, replace(CONFIG, objective="sft")),
    ],
)
def test_parts_count_as_much_as_they_have_steps(env, config):
    """Episodes that end early, and gold sets of different size, make parts of unequal weight."""
    assert_parts_are_the_whole(2, env, config, uneven=True)


def assert_parts_are_the_whole(parts, env, base, uneven=False):
    network, whole = NETWORKS["linear"](), make_batch(size=8)
    if uneven:  # the first half needs one chunk, which may be taken at once
        gold = np.array(whole.gold)
        gold[:4] = np.arange(gold.shape[1]) == 0
        whole = whole.replace(gold=jnp.asarray(gold))
    tables = jax.tree.map(lambda x: jnp.stack([x] * parts), whole.table)
    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), whole.replace(table=None)).replace(table=tables)
    found = []
    for config, batch in ((base, whole), (replace(base, accumulate=parts), split)):
        learner = make_learner(network, env, config, 10)
        params = random_params(network)
        if env.stop:
            params["stop"] = jnp.full(network.dim, 0.1)
        state = learner.init(params, jax.random.key(3))
        found.append(jax.jit(learner.update)(state, batch))
    (one, metrics), (other, metrics_of_parts) = found
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one.params, other.params)
    assert metrics.keys() == metrics_of_parts.keys()
    if uneven:
        assert 1 <= float(metrics["steps"]) < env.num_steps
    for name, value in metrics.items():
        np.testing.assert_allclose(metrics_of_parts[name], value, rtol=1e-4, err_msg=name)


def test_no_gradient_flows_through_the_targets():
    """The gradient is that of (Q - G)^2 with G a constant, also when the critic is the online network."""
    params, batch, key = parameters(), make_batch(), jax.random.key(0)
    _, gradient = compiled_loss(config=replace(CONFIG, target_network=False))(params, params, batch, key)
    _, with_constant_critic = compiled_loss()(params, params, batch, key)
    assert largest_difference(gradient, with_constant_critic) < 1e-6
    run = loss_and_rollout("linear", SHORT, CONFIG)
    of_target = jax.jit(jax.grad(lambda target: run(params, target, batch, key)[0]))(parameters(seed=1))
    assert largest(of_target) == 0


def test_the_target_network_is_used_or_not():
    params, batch, key = parameters(), make_batch(), jax.random.key(0)
    for used in (True, False):
        run = compiled_loss(config=replace(CONFIG, target_network=used))
        losses = [float(run(params, parameters(seed=seed), batch, key)[0][0]) for seed in (1, 2)]
        assert (losses[0] != losses[1]) == used


def test_padding_has_no_gradient():
    """A table row that only padding points at gets no gradient: nothing of it reaches the loss."""
    batch = make_batch(shortest=4)
    extra = jnp.concatenate([batch.table.vectors, jnp.ones((1, 6))])
    padded = batch.replace(chunks=jnp.where(batch.valid, batch.chunks, len(extra) - 1))
    run = loss_and_rollout("linear", SHORT, CONFIG)

    def loss(vectors):
        return run(parameters(), parameters(), padded.replace(table=VectorRows(vectors)), jax.random.key(0))[0]

    gradient = np.asarray(jax.jit(jax.grad(loss))(extra))
    assert (gradient[-1] == 0).all() and np.isfinite(gradient).all()
    assert (gradient[:-1] != 0).any()


@pytest.mark.slow
@pytest.mark.parametrize("value", slow_but(["soft"], ["soft", "expected", "hard"], ["hard"]))
def test_gradients_are_finite_when_nothing_is_left_to_choose(value):
    """Documents of exactly T chunks, T = 3, and a top-k larger than what is left."""
    batch = make_batch()
    batch = batch.replace(valid=batch.valid & (jnp.arange(7) < 3), lengths=jnp.full(4, 3, jnp.int32))
    run = compiled_loss(env=ENV, config=replace(CONFIG, value=value, top_k_actions=5, soft_trace=True))
    (loss, _), gradient = run(parameters(), parameters(seed=1), batch, jax.random.key(0))
    assert math.isfinite(float(loss))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


# --- one update


@cache
def compiled_update(config=CONFIG, num_updates=10):
    """(learner, its update, compiled and donated) of linear towers; a second trace would be an error."""
    learner = make_learner(linear_network(), SHORT, config, num_updates)
    return learner, jax.jit(chex.assert_max_traces(learner.update, n=1), donate_argnums=0)


def make_state(learner, seed=7, params=None):
    return learner.init(parameters() if params is None else params, jax.random.key(seed))


def snapshot(tree):
    """NumPy copies: a donated state is gone after the update."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda leaf: np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree)


OTHER_OPTIMISER = replace(
    CONFIG,
    learning_rate=ScheduleConfig(0.08, 0.0, warmup=0.4),
    temperature=ScheduleConfig(0.4, 0.1, "exponential"),
    epsilon=ScheduleConfig(0.5, 0.0, until=0.5),
    tau=0.25,
    weight_decay=0.3,
    clip_norm=0.5,
    adam_b1=0.7,
    adam_b2=0.9,
    adam_eps=0.01,
)


def test_an_update_by_hand():
    """Clipping, the first step of AdamW (its corrected moments are the gradient and its square), and the target."""
    learner, update = compiled_update(OTHER_OPTIMISER)
    params, before, batch = parameters(), parameters(seed=3), make_batch()
    key = jax.random.fold_in(jax.random.key(7), 0)

    def loss(params):
        return q_loss(
            linear_network(), params, before, batch, key, jnp.float32(0.4), jnp.float32(0.5), SHORT, OTHER_OPTIMISER
        )

    gradient, metrics = jax.jit(jax.grad(loss, has_aux=True))(params)
    norm = math.sqrt(sum(float(jnp.sum(jnp.square(leaf))) for leaf in jax.tree.leaves(gradient)))
    assert norm > 0.5  # the clipping bites
    state = make_state(learner).replace(target_params=jax.tree.map(jnp.array, before))
    new, found = update(state, batch)
    assert float(found["loss"]) == pytest.approx(float(metrics["loss"]), rel=1e-5)
    assert float(found["grad_norm"]) == pytest.approx(norm, rel=1e-4)
    rate = 0.08 / 4  # the first of four updates of warm-up
    trees = (params, gradient, new.params, before, new.target_params)
    for p, g, online, old, target in zip(*map(jax.tree.leaves, trees), strict=True):
        p, g = np.asarray(p, np.float64), np.asarray(g, np.float64) * 0.5 / norm
        np.testing.assert_allclose(online, p - rate * (g / (np.abs(g) + 0.01) + 0.3 * p), atol=1e-5)
        np.testing.assert_allclose(target, 0.25 * np.asarray(online) + 0.75 * np.asarray(old), atol=1e-6)


def test_schedules_advance_with_the_step():
    learner, update = compiled_update(OTHER_OPTIMISER)
    state, found = make_state(learner), []
    for _ in range(4):
        state, metrics = update(state, make_batch())
        found.append([float(metrics[name]) for name in ("learning_rate", "temperature", "epsilon")])
    expected = [[0.02 * (t + 1), 0.4 * 0.25 ** (t / 10), 0.5 - 0.1 * t] for t in range(4)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert int(state.step) == 4


@pytest.mark.slow
def test_a_step_is_a_function_of_the_state_and_the_batch():
    learner, update = compiled_update()
    one, again = (snapshot(update(make_state(learner), make_batch())) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    # The root key stays; another step draws otherwise.
    np.testing.assert_array_equal(one[0].key, jax.random.key_data(jax.random.key(7)))
    state = make_state(learner)
    later = update(state.replace(step=state.step + 1), make_batch())
    assert float(later[1]["loss"]) != float(one[1]["loss"])


def test_same_seed_same_run_bit_for_bit():
    def run(seed):
        learner, update = compiled_update()
        state, losses = make_state(learner, seed), []
        for step in range(5):
            state, metrics = update(state, make_batch(seed=step))
            losses.append(float(metrics["loss"]))
        return losses, snapshot(state)

    one, again, other = run(0), run(0), run(1)
    assert one[0] == again[0] != other[0]
    jax.tree.map(np.testing.assert_array_equal, one[1], again[1])


def test_nothing_recompiles_from_update_to_update():
    """Other batches, other steps of the schedules: one trace, one compiled program."""
    learner, update = compiled_update()
    state = make_state(learner)
    for step in range(3):
        state, metrics = update(state, make_batch(seed=step))
        assert math.isfinite(float(metrics["loss"]))
    assert update._cache_size() == 1


def test_a_donated_state_is_reused_also_when_towers_share_buffers():
    """Two towers that start as one array cannot both be donated: `init` must copy."""
    shared, key = jnp.ones((6, 8)), jax.random.key(0)
    params = {"state": {"question": shared, "chunk": shared}, "action": shared}
    learner, update = compiled_update()
    state = learner.init(params, key)
    first = jax.tree.leaves((state.params, state.target_params, state.opt_state))
    for _ in range(2):
        state, metrics = update(state, make_batch())
    assert all(leaf.is_deleted() for leaf in first)
    assert math.isfinite(float(metrics["loss"]))
    assert float(shared.sum()) == 48 and not shared.is_deleted()  # the caller's arrays live on
    assert jax.random.key_data(key).shape


def bandit():
    """One pick among four chunks; the gold one is told by a component of its vector, and the question is silent."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(64, 6)).astype(np.float32) * 0.3
    vectors[:16, 0] = 2.0
    contexts = []
    for _ in range(32):
        row = np.concatenate([rng.integers(0, 16, 1), rng.integers(16, 64, 3)])
        contexts.append(rng.permutation(row))
    chunks = np.stack(contexts).astype(np.int32)
    places = np.tile(np.arange(4, dtype=np.int32), (32, 1))
    as_jax = jnp.asarray
    return Batch(
        VectorRows(as_jax(vectors)),
        VectorRows(jnp.ones((32, 6))),
        as_jax(chunks),
        as_jax(places),
        jnp.full(32, 4, jnp.int32),
        jnp.ones((32, 4), bool),
        as_jax(chunks < 16),
        jnp.arange(32, dtype=jnp.int32),
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_q_heads", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_bandit_is_learned(num_q_heads):
    """Q of the gold chunk goes to 1, its reward, and the loss to 0."""
    env = EnvConfig(num_steps=1, num_q_heads=num_q_heads)
    config = LearnerConfig(
        learning_rate=ScheduleConfig(1e-2, 1e-3),
        temperature=ScheduleConfig(0.3, 0.01),
        epsilon=ScheduleConfig(0.5, 0.0),
        weight_decay=0.0,
    )
    network, batch = latent_network(), bandit()
    learner = make_learner(network, env, config, 150)
    state = learner.init(random_params(network, scale=0.3), jax.random.key(0))

    @jax.jit
    def run(state):
        return jax.lax.scan(lambda state, _: learner.update(state, batch), state, length=150)

    _, metrics = run(state)
    first, last = (
        {name: float(values[part].mean()) for name, values in metrics.items()} for part in (slice(10), slice(-10, None))
    )
    assert first["complete"] < 0.7 and last["complete"] > 0.97
    assert last["loss"] < 0.1 * first["loss"]
    assert last["q"] == pytest.approx(1.0, abs=0.1)


# --- devices


def sharded(tree, mesh, spec):
    return jax.device_put(tree, NamedSharding(mesh, spec))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", pytest.param("text", marks=pytest.mark.full)])
def test_eight_devices_give_the_losses_of_one(kind):
    """Batch-leading arrays split over a mesh axis, parameters and the table of chunks on every device."""
    network = NETWORKS[kind]()
    env = replace(ENV, num_steps=1) if kind == "text" else ENV  # one step holds all that the encoder does
    learner = make_learner(network, env, CONFIG, 10)
    update = jax.jit(learner.update)
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))

    def run(place):
        state = learner.init(random_params(network), jax.random.key(0))
        state, losses = place(state, None), []
        for step in range(3):
            state, metrics = update(state, place(make_batch(kind, seed=step, size=16), step))
            losses.append(float(metrics["loss"]))
        return losses, state

    def over_mesh(tree, step):
        if step is None:
            return sharded(tree, mesh, PartitionSpec())
        split = sharded(tree.replace(table=None), mesh, PartitionSpec("data"))
        return split.replace(table=sharded(tree.table, mesh, PartitionSpec()))

    one, _ = run(lambda tree, step: tree)
    eight, state = run(over_mesh)
    assert len(jax.tree.leaves(state.params)[0].sharding.device_set) == 8
    np.testing.assert_allclose(eight, one, rtol=1e-5, atol=1e-5)


# --- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.1}, r"gamma 1.1: must lie in \[0, 1\]"),
        ({"adam_b2": 1.0}, r"adam_b2 1.0: must lie in \[0, 1\)"),
        ({"temperature": ScheduleConfig(0.1, 0.1, warmup=0.1)}, "temperature.warmup=0.1 must be 0"),
        ({"epsilon": ScheduleConfig(1.5, 0.0)}, r"epsilon.start 1.5: must lie in \[0, 1\]"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        LearnerConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_q_heads": 3}, "env.num_q_heads=3 must .* split the 8 components"),
        ({"num_q_heads": 8}, "env.num_q_heads=8 must .* slices of even width"),
    ],
)
def test_a_process_that_the_towers_cannot_play_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        make_learner(Network(None, None, None, 8), EnvConfig(**options), CONFIG, 10)
