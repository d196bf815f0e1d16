"""Hard noise: what is mined, where it goes, and that a run which goes on mines the same."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import (
    NUM_CHUNKS,
    STOP,
    WIDTH,
    linear_network,
    make_batch,
    np_jit,
    position_by_definition,
    random_params,
    rotated_by_definition,
    table_batch,
    table_env,
    table_network,
    table_params,
    trajectory,
    vector_rows,
)
from support.runs import after, make_config, make_task, same_run

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.data.questions.vector_task import make_vector_task
from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag.batching import Sample, materialise, with_mined
from qrag_jax.qrag.env import EnvConfig, rollout
from qrag_jax.qrag.policy import make_greedy
from qrag_jax.qrag.tasks import vectors_task
from qrag_jax.train.qrag.config import RunConfig
from qrag_jax.train.qrag.loop import train
from qrag_jax.train.qrag.mining import Miner, MiningConfig, check_minable, hardness, mixing_sampler
from qrag_jax.types import InputError, Stopped, UsageError

MINING = MiningConfig(every=2, share=0.5, size=3, age=2, temperature=0.0, num_questions=4)


def noisy_task(num_texts=20):
    """Chunks 0 to 3 are facts, the others noise; every question has two of the facts and four others."""
    rng = np.random.default_rng(0)
    chunks, questions = (rng.normal(size=(n, 6)).astype(np.float32) for n in (num_texts, 5))
    rows = [
        {
            "question": i % 5,
            "chunks": sorted([i % 4, (i + 1) % 4, *(rng.permutation(num_texts - 4)[:4] + 4).tolist()]),
            "gold": [i % 4],
        }
        for i in range(8)
    ]
    given = make_vector_task(chunks, questions, [(f"line {i}", row) for i, row in enumerate(rows)])
    return replace(vectors_task("mine", given), noise=np.arange(4, num_texts))


def a_sample(seed=0, size=64, num_chunks=10):
    """Contexts over texts 0 to 19, of which the first four are facts; the first chunk of each is gold."""
    rng = np.random.default_rng(seed)
    shape = size, num_chunks
    valid = np.arange(num_chunks) < rng.integers(5, num_chunks + 1, size)[:, None]
    ones, places = np.zeros(size, np.int32), np.tile(np.arange(num_chunks, dtype=np.int32), (size, 1))
    gold = (places == 0) & valid
    chunks = rng.integers(0, 20, shape).astype(np.int32)
    return Sample(np.arange(20, dtype=np.int32), ones, chunks, places, ones + num_chunks, valid, gold, ones)


# --- in their places


def test_mined_texts_by_hand():
    ids = np.array([[0, 1, 2], [2, 1, 0]], np.int32)
    ones = np.zeros(2, np.int32)
    sample = Sample(np.array([5, 6, 8, -1], np.int32), ones, ids, ids, ones, ids >= 0, ids == 1, ones)
    places = np.array([[-1, 1, -1], [0, -1, 0]], np.int32)
    mixed = with_mined(sample.replace(mined=places), np.array([30, 40], np.int32))
    assert mixed.mined is None and mixed.distinct.tolist() == [5, 6, 8, -1, 30, 40]
    assert mixed.distinct[mixed.chunks].tolist() == [[5, 40, 8], [30, 6, 30]]
    parts = jax.tree.map(lambda x: np.stack([x, x]), sample.replace(mined=places))
    assert with_mined(parts, np.array([30, 40], np.int32)).distinct[1].tolist() == mixed.distinct.tolist()


def test_a_batch_holds_what_was_mined():
    pool, asked = VectorRows(np.arange(50, dtype=np.float32)[:, None]), VectorRows(np.zeros((1, 1), np.float32))
    sample = a_sample(size=3)
    places = np.where(~sample.gold, 1, -1).astype(np.int32)
    batch = np_jit(materialise)(pool, asked, sample.replace(mined=places), np.array([45, 46], np.int32))
    found = batch.table.vectors[batch.chunks, 0]
    np.testing.assert_array_equal(found, np.where(places >= 0, 46, sample.distinct[sample.chunks]))


def test_only_noise_gives_way_and_as_much_as_was_asked_for():
    task = noisy_task()
    mix = mixing_sampler(a_sample, task, replace(MINING, share=0.3), seed=5)
    shares = []
    for update in range(20):
        sample = mix(update)
        ids = sample.distinct[sample.chunks]
        may = sample.valid & ~sample.gold & (ids >= 4)
        assert not (sample.mined >= 0)[~may].any()
        assert sample.mined.max() < MINING.num_pooled and set(np.unique(sample.mined)) == set(range(-1, 6))
        shares.append((sample.mined >= 0)[may].mean())
    assert np.mean(shares) == pytest.approx(0.3, abs=0.02)  # 6,000 places: a standard error of .006
    again = mixing_sampler(a_sample, task, replace(MINING, share=0.3), seed=5)(19)
    np.testing.assert_array_equal(again.mined, sample.mined)
    assert (mixing_sampler(a_sample, task, MINING, seed=6)(19).mined != sample.mined).any()


# --- what is mined


# Chunks 0 to 2 are of the context, 3 and 4 noise. The wrong chunk 1 is above all at first.
TABLE = {(): {0: 0.5, 1: 5.0, 3: 0.2, 4: 0.4}, (0,): {1: -1.0, 2: 7.0, STOP: 0.1, 3: 0.9, 4: 0.3}}


hardness_of = np_jit(hardness, static_argnums=(0, 4))


@pytest.mark.parametrize(
    ("gold", "stop", "alive", "hard"),
    [
        ((0,), False, [1, 1], [-0.3, -0.1]),  # after 0 nothing is right: the state does not count
        ((0,), True, [1, 1], [0.8, 0.2]),  # STOP is right there
        ((0,), True, [1, 0], [-0.3, -0.1]),  # no search gets there
        ((0, 1), False, [1, 1], [1.9, 1.3]),  # after 0 it is 1; at first the best of both is 1
    ],
)
def test_hardness_by_hand(gold, stop, alive, hard):
    env = table_env(num_steps=2, reward="at_end", stop=stop)
    noise, places = VectorRows(np.eye(NUM_CHUNKS, WIDTH, dtype=np.float32)[3:5]), np.zeros(2, np.float32)
    played = trajectory([[0, 1]], [alive])
    found = hardness_of(table_network(), table_params(TABLE), table_batch(3, gold=gold), played, env, noise, places)
    np.testing.assert_allclose(found, hard, atol=1e-6)


@pytest.mark.parametrize("positions", ["relative", "none"])
def test_hardness_against_its_definition(positions):
    env, network, batch = EnvConfig(num_steps=2, positions=positions), linear_network(), make_batch(size=3)
    params, rng = random_params(network), np.random.default_rng(4)
    noise, places = vector_rows(rng, 5), np.array([0.0, 0.3, 0.5, 0.7, 0.99], np.float32)
    play = jax.jit(lambda params: rollout(network, params, batch, jax.random.key(0), make_greedy(), env))
    played = play(params)
    found = hardness_of(network, params, batch, played, env, noise, places)
    tower, state_of = np.asarray(params["action"], np.float64), params["state"]
    table, hard = np.asarray(batch.table.vectors, np.float64), np.full(5, -np.inf)
    for number in range(3):
        rows, indices = table[np.asarray(batch.chunks)[number]], np.asarray(batch.indices)[number]
        length = int(batch.lengths[number])
        for t in range(2):
            taken = sorted(np.asarray(played.actions)[number, :t].tolist())
            asked = np.asarray(batch.questions.vectors)[number] @ np.asarray(state_of["question"])
            state = asked + sum((r + 1) * rows[slot] @ np.asarray(state_of["chunk"]) for r, slot in enumerate(taken))

            def q(vector, index, state=state, taken=taken, indices=indices, length=length):
                place = position_by_definition(positions, index, indices[taken].tolist(), length)
                return state @ rotated_by_definition(vector @ tower, place)

            left = [s for s in np.flatnonzero(np.asarray(batch.gold)[number]) if s not in taken]
            if not left:
                continue
            best = max(q(rows[slot], int(indices[slot])) for slot in left)
            own = [
                q(v.astype(np.float64), int(p * length)) for v, p in zip(np.asarray(noise.vectors), places, strict=True)
            ]
            hard = np.maximum(hard, np.array(own) - best)
    np.testing.assert_allclose(found, hard, rtol=1e-3, atol=1e-3)


def make_miner(config=MINING, task=None, seed=3, earlier=None):
    task = noisy_task() if task is None else task
    pools = VectorRows(jnp.asarray(task.texts)), VectorRows(jnp.asarray(task.questions))
    env = EnvConfig(num_steps=2, positions="none")
    return Miner(linear_network(), env, config, task, pools, seed, 1.0, earlier)


def test_rounds_come_when_they_are_due_and_age():
    miner, params = make_miner(), [random_params(linear_network(), seed) for seed in range(5)]
    pools = [miner.before(params[update], update).tolist() for update in range(5)]
    assert pools[0] == pools[1] and pools[2] == pools[3]  # every second update, not the first
    assert pools[2][3:] == pools[1][:3] and pools[4][3:] == pools[2][:3]  # a round is two rounds old at most
    assert all(min(pool) >= 4 and len(pool) == 6 for pool in pools)  # facts are never mined
    assert miner.ids_of(4).tolist() == pools[4] and miner.ids_of(3).tolist() == pools[3]


def test_the_hardest_are_mined_and_a_temperature_gives_others_a_chance():
    """Of a sentence that any state puts first every round knows; at a high temperature a round is a random draw."""
    task, params = noisy_task(), random_params(linear_network())
    chunks = np.array(task.texts)
    chunks[7] = 50 * chunks[7]  # far from all, on one side or the other of every state
    chunks[8] = -chunks[7]
    task = replace(task, texts=chunks)
    assert {7, 8} & set(make_miner(task=task).before(params, 2)[:3].tolist())
    warm = make_miner(replace(MINING, temperature=1e6), task)
    seen = [warm.before(params, update)[:3].tolist() for update in range(2, 62, 2)]
    assert len({chunk for pool in seen for chunk in pool}) > 12  # of 16 sentences
    assert all(len(set(pool)) == 3 for pool in seen)


@pytest.mark.full
@pytest.mark.slow
def test_a_run_that_goes_on_mines_the_same(tmp_path):
    task = make_task()
    task = replace(task, noise=np.arange(len(task.texts)))
    mining = MiningConfig(every=2, share=0.5, size=4, age=2, num_questions=4)
    config = make_config("latent", accumulate=1, num_steps=2, mining=mining)
    train(config, task, tmp_path / "whole")
    run = tmp_path / "run"
    for asked in (3, 2):  # stopped after updates 3 and 5, which lie between two rounds
        start = load_checkpoint(run, groups=()) if run.exists() else None
        with pytest.raises(Stopped):
            train(config, task, run, start=start, stop=after(asked))
    train(config, task, run, start=load_checkpoint(run, groups=()))
    same_run(tmp_path / "whole", run)
    assert len(load_checkpoint(run, groups=()).metadata["mined"]) == 8
    plain = replace(config, mining=MiningConfig())
    train(plain, task, tmp_path / "plain")
    assert "mined" not in load_checkpoint(tmp_path / "plain", groups=()).metadata


@pytest.mark.full
def test_mined_parts_of_a_batch(tmp_path):
    """In parts a batch trains as whole, mined texts included."""
    task = make_task()
    task = replace(task, noise=np.arange(len(task.texts)))
    mining = MiningConfig(every=2, share=0.5, size=4, age=2, num_questions=4)
    whole, parts = (train(make_config("latent", accumulate=n, num_steps=1, mining=mining), task).params for n in (1, 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), whole, parts)


# --- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, "share 1.5: must lie in"),
    ],
)
def test_values_that_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        MiningConfig(**options)


@pytest.mark.parametrize(
    ("options", "runs", "devices", "message"),
    [
        ({"size": 9}, 1, 1, "mining.size=9 x mining.age=2: the haystack has 16 sentences only"),
        ({"share": 1.0, "size": 2}, 1, 1, "gives 4 sentences, mining.share=1.0 of a context wants 6"),
        ({}, 3, 1, "works for one run on one device, not for 3 on 1: start each seed alone"),
        ({}, 1, 2, "not for 1 on 2"),
    ],
)
def test_what_cannot_be_mined(options, runs, devices, message):
    with pytest.raises(UsageError, match=message):
        check_minable(noisy_task(), replace(MINING, **options), runs, devices)
    check_minable(noisy_task(), replace(MINING, every=None, **options), runs, devices)


def test_a_task_without_a_haystack_is_refused(tmp_path):
    config = make_config("latent", accumulate=1, mining=MiningConfig(every=2))
    with pytest.raises(UsageError, match="mining.every=2: texts has no haystack to mine; set it to null"):
        train(config, make_task(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_checkpoint_keeps_must_fit():
    for earlier in ([4, 5, 6], [1, 4, 5, 6, 7, 8]):  # too few; a fact among them
        with pytest.raises(
            InputError, match="the checkpoint's mined sentences do not fit mining.size=3 x mining.age=2"
        ):
            make_miner(earlier=earlier)


def test_mining_is_off_by_default():
    assert RunConfig().mining.every is None
