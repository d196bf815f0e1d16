from dataclasses import replace

import jax
import numpy as np
import pytest
from support.passages import count

from benchmarks.sqrag.notes_runs import evidence_recall, nearest_chunks, score_run
from qrag_jax.annotate.mentions import mention_notes
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.eval.notes.note_sets import Asked, Pool
from qrag_jax.models.towers.latent import LatentConfig
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.multi_step_search import make_action_bank, search_bank
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, new_retriever
from qrag_jax.types import Document, InputError, UsageError

TEXTS = ["mary went to the kitchen", "john took the milk", "it rained", "john went to the garden", "mary took the cup"]
QUESTIONS = {"where is the milk": (1, 3), "where is mary": (0,), "did it rain": (2,)}
KS = (1, 2, 3, 4)
WORDS = ["film", "lee", "rome", "rain", "key", "born", "made"]


def embed(texts):
    """One component a letter."""
    return np.array([[text.count(letter) for letter in "abcdeghikmnortwy"] for text in texts], np.float32) + 1e-3


def embed_words(texts):
    """One component a word."""
    cleaned = [text.lower().translate(str.maketrans(".:?", "   ")).split() for text in texts]
    return np.array([[words.count(word) for word in WORDS] for words in cleaned], np.float32) + 1e-3


@pytest.fixture(scope="module")
def pool():
    documents = tuple(Document(str(i), text) for i, text in enumerate(TEXTS))
    chunks = tuple(make_chunk(document, [(0, len(document.text))], 1, count) for document in documents)
    return Pool(documents, chunks, tuple(Asked(question, frozenset(gold)) for question, gold in QUESTIONS.items()))


@pytest.fixture(scope="module")
def retriever():
    spec = EncoderSpec("scratch", num_layers=1, hidden_size=8, num_heads=2, window=8, question_window=8)
    latent = LatentConfig(width=8, num_layers=1, num_heads=2, action_hidden=8, dim=8)
    made, _, _ = new_retriever(
        ModelConfig(encoder=spec, latent=latent), EnvConfig(num_steps=3, positions="none"), TEXTS, jax.random.key(1)
    )
    # as drawn, the towers are nearly blind to their input
    noisy = lambda leaf: leaf + 0.3 * np.random.default_rng(leaf.size).normal(size=leaf.shape).astype(np.float32)  # noqa: E731
    return replace(made, params=jax.tree.map(noisy, made.params))


def recall_of(picks, gold):
    return [len(set(picks[:k]) & set(gold)) / len(gold) for k in KS]


@pytest.mark.slow
def test_picks_are_those_of_a_search(pool, retriever):
    found = score_run(pool, retriever, KS, num_steps=3)
    index = make_action_bank(retriever, TEXTS)
    picks = [[step.chunk for step in search_bank(index, question, 3).steps] for question in QUESTIONS]
    expected = [recall_of(row, gold) for row, gold in zip(picks, QUESTIONS.values(), strict=True)]
    np.testing.assert_array_equal(found.recall, expected)
    np.testing.assert_array_equal(found.all_gold, np.equal(expected, 1))
    np.testing.assert_array_equal(found.recall[:, 3], found.recall[:, 2])  # no fourth pick
    assert found.embedded.tolist() == [0, 0, 0] and (found.seconds > 0).all()


@pytest.mark.slow
def test_all_chunks_are_found_at_last_and_too_many_picks_are_as_many_as_there_are(pool, retriever):
    found = score_run(pool, retriever, (5,), num_steps=9)
    assert found.all_gold.tolist() == [[1], [1], [1]]


def test_a_run_picks_of_its_candidates(pool, retriever):
    among = nearest_chunks(pool, embed, 3)
    assert among.shape == (3, 3) and (np.diff(among) > 0).all()
    found = score_run(pool, retriever, KS, num_steps=2, among=among)
    for row, candidates, (question, gold) in zip(found.recall, among, QUESTIONS.items(), strict=True):
        steps = search_bank(make_action_bank(retriever, [TEXTS[i] for i in candidates]), question, 2).steps
        assert row.tolist() == recall_of([candidates[step.chunk] for step in steps], gold)


def test_the_candidates_are_the_nearest(pool):
    vectors, asked = embed(TEXTS), embed(list(QUESTIONS))
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    expected = np.sort(np.argsort(-unit(asked) @ unit(vectors).T, axis=1, kind="stable")[:, :2], axis=1)
    np.testing.assert_array_equal(nearest_chunks(pool, embed, 2), expected)


def by_sentence(document):
    return [make_chunk(document, [span], 1, count) for span in split_sentences(document.text)]


def study_task(*documents, **question):
    asked = StudyQuestion("1", "Where was the one who made the film born?", **question)
    sentences = {document.id: split_sentences(document.text) for document in documents}
    return StudyTask("tiny", "evidence", documents, (asked,), sentences)


def test_evidence_within_a_budget_by_hand():
    film = Document("f", "The film was made by Lee Brown. It is long.", {"title": "Up"})
    lee = Document("l", "She was born in Rome. It rained.", {"title": "Lee Brown"})
    evidence = (Evidence("f", 4, 8), Evidence("l", 0, 21))
    task = study_task(film, lee, Document("x", "Born in rain, born in Rome."), relevant=("f", "l"), evidence=evidence)

    def recall(num_tokens, *modes):
        found = evidence_recall(
            task, by_sentence, mention_notes, embed_words, count, modes=modes, num_tokens=num_tokens
        )
        return [found[mode].tolist() for mode in modes]

    assert recall(6, "none") == [[0.0]]  # the sentence on the film has 7
    assert recall(7, "none") == [[0.5]]
    assert recall(12, "none", "best_of") == [[0.5], [1.0]]  # the distractor comes second, or her page
    assert recall(99, "none") == [[1.0]]
    with pytest.raises(UsageError, match="mode 'x'"):
        recall(9, "x")
    with pytest.raises(InputError, match="tiny: its labels are documents"):
        evidence_recall(replace(task, kind="documents"), by_sentence, mention_notes, embed_words, count, modes=["none"])
