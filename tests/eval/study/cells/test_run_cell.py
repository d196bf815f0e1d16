import time
from dataclasses import replace

import numpy as np
import pytest
from support.study import WordEmbedder, fixed, make_encoder, make_task

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
from qrag_jax.chunking.strategies.fixed import FixedConfig
from qrag_jax.chunking.strategies.late import LateConfig
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.cells.run_cell import Tools, embed_questions, find_chunks, run_config, study_corpus
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.types import Document, InputError, TextCounts, UsageError

BREAKPOINT = ChunkConfig("breakpoint", breakpoint=BreakpointConfig())
BY_LINE = ChunkConfig("fixed", fixed=FixedConfig(sentences_per_chunk=1))
DOCUMENTS = (Document("a", "x\ny\nx y"), Document("b", "z\ny"))
QUESTIONS = (StudyQuestion("q1", "y", ("a",)), StudyQuestion("q2", "x", ("b",)))
TASK = StudyTask("letters", "documents", DOCUMENTS, QUESTIONS)


class LetterEmbedder(WordEmbedder):
    """The vector of a word counts its letters x, y and z, so that cosines are known."""

    def _read(self, text):
        super()._read(text)
        vectors = [[word.count(letter) for letter in "xyz"] + [0] * 13 for word in text.split()[: self.window - 2]]
        return np.array([[0] * 16, *vectors], np.float32)


def lines(text):
    """The spans of the lines of a text."""
    spans, start = [], 0
    for line in text.split("\n"):
        spans.append((start, start + len(line)))
        start += len(line) + 1
    return spans


def make_tools(folder, embedder=None, split=split_sentences):
    return Tools(make_encoder(embedder), SentenceCache(folder), split)


def run(config, task, tools, scope="corpus", k=3, **others):
    parts = {"test": task, **others}
    questions = {part: embed_questions(side.questions, tools) for part, side in parts.items()}
    return run_config("mine", 2, config, parts, scope, k, tools, questions)


def places(found):
    return [[(hit.document_id, hit.spans) for hit in one.hits] for one in found]


def test_by_hand(tmp_path):
    """Of x, y, `x y` | z, y: question y finds both y, then `x y`; x finds x, `x y`, and the first of those at 0."""
    (cell,) = run(BY_LINE, TASK, make_tools(tmp_path, LetterEmbedder(), lines))
    assert (cell.task, cell.strategy, cell.number, cell.part) == ("letters", "mine", 2, "test")
    assert (cell.num_documents, cell.num_chunks, cell.mean_tokens, cell.most_tokens) == (2, 5, 6 / 5, 2)
    assert [one.question_id for one in cell.found] == ["q1", "q2"]
    assert places(cell.found) == [
        [("a", ((2, 3),)), ("b", ((2, 3),)), ("a", ((4, 7),))],
        [("a", ((0, 1),)), ("a", ((4, 7),)), ("a", ((2, 3),))],
    ]
    assert [hit.score for hit in cell.found[0].hits] == pytest.approx([1, 1, np.sqrt(0.5)])
    assert [hit.num_tokens for hit in cell.found[1].hits] == [1, 2, 1]
    assert cell.cost.embedder_tokens == 6 + 5 * 2 and cell.cost.index_bytes == 5 * 16 * 4
    assert cell.share_beyond_window == 0 and cell.cost.dollars is None


def test_a_question_about_its_document_finds_only_chunks_of_it(tmp_path):
    (cell,) = run(BY_LINE, TASK, make_tools(tmp_path, LetterEmbedder(), lines), scope="document")
    assert places(cell.found) == [
        [("a", ((2, 3),)), ("a", ((4, 7),)), ("a", ((0, 1),))],
        [("b", ((0, 1),)), ("b", ((2, 3),))],
    ]


def test_both_parts_of_one_pass_find_what_each_finds_alone(tmp_path):
    task, tools = make_task(), make_tools(tmp_path)
    dev, test = (replace(task, questions=task.questions[part]) for part in (slice(0, 9), slice(9, None)))
    together = run(BREAKPOINT, test, tools, dev=dev)
    assert [cell.part for cell in together] == ["test", "dev"] and together[0].cost == together[1].cost
    alone = [run(BREAKPOINT, side, tools)[0] for side in (test, dev)]
    assert [cell.found for cell in together] == [cell.found for cell in alone]
    assert [len(cell.found) for cell in together] == [15, 9]


def test_what_is_found_is_what_the_strategy_cut(tmp_path):
    """Every hit is a chunk of the corpus, the best of all by the cosine of what it says."""
    task, tools = make_task(num_documents=4), make_tools(tmp_path, WordEmbedder(window=200))
    corpus = study_corpus(task.documents, BREAKPOINT, tools)
    texts = {document.id: document.text for document in task.documents}
    found = find_chunks(corpus, task.questions, embed_questions(task.questions, tools), 4, "corpus")
    for one, question in zip(found, task.questions, strict=True):
        asked = tools.encoder._embedder([question.text])[0]
        scores = []
        for chunk in corpus.nodes:
            said = tools.encoder._embedder(["\n".join(texts[chunk.document_id][a:b] for a, b in chunk.spans)])[0]
            scores.append(asked @ said / np.linalg.norm(asked) / np.linalg.norm(said))
        best = np.argsort(-np.array(scores), kind="stable")[:4]
        assert [hit.chunk_id for hit in one.hits] == [corpus.nodes[place].id for place in best]
        assert [hit.score for hit in one.hits] == pytest.approx([scores[place] for place in best], abs=1e-6)


def test_a_document_that_is_the_question_is_not_ranked_for_it(tmp_path):
    task, tools = make_task(num_documents=4), make_tools(tmp_path, WordEmbedder(window=200))
    corpus, vectors = study_corpus(task.documents, BREAKPOINT, tools), embed_questions(task.questions, tools)
    itself = task.documents[1].id
    num_own, num_nodes = len(corpus.nodes_of(itself)), len(corpus.nodes)
    asked = [replace(question, itself=itself if place else "") for place, question in enumerate(task.questions)]
    every = find_chunks(corpus, task.questions, vectors, num_nodes, "corpus")
    for k in (2, num_nodes):
        found = find_chunks(corpus, asked, vectors, k, "corpus")
        assert found[0].hits == every[0].hits[:k]
        for one, whole in zip(found[1:], every[1:], strict=True):
            assert one.hits == tuple(hit for hit in whole.hits if hit.document_id != itself)[:k]
            assert len(one.hits) == min(k, num_nodes - num_own)


class Backwards:
    """Scores the last of its passages highest, and nothing else counts."""

    name, weight, num_parameters, counts = "backwards", None, None, TextCounts()

    def __call__(self, question, passages, progress=None):
        self.counts = self.counts.plus(len(passages), 100, 3)
        return np.arange(len(passages), dtype=float)


def test_a_reranker_orders_the_best_chunks(tmp_path):
    """It gets 20 of the 24 chunks, whatever k is; those that it does not read come last."""
    documents = [Document(f"{n}", "x" * (n + 1) + " y" * (24 - n)) for n in range(24)]
    questions = (StudyQuestion("q", "x", ("0",)),)
    task, tools = StudyTask("letters", "documents", documents, questions), make_tools(tmp_path, LetterEmbedder(), lines)
    corpus, vectors, seen = study_corpus(documents, BY_LINE, tools), embed_questions(questions, tools), []
    every = places(find_chunks(corpus, questions, vectors, 24, "corpus"))[0]
    tools = replace(tools, reranker=Backwards(), told=lambda *done: seen.append(done))
    for k in (3, 24):
        found = places(find_chunks(corpus, questions, vectors, k, "corpus", tools))[0]
        assert found == [*every[19::-1], *every[20:]][:k]
    (cell,) = run(BY_LINE, task, tools)
    assert places(cell.found)[0] == every[19:16:-1] and seen == [(1, 1)] * 3
    assert (cell.cost.reranker_tokens, cell.num_reranked_cut) == (100, 3)


def test_chunking_is_charged_without_embedding_whether_vectors_were_kept_or_not(tmp_path, monkeypatch):
    """On a clock on which a split takes 1 s and an embedding 100 s; one that was kept is charged all the same."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class SlowEmbedder(WordEmbedder):
        def __call__(self, texts, progress=None):
            now[0] += 100
            return super().__call__(texts, progress)

    def slow_split(text):
        now[0] += 1
        return split_sentences(text)

    documents = make_task(num_documents=3).documents
    tools = make_tools(tmp_path, SlowEmbedder(window=200), slow_split)
    cold, warm = (study_corpus(documents, BREAKPOINT, tools).cost for _ in range(2))
    assert cold.seconds == warm.seconds == {"chunk": 3, "embed_sentences": 300, "embed_chunks": 100}
    assert cold == warm and now[0] == 300 + 100 + 100 + 6
    num_words = sum(len(document.text.split()) for document in documents)
    num_sentences = sum(len(split_sentences(document.text)) for document in documents)
    num_chunks = warm.index_bytes // (16 * 4)
    assert warm.embedder_tokens == 2 * num_words + 2 * num_sentences + 2 * num_chunks
    assert study_corpus(documents, fixed(300), tools).cost.seconds["embed_sentences"] == 0


def test_chunks_beyond_the_window_are_counted_and_late_ones_are_not(tmp_path):
    task, tools = make_task(num_documents=2), make_tools(tmp_path)  # 12 sentences of 7 words in each, a window of 24
    (cell,) = run(fixed(35), task, tools)
    assert (cell.num_chunks, cell.most_tokens, cell.share_beyond_window) == (6, 35, 4 / 6)
    late = ChunkConfig("late", max_tokens=35, late=LateConfig(overlap_tokens=4))
    (cell,) = run(late, task, tools)
    assert (cell.num_chunks, cell.share_beyond_window) == (6, 0)


def test_late_vectors_know_their_document(tmp_path):
    task, tools = make_task(num_documents=2), make_tools(tmp_path, WordEmbedder(window=200))
    alone = study_corpus(task.documents, fixed(14), tools)
    late = study_corpus(task.documents, ChunkConfig("late", max_tokens=14, late=LateConfig()), tools)
    assert [chunk.spans for chunk in late.nodes] == [chunk.spans for chunk in alone.nodes]
    # These words have no context, so a chunk says the same; but its document was read once, in one window.
    np.testing.assert_allclose(late.vectors, alone.vectors, atol=1e-6)
    assert late.cost.embedder_tokens == 2 * 84 + 2 * 2 and alone.cost.embedder_tokens == 2 * 84 + 12 * 2


@pytest.mark.parametrize("config", [BREAKPOINT, fixed(20)])
def test_progress_never_goes_back_and_ends_at_1(tmp_path, config):
    seen = []
    study_corpus(make_task().documents, config, make_tools(tmp_path), seen.append)
    assert seen == sorted(seen) and 0 < seen[0] < 0.1 and seen[-1] == pytest.approx(1)


def test_refusals(tmp_path):
    tools = make_tools(tmp_path)
    with pytest.raises(InputError, match="blank: empty document"):
        study_corpus([Document("blank", " \n")], BY_LINE, tools)
    with pytest.raises(UsageError, match="max_tokens"):
        study_corpus(DOCUMENTS, ChunkConfig(max_tokens=0), tools)
    corpus = study_corpus(DOCUMENTS[:1], BY_LINE, tools)
    with pytest.raises(InputError, match=r"question q2: its documents \['b'\] have no chunks"):
        find_chunks(corpus, QUESTIONS[1:], corpus.vectors[:1], 3, "document")
