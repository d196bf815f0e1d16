"""Scores in blocks: the picks and Q values of the search that scores a whole context at once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import linear_network, random_params, table_env, table_network, table_params

from qrag_jax.models.towers.latent import LatentConfig
from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag import long_contexts
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.long_contexts import make_block_functions, play_long
from qrag_jax.qrag.multi_step_search import make_action_bank, search_bank
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, QRagRetriever, new_retriever
from qrag_jax.sharding import MeshConfig, make_mesh

STOP = EnvConfig(num_steps=3, reward="at_end", stop=True)
FIELDS = ("actions", "positions", "q_values", "stop_q_values", "best", "best_q_values")


def make(env, num_chunks=61, size=2, num_texts=20):
    """(bank of vectors under linear towers, its pool on the host, questions, contexts of unequal length)."""
    rng = np.random.default_rng(0)
    texts = rng.normal(size=(num_texts, 6)).astype(np.float32)
    params = random_params(linear_network()) | ({"stop": jnp.linspace(-2.0, 2.0, 8)} if env.stop else {})
    constants = {"mean": np.zeros(6, np.float32), "std": np.ones(6, np.float32)}
    run = QRagRetriever(ModelConfig(encoder=EncoderSpec("vectors")), env, linear_network(), params, None, constants)
    chunks = rng.integers(num_texts, size=(size, num_chunks)).astype(np.int32)
    chunks[1, num_chunks - 9 :] = -1
    contexts = Contexts(np.arange(size, dtype=np.int32)[::-1], chunks, np.zeros(chunks.shape, bool))
    bank, rows = make_action_bank(run, texts), VectorRows(texts)
    asked = bank.read_questions(rng.normal(size=(size, 6)).astype(np.float32))
    return bank, (run.action_vectors(rows, texts), rows), asked, contexts


def check_same(found, whole):
    for name in FIELDS:
        one, other = (np.asarray(getattr(played, name)) for played in (found, whole))
        assert one.shape == other.shape, name
        if name in ("actions", "best"):
            np.testing.assert_array_equal(one, other, err_msg=name)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def relative():
    return make(STOP)


@pytest.mark.parametrize(("devices", "block"), [(1, 1), (1, 17), (1, 61), (8, 61), (8, 17), (3, 1000)])
def test_picks_and_values_are_those_of_one_shot(relative, devices, block):
    """Blocks of one chunk, of an odd number, of all and of more; devices whose number does not divide them."""
    bank, pool, asked, contexts = relative
    run = bank.retriever
    mesh = make_mesh(MeshConfig(data=devices))
    found = play_long(run.block_functions, run.env, run.params, pool, asked, contexts, 5, mesh, block)
    check_same(found, bank.play(asked, contexts, 3, 5))


@pytest.mark.parametrize("options", [{"positions": "none"}, {"positions": "absolute"}, {"num_q_heads": 2}])
def test_other_positions_and_heads(options):
    env = replace(STOP, stop=False, **options)
    bank, pool, asked, contexts = make(env)
    found = play_long(bank.retriever.block_functions, env, bank.retriever.params, pool, asked, contexts, 2, block=17)
    check_same(found, bank.play(asked, contexts, 3, 2))


def test_a_case_by_hand():
    """Q is written down: the best of five chunks is in the second of three blocks, and two equal ones come in order."""
    table = {(): {0: 0.1, 1: 0.2, 2: 0.9, 3: 0.2, 4: 0.0}, (2,): {0: 0.3, 1: 0.7, 2: 5.0, 3: 0.7, 4: 0.1}}
    table[(1, 2)] = {0: -1.0, 3: -2.0, 4: -3.0, 1: 5.0, 2: 5.0}
    env = table_env(num_steps=3)
    rows = VectorRows(np.eye(6, 8, dtype=np.float32))
    contexts = Contexts(np.zeros(1, np.int32), np.arange(5, dtype=np.int32)[None], np.zeros((1, 5), bool))
    question, mesh = VectorRows(np.zeros((1, 1), np.float32)), make_mesh(MeshConfig(data=2))
    functions = make_block_functions(table_network())
    found = play_long(functions, env, table_params(table), (rows.vectors, rows), question, contexts, 3, mesh, block=2)
    assert found.actions.tolist() == [[2, 1, 0]]
    np.testing.assert_allclose(found.q_values[0, :, 0], [0.9, 0.7, -1.0])
    assert found.best.tolist() == [[[2, 1, 3], [1, 3, 0], [0, 3, 4]]]
    assert np.isneginf(found.stop_q_values).all()  # nothing was learned


def test_no_question_and_no_block_compiles_again(relative):
    bank, pool, asked, contexts = relative
    run, functions = bank.retriever, make_block_functions(linear_network())
    mesh = make_mesh(MeshConfig(data=4))
    for num_chunks in (61, 33):
        own = replace(contexts, chunks=contexts.chunks[:, :num_chunks])
        play_long(functions, run.env, run.params, pool, asked, own, 2, mesh, 8)
    assert functions.best._cache_size() == 1 and functions.state._cache_size() == run.env.num_steps


def test_a_bank_scores_long_contexts_in_blocks(relative, monkeypatch):
    bank, _, asked, contexts = relative
    whole, question = bank.play(asked, contexts, 3, 5), np.ones(6, np.float32)
    steps = search_bank(bank, question, 3).steps
    monkeypatch.setattr(long_contexts, "LONG", 10)
    found = bank.play(asked, contexts, 3, 5)
    assert isinstance(found, long_contexts.LongPlay)
    check_same(found, whole)
    again = search_bank(bank, question, 3).steps
    assert [step.chunk for step in again] == [step.chunk for step in steps]


def test_rows_on_the_disk_are_those_in_memory(monkeypatch):
    """Action vectors are computed in blocks of one shape; the last one is not full."""
    from qrag_jax.qrag import retriever as module

    monkeypatch.setattr(module, "BLOCK", 8)
    texts = np.random.default_rng(1).normal(size=(21, 6)).astype(np.float32)
    latent = LatentConfig(width=8, num_layers=1, num_heads=2, action_hidden=8, dim=8)
    model = ModelConfig(encoder=EncoderSpec("vectors"), latent=latent)
    run, rows, _ = new_retriever(model, STOP, texts, jax.random.key(0))
    in_blocks = run.action_vectors(rows, texts, mapped=True)
    np.testing.assert_allclose(in_blocks, run.action_vectors(rows, texts), rtol=1e-5, atol=1e-6)
    contexts = Contexts(np.zeros(1, np.int32), np.arange(21, dtype=np.int32)[None], np.zeros((1, 21), bool))
    banks = [make_action_bank(run, texts, mapped=mapped) for mapped in (False, True)]
    played = [bank.play(bank.read_questions(texts[:1]), contexts, 3, 4) for bank in banks]
    np.testing.assert_array_equal(played[0].actions, played[1].actions)
    np.testing.assert_allclose(played[0].q_values, played[1].q_values, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_text_towers_score_long_contexts_too(monkeypatch):
    """Their states read the tokens of the taken chunks, and their action vectors are on the disk."""
    spec = EncoderSpec("scratch", num_layers=1, hidden_size=8, num_heads=2, window=8, question_window=12)
    texts = [
        f"{name} went to the {place}" for name in ("mary", "john", "ben") for place in ("kitchen", "garden", "sea")
    ]
    env = EnvConfig(num_steps=3)
    run, _, _ = new_retriever(ModelConfig(mode="text", encoder=spec, scale=2.0), env, texts, jax.random.key(1))
    chunks = np.random.default_rng(0).permutation(9).astype(np.int32)[None]
    contexts = Contexts(np.zeros(1, np.int32), chunks, np.zeros(chunks.shape, bool))
    bank = make_action_bank(run, texts)
    asked = bank.read_questions(["where is mary"])
    whole = bank.play(asked, contexts, 3, 4)
    monkeypatch.setattr(long_contexts, "LONG", 8)
    check_same(make_action_bank(run, texts, mapped=True).play(asked, contexts, 3, 4), whole)
