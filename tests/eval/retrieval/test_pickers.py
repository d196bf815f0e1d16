from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import LATENT, VECTOR, position_by_definition, random_params, rotated_by_definition
from support.tiers import slow_but

from qrag_jax.eval.retrieval.pickers import (
    beam_picker,
    bm25_picker,
    make_pickers,
    multi_step_picker,
    rerank_picker,
    single_step_picker,
    untrained_retriever,
)
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.text_encoder import EncoderConfig, encode, init_encoder
from qrag_jax.models.encoder.tokenizer import train_word_level
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.multi_step_search import make_action_bank
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, new_retriever
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.types import TextCounts, UsageError

TEXTS = tuple(
    f"the {a} {b} is in the {c}" for a in ("old", "new", "red") for b in ("cat", "key") for c in ("box", "hat")
)
QUESTIONS = ("where is the old cat", "where is the red key", "what is in the hat")


def make_contexts(pool=12, questions=3, chunks=7, padded=True):
    rng = np.random.default_rng(5)
    ids = np.stack([rng.permutation(pool)[:chunks] for _ in range(4)]).astype(np.int32)
    if padded:
        ids[1, 4:] = -1
        ids[3, 5:] = -1
    return Contexts(np.array([0, 2, 1, 0], np.int32) % questions, ids, np.zeros(ids.shape, bool))


@pytest.fixture(scope="module")
def vectors_retriever():
    rng = np.random.default_rng(0)
    chunks, questions = (rng.normal(size=(n, VECTOR)).astype(np.float32) for n in (12, 3))
    model = ModelConfig(encoder=EncoderSpec("vectors"), latent=LATENT)
    retriever, _, _ = new_retriever(model, EnvConfig(num_steps=2, num_q_heads=2), chunks, jax.random.key(0))
    return replace(retriever, params=random_params(retriever.network)), chunks, questions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small encoder as published: two layers, normalised vectors."""
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = train_word_level(TEXTS + QUESTIONS)
    config = EncoderConfig(tokenizer.vocab_size, 8, 2, 2, 8, max_positions=48, normalize=True)
    save_encoder(folder, config, random_encoder(config), tokenizer)
    return folder


def random_encoder(config):
    shapes = jax.eval_shape(lambda: init_encoder(jax.random.key(0), config))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0.1, 0.4, leaf.shape), leaf.dtype), shapes)


# --- multi-step


def brute_force(retriever, chunks, questions, contexts, num_steps):
    """Question by question and step by step: states from the tower, rotations and scores in NumPy."""
    env, table = retriever.env, VectorRows(chunks)
    actions = np.asarray(jax.jit(retriever.network.actions)(retriever.params, table))
    states = jax.jit(retriever.network.states)
    chosen, scores = [], []
    for question, row in zip(contexts.questions, contexts.chunks, strict=True):
        length = int((row >= 0).sum())
        picks, values = [], []
        for _ in range(num_steps):
            taken = row[sorted(picks)].astype(np.int32)[None]
            state = np.asarray(states(retriever.params, VectorRows(questions[question][None]), table, taken))[0]
            q = {}
            for slot in set(range(length)) - set(picks):
                position = position_by_definition(env.positions, slot, picks, length)
                q[slot] = float(state @ rotated_by_definition(actions[row[slot]], position, env.num_q_heads))
            picks.append(max(q, key=q.get))
            values.append(q[picks[-1]])
        chosen.append(picks)
        scores.append(values)
    return np.array(chosen), np.array(scores)


@pytest.mark.parametrize("num_steps", slow_but([3], [2, 3], []))
def test_multi_step_against_brute_force(vectors_retriever, num_steps):
    """Also with more steps than in training, and in padded contexts."""
    retriever, chunks, questions = vectors_retriever
    contexts = make_contexts()
    picked = multi_step_picker(make_action_bank(retriever, chunks), questions)(contexts, num_steps)
    expected, scores = brute_force(retriever, chunks, questions, contexts, num_steps)
    np.testing.assert_array_equal(picked.chosen, expected)
    np.testing.assert_allclose(picked.scores, scores, atol=1e-4)
    assert picked.num_before_stop is None  # this run has learned no STOP


def test_one_compilation_for_all_slices_of_a_shape(vectors_retriever):
    retriever, chunks, questions = vectors_retriever
    traces = []
    states = retriever.network.states

    def counting(*arguments):
        traces.append(1)
        return states(*arguments)

    counted = replace(retriever, network=retriever.network._replace(states=counting))
    pick = multi_step_picker(make_action_bank(counted, chunks), questions)
    first = pick(make_contexts(), 2).chosen
    pick(make_contexts(padded=False), 2)
    assert len(traces) == 2  # one a step
    again = multi_step_picker(make_action_bank(retriever, chunks), questions)(make_contexts(), 2)
    np.testing.assert_array_equal(first, again.chosen)


# --- STOP and beams


def stopping_retriever(retriever, stop_value):
    """The same retriever with a STOP whose vector has this value in every component."""
    env = EnvConfig(num_steps=2, num_q_heads=2, reward="at_end", stop=True)
    stop = jnp.full(retriever.network.dim, stop_value, jnp.float32)
    return replace(retriever, env=env, params={**retriever.params, "stop": stop})


@pytest.mark.parametrize("stop_value", [0.0, 0.3])
def test_picks_before_stop_against_brute_force(vectors_retriever, stop_value):
    """STOP has a value of its own, without rotation, and is no choice at the first step: one chunk is always taken."""
    retriever, chunks, questions = vectors_retriever
    contexts, num_steps = make_contexts(), 3
    picked = multi_step_picker(make_action_bank(stopping_retriever(retriever, stop_value), chunks), questions)(
        contexts, num_steps
    )
    expected, scores = brute_force(retriever, chunks, questions, contexts, num_steps)
    np.testing.assert_array_equal(picked.chosen, expected)  # STOP changes no pick
    table = VectorRows(jnp.asarray(chunks))
    states = jax.jit(retriever.network.states)
    for env, (question, row) in enumerate(zip(contexts.questions, contexts.chunks, strict=True)):
        before = num_steps
        for t in range(num_steps - 1, 0, -1):
            taken = jnp.asarray(row[sorted(expected[env, :t])], jnp.int32)[None]
            asked = VectorRows(jnp.asarray(questions[question])[None])
            state = np.asarray(states(retriever.params, asked, table, taken))[0]
            before = t if stop_value * state.sum() > scores[env, t] else before
        assert picked.num_before_stop[env] == before


def test_a_beam_of_one_is_the_greedy_search(vectors_retriever):
    retriever, chunks, questions = vectors_retriever
    index, contexts = make_action_bank(retriever, chunks), make_contexts()
    greedy, beam = multi_step_picker(index, questions)(contexts, 3), beam_picker(index, questions, 1)(contexts, 3)
    np.testing.assert_array_equal(beam.chosen, greedy.chosen)
    np.testing.assert_allclose(beam.scores, greedy.scores, atol=1e-5)
    assert beam.num_before_stop is None


def test_a_beam_says_where_it_stopped(vectors_retriever):
    """As the greedy search does, and a threshold does not end it too: the run has learned when to stop."""
    retriever, chunks, questions = vectors_retriever
    contexts = make_contexts()
    index = make_action_bank(stopping_retriever(retriever, 0.3), chunks)
    beam = beam_picker(index, questions, 1)(contexts, 2)
    greedy = multi_step_picker(index, questions)(contexts, 2)
    np.testing.assert_array_equal(beam.num_before_stop, greedy.num_before_stop)
    assert beam.chosen.shape == beam.scores.shape == (4, 2)
    ended = beam_picker(index, questions, 1, threshold=1e6)(contexts, 2)
    np.testing.assert_array_equal(ended.num_before_stop, beam.num_before_stop)


def test_a_wide_beam_ends_below_the_threshold(vectors_retriever):
    """Without STOP the threshold prunes: above all values it leaves one chunk, and the rest is greedy."""
    retriever, chunks, questions = vectors_retriever
    index, contexts = make_action_bank(retriever, chunks), make_contexts()
    greedy = multi_step_picker(index, questions)(contexts, 2)
    ended = beam_picker(index, questions, 3, threshold=1e6)(contexts, 2)
    np.testing.assert_array_equal(ended.chosen, greedy.chosen)
    np.testing.assert_allclose(ended.scores, greedy.scores, atol=1e-5)


@pytest.mark.slow
def test_untrained_multi_step_reads_what_it_has_taken(folder):
    """The encoder as published: question and chosen chunks as one text, against every chunk; no positions, no scale."""
    loaded = load_encoder(folder)
    model = ModelConfig(encoder=EncoderSpec("scratch", window=16, question_window=10), latent=LATENT)
    env = EnvConfig(num_steps=2, positions="relative", num_q_heads=2, reward="at_end", stop=True)
    retriever = untrained_retriever(loaded, model, env)
    contexts = make_contexts()
    found, scores, before = multi_step_picker(make_action_bank(retriever, TEXTS), QUESTIONS)(contexts, 2)
    assert before is None  # nobody taught it to stop
    index = make_embedder(loaded, window=16)(TEXTS)
    ids = loaded.tokenizer.ids
    cls, sep = loaded.tokenizer.cls_id, loaded.tokenizer.sep_id
    run = jax.jit(encode, static_argnums=0)
    for env, (question, row) in enumerate(zip(contexts.questions, contexts.chunks, strict=True)):
        picks = []
        for t in range(2):
            text = [cls, *ids([QUESTIONS[question]])[0], sep]
            for slot in sorted(picks):
                text += [*ids([TEXTS[row[slot]]])[0], sep]
            tokens = jnp.asarray([text + [0] * (40 - len(text))], jnp.int32)
            state = np.asarray(run(loaded.config, loaded.params, tokens, jnp.asarray([len(text)], jnp.int32)))[0]
            q = {s: float(state @ index[row[s]]) for s in range(int((row >= 0).sum())) if s not in picks}
            picks.append(max(q, key=q.get))
            assert found[env, t] == picks[-1]
            assert scores[env, t] == pytest.approx(q[picks[-1]], abs=1e-5)


# --- single step


def test_single_step_is_an_argsort():
    rng = np.random.default_rng(2)
    chunks, questions = rng.normal(size=(12, 5)).astype(np.float32), rng.normal(size=(3, 5)).astype(np.float32)
    contexts = make_contexts()
    found, scores, before = single_step_picker(chunks, questions)(contexts, 3)
    assert before is None
    for env, (question, row) in enumerate(zip(contexts.questions, contexts.chunks, strict=True)):
        similar = chunks[row[row >= 0]] @ questions[question]
        best = np.argsort(-similar)[:3]
        assert found[env].tolist() == best.tolist()
        np.testing.assert_allclose(scores[env], similar[best], rtol=1e-5)


def test_single_step_by_hand():
    """Inner products, not cosines; ties in document order; padding is never taken."""
    chunks = np.array([[1, 0], [0, 1], [3, 0], [1, 0]], np.float32)
    contexts = Contexts(np.zeros(1, np.int32), np.array([[1, 3, 0, 2, -1]], np.int32), np.zeros((1, 5), bool))
    found, scores, _ = single_step_picker(chunks, np.array([[2, 0]], np.float32))(contexts, 4)
    assert found.tolist() == [[3, 1, 2, 0]]
    assert scores.tolist() == [[6, 2, 2, 0]]
    # Padding loses also against negative scores.
    found, *_ = single_step_picker(chunks, np.array([[-2, -1]], np.float32))(contexts, 4)
    assert sorted(found[0].tolist()) == [0, 1, 2, 3]


# --- bm25


@pytest.mark.parametrize("padded", [False, True])
def test_bm25_reads_every_context_alone(padded):
    contexts = make_contexts(padded=padded)
    found, scores, before = bm25_picker(TEXTS, QUESTIONS)(contexts, 3)
    assert before is None
    for env, (question, row) in enumerate(zip(contexts.questions, contexts.chunks, strict=True)):
        alone = Bm25Index([TEXTS[i] for i in row if i >= 0])
        best, values = alone.top_k(QUESTIONS[question], 3)
        assert found[env].tolist() == best.tolist()
        np.testing.assert_allclose(scores[env], values, atol=1e-9)


# --- all of them


@pytest.mark.slow
def test_all_methods_over_texts(folder):
    model = ModelConfig(
        encoder=EncoderSpec("scratch", num_layers=1, window=16, question_window=10, hidden_size=8, num_heads=2),
        latent=LATENT,
    )
    retriever, _, _ = new_retriever(model, EnvConfig(num_steps=2), TEXTS, jax.random.key(0))
    methods = ("trained", "untrained", "single_step", "bm25")
    pickers = make_pickers(retriever, TEXTS, QUESTIONS, methods, str(folder))
    assert tuple(pickers) == methods
    contexts = make_contexts()
    embed = make_embedder(load_encoder(folder), window=16)
    nearest = single_step_picker(embed(TEXTS), embed(QUESTIONS))(contexts, 2).chosen
    for method, picker in pickers.items():
        chosen, scores, _ = picker(contexts, 2)
        assert chosen.shape == scores.shape == (4, 2), method
        assert (chosen[:, 0] != chosen[:, 1]).all(), method
        assert (np.take_along_axis(contexts.chunks, chosen, axis=1) >= 0).all(), method
        if method in ("untrained", "single_step"):  # they start alike
            np.testing.assert_array_equal(chosen[:, 0], nearest[:, 0])
    np.testing.assert_array_equal(pickers["single_step"](contexts, 2)[0], nearest)
    assert tuple(make_pickers(retriever, TEXTS, QUESTIONS, ("bm25",))) == ("bm25",)
    with pytest.raises(UsageError, match="method 'best': choose from trained, untrained, single_step, bm25"):
        make_pickers(retriever, TEXTS, QUESTIONS, ("best",))
    long = ("where are the old cat and the red key and the box",)  # beyond its window: the beginning is asked
    (nearest_to_long,) = make_pickers(retriever, TEXTS, long, ("single_step",), str(folder)).values()
    assert nearest_to_long(Contexts(np.zeros(4, np.int32), contexts.chunks, contexts.gold), 2).chosen.shape == (4, 2)


def test_methods_over_vectors(vectors_retriever):
    retriever, chunks, questions = vectors_retriever
    pickers = make_pickers(retriever, chunks, questions, ("trained", "single_step"))
    contexts = make_contexts()
    np.testing.assert_array_equal(
        pickers["single_step"](contexts, 2)[0], single_step_picker(chunks, questions)(contexts, 2)[0]
    )
    for method in ("untrained", "bm25", "reranked"):
        with pytest.raises(UsageError, match="untrained, bm25 and reranked read texts, this task is made of vectors"):
            make_pickers(retriever, chunks, questions, ("trained", method))


class Hats:
    """Likes hats; satisfies `types.Reranker`."""

    name, num_parameters, counts = "hats", None, TextCounts()

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, question, passages, progress=None):
        return np.array([float("hat" in passage) for passage in passages])


@pytest.mark.parametrize("weight", [None, 0.5])
def test_reranked_picks_are_the_best_of_another_method_in_a_new_order(weight):
    contexts, first = make_contexts(), bm25_picker(TEXTS, QUESTIONS)
    found = rerank_picker(single_step_of(first), TEXTS, QUESTIONS, Hats(weight))(contexts, 3)
    assert found.chosen.shape == (4, 3)
    for row, chunks in enumerate(contexts.chunks):
        plain = first(Contexts(contexts.questions[[row]], chunks[None, chunks >= 0], chunks[None, chunks >= 0] < 0), 4)
        likes = np.array(["hat" in TEXTS[chunks[place]] for place in plain.chosen[0]], float)
        total = likes if weight is None else plain.scores[0] + weight * likes
        order = np.argsort(-total, kind="stable")[:3]
        np.testing.assert_array_equal(found.chosen[row], plain.chosen[0][order])
        np.testing.assert_allclose(found.scores[row], total[order])


def single_step_of(picker):
    """Its best four chunks, whatever number is asked for."""
    return lambda contexts, num_steps: picker(contexts, 4)
