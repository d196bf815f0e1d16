import jax
import numpy as np
import pytest
from support.encoders import random_encoder
from support.passages import documents

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.index.methods import DEFAULT_CHUNKING, multi_step_method, single_step_method
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.models.towers.latent import LatentConfig
from qrag_jax.names import RETRIEVERS
from qrag_jax.qrag.chunk_encoder import one_line
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.multi_step_search import make_action_bank, search_bank
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, new_retriever
from qrag_jax.search.answer import answer_question
from qrag_jax.types import InputError

TEXTS = ("Mary has the key. It rained\nall day.\n", "The key opens the garden. John slept.\n")
LINES = ChunkConfig("fixed", max_tokens=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", list(TEXTS))
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture(scope="module")
def trained():
    """A run over a vocabulary of these texts, as it was drawn."""
    spec = EncoderSpec("scratch", num_layers=1, hidden_size=8, num_heads=2)
    latent = LatentConfig(width=8, num_layers=1, num_heads=2, action_hidden=8, dim=8)
    texts = [*TEXTS, "Where is the key?"]
    return new_retriever(ModelConfig(encoder=spec, latent=latent), EnvConfig(num_steps=3), texts, jax.random.key(1))[0]


@pytest.mark.parametrize("name", RETRIEVERS)
def test_one_corpus_is_asked_many_times_and_its_documents_are_embedded_once(model, name):
    method = single_step_method(name, model, LINES)
    corpus = method.build(documents(*TEXTS))
    assert (corpus.vectors is None) == (name == "bm25") and corpus.made_by.chunking == LINES
    read = method.spent()[0]
    assert read == corpus.cost.embedder_tokens and (read > 0) == (name != "bm25")
    for number, question in enumerate(["the key", "the garden"], 1):
        found = method.retrieve(question, corpus, 2)
        assert len(found) == 2 and (np.diff(found.scores) <= 0).all()
        assert method.spent()[0] == read + (4 * number if name != "bm25" else 0)  # [CLS], two words, [SEP]


def test_words_over_chunks_of_meaning_cost_the_sentences_that_were_embedded(model):
    method = single_step_method("bm25", model, ChunkConfig("breakpoint"))
    corpus = method.build(documents(*TEXTS))
    assert corpus.vectors is None and corpus.cost.embedder_tokens == method.spent()[0] > 0


def test_show_is_asked_for_all_vectors(model):
    calls = []

    class Shown:
        def __init__(self, encoder):
            self.encoder, self.fingerprint = encoder, encoder.fingerprint

        @property
        def counts(self):
            return self.encoder.counts

        def __call__(self, texts, progress=None):
            calls.append(len(texts))
            return self.encoder(texts)

    method = single_step_method("single_step", model, LINES, Shown)
    corpus = method.build(documents(*TEXTS))
    method.retrieve("key", corpus, 1)
    assert calls == [len(corpus), 1]


@pytest.mark.slow
def test_a_run_reads_sentences_and_picks_as_a_search_of_their_texts(trained):
    method = multi_step_method(trained, 3)
    corpus = method.build(documents(*TEXTS))
    assert [one_line(text) for text in corpus.texts] == [
        "Mary has the key.",
        "It rained all day.",
        "The key opens the garden.",
        "John slept.",
    ]
    read = method.spent()[0]
    found = method.retrieve("Where is the key?", corpus, None)
    wanted = search_bank(make_action_bank(trained, [one_line(text) for text in corpus.texts]), "Where is the key?", 3)
    assert found.ids.tolist() == [step.chunk for step in wanted.steps]
    np.testing.assert_allclose(found.scores, [step.q_value for step in wanted.steps], rtol=1e-5)
    assert read == corpus.cost.embedder_tokens and method.spent()[0] == read + 7
    assert len(method.retrieve("Where is the key?", corpus, 1)) == 1
    assert len(method.retrieve("Where is the key?", corpus, 5)) == 4  # at most as many as are asked for
    with pytest.raises(
        InputError, match="only 4 sentences, fewer than the 5 picks asked for; lower num_steps or give more text"
    ):
        multi_step_method(trained, 5).retrieve("Where is the key?", corpus, None)
    with pytest.raises(InputError, match="nothing to ask"):
        method.check(" ")


def test_ten_lines_answer_a_question(model):
    method = single_step_method("hybrid", model)
    corpus = method.build(documents(*TEXTS))
    answer = answer_question("Who has the key?", corpus, method.retrieve, ScriptedGenerator(["Mary [1]."]))
    assert corpus.made_by.chunking == DEFAULT_CHUNKING and corpus.made_by.encoder == model
    assert answer.cited.citations[0].text == TEXTS[0].strip()
