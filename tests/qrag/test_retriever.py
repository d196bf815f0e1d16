import importlib.util
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import LATENT

from qrag_jax.checkpoint import save_checkpoint
from qrag_jax.config import to_dict
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.sources import PACKAGE_MODULE
from qrag_jax.models.encoder.text_encoder import EncoderConfig, init_encoder
from qrag_jax.models.encoder.tokenizer import train_word_level
from qrag_jax.models.encoder.weights import LoadedEncoder, load_encoder, save_encoder
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import (
    EncoderSpec,
    ModelConfig,
    _standardisation,
    load_retriever,
    new_retriever,
    retriever_around,
    retriever_files,
)
from qrag_jax.types import InputError, UsageError

TEXTS = (
    "Mary took the milk",
    "John went to the garden",
    "The cat sat on the mat",
    "Mary went to the kitchen and then to the garden again",
    "A speech about the budget of the nation",
    "milk",
)
QUESTIONS = ("Where is the milk", "Where is John")
SPEC = EncoderSpec("scratch", num_layers=1, window=8, question_window=6, hidden_size=8, num_heads=2)
ENV = EnvConfig(num_steps=2)


def model_of(mode, **options):
    return ModelConfig(mode=mode, encoder=replace(SPEC, **options), latent=LATENT, state_chunk_window=5, scale=4.0)


@pytest.fixture(scope="module", params=["latent", "text"])
def made(request):
    """(retriever, rows of the texts, number of texts cut) in either mode."""
    return new_retriever(model_of(request.param), ENV, TEXTS, jax.random.key(0))


def unrotated_q(retriever, rows, taken):
    """Q of all texts for two questions, each with the given texts taken, before any rotation."""
    questions, _ = retriever.rows(QUESTIONS, "question")

    def run(params, questions, rows):
        states = retriever.network.states(params, questions, rows, jnp.asarray(taken, jnp.int32).reshape(2, -1))
        return states @ retriever.network.actions(params, rows).T

    return jax.jit(run)(retriever.params, *jax.device_put((questions, rows)))


def save(folder, retriever, best_params=None):
    """A checkpoint as the training loop writes it, as far as a retriever needs it."""
    arrays = {"params": retriever.params, "constants": dict(retriever.constants)}
    config = {"model": to_dict(retriever.model), "env": to_dict(retriever.env)}
    about = {}
    if best_params is not None:
        arrays, about = arrays | {"best_params": best_params}, {"dev": {"update": 1, "return": 0.5}}
    return save_checkpoint(folder, 3, arrays, config, retriever_files(retriever), about)


# --- what is read


def test_rows_are_what_the_towers_read(made):
    retriever, rows, num_cut = made
    assert num_cut == 2  # 11 and 8 words with [CLS] and [SEP] against a window of 8
    tokenizer = retriever.encoder.tokenizer
    if retriever.model.mode == "text":
        table = tokenizer.encode(TEXTS, 8)
        np.testing.assert_array_equal(rows.tokens, table.tokens)
        assert rows.lengths.tolist() == [6, 7, 8, 8, 8, 3]
    else:
        np.testing.assert_allclose(rows.vectors, make_embedder(retriever.encoder, window=8)(TEXTS), atol=1e-6)
        assert rows.vectors.dtype == np.float32


def test_latent_towers_standardise_by_their_training_vectors():
    retriever, rows, _ = new_retriever(model_of("latent"), ENV, TEXTS, jax.random.key(0))
    np.testing.assert_allclose(retriever.constants["mean"], rows.vectors.mean(0), atol=1e-6)
    np.testing.assert_allclose(retriever.constants["std"], rows.vectors.std(0), atol=1e-6)
    vectors = np.asarray(rows.vectors).copy()
    vectors[:, 3] = 5.0  # a component that never changes is not divided by 0
    given, _, _ = new_retriever(model_of("latent", source="vectors"), ENV, vectors, jax.random.key(0))
    assert given.constants["std"][3] == 1
    assert given.encoder is None


def test_large_vectors_are_standardised_as_small_ones():
    """Beyond 1e19 squares are infinite in float32, and a sum beyond 3e38 is."""
    vectors = np.random.default_rng(0).uniform(1, 2, (6, 5)).astype(np.float32)
    expected = _standardisation(vectors)
    for scale in (np.float32(2.0**66), np.float32(2.0**126)):  # powers of two: digits stay
        found = _standardisation(vectors * scale)
        for name in ("mean", "std"):
            assert found[name].dtype == np.float32
            np.testing.assert_allclose(found[name] / scale, expected[name], rtol=1e-5)


def test_the_index_is_the_action_tower(made):
    retriever, rows, _ = made
    index = retriever.action_vectors(rows, TEXTS)
    expected = jax.jit(retriever.network.actions)(retriever.params, jax.device_put(rows))
    assert index.shape == (6, 8) and index.dtype == np.float32
    np.testing.assert_allclose(index, expected, atol=1e-6)


@pytest.mark.parametrize("mode", ["latent", "text"])
def test_a_scratch_vocabulary_knows_the_words_of_questions(mode):
    """Words that no chunk has are no [UNK]: questions that differ in them alone are told apart."""
    asked = ["who juggles", "who sings"]
    rows = {}
    for name, questions in (("with", asked), ("without", ())):
        retriever, _, num_cut = new_retriever(model_of(mode), ENV, TEXTS, jax.random.key(0), None, questions)
        assert num_cut == 2  # questions are no chunks: their words alone count
        rows[name] = [np.asarray(leaf) for leaf in jax.tree.leaves(retriever.rows(asked, "question")[0])][0]
        known = retriever.encoder.tokenizer.ids(["juggles sings mary"])[0]
        assert len(set(np.asarray(known).tolist())) == (3 if questions else 2)
    assert (rows["with"][0] != rows["with"][1]).any()
    np.testing.assert_array_equal(*rows["without"])


def test_a_learned_stop_starts_at_0():
    """And it draws nothing: the towers are those of a run without it."""
    plain, _, _ = new_retriever(model_of("latent"), ENV, TEXTS, jax.random.key(0))
    env = replace(ENV, reward="at_end", stop=True)
    stopping, _, _ = new_retriever(model_of("latent"), env, TEXTS, jax.random.key(0))
    assert set(stopping.params) == {*plain.params, "stop"}
    np.testing.assert_array_equal(stopping.params["stop"], np.zeros(8))
    jax.tree.map(np.testing.assert_array_equal, plain.params, {k: v for k, v in stopping.params.items() if k != "stop"})


def test_a_question_beyond_its_window_is_cut_and_counted(made):
    """[CLS] where is the old [SEP]: what stands behind its window does not matter."""
    cut, counted = made[0].rows(["Where is the old milk"], "question")
    other, _ = made[0].rows(["Where is the old garden"], "question")
    jax.tree.map(np.testing.assert_array_equal, cut, other)
    assert counted == 1
    assert made[0].rows(["Where is the milk"], "question")[1] == 0  # 6 tokens


def test_an_encoder_from_a_folder_with_its_first_layers(tmp_path):
    tokenizer = train_word_level(TEXTS)
    config = EncoderConfig(tokenizer.vocab_size, 8, 2, 2, 16, max_positions=16, pooling="cls", normalize=True)
    save_encoder(tmp_path, config, jax.jit(init_encoder, static_argnums=1)(jax.random.key(0), config), tokenizer)
    spec = {"source": str(tmp_path), "num_layers": 1}
    retriever, _, _ = new_retriever(model_of("text", **spec), ENV, TEXTS, jax.random.key(0))
    loaded = load_encoder(tmp_path)
    assert retriever.encoder.config == replace(config, num_layers=1, normalize=False)  # pooling as the folder says
    for tower in ("state", "action"):
        assert "layer_1" not in retriever.params[tower]
        jax.tree.map(np.testing.assert_array_equal, retriever.params[tower]["layer_0"], loaded.params["layer_0"])


def test_towers_around_an_encoder():
    tokenizer = train_word_level(TEXTS)
    config = EncoderConfig(tokenizer.vocab_size, 8, 1, 2, 16, max_positions=32)
    params = jax.jit(init_encoder, static_argnums=1)(jax.random.key(0), config)
    retriever = retriever_around(
        model_of("text"), replace(ENV, positions="none"), LoadedEncoder(config, params, tokenizer)
    )
    rows, _ = retriever.rows(TEXTS, "chunk")
    q = unrotated_q(retriever, rows, [[], []])
    embed = make_embedder(LoadedEncoder(config, params, tokenizer), window=8)
    scores = embed(QUESTIONS) @ embed(TEXTS).T / 4.0**2
    np.testing.assert_allclose(q, scores, atol=1e-5)  # the first step is single-step retrieval


# --- what is kept


def test_a_loaded_retriever_gives_the_same_q_values(made, tmp_path, monkeypatch):
    """From a folder that was moved, on a machine without the embedded package."""
    retriever, rows, _ = made
    save(tmp_path / "run", retriever)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == PACKAGE_MODULE else find_spec(name, *rest)
    )
    with pytest.raises(UsageError, match="not installed"):
        load_encoder("minilm")
    loaded = load_retriever(tmp_path / "elsewhere")
    assert loaded.model == retriever.model and loaded.env == retriever.env
    jax.tree.map(np.testing.assert_array_equal, retriever.params, loaded.params)
    read, num_cut = loaded.rows(TEXTS, "chunk")
    assert num_cut == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), rows, read)
    found, expected = unrotated_q(loaded, read, [[1], [4]]), unrotated_q(retriever, rows, [[1], [4]])
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(loaded.action_vectors(read, TEXTS), retriever.action_vectors(rows, TEXTS), atol=1e-6)


def test_a_retriever_of_vectors_comes_back(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    retriever, rows, _ = new_retriever(model_of("latent", source="vectors"), ENV, vectors, jax.random.key(0))
    assert retriever_files(retriever) == {}
    save(tmp_path, retriever)
    loaded = load_retriever(tmp_path)
    assert loaded.encoder is None
    np.testing.assert_array_equal(loaded.action_vectors(rows, vectors), retriever.action_vectors(rows, vectors))
    with pytest.raises(UsageError, match="trained on given vectors and has no text encoder"):
        loaded.rows(TEXTS, "chunk")
    with pytest.raises(InputError, match="vectors of 4 components, the model reads 5"):
        loaded.rows(vectors[:, :4], "chunk")


def test_the_files_of_a_checkpoint(made):
    """Latent mode keeps the frozen encoder whole; in text mode the weights are parameters already."""
    names = set(retriever_files(made[0]))
    assert {"encoder/config.json", "encoder/tokenizer.json"} <= names
    assert ("encoder/model.safetensors" in names) == (made[0].model.mode == "latent")


def test_trained_towers_come_back_not_the_ones_they_started_from(made, tmp_path):
    retriever = made[0]
    trained = replace(retriever, params=jax.tree.map(lambda leaf: leaf + 1, retriever.params))
    save(tmp_path, trained)
    loaded = load_retriever(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, trained.params, loaded.params)
    if retriever.model.mode == "text":  # embeds with the trained action tower
        jax.tree.map(np.testing.assert_array_equal, loaded.encoder.params, trained.params["action"])


def test_a_run_with_held_out_questions_gives_its_best_parameters(made, tmp_path):
    """Also to the embedder of the index, which in text mode is the action tower."""
    retriever, rows, _ = made
    best = replace(retriever, params=jax.tree.map(lambda leaf: leaf + 0.25, retriever.params))
    save(tmp_path, retriever, best_params=best.params)
    loaded = load_retriever(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, best.params, loaded.params)
    np.testing.assert_allclose(loaded.action_vectors(rows, TEXTS), best.action_vectors(rows, TEXTS), atol=1e-6)


# --- refusals


def test_a_missing_or_foreign_checkpoint_is_refused(made, tmp_path):
    with pytest.raises(UsageError, match="no such checkpoint folder"):
        load_retriever(tmp_path / "nothing")
    save_checkpoint(tmp_path, 1, {"params": {"w": jnp.ones(2)}}, {"model": to_dict(made[0].model)})
    with pytest.raises(InputError, match="no group .*constants"):
        load_retriever(tmp_path)


def test_a_damaged_checkpoint_is_refused(made, tmp_path):
    folder = save(tmp_path, made[0])
    path = folder / "files" / "encoder" / "tokenizer.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InputError, match="tokenizer.json"):
        load_retriever(tmp_path)


def test_vectors_and_texts_are_not_mixed_up(made):
    vectors = np.ones((4, 5), np.float32)
    with pytest.raises(UsageError, match="model.encoder.source=vectors works only with data.task=vectors"):
        new_retriever(model_of("latent"), ENV, vectors, jax.random.key(0))
    with pytest.raises(UsageError, match="model.encoder.source=vectors works only with data.task=vectors"):
        new_retriever(model_of("latent", source="vectors"), ENV, TEXTS, jax.random.key(0))
    with pytest.raises(UsageError, match="set model.mode=latent for a task of vectors"):
        new_retriever(model_of("text", source="vectors"), ENV, vectors, jax.random.key(0))
    if made[0].model.mode == "text":
        with pytest.raises(UsageError, match="text mode reads texts"):
            made[0].rows(vectors, "chunk")
