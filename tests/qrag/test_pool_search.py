"""Search of a pool by a run: padding changes nothing, stops are those of a run, and what is refused."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import LATENT
from support.runs import SCRATCH

from qrag_jax.qrag.env import EnvConfig, PoolConfig
from qrag_jax.qrag.policy import make_greedy
from qrag_jax.qrag.pool import PoolBatch, look, pool_rollout
from qrag_jax.qrag.pool_search import make_pool_bank, search_pool
from qrag_jax.qrag.retriever import ModelConfig, new_retriever
from qrag_jax.search.pool_texts import PoolTexts
from qrag_jax.types import InputError, UsageError

TEXTS = tuple(f"{name}: the page of {name} names {other}" for name, other in zip("ABCDEFGHI", "BCDEFGHIA", strict=True))
POOL = PoolTexts(TEXTS, tuple("ABCDEFGHI"), np.arange(9))
QUESTIONS = ["who names A", "which page names C"]


@cache
def run():
    env = EnvConfig(num_steps=2, positions="none", links=True, coverage=True, pool=PoolConfig(3, 2, 2))
    made, _, _ = new_retriever(ModelConfig(encoder=SCRATCH, latent=LATENT), env, list(TEXTS), jax.random.key(0))
    rng = np.random.default_rng(0)
    links = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), made.params["links"])
    return replace(made, params=made.params | {"links": links})


def test_padding_changes_nothing():
    bank = make_pool_bank(run(), POOL)
    assert bank.table.num_chunks == 12 > len(bank.texts)
    played = bank.play(QUESTIONS, 2)
    rows, _ = run().rows(QUESTIONS, "question")
    table = jax.device_put(bank.reader.table(run().rows(TEXTS, "chunk")[0].vectors))
    asked = jax.device_put(bank.reader.questions(QUESTIONS, rows.vectors))
    batch = PoolBatch(table, asked, jnp.zeros((2, 9), bool), jnp.arange(2))
    plain, _ = jax.jit(
        lambda: pool_rollout(run().network, run().params, batch, jax.random.key(0), make_greedy(), run().env)
    )()
    assert np.array_equal(played.actions, plain.actions)
    np.testing.assert_allclose(played.q_values, plain.q_values, atol=1e-5)


def test_pools_of_other_sizes_share_compiled_functions():
    long = (*TEXTS, "J: " + " ".join(f"word{i}" for i in range(40)), *(f"{n}: the page of {n}" for n in "KLMNO"))
    larger = make_pool_bank(run(), PoolTexts(long, tuple(text[0] for text in long), np.arange(len(long))))
    own, like = make_pool_bank(run(), POOL), make_pool_bank(run(), POOL, like=larger)
    shapes = [jax.tree.map(jnp.shape, bank.table) for bank in (own, larger, like)]
    assert shapes[0] != shapes[1] == shapes[2]
    plain, padded = (bank.play(QUESTIONS, 2) for bank in (own, like))
    assert np.array_equal(plain.actions, padded.actions)
    np.testing.assert_allclose(plain.q_values, padded.q_values, atol=1e-5)
    again = make_pool_bank(run(), larger.reader.pool, like=own)
    assert jax.tree.map(jnp.shape, again.table) == shapes[1]


def test_a_search_stops_at_a_threshold():
    found = search_pool(make_pool_bank(run(), POOL), QUESTIONS[0], 2)
    assert len({step.chunk for step in found.steps}) == 2 and found.stop_reason == "num_steps"
    least = max(step.q_value for step in found.steps) + 1
    stopped = search_pool(make_pool_bank(run(), POOL), QUESTIONS[0], 2, threshold=least)
    assert len(stopped.steps) == 1 and stopped.stop_reason == "threshold" and stopped.prevented == found.steps[1]


def test_one_beam_is_the_greedy_episode():
    bank = make_pool_bank(run(), POOL)
    played, plan = bank.play(QUESTIONS, 2), bank.plan(QUESTIONS, 2, 1)
    assert np.array_equal(played.actions, plan.actions) and (plan.num_kept == 2).all()
    np.testing.assert_allclose(played.q_values[..., 0], plan.q_values, atol=1e-5)


def test_wide_beams_find_the_pair_whose_last_pick_has_the_highest_value():
    """As wide as the pool: the best of all pairs, which the greedy episode may miss."""
    bank = make_pool_bank(wide_run(), POOL)
    asked = jax.device_put(bank.reader.questions(QUESTIONS, bank.question_vectors(QUESTIONS)))
    first, best, run_ = np.arange(9), [], wide_run()

    @jax.jit
    def second(one):
        many = PoolBatch(bank.table, one, jnp.zeros((9, bank.table.num_chunks), bool), jnp.arange(9))
        taken = jnp.stack([jnp.asarray(first, jnp.int32), jnp.full(9, -1, jnp.int32)], axis=1)
        actions = run_.network.actions(run_.params, bank.table.rows)
        return look(run_.network, run_.params, many, actions, taken, jnp.int32(1), run_.env)

    for question in range(2):  # each pick of the first step, then the value of each second one
        seen = second(jax.tree.map(lambda x, i=question: jnp.repeat(x[i : i + 1], 9, axis=0), asked))
        q = np.where(seen.allowed, np.asarray(seen.q).sum(1), -np.inf)
        row, column = np.unravel_index(q.argmax(), q.shape)
        best.append((q[row, column], {row, int(seen.ids[row, column])}))
    plan = bank.plan(QUESTIONS, 2, 9)
    np.testing.assert_allclose(plan.scores, [value for value, _ in best], atol=1e-5)
    assert [set(row) for row in plan.actions.tolist()] == [pair for _, pair in best]
    greedy = bank.play(QUESTIONS, 2)
    assert (plan.q_values[:, 1] >= greedy.q_values[:, 1, 0] - 1e-6).all()
    assert not np.array_equal(np.sort(plan.actions), np.sort(greedy.actions))


@cache
def wide_run():
    """Its search finds all chunks in any state, so a beam can begin with each."""
    return replace(run(), env=replace(run().env, pool=PoolConfig(9, 9, 2)))


def test_refusals():
    with pytest.raises(UsageError, match="trained to pick from one context"):
        make_pool_bank(replace(run(), env=EnvConfig(num_steps=2)), POOL)
    foreign = replace(POOL, vectors=np.zeros((9, 8), np.float32), fingerprint="other")
    with pytest.raises(InputError, match="embedded with another encoder than the run reads"):
        make_pool_bank(run(), foreign)
    with pytest.raises(InputError, match="9 chunks in the pool cannot give 10 picks"):
        make_pool_bank(run(), POOL).play(QUESTIONS, 10)
    with pytest.raises(UsageError, match="beam width 0"):
        make_pool_bank(run(), POOL).plan(QUESTIONS, 2, 0)
    plain = replace(run(), env=replace(run().env, pool=PoolConfig(3, 2, 2, base="hybrid")))
    with pytest.raises(UsageError, match="Q of a run with env.pool.base=hybrid is a score of plain search"):
        make_pool_bank(plain, POOL).plan(QUESTIONS, 2, 2)
