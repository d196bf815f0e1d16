import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import (
    STOP,
    linear_network,
    make_batch,
    position_by_definition,
    random_params,
    random_table,
    rotated_by_definition,
    select_environments,
    table_batch,
    table_env,
    table_network,
    table_params,
)
from support.tiers import slow_but

from qrag_jax.eval.retrieval.protocols import kept_by_threshold
from qrag_jax.qrag.beam import beam_search
from qrag_jax.qrag.env import EnvConfig, rollout
from qrag_jax.qrag.policy import make_greedy
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
NEVER = -np.inf
ENV = table_env(num_steps=3)
STOPPING = table_env(num_steps=3, reward="at_end", stop=True)
NETWORKS = {"table": table_network, "linear": linear_network}


@cache
def compiled(kind, env, width):
    """Compiled once for all Q values, thresholds and questions of one shape."""
    network = NETWORKS[kind]()
    return jax.jit(lambda params, batch, threshold: beam_search(network, params, batch, env, width, threshold))


def plan(params, batch, env=ENV, width=2, threshold=NEVER, kind="table"):
    found = compiled(kind, env, width)(params, batch, jnp.float32(threshold))
    return jax.tree.map(np.asarray, found)


def plan_table(table, num_chunks=5, **options):
    """The plan of one question whose Q values are the given ones."""
    found = plan(table_params(table), table_batch(num_chunks), **options)
    return jax.tree.map(lambda x: x[0], found)


# --- the search by its definition


def endings(q_of, num_steps, threshold=NEVER, stop=False):
    """All ways to search: (score, chunks in order) of every ordered sequence, from the words of the module.

    `q_of(taken)` gives {action: Q} with "stop" among the actions of a state that has a chunk.
    """

    def go_on(taken, score):
        if len(taken) == num_steps:
            yield score, taken
            return
        q = q_of(taken)
        chunks = {action: value for action, value in q.items() if action != "stop"}
        if stop and taken:
            yield q["stop"], taken
        good = not taken or q_of(())[taken[0]] >= threshold
        worth = {action: value for action, value in chunks.items() if not taken or (good and value >= threshold)}
        if not worth:
            yield score, taken
        for action, value in worth.items():
            yield from go_on((*taken, action), value)

    return list(go_on((), -math.inf))


def merged(q_of, num_steps, threshold, stop, fact_reward):
    """(score, chunks in order) of every beam of an endless width, where of all orders of a set the best goes on.

    With a fact reward the order matters: an action that Q falls after has earned the fall, up to the reward.
    """
    ended, beams = [], {frozenset(): (0.0, 0.0, (), math.nan)}  # set: (score, earned, order, last Q)
    for t in range(num_steps):
        grown = {}
        for score, earned, order, last in beams.values():
            q = q_of(order)
            chunks = {action: value for action, value in q.items() if action != "stop"}
            if t:
                earned += min(max(last - max((q if stop else chunks).values()), 0), fact_reward)
            if stop and t:
                ended.append((earned + q["stop"], order))
            good = not t or q_of(())[order[0]] >= threshold
            worth = {action: value for action, value in chunks.items() if not t or (good and value >= threshold)}
            if not worth:
                ended.append((score, order))
            for action, value in worth.items():
                child, taken = (earned + value, earned, (*order, action), value), frozenset((*order, action))
                grown[taken] = max(child, grown.get(taken, child), key=lambda beam: beam[0])
        beams = grown
    return ended + [(score, order) for score, _, order, _ in beams.values()]


def table_q(table, num_chunks):
    """Q of a table, as `endings` reads it."""

    def q_of(taken):
        row = table[tuple(sorted(taken))]
        return {chunk: row[chunk] for chunk in range(num_chunks) if chunk not in taken} | {"stop": row[STOP]}

    return q_of


def linear_q(params, batch, env, config):
    """Q of the linear network, every product written out: order of the document, rotation by relative position."""
    rows = np.asarray(batch.table.vectors, np.float64)[np.asarray(batch.chunks)[env]]
    indices, length = np.asarray(batch.indices)[env], int(batch.lengths[env])
    weights = {name: np.asarray(params["state"][name], np.float64) for name in ("question", "chunk")}
    asked = np.asarray(batch.questions.vectors, np.float64)[env] @ weights["question"]

    def q_of(taken):
        state = asked + sum(rank * rows[slot] @ weights["chunk"] for rank, slot in enumerate(sorted(taken), start=1))
        found = {"stop": float(state @ np.asarray(params.get("stop", np.zeros(8)), np.float64))}
        for slot in np.flatnonzero(np.asarray(batch.valid)[env]).tolist():
            if slot not in taken:
                position = position_by_definition("relative", indices[slot], indices[list(taken)].tolist(), length)
                turned = rotated_by_definition(rows[slot] @ np.asarray(params["action"]), position, config.num_q_heads)
                found[slot] = float(state @ turned)
        return found

    return q_of


def assert_best(found, everything):
    """The plan is the best of all endings: its score, its set, and the chunk that it ends with."""
    best, chunks = max(everything, key=lambda ending: ending[0])
    kept = found.actions[: int(found.num_kept)].tolist()
    assert float(found.scores) == pytest.approx(best, rel=1e-4, abs=1e-5)
    assert set(kept) == set(chunks)
    orders = [order for score, order in everything if set(order) == set(chunks) and math.isclose(score, best)]
    assert kept in [list(order) for order in orders]


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("threshold", slow_but([0.0], [NEVER, 0.0, 0.9], [0.9]))
def test_a_wide_beam_is_exhaustive_search(stop, threshold):
    """Five chunks, three steps, a Q of its own for every state: all ordered sequences are enumerated."""
    lengths = set()
    for seed in range(8):
        table = random_table(seed, 5, 3)
        found = plan_table(table, env=STOPPING if stop else ENV, width=40, threshold=threshold)
        assert_best(found, endings(table_q(table, 5), 3, threshold, stop))
        lengths.add(int(found.num_kept))
    assert (len(lengths) > 1) == (stop or threshold > 0)


@pytest.mark.parametrize("stop", slow_but([True], [False, True], []))
@pytest.mark.parametrize("threshold", [NEVER, -0.5])
def test_a_wide_beam_counts_what_earlier_facts_have_earned(stop, threshold):
    env, changed = table_env(num_steps=3, reward="at_end", stop=stop, fact_reward=0.4), 0
    for seed in range(12):
        table = random_table(seed, 5, 3, fall=0.6)
        found = plan_table(table, env=env, width=40, threshold=threshold)
        assert_best(found, merged(table_q(table, 5), 3, threshold, stop, 0.4))
        without = max(endings(table_q(table, 5), 3, threshold, stop), key=lambda ending: ending[0])
        changed += set(without[1]) != set(found.actions[: int(found.num_kept)].tolist())
    assert changed > 0
    # Without that reward the definition is the one above, whatever order of a set is kept.
    for seed in range(12):
        q_of = table_q(random_table(seed, 5, 3), 5)
        one, other = merged(q_of, 3, threshold, stop, 0.0), endings(q_of, 3, threshold, stop)
        assert max(one)[0] == pytest.approx(max(other)[0])


@pytest.mark.slow
@pytest.mark.parametrize("stop", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_wide_beam_is_exhaustive_search_with_relative_positions(stop):
    config = EnvConfig(num_steps=3, reward="at_end", stop=stop, num_q_heads=2)
    batch = make_batch(size=4, chunks=5, shortest=3)
    params = random_params(linear_network()) | ({"stop": jnp.linspace(-0.5, 0.5, 8)} if stop else {})
    found = plan(params, batch, config, width=40, kind="linear")
    for env in range(4):
        q_of = linear_q(params, batch, env, config)
        assert_best(jax.tree.map(lambda x, env=env: x[env], found), endings(q_of, 3, stop=stop))


# --- by hand


def test_the_beam_is_right_where_greedy_is_wrong():
    # Greedy takes 0 and is left with 0.2 and 0.1; 1 looks worse at first, and what follows it is worth 0.9.
    table = {(): {0: 0.8, 1: 0.7, 2: 0.1}, (0,): {1: 0.1, 2: 0.2}, (1,): {0: 0.1, 2: 0.9}}
    env = table_env(num_steps=2)
    assert plan_table(table, env=env, width=1).actions.tolist() == [0, 2]
    found = plan_table(table, env=env)
    assert found.actions.tolist() == [1, 2]
    np.testing.assert_allclose(found.q_values, [0.7, 0.9])
    assert float(found.scores) == pytest.approx(0.9) and int(found.num_kept) == 2
    assert found.positions.tolist() == [0, 0]


def test_a_finished_beam_is_kept():
    """Below the threshold a beam ends with its score, and later beams have to be better than that."""
    table = {
        (): {0: 0.8, 1: 0.7},
        (0,): {1: 0.3, 2: 0.4, 3: 0.1},  # nothing reaches 0.5: ends with 0.8
        (1,): {3: 0.6},
        (1, 3): {4: 0.75},
        (0, 2): {3: 0.1, 4: 0.2},
    }
    found = plan_table(table, threshold=0.5)
    assert int(found.num_kept) == 1 and float(found.scores) == pytest.approx(0.8)
    assert found.actions.tolist() == [0, 2, 4]  # it goes on greedily
    np.testing.assert_allclose(found.q_values, [0.8, 0.4, 0.2])
    table[(1, 3)] = {4: 0.85}
    better = plan_table(table, threshold=0.5)
    assert better.actions.tolist() == [1, 3, 4] and int(better.num_kept) == 3
    # Without the rule the complete set {0} loses to whatever still promises something.
    assert plan_table({**table, (1, 3): {4: 0.45}}).actions.tolist() == [1, 3, 4]


def test_the_first_chunk_is_taken_whatever_the_threshold():
    found = plan_table({(): {2: 0.1}}, threshold=0.5)
    assert int(found.num_kept) == 1 and int(found.actions[0]) == 2


def test_a_chunk_exactly_at_the_threshold_is_taken():
    table = {(): {0: 0.75}, (0,): {1: 0.5}, (0, 1): {2: 0.25}}
    assert int(plan_table(table, threshold=0.5, width=1).num_kept) == 2


def test_stop_ends_a_beam_with_its_own_value():
    table = {
        (): {0: 0.8, 1: 0.7, STOP: 5.0},  # the first step cannot stop
        (0,): {1: 0.6, 2: 0.5, STOP: 0.5},
        (1,): {2: 0.3, STOP: 0.95},
        (0, 1): {2: 0.1, STOP: 0.9},
        (1, 2): {3: 0.2, STOP: 0.1},
    }
    found = plan_table(table, env=STOPPING)
    assert float(found.scores) == pytest.approx(0.95) and int(found.num_kept) == 1
    assert found.actions.tolist() == [1, 2, 3]  # goes on greedily, by the Q of chunks
    np.testing.assert_allclose(found.q_values, [0.7, 0.3, 0.2])
    greedy = plan_table(table, env=STOPPING, width=1)
    assert int(greedy.num_kept) == 2 and float(greedy.scores) == pytest.approx(0.9)


def test_a_fact_that_was_found_still_counts():
    """A reward of 0.2 a fact: Q falls from 0.9 to 0.65 after chunk 0, so that this was one; after 1 it falls by 0.1."""
    table = {(): {0: 0.9, 1: 0.8}, (0,): {2: 0.65}, (1,): {2: 0.7}}
    plain, paid = (table_env(num_steps=2, fact_reward=reward) for reward in (0.0, 0.2))
    assert plan_table(table, env=plain).actions.tolist() == [1, 2]
    found = plan_table(table, env=paid)
    assert found.actions.tolist() == [0, 2] and float(found.scores) == pytest.approx(0.2 + 0.65)
    np.testing.assert_allclose(found.q_values, [0.9, 0.65])  # Q itself is reported as it is
    other = plan_table({**table, (1,): {2: 0.76}}, env=paid)  # 0.04 + 0.76 is not enough yet
    assert other.actions.tolist() == [0, 2]
    rising = plan_table({**table, (1,): {2: 0.86}}, env=paid)  # a rise takes nothing away
    assert rising.actions.tolist() == [1, 2] and float(rising.scores) == pytest.approx(0.86)


def test_stop_is_a_next_action_too():
    """After chunk 0 STOP is best: Q fell to its value only, by 0.05."""
    env = table_env(num_steps=2, reward="at_end", stop=True, fact_reward=0.2)
    found = plan_table({(): {0: 0.9}, (0,): {1: 0.1, STOP: 0.85}}, 2, env=env)
    assert int(found.num_kept) == 1 and float(found.scores) == pytest.approx(0.05 + 0.85)


# --- one set, one beam


ORDERS = {
    (): {0: 0.9, 1: 0.8},
    (0,): {1: 0.95, 2: 0.3},
    (1,): {0: 0.85, 3: 0.5},
    (0, 1): {2: 0.1, 3: 0.1, 4: 0.1},
    (1, 3): {4: 1.0},
}


def test_two_orders_of_a_set_take_one_place():
    """{0, 1} comes first in both orders: only if they are one beam is there room for {1, 3}, which wins."""
    assert plan_table(ORDERS).actions.tolist() == [1, 3, 4]


def test_the_better_order_of_a_set_is_kept():
    env = table_env(num_steps=2)
    assert plan_table(ORDERS, env=env).actions.tolist() == [0, 1]
    found = plan_table({**ORDERS, (1,): {0: 0.97}}, env=env)
    assert found.actions.tolist() == [1, 0] and float(found.scores) == pytest.approx(0.97)


def test_a_beam_as_wide_as_there_are_sets_misses_none():
    """Ten pairs of five chunks: ten beams hold them all, twenty ordered pairs would not fit."""
    for seed in range(8):
        table = random_table(seed, 5, 3)
        assert_best(plan_table(table, width=10), endings(table_q(table, 5), 3))


# --- relations


def greedy_rollout(params, batch, config, num_chunks=None):
    @jax.jit
    def play(params, batch):
        return rollout(linear_network(), params, batch, jax.random.key(0), make_greedy(num_chunks), config)

    return play(params, batch)


def test_one_beam_is_the_greedy_rollout():
    config, batch = EnvConfig(num_steps=3), make_batch(size=8, shortest=3)
    params = random_params(linear_network())
    found, played = plan(params, batch, config, 1, kind="linear"), greedy_rollout(params, batch, config)
    np.testing.assert_array_equal(found.actions, played.actions)
    np.testing.assert_allclose(found.q_values, played.q_values.sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.positions, played.positions, rtol=1e-6)
    np.testing.assert_array_equal(found.scores, found.q_values[:, -1])
    assert found.num_kept.tolist() == [3] * 8


@pytest.mark.slow
def test_one_beam_stops_where_the_greedy_rollout_stops():
    config, batch = EnvConfig(num_steps=3, reward="at_end", stop=True), make_batch(size=16, shortest=4)
    params = random_params(linear_network()) | {"stop": jnp.linspace(-0.6, 0.6, 8)}
    found = plan(params, batch, config, 1, kind="linear")
    stopping, to_the_end = (greedy_rollout(params, batch, config, width) for width in (None, 7))
    kept = np.where(stopping.stops, 0, stopping.alive).sum(1)
    np.testing.assert_array_equal(found.num_kept, kept)
    assert len(set(kept.tolist())) > 1
    np.testing.assert_array_equal(found.actions, to_the_end.actions)  # the chunks after the end are there too
    last = np.asarray(stopping.alive).sum(1).astype(int) - 1
    np.testing.assert_allclose(
        found.scores, np.asarray(stopping.q_values)[np.arange(16), last, 0], rtol=1e-4, atol=1e-5
    )


def test_a_wider_beam_never_loses_the_greedy_answer_at_the_last_step():
    """Two steps: a beam of two keeps the greedy beam, so that its score is at least as good."""
    for seed in range(20):
        table, env = random_table(seed, 5, 2), table_env(num_steps=2)
        assert plan_table(table, env=env).scores >= plan_table(table, env=env, width=1).scores


@pytest.mark.slow
def test_no_chunk_twice_and_padding_never():
    config, batch = EnvConfig(num_steps=3), make_batch(size=8, shortest=3)
    params = random_params(linear_network())
    for width in (1, 40):  # 40 beams are more than a document of three chunks has sets
        found = plan(params, batch, config, width, kind="linear")
        assert all(len(set(row)) == 3 for row in found.actions.tolist())
        assert np.take_along_axis(np.asarray(batch.valid), found.actions, axis=1).all()
        assert all(np.isfinite(column).all() for column in found)
        assert found.actions.dtype == found.num_kept.dtype == np.int32


def test_what_stands_at_padding_does_not_matter():
    batch = make_batch(shortest=3)
    extra = jnp.concatenate([batch.table.vectors, jnp.ones((1, 6))])
    chunks = jnp.where(batch.valid, batch.chunks, len(extra) - 1)
    plain, other = (
        plan(
            random_params(linear_network()),
            batch.replace(table=batch.table.replace(vectors=vectors), chunks=chunks),
            EnvConfig(num_steps=3),
            4,
            kind="linear",
        )
        for vectors in (extra, extra.at[-1].set(1e30))
    )
    assert not bool(batch.valid.all())
    jax.tree.map(np.testing.assert_array_equal, plain, other)


def test_a_batch_is_a_loop_over_single_questions():
    """Contexts of unequal length, padded to the longest, each with the rules of its own end."""
    config, batch = EnvConfig(num_steps=2, reward="at_end", stop=True), make_batch(size=4, shortest=3)
    params = random_params(linear_network()) | {"stop": jnp.linspace(-0.3, 0.3, 8)}
    together = plan(params, batch, config, 4, kind="linear", threshold=-0.1)
    for env in range(4):
        alone = plan(params, select_environments(batch, [env]), config, 4, kind="linear", threshold=-0.1)
        jax.tree.map(
            lambda a, b, env=env: np.testing.assert_allclose(a[0], b[env], rtol=1e-4, atol=1e-5), alone, together
        )


@pytest.mark.slow
def test_more_padding_changes_nothing():
    params, env = table_params(random_table(0, 4, 3), random_table(1, 6, 3)), table_env(num_steps=3)
    together = plan(params, table_batch((4, 6), 2), env, width=4)
    alone = plan(table_params(random_table(0, 4, 3)), table_batch(4), env, width=4)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), alone, together)


@pytest.mark.slow
def test_a_given_index_is_used():
    batch, params, config = make_batch(), random_params(linear_network()), EnvConfig(num_steps=2)
    index = linear_network().actions(params, batch.table)

    @jax.jit
    def run(index):
        return beam_search(linear_network(), params, batch, config, 2, action_vectors=index)

    own, given, doubled = plan(params, batch, config, kind="linear"), run(index), run(2 * index)
    np.testing.assert_array_equal(own.actions, given.actions)
    np.testing.assert_allclose(2 * own.scores, doubled.scores, rtol=1e-5)


def test_no_beam_is_refused():
    with pytest.raises(UsageError, match="beam width 0: at least 1 beam is needed"):
        beam_search(table_network(), table_params({}), table_batch(3), ENV, 0)


@pytest.mark.parametrize("threshold", slow_but([0.0], [-0.5, 0.0, 0.4], [0.4]))
def test_a_plan_keeps_what_the_protocol_keeps(threshold):
    """One rule everywhere: also a first chunk below the threshold ends a beam, which then is that chunk alone."""
    for width in (1, 2):
        plans = [plan_table(random_table(seed, 5, 3), width=width, threshold=threshold) for seed in range(12)]
        q_values, kept = np.stack([one.q_values for one in plans]), [int(one.num_kept) for one in plans]
        np.testing.assert_array_equal(kept, kept_by_threshold(q_values, threshold))
        assert len(set(kept)) > 1
