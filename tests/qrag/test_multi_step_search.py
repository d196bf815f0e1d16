from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import networks
from support.networks import linear_network, np_jit, random_params
from support.passages import lines_corpus

from qrag_jax.eval.retrieval.protocols import kept_by_threshold
from qrag_jax.index.corpus_folder import load_corpus, save_corpus
from qrag_jax.models.towers import positions as towers
from qrag_jax.models.towers.latent import LatentConfig
from qrag_jax.models.towers.q_network import TokenRows, VectorRows
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.heads import coverage_inputs, link_inputs, link_q_values
from qrag_jax.qrag.multi_step_search import (
    action_bank,
    check_questions,
    make_action_bank,
    num_tokens_asked,
    search_bank,
)
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, QRagRetriever, new_retriever
from qrag_jax.qrag.text_links import BRIDGES, LINKS, bridge_features, link_features, shared_words
from qrag_jax.search.corpus import embed_corpus
from qrag_jax.types import InputError, UsageError

TEXTS = [
    "mary went to the kitchen",
    "john took the milk",
    "it rained",
    "john went to the garden with mary and the milk",
    "the office was empty",
    "mary took the football there",
]
SPEC = EncoderSpec("scratch", num_layers=1, hidden_size=8, num_heads=2, window=8, question_window=12)
LATENT = LatentConfig(width=8, num_layers=1, num_heads=2, action_hidden=8, dim=8)


def make(mode, texts=TEXTS, spec=SPEC, env=EnvConfig(num_steps=3)):  # noqa: B008
    model = ModelConfig(mode=mode, encoder=spec, latent=LATENT, scale=2.0)
    retriever, _, _ = new_retriever(model, env, texts, jax.random.key(1))
    # as drawn, the towers are nearly blind to their input; noise makes Q values that differ
    noisy = lambda leaf: leaf + 0.3 * np.random.default_rng(leaf.size).normal(size=leaf.shape).astype(np.float32)  # noqa: E731
    return replace(retriever, params=jax.tree.map(noisy, retriever.params))


@pytest.fixture(scope="module", params=["latent", pytest.param("text", marks=pytest.mark.slow)])
def retriever(request):
    return make(request.param)


@pytest.fixture(scope="module")
def index(retriever):
    return make_action_bank(retriever, TEXTS)


def by_hand(retriever, question, texts, num_steps):
    """The same search as a plain loop: rotate every untaken row to its position, take the largest product."""
    rows = jax.device_put(retriever.rows(texts, "chunk")[0])
    asked = jax.device_put(retriever.rows([question], "question")[0])
    network, params = retriever.network, retriever.params
    actions, states = np_jit(network.actions)(params, rows), np_jit(network.states)
    relative_positions, rotate = np_jit(towers.relative_positions, static_argnums=2), np_jit(networks.rotate)
    taken, steps = [], []
    for _ in range(num_steps):
        order = np.asarray(sorted(taken), np.int32)
        positions = relative_positions(np.arange(len(texts), dtype=np.int32), order, len(texts))
        state = states(params, asked, rows, order[None])[0]
        q = rotate(actions, positions) @ state
        q[taken] = -np.inf
        best = int(q.argmax())
        steps.append((best, q[best], positions[best], q.copy()))
        taken.append(best)
    return steps


def test_picks_q_values_and_positions_are_those_of_a_plain_loop(retriever, index):
    expected = by_hand(retriever, "where is the milk", TEXTS, 3)
    found = search_bank(index, "where is the milk", query_id="q1")
    assert [step.chunk for step in found.steps] == [chunk for chunk, *_ in expected]
    values = [(step.q_value, step.position) for step in found.steps]
    np.testing.assert_allclose(values, [rest for _, *rest, _ in expected], rtol=1e-4, atol=1e-5)
    for step, (picked, *_, q) in zip(found.steps, expected, strict=True):
        order = [chunk for chunk in np.argsort(-q).tolist() if chunk != picked and np.isfinite(q[chunk])]
        assert [chunk for chunk, _ in step.runners_up] == order  # all that are left: there are 6 chunks
        np.testing.assert_allclose([value for _, value in step.runners_up], q[order], rtol=1e-4, atol=1e-5)
        assert step.stop_q_value is None
    assert (found.query_id, found.stop_reason) == ("q1", "num_steps")
    assert len({step.chunk for step in found.steps}) == 3


def test_runners_up_are_the_best_chunks_that_are_left():
    """Of 20 chunks 5; Q of linear towers without rotation is a product of vectors, and STOP has none at first."""
    index, _ = vector_index(stop=True)
    index = make_action_bank(
        replace(index.retriever, env=replace(index.retriever.env, positions="none")),
        np.asarray(np.eye(20, 6), np.float32),
    )
    question = np.linspace(-1.0, 1.0, 6, dtype=np.float32)
    first, second = search_bank(index, question, 2).steps
    everything = index.play(index.read_questions(question[None]), contexts_of(list(range(20))), 1, 20)
    q = dict(zip(np.asarray(everything.best)[0, 0].tolist(), np.asarray(everything.best_q_values)[0, 0], strict=True))
    order = sorted(q, key=lambda chunk: (-q[chunk], chunk))
    assert [first.chunk, *(chunk for chunk, _ in first.runners_up)] == order[:6]
    assert first.stop_q_value is None and np.isfinite(second.stop_q_value)
    assert len(second.runners_up) == 5 and first.chunk not in dict(second.runners_up)


def test_one_shot_form_and_fewer_steps(retriever, index):
    first, _, _ = search_bank(index, "where is mary").steps
    (alone,) = search_bank(make_action_bank(retriever, TEXTS), "where is mary", 1).steps
    assert alone.chunk == first.chunk and alone.q_value == pytest.approx(first.q_value, rel=1e-5)
    assert type(alone.chunk) is int and type(alone.q_value) is float


def test_a_second_question_of_another_length_compiles_nothing(retriever):
    traced = []

    def states(*args):
        traced.append(args[3].shape)
        return retriever.network.states(*args)

    counted = replace(retriever, network=retriever.network._replace(states=states))
    index = make_action_bank(counted, TEXTS)
    search_bank(index, "where is the milk", 2)
    assert traced == [(1, 0), (1, 1)]
    search_bank(index, "mary", 2)
    assert len(traced) == 2


@pytest.mark.slow
def test_indices_of_equal_shapes_compile_once(retriever):
    traced = []

    def states(*args):
        traced.append(args[3].shape)
        return retriever.network.states(*args)

    counted = replace(retriever, network=retriever.network._replace(states=states))
    first = make_action_bank(counted, TEXTS)
    second = make_action_bank(counted, TEXTS[::-1])
    found = [search_bank(index, "where is the milk", 2).steps for index in (first, second, first)]
    assert traced == [(1, 0), (1, 1)]
    assert found[0] == found[2] != found[1]  # and each searches its own chunks
    search_bank(make_action_bank(counted, TEXTS[:4]), "where is the milk", 2)
    assert len(traced) == 4


def test_the_index_of_a_corpus_is_that_of_its_texts(retriever, index, tmp_path):
    """Also after the corpus was saved and loaded; a question reads no text again. Room for two chunks more rounds
    otherwise."""
    encoder = retriever.chunk_encoder
    corpus = embed_corpus(lines_corpus("\n".join(TEXTS[:2]), "\n".join(TEXTS[2:])), encoder)
    assert corpus.num_beyond_window == 1 and corpus.texts == tuple(TEXTS)
    save_corpus(corpus, tmp_path / "c")
    read = encoder.counts
    for stored in (corpus, load_corpus(tmp_path / "c")):
        found = action_bank(retriever, stored)
        assert (found.num_chunks, found.num_texts_cut) == (index.num_chunks, index.num_texts_cut)
        assert (found.num_slots, index.num_slots) == (8, 6)
        for question in ("where is the milk", "where is mary"):
            steps, expected = search_bank(found, question).steps, search_bank(index, question).steps
            assert [step.chunk for step in steps] == [step.chunk for step in expected]
            values, others = ([(step.q_value, step.position) for step in one] for one in (steps, expected))
            np.testing.assert_allclose(values, others, rtol=1e-4, atol=1e-5)
    assert encoder.counts == read


@pytest.mark.slow
def test_corpora_of_many_sizes_are_searched_by_few_compiled_functions(retriever):
    """Nine to twelve chunks fit into twelve places, and none beyond the chunks is picked, though all are asked for."""
    traced = []

    def states(*args):
        traced.append(args[3].shape)
        return retriever.network.states(*args)

    counted = replace(retriever, network=retriever.network._replace(states=states))
    for num_chunks in (9, 10, 12):
        lines = [f"mary took {'the ' * (number % 3)}milk" for number in range(num_chunks)]
        corpus = embed_corpus(lines_corpus("\n".join(lines)), counted.chunk_encoder)
        index = action_bank(counted, corpus)
        assert (index.num_chunks, index.num_slots) == (num_chunks, 12)
        picked = [step.chunk for step in search_bank(index, "where is the milk", 9).steps]
        assert len(set(picked)) == 9 and max(picked) < num_chunks
    assert traced == [(1, number) for number in range(9)]


def test_a_run_with_links_compares_the_texts_of_a_small_corpus():
    linked = make("latent", env=EnvConfig(num_steps=3, links=True))
    question = "what did Mary do"
    index = action_bank(linked, embed_corpus(lines_corpus("\n".join(TEXTS)), linked.chunk_encoder))
    assert index.num_slots > index.num_chunks == 6
    (first, second, _) = search_bank(index, question).steps
    blind = replace(linked, env=EnvConfig(num_steps=3))
    plain = {step.chunk: step.q_value for step in search_bank(make_action_bank(blind, TEXTS), question, 1).steps}
    inputs = np_jit(link_inputs)(link_features(question, TEXTS)[None], np.zeros((1, 0), np.int32))
    added = np_jit(link_q_values)(linked.params["links"], inputs)[0, 0]
    (best,) = plain  # the best chunk without links, and the best one with them
    assert first.q_value - float(added[first.chunk]) <= plain[best] + 1e-5
    assert first.q_value >= plain[best] + float(added[best]) - 1e-5
    assert first.chunk != second.chunk
    many = embed_corpus(lines_corpus("\n".join(f"milk {i}" for i in range(65))), linked.chunk_encoder)
    with pytest.raises(InputError, match="a context of 65 chunks: this run compares the chunks"):
        action_bank(linked, many)


@pytest.mark.slow
def test_a_run_with_coverage_looks_at_all_that_it_has_taken():
    """Q is what a state covers of a chunk, and next to nothing else."""
    run = make("latent", env=EnvConfig(num_steps=3, links=True, coverage=True))
    links = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), run.params["links"])
    links["linear"][2 * len(LINKS)] = 1e4
    run = replace(run, params=run.params | {"links": links})
    question = "where did Mary and John take the milk"
    index = action_bank(run, embed_corpus(lines_corpus("\n".join(TEXTS)), run.chunk_encoder))
    words, taken = shared_words(question, TEXTS)[None], []
    for step in search_bank(index, question).steps:
        covered = np_jit(coverage_inputs)(words, np.array([taken], np.int32))[0, :, 0].copy()
        covered[taken] = -1
        assert covered[step.chunk] == covered.max() > 0
        taken.append(step.chunk)


def test_a_corpus_of_another_run_is_refused(retriever):
    plain = lines_corpus("\n".join(TEXTS))
    with pytest.raises(InputError, match="corpus: has no vectors: embed it with the run"):
        action_bank(retriever, plain)
    other = make(retriever.model.mode, spec=replace(SPEC, window=9))
    with pytest.raises(InputError, match=r"its vectors were made by encoder mine .*, but this run has another one"):
        action_bank(retriever, embed_corpus(plain, other.chunk_encoder, "mine"))


def test_runs_on_one_frozen_encoder_share_a_corpus_and_text_towers_do_not():
    latent, text = make("latent"), make("text")
    trained = replace(latent, params=jax.tree.map(lambda leaf: leaf + 1, latent.params))
    assert trained.chunk_encoder.fingerprint == latent.chunk_encoder.fingerprint
    trained = replace(text, params=jax.tree.map(lambda leaf: leaf + 1, text.params))
    assert trained.chunk_encoder.fingerprint != text.chunk_encoder.fingerprint
    scaled = replace(text, model=replace(text.model, scale=3.0))
    assert scaled.chunk_encoder.fingerprint != text.chunk_encoder.fingerprint


def test_tokens_of_a_question_and_of_states():
    """Text towers read the question, and once more with the first pick; no state holds the last one."""
    picked = ["it  rained", "john went to the\ngarden"]
    assert num_tokens_asked(make("latent"), "where is mary", picked) == 5
    assert num_tokens_asked(make("text"), "where is mary", picked) == 5 + (5 + 3)


def test_cut_chunks_are_counted(index):
    assert (index.num_chunks, index.num_texts_cut) == (6, 1)  # the fourth has 10 words, the window room for 6


def test_action_vectors_at_hand_are_not_made_again(retriever, index):
    rows, _ = retriever.rows(TEXTS, "chunk")
    vectors = retriever.action_vectors(rows, TEXTS)
    twice = make_action_bank(retriever, TEXTS, vectors=2 * vectors)
    first, doubled = (search_bank(i, "where is the milk", 1).steps[0] for i in (index, twice))
    assert doubled.chunk == first.chunk
    assert doubled.q_value == pytest.approx(2 * first.q_value, rel=1e-5)


def test_progress_ends_with_all_chunks(retriever):
    calls = []
    make_action_bank(retriever, TEXTS, lambda done, of: calls.append((done, of)))
    assert calls[-1] == (6, 6)


def test_given_vectors():
    rng = np.random.default_rng(0)
    chunks, questions = rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=(2, 5)).astype(np.float32)
    retriever = make("latent", chunks, spec=EncoderSpec("vectors"))
    index = make_action_bank(retriever, chunks)
    for question in questions:
        rows = retriever.rows(question[None], "question")[0]
        assert isinstance(rows, VectorRows)
        found = search_bank(index, question)
        assert sorted(step.chunk for step in found.steps) == [0, 1, 2]
    with pytest.raises(InputError, match="has no text encoder: give vectors"):
        search_bank(index, "where is the milk")
    with pytest.raises(InputError, match="vectors of 4 components, the model reads 5"):
        search_bank(index, questions[0, :4])


def test_questions_of_text_towers_are_padded_to_one_width():
    index = make_action_bank(make("text"), TEXTS)
    rows = index.read_questions(["where is mary", "milk"])
    assert isinstance(rows, TokenRows)
    assert rows.tokens.shape == (2, 12) and rows.lengths.tolist() == [5, 3]


def test_refusals(retriever, index):
    with pytest.raises(InputError, match="6 chunks cannot give 7 picks: lower num_steps"):
        search_bank(index, "where", 7)
    with pytest.raises(UsageError, match="num_steps=0: pick at least one"):
        search_bank(index, "where", 0)
    with pytest.raises(InputError, match=r"question 'mary mary.*' has 13 tokens .* this run reads 12 .*shorten it"):
        search_bank(index, "mary " * 11)
    with pytest.raises(InputError, match="question ' ': nothing to ask"):
        search_bank(index, " ")
    with pytest.raises(InputError, match="no chunk to search in"):
        make_action_bank(retriever, [])


def test_long_questions_are_shown_by_their_beginning(retriever):
    check_questions(retriever, ["mary " * 10])
    with pytest.raises(InputError) as caught:
        check_questions(retriever, ["where is the milk", "mary " * 100])
    assert str(caught.value).startswith(f"question {'mary ' * 12 + '...'!r} has 102 tokens")


# --- many questions over one index


def vector_index(stop=False):
    """(index of 20 vectors under linear towers, their questions as rows)."""
    env = EnvConfig(num_steps=2, reward="at_end", stop=stop)
    rng = np.random.default_rng(0)
    chunks, questions = rng.normal(size=(20, 6)).astype(np.float32), rng.normal(size=(3, 6)).astype(np.float32)
    params = random_params(linear_network()) | ({"stop": jnp.linspace(-2.0, 2.0, 8)} if stop else {})
    constants = {"mean": np.zeros(6, np.float32), "std": np.ones(6, np.float32)}
    model = ModelConfig(encoder=EncoderSpec("vectors"))
    index = make_action_bank(QRagRetriever(model, env, linear_network(), params, None, constants), chunks)
    return index, index.read_questions(questions)


def contexts_of(*chunks):
    """Contexts of the given chunks, padded to the longest; question i is asked of context i."""
    ids = np.full((len(chunks), max(map(len, chunks))), -1, np.int32)
    for row, own in zip(ids, chunks, strict=True):
        row[: len(own)] = own
    return Contexts(np.arange(len(chunks), dtype=np.int32), ids, np.zeros(ids.shape, bool))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [False, True])
def test_one_beam_is_what_is_played(stop):
    """An index plays to the end; with a learned STOP the plan says beside its picks how many of them count."""
    index, asked = vector_index(stop)
    contexts = contexts_of([3, 1, 4], [1, 5, 9, 2, 6], [19, 0, 7, 8])
    played, plan = index.play(asked, contexts, 3), index.plan(asked, contexts, 3, 1, -np.inf)
    np.testing.assert_array_equal(plan.actions, played.actions)
    np.testing.assert_allclose(plan.q_values, played.q_values.sum(-1), rtol=1e-4, atol=1e-5)
    stops = np.asarray(played.stop_q_values.sum(-1) > played.q_values.sum(-1))
    assert stops.any() == stop and not stops[:, 0].any()
    np.testing.assert_array_equal(plan.num_kept, np.where(stops.any(1), stops.argmax(1), 3))
    assert not np.asarray(played.stops).any()  # no STOP is taken
    assert np.isfinite(played.stop_q_values[:, 1:]).all() == stop


@pytest.mark.slow
def test_a_context_is_planned_alone_as_beside_longer_ones():
    index, asked = vector_index()
    chunks = [[3, 1, 4], [1, 5, 9, 2, 6], [19, 0, 7, 8]]
    together = index.plan(asked, contexts_of(*chunks), 3, 4, -np.inf)
    alone = index.plan(asked, contexts_of(chunks[0]), 3, 4, -np.inf)
    np.testing.assert_array_equal(together.actions[0], alone.actions[0])
    np.testing.assert_allclose(together.scores[0], alone.scores[0], rtol=1e-4)
    assert (np.asarray(together.actions) < np.array([[3], [5], [4]])).all()


def test_another_threshold_compiles_nothing():
    """It is fitted after training, and tried at many values."""
    index, asked = vector_index()
    contexts, traced = contexts_of([3, 1, 4, 0], [1, 5, 9, 2]), []
    network = index.retriever.network

    def states(*args):
        traced.append(1)
        return network.states(*args)

    counted = make_action_bank(
        replace(index.retriever, network=network._replace(states=states)), np.asarray(np.eye(20, 6), np.float32)
    )
    kept = [counted.plan(asked, contexts, 2, 2, threshold).num_kept.tolist() for threshold in (-100.0, 0.0, 100.0)]
    assert len(traced) == 2  # one a step
    assert kept[0] == [2, 2] and kept[2] == [1, 1]


def test_a_threshold_ends_a_search_before_the_first_pick_below_it(index):
    whole = search_bank(index, "where is the milk", 3)
    values = [step.q_value for step in whole.steps]
    for threshold in (min(values) - 1, sorted(values)[1], max(values) + 1):
        kept = int(kept_by_threshold(np.array([values]), threshold)[0])
        found = search_bank(index, "where is the milk", 3, threshold=threshold)
        assert found.steps == whole.steps[:kept]
        assert found.prevented == (None if kept == 3 else whole.steps[kept])
        assert found.stop_reason == ("num_steps" if kept == 3 else "threshold")


@pytest.mark.slow
@pytest.mark.parametrize(("bias", "stops_at_once"), [(50.0, True), (-50.0, False)])
def test_a_learned_stop_ends_a_search(bias, stops_at_once):
    """The vector of STOP makes its Q far above or below that of every chunk; the first pick stays all the same."""
    env = EnvConfig(num_steps=3, stop=True, reward="at_end")
    latent = make("latent")
    asked = jax.device_put(latent.rows(["where is the milk"], "question")[0])
    rows = jax.device_put(latent.rows(TEXTS, "chunk")[0])
    first = search_bank(make_action_bank(latent, TEXTS), "where is the milk", 3).steps[0].chunk
    state = latent.network.states(latent.params, asked, rows, jnp.asarray([[first]], jnp.int32))[0]
    params = {**latent.params, "stop": bias * state / (state @ state)}
    retriever = replace(latent, env=env, params=params)
    found = search_bank(make_action_bank(retriever, TEXTS), "where is the milk", 3, learned_stop=True)
    if stops_at_once:
        assert (len(found.steps), found.stop_reason) == (1, "learned_stop")
    else:  # at the second step STOP is worth least; what it is worth in the state after that is not written down
        assert len(found.steps) >= 2
    assert found.steps[0].chunk == first
    assert len(search_bank(make_action_bank(retriever, TEXTS), "where is the milk", 3).steps) == 3


def test_a_run_without_stop_cannot_be_asked_to_use_it(index):
    with pytest.raises(UsageError, match="this run has not learned to stop"):
        search_bank(index, "where is the milk", 2, learned_stop=True)


@pytest.mark.slow
def test_a_run_with_bridges_reads_them_behind_its_links():
    """Q is what a chunk and another one say of the question together, and next to nothing else."""
    run = make("latent", env=EnvConfig(num_steps=2, links=True, bridges=True))
    links = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), run.params["links"])
    links["linear"][len(LINKS) + BRIDGES.index("joint")] = 1e4
    run = replace(run, params=run.params | {"links": links})
    texts = ["john took the milk", "Mary knows Ada", "Ada saw the milk", "Mary and the milk", "it rained"]
    question = "what of the milk is with Mary"
    joint = bridge_features(question, texts)[0, :, BRIDGES.index("joint")]
    assert joint[1] == joint[2] > joint[[0, 3, 4]].max()  # joined by Ada, whom the question does not name
    index = action_bank(run, embed_corpus(lines_corpus("\n".join(texts)), run.chunk_encoder))
    assert {step.chunk for step in search_bank(index, question).steps} == {1, 2}
