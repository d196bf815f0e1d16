"""Episodes over one pool of many documents: what a step finds, what Q reads there, and what never returns."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import linear_network, np_jit, random_params
from support.tiers import slow_but

from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag.batching import Packer, materialise
from qrag_jax.qrag.env import Batch, EnvConfig, PoolConfig, rollout
from qrag_jax.qrag.heads import coverage_inputs, fresh_links, link_inputs
from qrag_jax.qrag.policy import make_boltzmann, make_greedy
from qrag_jax.qrag.pool import PoolBatch, free_chunks, plain_q_values, pool_links, pool_positions, pool_rollout
from qrag_jax.qrag.pool_tables import PoolReader
from qrag_jax.qrag.tasks import PoolQuestion, pool_task
from qrag_jax.qrag.text_links import COVERAGE, LINKS, POOL, link_features, shared_words
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.pool_texts import PoolTexts
from qrag_jax.train.qrag.label_losses import pool_ranking_loss
from qrag_jax.types import InputError, UsageError

QUESTION = "Where was the director of Red River born?"
TITLES = ("Red River", "Howard Hawks", "Goshen", "Blue Lake", "Mount Cook")
TEXTS = (
    "Red River: The film Red River was directed by Howard Hawks.",
    "Howard Hawks: He was born in Goshen, in a house by the water.",
    "Goshen: A city in the state of Indiana.",
    "Blue Lake: The lake Blue Lake was painted by Mary Cook.",
    "Mount Cook: A mountain that Mary Cook saw.",
)
ENV = EnvConfig(num_steps=2, positions="none", pool=PoolConfig(nearest=2, words=1, links=2))


@cache
def small_pool(documents=(0, 1, 2, 3, 4)):
    reader = PoolReader(PoolTexts(TEXTS, TITLES, np.array(documents)), 2, 1)
    rng = np.random.default_rng(0)
    table = reader.table(rng.normal(size=(5, 6)).astype(np.float32))
    return jax.device_put((table, reader.questions([QUESTION], rng.normal(size=(1, 6)).astype(np.float32))))


def batch_of(table, asked, gold=(0, 1)):
    mask = np.zeros((len(asked.found), table.num_chunks), bool)
    mask[:, list(gold)] = True
    return PoolBatch(table, asked, jnp.asarray(mask), jnp.arange(len(mask)))


def random_pool(num_chunks=12, num_questions=3, per_document=4):
    """Chunks and questions of words at random; documents of four chunks."""
    rng = np.random.default_rng(1)
    text = lambda: " ".join(rng.choice(["Ann", "Bob", "cat", "dog", "red", "sea"], 4))  # noqa: E731
    documents = np.arange(num_chunks) // per_document
    reader = PoolReader(PoolTexts([text() for _ in documents], ["" for _ in documents], documents), 2, 2)
    draw = lambda n: rng.normal(size=(n, 6)).astype(np.float32)  # noqa: E731
    asked = reader.questions([text() for _ in range(num_questions)], draw(num_questions))
    return jax.device_put((reader.table(draw(num_chunks)), asked))


def test_names_lead_from_chunk_to_chunk():
    table, asked = small_pool()
    lists = lambda rows: [sorted(set(row.tolist()) - {-1}) for row in np.asarray(rows)]  # noqa: E731
    assert lists(table.texts.named) == [[1], [2], [], [], []]
    assert lists(table.namers) == [[], [0], [1], [], []]
    assert lists(asked.texts.named) == [[0]]
    assert np.asarray(table.kin)[3:, 0].tolist() == [4, 3]  # Mary and Cook are in both, and the most
    assert np.asarray(asked.found)[0, 0] in (0, 1) and np.asarray(asked.scores)[0, 0] == 1


def test_a_step_finds_what_a_taken_chunk_names():
    table, asked = small_pool()
    params = {"state": {"question": jnp.zeros((6, 8)), "chunk": jnp.zeros((6, 8))}, "action": jnp.zeros((6, 8))}
    env = replace(ENV, pool=replace(ENV.pool, nearest=1))
    _, looked = jax.jit(
        lambda: pool_rollout(linear_network(), params, batch_of(table, asked), jax.random.key(0), make_greedy(), env)
    )()
    ids = [set(own[0][may[0]].tolist()) for own, may in zip(*map(np.asarray, looked[:2]), strict=True)]
    found = int(np.asarray(asked.found)[0, 0])
    assert ids[0] == {0, found}  # all products are 0, so the first chunk is nearest; the question names it
    assert 1 in ids[1] and 0 not in ids[1]  # chunk 0 is taken, and names Howard Hawks


def test_links_are_those_of_a_context_that_is_the_pool():
    table, asked = small_pool()
    taken = np.array([0, 2], np.int32)
    ids = np.arange(5, dtype=np.int32)
    first = jax.tree.map(lambda x: np.asarray(x)[0], asked)
    pairs, words = link_features(QUESTION, TEXTS), shared_words(QUESTION, TEXTS)

    @jax.jit
    def both(table, first, pairs, words):
        known = (first.found, first.scores)
        found = pool_links(table, first.texts, first.rows.vectors, known, jnp.asarray(taken), jnp.asarray(ids))
        state = jnp.asarray(taken)[None]
        wanted = link_inputs(pairs[None], state)[0], coverage_inputs(words[None], state)[0]
        return found, jnp.concatenate(wanted, axis=-1)

    found, wanted = map(np.asarray, both(table, first, pairs, words))
    assert found.shape == (5, 2 * len(LINKS) + len(COVERAGE) + len(POOL))
    others = [i for i in ids if i not in taken]  # a taken chunk is no candidate
    np.testing.assert_allclose(found[others, : wanted.shape[1]], wanted[others], atol=1e-6)


@pytest.mark.parametrize("positions", slow_but(["relative"], ["none", "relative", "absolute"]))
def test_a_pool_of_one_document_is_a_context(positions):
    table, asked = random_pool(num_chunks=8, per_document=8)
    env = EnvConfig(num_steps=3, positions=positions, pool=PoolConfig(nearest=8, words=2, links=2))
    network, params, size = linear_network(), random_params(linear_network()), len(asked.found)
    pooled = batch_of(table, asked, (2, 5))
    everything = jnp.broadcast_to(jnp.arange(8, dtype=jnp.int32), (size, 8))
    context = Batch(
        VectorRows(table.rows.vectors), VectorRows(asked.rows.vectors), everything, everything,
        jnp.full(size, 8, jnp.int32), jnp.ones((size, 8), bool), pooled.gold, pooled.env,
    )  # fmt: skip
    key = jax.random.key(0)
    one = jax.jit(lambda: pool_rollout(network, params, pooled, key, make_greedy(), env)[0])()
    other = jax.jit(lambda: rollout(network, params, context, key, make_greedy(), replace(env, pool=None)))()
    for name in ("actions", "positions", "q_values", "rewards", "alive"):
        np.testing.assert_allclose(np.asarray(getattr(one, name)), np.asarray(getattr(other, name)), atol=1e-5)


def test_positions_count_within_a_document_only():
    table, _ = random_pool()
    env = replace(ENV, positions="relative")
    at = np_jit(lambda taken: pool_positions(table, taken, jnp.array([3, 6]), env))
    at_first, after_one = at(np.zeros(0, np.int32)), at(np.array([1], np.int32))
    assert at_first == pytest.approx([9 * 3 / 4, 9 * 2 / 4])
    assert after_one == pytest.approx([10 + 9 * 2 / 3, 9 * 2 / 4])  # chunk 1 stands before chunk 3, in document 0


def test_a_taken_chunk_never_returns():
    table, asked = random_pool()
    env = replace(ENV, num_steps=4)
    played, looked = jax.jit(
        lambda key: pool_rollout(
            linear_network(),
            random_params(linear_network()),
            batch_of(table, asked),
            key,
            make_boltzmann(1.0, 0.5),
            env,
        )
    )(jax.random.key(2))
    actions = np.asarray(played.actions)
    assert all(len(set(row)) == 4 for row in actions.tolist())
    for t, (ids, allowed) in enumerate(zip(*map(np.asarray, looked[:2]), strict=True)):
        for row in range(len(ids)):
            own = ids[row][allowed[row]].tolist()
            assert len(set(own)) == len(own) >= 2 and not set(own) & set(actions[row, :t].tolist())


def test_quotas_hold():
    table, asked = random_pool()
    env = replace(ENV, num_steps=3, pool=replace(ENV.pool, per_document=1))
    played, _ = jax.jit(
        lambda: pool_rollout(
            linear_network(),
            random_params(linear_network()),
            batch_of(table, asked),
            jax.random.key(0),
            make_greedy(),
            env,
        )
    )()
    documents = np.asarray(table.document)[np.asarray(played.actions)]
    assert all(len(set(row)) == 3 for row in documents.tolist())
    assert np.asarray(free_chunks(table, jnp.array([[0]]), 1))[0].tolist() == [False] * 4 + [True] * 8


def test_drawn_chunks_stand_for_the_rest_of_the_pool():
    table, asked = random_pool()
    params = random_params(linear_network()) | {"ranking": {"log_scale": jnp.float32(0.5)}}
    batch, key = batch_of(table, asked, (2, 5)), jax.random.key(0)

    def loss(env, batch):
        played, looked = pool_rollout(linear_network(), params, batch, key, make_greedy(), env, with_gold=True)
        return pool_ranking_loss(params, batch, played, looked, env)[0]

    env = replace(ENV, num_steps=1, ranking_scale=1.0)
    whole = jax.jit(loss, static_argnums=0)(replace(env, pool=replace(env.pool, nearest=12)), batch)
    drawn = batch.replace(drawn=jnp.arange(12, dtype=jnp.int32))  # each chunk that is left out, once
    np.testing.assert_allclose(jax.jit(loss, static_argnums=0)(env, drawn), whole, rtol=1e-5)
    assert float(jax.jit(loss, static_argnums=0)(env, batch)) < float(whole)


def test_the_context_of_a_question_to_a_pool_is_its_gold():
    pool = PoolTexts(TEXTS, TITLES, np.arange(5))
    task = pool_task("p", pool, [PoolQuestion("a", QUESTION, (0, 1)), PoolQuestion("b", "Which lake?", (3,))])
    contexts = task.contexts(np.array([1, 0]), np.random.default_rng(0))
    assert contexts.chunks.tolist() == [[3, -1], [0, 1]]
    table, asked = small_pool()
    sample = jax.device_put(Packer()(contexts))
    batch = materialise(table, asked, replace(sample, questions=jnp.zeros(2, jnp.int32)))
    assert np.asarray(batch.gold).tolist() == [[False] * 3 + [True, False], [True] * 2 + [False] * 3]
    assert task.sizes.tolist() == [5, 5] and task.num_gold.tolist() == [2, 1]


def test_refusals():
    with pytest.raises(InputError, match="the pool has no chunk to search in"):
        PoolReader(PoolTexts([], [], np.zeros(0, int)), 2, 2)
    with pytest.raises(InputError, match="no question has its gold in the pool: 2 left out"):
        pool_task("p", PoolTexts(TEXTS, TITLES, np.arange(5)), [], notes=("2 left out",))


HYBRID = replace(ENV, links=True, coverage=True, pool=replace(ENV.pool, base="hybrid"))


def test_the_base_is_plain_search_and_links_of_the_question_count_nowhere():
    """Q = plain + [step is odd] * the sum of all inputs but those of the question: 8 links, its cosine, its words."""
    num = 2 * len(LINKS) + len(COVERAGE) + len(POOL)
    params = fresh_links(jax.random.key(0), num, 4, 1) | {"linear": jnp.ones((num, 1))}
    plain, linked = np.array([[0.5, 0.25]], np.float32), np.ones((1, 2, num), np.float32)
    q_of = np_jit(lambda linked, step: plain_q_values(params, jnp.asarray(plain), linked, step))
    assert q_of(linked, 0)[0, 0].tolist() == [0.5, 0.25]
    assert q_of(linked, 1)[0, 0] == pytest.approx([0.5 + num - 10, 0.25 + num - 10])
    for column in (*range(8), 2 * len(LINKS) + len(COVERAGE), num - 1):
        linked[..., column] = 7.0
    assert q_of(linked, 2)[0, 0].tolist() == [0.5, 0.25]
    assert q_of(linked, 3)[0, 0] == pytest.approx([0.5 + num - 10, 0.25 + num - 10])


def test_without_trained_links_a_run_picks_in_the_order_of_plain_search():
    reader = PoolReader(PoolTexts(TEXTS, TITLES, np.arange(5)), 2, 1)
    rng = np.random.default_rng(0)
    vectors, own = rng.normal(size=(5, 6)).astype(np.float32), rng.normal(size=(1, 6)).astype(np.float32)
    asked = reader.questions([QUESTION], own, np.pad(vectors, [(0, 3), (0, 0)]))  # three rows are padding
    cosines = vectors @ own[0] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(own)
    wanted = 0.5 * cosines + 0.5 * Bm25Index(TEXTS).shares(QUESTION)
    np.testing.assert_allclose(asked.plain[0], [*wanted, 0, 0, 0], atol=1e-6)
    network, env = linear_network(), replace(HYBRID, num_steps=4)
    params = random_params(network) | {"links": fresh_links(jax.random.key(0), env.num_link_inputs, 4, 1)}
    table, asked = jax.device_put((reader.table(vectors), reader.questions([QUESTION], own, vectors)))
    played = jax.jit(
        lambda: pool_rollout(network, params, batch_of(table, asked), jax.random.key(0), make_greedy(), env)[0]
    )()
    assert np.asarray(played.actions)[0].tolist() == np.argsort(-wanted)[:4].tolist()
    np.testing.assert_allclose(np.asarray(played.q_values)[0, :, 0], np.sort(wanted)[::-1][:4], atol=1e-6)


def test_whatever_links_say_the_best_of_plain_search_are_among_twice_as_many_picks():
    table, asked = random_pool()
    network, env = linear_network(), replace(HYBRID, num_steps=6, pool=replace(HYBRID.pool, nearest=12))
    plain = np.random.default_rng(3).normal(size=(len(asked.found), 12)).astype(np.float32)
    batch = batch_of(table, replace(asked, plain=jnp.asarray(plain)))
    links = fresh_links(jax.random.key(0), env.num_link_inputs, 4, 1)
    links |= {"linear": 50.0 * jax.random.normal(jax.random.key(1), links["linear"].shape)}
    params = random_params(network) | {"links": links}
    played = jax.jit(lambda: pool_rollout(network, params, batch, jax.random.key(0), make_greedy(), env)[0])()
    for picks, scores in zip(np.asarray(played.actions), plain, strict=True):
        best = np.argsort(-scores)
        assert all(set(best[:k]) <= set(picks[: 2 * k - 1]) for k in (1, 2, 3))
        assert picks.tolist() != best[:6].tolist()  # links decide the picks between


@pytest.mark.parametrize(
    "fields", [{"links": False, "coverage": False}, {"positions": "relative"}, {"num_q_heads": 2},
               {"stop": True, "reward": "at_end"}]
)  # fmt: skip
def test_plain_search_as_a_base_learns_links_only(fields):
    with pytest.raises(UsageError, match="env.pool.base=hybrid learns links only"):
        replace(HYBRID, **fields)
