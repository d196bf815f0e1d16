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
from qrag_jax.qrag.pool import PoolBatch, pool_rollout
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


def test_refusals():
    with pytest.raises(UsageError, match="trained to pick from one context"):
        make_pool_bank(replace(run(), env=EnvConfig(num_steps=2)), POOL)
    foreign = replace(POOL, vectors=np.zeros((9, 8), np.float32), fingerprint="other")
    with pytest.raises(InputError, match="embedded with another encoder than the run reads"):
        make_pool_bank(run(), foreign)
    with pytest.raises(InputError, match="9 chunks in the pool cannot give 10 picks"):
        make_pool_bank(run(), POOL).play(QUESTIONS, 10)
