from dataclasses import replace
from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from support.networks import (
    NETWORKS,
    linear_network,
    make_batch,
    np_jit,
    position_by_definition,
    random_params,
    rotated_by_definition,
    select_environments,
)
from support.tiers import slow_but

from qrag_jax.qrag import env as process
from qrag_jax.qrag.env import EnvConfig, q_values, replay_q_values, rollout
from qrag_jax.qrag.policy import make_boltzmann, make_greedy
from qrag_jax.train.qrag.returns import state_value
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
MODES = ("relative", "absolute", "none")
untaken, step_reward = np_jit(process.untaken), np_jit(process.step_reward, static_argnums=3)
observe = np_jit(process.observe, static_argnums=(2, 3))


def soft_value(q, allowed):
    return jax.vmap(lambda q, allowed: state_value(q, allowed, 0.5))(q, allowed)


def scripted(script):
    """A policy that takes the given slots [T], whatever Q says."""
    columns = iter(script)

    def policy(keys, q, allowed):
        del keys, allowed
        return jnp.broadcast_to(next(columns), q.shape[:1]), jnp.zeros(q.shape[0])

    return policy


@cache
def compiled(kind, config=EnvConfig(), policy="boltzmann"):  # noqa: B008
    """A rollout with a critic, compiled once for all tests that play it on the same shapes."""

    def run(params, critic, batch, key, epsilon, script):
        chosen = {
            "boltzmann": lambda: make_boltzmann(0.5, epsilon),
            "greedy": make_greedy,
            "scripted": lambda: scripted(script),
        }[policy]()
        return rollout(NETWORKS[kind](), params, batch, key, chosen, config, critic, soft_value)

    return jax.jit(run)


def play(kind, batch, config=EnvConfig(), policy="boltzmann", key=0, epsilon=0.3, script=(0, 0, 0), params=None):  # noqa: B008
    """Plays a batch with fixed random parameters; the critic has other ones."""
    params = random_params(NETWORKS[kind]()) if params is None else params
    critic = random_params(NETWORKS[kind](), seed=1)
    script = np.asarray(script, np.int32)
    return compiled(kind, config, policy)(params, critic, batch, jax.random.key(key), np.float32(epsilon), script)


# --- allowed chunks


def test_untaken_by_hand():
    valid = jnp.array([True, True, True, False])
    np.testing.assert_array_equal(untaken(valid, jnp.array([], jnp.int32)), [True, True, True, False])
    np.testing.assert_array_equal(untaken(valid, jnp.array([0, 2], jnp.int32)), [False, True, False, False])


# --- rewards


def episode(gold, picks, config):
    """(rewards, continues) of an episode that takes `picks` in turn."""
    gold = jnp.asarray(gold, bool)
    found = [step_reward(gold, np.asarray(picks[:t], np.int32), np.int32(pick), config) for t, pick in enumerate(picks)]
    return [float(reward) for reward, _ in found], [float(going_on) for _, going_on in found]


GOLD = [0, 1, 0, 1, 0, 0]  # chunks 1 and 3


@pytest.mark.parametrize(
    ("options", "picks", "rewards"),
    [
        # At completion, penalty: 0.5 + 0.5 * 2 / taken.
        ({}, [1, 3, 0, 2], [0, 1, 0, 0]),
        ({}, [0, 3, 1, 2], [0, 0, 0.5 + 1 / 3, 0]),
        ({}, [0, 2, 3, 1], [0, 0, 0, 0.75]),
        ({}, [0, 2, 4, 1], [0, 0, 0, 0]),
        ({"penalty": False}, [0, 3, 1, 2], [0, 0, 1, 0]),
        # At the end: whenever the set was complete.
        ({"reward": "at_end"}, [1, 3, 0, 2], [0, 0, 0, 0.75]),
        ({"reward": "at_end"}, [0, 2, 3, 1], [0, 0, 0, 0.75]),
        ({"reward": "at_end"}, [0, 2, 4, 1], [0, 0, 0, 0]),
        ({"reward": "at_end", "penalty": False}, [1, 3, 0, 2], [0, 0, 0, 1]),
        # Every gold chunk pays too, once.
        ({"fact_reward": 0.25}, [1, 0, 3, 2], [0.25, 0, 0.25 + 0.5 + 1 / 3, 0]),
        ({"fact_reward": 0.25, "reward": "at_end"}, [1, 0, 2, 4], [0.25, 0, 0, 0]),
    ],
)
def test_rewards_by_hand(options, picks, rewards):
    found, continues = episode(GOLD, picks, EnvConfig(num_steps=4, **options))
    np.testing.assert_allclose(found, rewards, rtol=1e-6)
    assert continues == [1, 1, 1, 0]  # the episode runs on after completion


@pytest.mark.parametrize("reward", ["at_completion", "at_end"])
def test_an_episode_that_ends_at_completion_is_paid_there_and_only_once(reward):
    config = EnvConfig(num_steps=4, reward=reward, end_at_completion=True)
    found, continues = episode(GOLD, [3, 1, 0, 2], config)
    np.testing.assert_allclose(found, [0, 1, 0, 0])
    assert continues[:2] == [1, 0]
    assert continues[3] == 0
    # Never complete: it ends at T without reward; complete at T: paid there.
    assert episode(GOLD, [3, 0, 2, 4], config) == ([0, 0, 0, 0], [1, 1, 1, 0])
    np.testing.assert_allclose(episode(GOLD, [3, 0, 2, 1], config)[0], [0, 0, 0, 0.75])


def test_more_gold_chunks_than_steps_are_never_complete():
    assert episode([1, 1, 1, 1], [0, 1, 2], EnvConfig(num_steps=3))[0] == [0, 0, 0]


@pytest.mark.parametrize("reward", ["at_completion", "at_end"])
@pytest.mark.parametrize("penalty", [True, False])
def test_rewards_against_sets(reward, penalty):
    """Random episodes, from the words of the specification."""
    config = EnvConfig(num_steps=4, reward=reward, penalty=penalty, fact_reward=0.1)
    rng = np.random.default_rng(0)
    for _ in range(15):
        gold = np.zeros(7, bool)
        gold[rng.choice(7, rng.integers(1, 5), replace=False)] = True
        wanted, taken = set(np.flatnonzero(gold).tolist()), set()
        picks = rng.permutation(7)[:4].astype(np.int32)
        for t, pick in enumerate(picks):
            was_complete = wanted <= taken
            taken.add(int(pick))
            pays = wanted <= taken and (not was_complete if reward == "at_completion" else t == 3)
            expected = (0.5 + 0.5 * len(wanted) / len(taken) if penalty else 1.0) * pays + 0.1 * (int(pick) in wanted)
            found, going_on = step_reward(gold, picks[:t], pick, config)
            assert float(found) == pytest.approx(expected, abs=1e-6)
            assert float(going_on) == (t < 3)


# --- rollouts against NumPy


def numpy_states(params, batch, env, slots):
    """State of the linear network: question and taken chunks, ranked in document order."""
    vectors = np.asarray(batch.table.vectors, np.float64)[np.asarray(batch.chunks)[env]]
    state = np.asarray(batch.questions.vectors, np.float64)[env] @ np.asarray(params["state"]["question"])
    for rank, slot in enumerate(sorted(slots), start=1):
        state = state + rank * vectors[slot] @ np.asarray(params["state"]["chunk"])
    return state, vectors @ np.asarray(params["action"])


def numpy_q(params, batch, env, slots, config):
    """{slot: (Q of every head, position)} of the untaken real chunks, each written as an inner product."""
    state, rows = numpy_states(params, batch, env, slots)
    indices, length = np.asarray(batch.indices)[env], int(batch.lengths[env])
    found = {}
    for slot in np.flatnonzero(np.asarray(batch.valid)[env]):
        if slot in slots:
            continue
        position = position_by_definition(config.positions, indices[slot], indices[slots].tolist(), length)
        turned = rotated_by_definition(rows[slot], position, config.num_q_heads)
        found[int(slot)] = (state * turned).reshape(config.num_q_heads, -1).sum(1), position
    return found


@pytest.mark.parametrize(
    ("positions", "num_q_heads"), slow_but([("relative", 2)], product(MODES, (1, 2)), [("absolute", 2), ("none", 1)])
)
def test_a_greedy_rollout_against_numpy(positions, num_q_heads):
    """Actions, positions, Q values, rewards and the critic's values, environment by environment and step by step."""
    config = EnvConfig(num_steps=3, positions=positions, num_q_heads=num_q_heads)
    network, batch = linear_network(), make_batch(shortest=3)
    params, critic = random_params(network), random_params(network, seed=1)
    played = jax.tree.map(np.asarray, play("linear", batch, config, "greedy"))
    for env in range(4):
        slots = []
        gold = set(np.flatnonzero(np.asarray(batch.gold)[env]).tolist())
        for t in range(3):
            q = numpy_q(params, batch, env, slots, config)
            best = max(q, key=lambda slot: q[slot][0].sum())
            complete_before = gold <= set(slots)
            slots.append(best)
            assert int(played.actions[env, t]) == best
            np.testing.assert_allclose(played.q_values[env, t], q[best][0], atol=1e-4)
            assert float(played.positions[env, t]) == pytest.approx(q[best][1], rel=1e-6)
            completes = gold <= set(slots) and not complete_before
            assert float(played.rewards[env, t]) == pytest.approx(completes * (0.5 + 1 / (t + 1)))
            value = 0.0
            if t < 2:  # the last step ends the episode
                after = numpy_q(critic, batch, env, slots, config)
                heads = np.stack([heads for heads, _ in after.values()], axis=1)
                value = 0.5 * logsumexp(heads / 0.5, axis=1).sum()
            assert float(played.next_values[env, t]) == pytest.approx(value, abs=1e-4)
    np.testing.assert_array_equal(played.continues, np.tile([1, 1, 0], (4, 1)))
    np.testing.assert_array_equal(played.log_probs, 0)


@pytest.mark.slow
def test_a_given_index_is_used_and_changes_nothing():
    network, batch = linear_network(), make_batch()
    params = random_params(network)

    @jax.jit
    def run(index):
        key = jax.random.key(0)
        return rollout(network, params, batch, key, make_greedy(), EnvConfig(), action_vectors=index)

    index = jax.jit(network.actions)(params, batch.table)
    own = play("linear", batch, policy="greedy")
    given, doubled = run(index), run(2 * np.asarray(index))
    np.testing.assert_array_equal(own.actions, given.actions)
    np.testing.assert_allclose(own.q_values, given.q_values, rtol=1e-5)
    np.testing.assert_allclose(2 * np.asarray(own.q_values), doubled.q_values, rtol=1e-5)
    np.testing.assert_array_equal(given.next_values, 0)  # no critic


# --- what a rollout keeps to


def all_finite(played):
    """All but the Q values of STOP, which these runs do not have."""
    assert np.isneginf(played.stop_q_values).all()
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(played.replace(stop_q_values=None)))


@pytest.mark.slow
def test_no_chunk_is_taken_twice_and_padding_never():
    config = EnvConfig(num_steps=4)
    for seed in range(5):
        batch = make_batch(size=40, seed=seed, shortest=4)
        played = play("linear", batch, config, epsilon=1.0, key=seed)
        actions = np.asarray(played.actions)
        assert all(len(set(row)) == 4 for row in actions.tolist())
        assert np.take_along_axis(np.asarray(batch.valid), actions, axis=1).all()
        assert all_finite(played)


def test_a_document_of_exactly_T_chunks_is_taken_whole():
    batch = make_batch(shortest=3)
    batch = batch.replace(valid=np.asarray(batch.valid) & (np.arange(7) < 3), lengths=np.full(4, 3, np.int32))
    played = play("linear", batch)
    np.testing.assert_array_equal(np.sort(played.actions, axis=1), np.tile([0, 1, 2], (4, 1)))
    assert all_finite(played)


def test_what_stands_at_padding_does_not_matter():
    """Padding of an environment points at rows of the table: not even enormous ones change a bit of the rollout."""
    batch = make_batch(shortest=3)
    extra, other = (np.concatenate([batch.table.vectors, np.full((1, 6), x, np.float32)]) for x in (1, 1e30))
    chunks = np.where(batch.valid, batch.chunks, len(extra) - 1).astype(np.int32)
    plain, other = (
        play("linear", batch.replace(table=batch.table.replace(vectors=vectors), chunks=chunks))
        for vectors in (extra, other)
    )
    assert not np.all(batch.valid)
    jax.tree.map(np.testing.assert_array_equal, plain, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["latent", "text"])
def test_the_state_knows_the_chunks_but_not_the_order_of_retrieval(kind):
    batch = make_batch(kind)
    q = [
        np.asarray(play(kind, batch, policy="scripted", script=script).q_values)[:, 2]
        for script in ([0, 3, 1], [3, 0, 1], [0, 2, 1])
    ]
    np.testing.assert_array_equal(q[0], q[1])
    assert np.abs(q[0] - q[2]).min() > 1e-4  # other chunks make another state


@pytest.mark.slow
def test_the_state_depends_on_document_order():
    """The same two vectors, taken at swapped places of the document, are another state."""
    batch, config = make_batch("latent"), EnvConfig(positions="none")
    swapped = batch.replace(chunks=batch.chunks[:, jnp.array([3, 1, 2, 0, 4, 5, 6])])
    plain, other = (
        np.asarray(play("latent", b, config, "scripted", script=(0, 3, 1)).q_values) for b in (batch, swapped)
    )
    assert np.abs(plain - other)[:, 2].min() > 1e-5


@pytest.mark.parametrize("kind", ["latent", pytest.param("text", marks=pytest.mark.full)])
@pytest.mark.slow
def test_same_key_same_run_bit_for_bit(kind):
    batch = make_batch(kind)
    one, again, *others = (play(kind, batch, key=key) for key in (3, 3, 4, 5))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert any((np.asarray(one.actions) != np.asarray(other.actions)).any() for other in others)


def test_keys_are_folded_by_environment_and_by_step():
    """So a resumed or a reshuffled batch draws the same, and no two draws share their noise."""

    def showing_its_keys(keys, q, allowed):
        actions, _ = make_greedy()(keys, q, allowed)
        return actions, jax.vmap(jax.random.uniform)(keys)

    network, batch = linear_network(), make_batch().replace(env=jnp.array([4, 0, 9, 2], jnp.int32))
    root, params = jax.random.key(11), random_params(network)
    run = lambda batch: rollout(network, params, batch, root, showing_its_keys, EnvConfig()).log_probs  # noqa: E731
    folded = [[jax.random.fold_in(jax.random.fold_in(root, env), t) for t in range(3)] for env in (4, 0, 9, 2)]
    expected = [[float(jax.random.uniform(key)) for key in row] for row in folded]
    np.testing.assert_allclose(jax.jit(run)(batch), expected, rtol=1e-6)


def test_draws_depend_on_the_number_of_the_environment():
    """Equal environments draw differently, because their numbers differ, and alike when these are equal."""
    batch = select_environments(make_batch(), [0] * 40)
    numbered = batch.replace(env=jnp.asarray([*range(20)] * 2, jnp.int32))
    actions = np.asarray(play("linear", numbered, EnvConfig(num_steps=3), epsilon=1.0).actions)
    np.testing.assert_array_equal(actions[:20], actions[20:])
    assert len({tuple(row) for row in actions.tolist()}) > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["latent", pytest.param("text", marks=pytest.mark.full)])
def test_a_batch_is_a_loop_and_a_vmap_over_single_environments(kind):
    """Same draws; numbers to 1e-5, because matrix products of other shapes round otherwise."""
    batch = make_batch(kind)
    network, params = NETWORKS[kind](), random_params(NETWORKS[kind]())
    together = jax.tree.map(np.asarray, play(kind, batch))
    close = partial(np.testing.assert_allclose, atol=1e-5, rtol=1e-5)
    for env in range(4):
        alone = jax.tree.map(np.asarray, play(kind, select_environments(batch, [env])))
        np.testing.assert_array_equal(alone.actions[0], together.actions[env])
        jax.tree.map(lambda a, b, env=env: close(a[0], b[env]), alone, together)

    def single(env):
        policy = make_boltzmann(0.5, 0.3)
        alone = jax.tree.map(lambda x: x[env[None]], batch.replace(table=None)).replace(table=batch.table)
        return rollout(network, params, alone, jax.random.key(0), policy, EnvConfig())

    mapped = np_jit(jax.vmap(single))(np.arange(4, dtype=np.int32))
    np.testing.assert_array_equal(mapped.actions[:, 0], together.actions)
    for name in ("q_values", "log_probs", "rewards", "positions"):
        close(getattr(mapped, name)[:, 0], getattr(together, name))


def test_an_environment_does_not_depend_on_the_other_members_of_its_batch():
    batch = make_batch("latent")
    others = select_environments(batch, [2, 1, 0, 0]).replace(env=jnp.array([7, 1, 9, 8], jnp.int32))
    one, other = (play("latent", each, EnvConfig(num_steps=2)) for each in (batch, others))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a)[1], np.asarray(b)[1]), one, other)


@pytest.mark.slow
def test_padding_on_the_right_changes_no_draw():
    """A batch padded to more chunks plays the same episodes: the draws of a chunk do not depend on the width."""
    batch = make_batch()
    pad = lambda x, value: np.pad(x, ((0, 0), (0, 4)), constant_values=value)  # noqa: E731
    wider = batch.replace(
        chunks=pad(batch.chunks, 0),
        indices=pad(batch.indices, 99),
        valid=pad(batch.valid, False),
        gold=pad(batch.gold, False),
    )
    narrow, wide = play("linear", batch), play("linear", wider)
    np.testing.assert_array_equal(narrow.actions, wide.actions)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), narrow, wide)


# --- the second pass


@pytest.mark.parametrize(
    ("positions", "num_q_heads"), slow_but([("relative", 1)], [("relative", 1), ("absolute", 2), ("none", 1)])
)
def test_chosen_pairs_encoded_again_have_the_same_q(positions, num_q_heads):
    """Here with linear towers; test_q_learner compares losses and gradients with latent and text towers."""
    config = EnvConfig(num_steps=3, positions=positions, num_q_heads=num_q_heads)
    network, batch = linear_network(), make_batch()
    params = random_params(network)
    played = play("linear", batch, config)
    again = np_jit(lambda played: replay_q_values(network, params, batch, played, config))(played)
    assert again.shape == (4, 3, num_q_heads)
    np.testing.assert_allclose(again, played.q_values, atol=1e-5, rtol=1e-5)


def test_gradients_flow_through_the_chosen_q_values_only():
    batch = make_batch()
    network = linear_network()
    params = random_params(network)

    @jax.jit
    def gradients(weights):
        def weighted(params):
            policy = make_boltzmann(0.5, 0.3)
            played = rollout(network, params, batch, jax.random.key(0), policy, EnvConfig(), params, soft_value)
            return sum(weight * getattr(played, name).sum() for name, weight in weights.items())

        return jax.grad(weighted)(params)

    names = ("q_values", "next_values", "log_probs", "rewards", "continues", "positions")
    for name in names:
        found = jax.tree.leaves(gradients({other: np.float32(other == name) for other in names}))
        assert all((np.asarray(leaf) != 0).any() == (name == "q_values") for leaf in found), name


def test_gradient_of_a_chosen_q_against_differences():
    batch, params = make_batch(), random_params(linear_network())

    @jax.jit
    def value_and_gradient(params):
        def total(params):
            policy = scripted(jnp.array([2, 1, 3], jnp.int32))
            return rollout(linear_network(), params, batch, jax.random.key(0), policy, EnvConfig()).q_values.sum()

        return jax.value_and_grad(total)(params)

    chosen = lambda params: value_and_gradient(params)[0]  # noqa: E731
    gradient, step = value_and_gradient(params)[1]["action"], 1e-2
    for i, j in [(0, 0), (3, 5)]:
        away = [np.array(params["action"]) for _ in range(2)]
        away[0][i, j] += step
        away[1][i, j] -= step
        moved = [chosen({**params, "action": action}) for action in away]
        assert float(np.asarray(gradient)[i, j]) == pytest.approx(float(moved[0] - moved[1]) / (2 * step), abs=1e-2)


def test_observe_positions_of_a_batch():
    batch = make_batch()
    taken = jnp.array([[1, 4], [0, 2], [0, 1], [2, 3]], jnp.int32)
    rho, table = observe(batch, taken, EnvConfig(), 8)
    for env in range(4):
        indices, length = np.asarray(batch.indices)[env], int(batch.lengths[env])
        for slot in np.flatnonzero(np.asarray(batch.valid)[env]):
            bounds = indices[np.asarray(taken)[env]].tolist()
            expected = position_by_definition("relative", indices[slot], bounds, length)
            assert float(rho[env, slot]) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(table[0][..., 0], np.cos(rho), atol=1e-6)
    assert observe(batch, taken, EnvConfig(positions="none"), 8)[1] is None


def test_q_values_have_one_row_a_head():
    network, batch, config = linear_network(), make_batch(), EnvConfig(num_q_heads=2, positions="none")
    params = random_params(network)

    @partial(np_jit, static_argnums=0)
    def q_of(config):
        rows = network.actions(params, batch.table)[batch.chunks]
        return q_values(network, params, rows, batch, jnp.zeros((4, 0), jnp.int32), None, config)

    two, one = q_of(config), q_of(replace(config, num_q_heads=1))
    assert two.shape == (4, 2, 7) and one.shape == (4, 1, 7)
    np.testing.assert_allclose(two.sum(1), one[:, 0], atol=1e-5)


# --- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ell": 10.0}, r"ell 10.0: must lie in \(0, 10.0\)"),
    ],
)
def test_a_process_out_of_range_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        EnvConfig(**options)
