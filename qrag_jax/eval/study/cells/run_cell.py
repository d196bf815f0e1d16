"""One config of a strategy over a corpus: its chunks, their vectors, what both cost, and what each question finds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.tree.boundaries import PredictPoints
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.cells.costs import Meter, make_cost
from qrag_jax.eval.study.cells.filled_contexts import Contexts, FilledCorpus, known_points, section_points
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder
from qrag_jax.eval.study.records import CellResult, FoundChunk, FoundChunks, Part
from qrag_jax.names import CHUNKERS
from qrag_jax.search.corpus import Corpus, MadeBy, build_corpus
from qrag_jax.search.dense import Ranking, search_vectors
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.rerank import RerankOptions, rerank
from qrag_jax.types import Document, InputError, Reranker, TextCounts

NUM_RERANKED = 20  # chunks of each question
_QUESTIONS_AT_ONCE = 64
Scope = Literal["corpus", "document"]
ReportShare = Callable[[float], None]  # of a config's work that is done, 0 to 1


@dataclass(frozen=True)
class Tools:
    """Shared by all configs of a study.

    Attributes:
        encoder: of chunks, sentences and questions.
        cache: vectors of sentences.
        split: cuts texts into sentences.
        reranker: of the best `NUM_RERANKED` chunks of a question; None leaves the order of their vectors.
        told: called with (questions reranked, of).
    """

    encoder: StudyEncoder
    cache: SentenceCache
    split: SplitSentences
    reranker: Reranker | None = None
    told: Callable[[int, int], None] | None = None


def run_config(
    strategy: str,
    number: int,
    config: ChunkConfig,
    parts: Mapping[Part, StudyTask],
    scope: Scope,
    k: int,
    tools: Tools,
    questions: Mapping[Part, np.ndarray],
    progress: ReportShare | None = None,
    contexts: Contexts | None = None,
) -> list[CellResult]:
    """The results of one config on each part of a task; the corpus, which the parts share, is cut and embedded once.

    Args:
        strategy, number: name of the strategy in the study and which of its configs this is.
        parts: dev and test over the same documents, or one of them alone.
        scope: a question searches the whole `corpus`, or the chunks of its relevant `document` only.
        k: most chunks that are found for a question.
        questions: of each part the vectors of its questions (`embed_questions`).
        progress: called with the share of the work that is done.
        contexts: whose evidence recall is measured on the test part, of a task of evidence.

    Returns:
        One result a part; each carries the cost of the whole corpus, and the tokens of its reranker.
    """
    task = next(iter(parts.values()))
    corpus = study_corpus(task.documents, config, tools, progress, section_points(task))
    tokens = [chunk.num_tokens for chunk in corpus.nodes]
    results = []
    for part, side in parts.items():
        before = _counts(tools)
        found = find_chunks(corpus, side.questions, questions[part], k, scope, tools)
        num_read, num_cut = (now - then for now, then in zip(_counts(tools), before, strict=True))
        results.append(
            CellResult(
                task=task.name,
                strategy=strategy,
                number=number,
                part=part,
                num_documents=len(corpus.documents),
                num_chunks=len(tokens),
                mean_tokens=float(np.mean(tokens)),
                most_tokens=max(tokens),
                share_beyond_window=corpus.num_beyond_window / len(tokens),
                cost=replace(corpus.cost, reranker_tokens=num_read),
                found=found,
                recall=_recall(corpus, side, questions[part], scope, tools, contexts) if part == "test" else {},
                num_reranked_cut=num_cut,
            )
        )
    return results


def _counts(tools: Tools) -> tuple[int, int]:
    """Tokens that the reranker has read, and chunks that it has cut."""
    counts = TextCounts() if tools.reranker is None else tools.reranker.counts
    return counts.num_tokens, counts.num_texts_cut


def study_corpus(
    documents: Sequence[Document],
    config: ChunkConfig,
    tools: Tools,
    progress: ReportShare | None = None,
    points: PredictPoints | None = None,
) -> Corpus:
    """Cuts documents and embeds the chunks, each step with its cost.

    The seconds of chunking are those of a clock around it without the time that embedding took (`Meter.waited`), so
    that sentence vectors which were kept make no strategy look cheaper; what these cost is in the meter.

    Args:
        documents: not blank.
        tools: as in `run_config`.
        progress: called with the share of the work that is done.
        points: where sections begin, for strategy `hierarchy` by headings; None reads them in the text.

    Returns:
        The chunks with vectors of length 1, or zeros where a chunk has no token; its cost is without dollars.
    """
    sentences, whole, encoder = Meter(), Meter(), tools.encoder
    report = progress or (lambda share: None)
    chunking_share = 0.5 if config.strategy in CHUNKERS.choices("vectors") else 0.1  # for the bar only
    embed = encoder.sentence_embed(tools.cache, sentences)
    chunker = make_chunker(
        config, encoder.count, embed, tools.split, known_points(config, points, embed, encoder.fingerprint)
    )
    cut = build_corpus(
        documents, chunker, chunking=config, progress=lambda done, of: report(chunking_share * done / of)
    )
    vectors, num_beyond = encoder.chunk_vectors(
        {document.id: document.text for document in documents},
        cut.nodes,
        whole,
        late=config.late if config.strategy == "late" else None,
        progress=lambda done, of: report(chunking_share + (1 - chunking_share) * done / max(1, of)),
    )
    seconds = max(0.0, cut.cost.seconds["chunk"] - sentences.waited)
    return replace(
        cut,
        vectors=vectors,
        made_by=MadeBy(config, encoder.model, encoder.fingerprint),
        cost=make_cost(seconds, sentences, whole, vectors.nbytes),
        num_beyond_window=num_beyond,
    )


def embed_questions(questions: Sequence[StudyQuestion], tools: Tools) -> np.ndarray:
    """Vectors of questions, float32 [n, dim], of length 1.

    Once per task for all strategies, so no strategy is charged for them. All questions are one call, cached like the
    sentences: an interrupted study resumes with bit-equal vectors.
    """
    return tools.encoder.question_vectors([question.text for question in questions], tools.cache)


def find_chunks(
    corpus: Corpus,
    questions: Sequence[StudyQuestion],
    vectors: np.ndarray,
    k: int,
    scope: Scope,
    tools: Tools | None = None,
) -> tuple[FoundChunks, ...]:
    """The `k` best chunks of every question, in the order of the questions, without those of the question itself.

    Args:
        questions: whose relevant documents bound the search where `scope` is "document".
        vectors: float32 [questions, dim].
        scope: as in `run_config`.
        tools: their reranker is used; without one, the nearest chunks are the best.
    """
    if tools is None or tools.reranker is None:
        rankings = _rankings(corpus, questions, vectors, k, scope)
    else:
        rankings = _rankings(corpus, questions, vectors, max(k, NUM_RERANKED), scope)
        rankings = _reranked(corpus, questions, rankings, tools.reranker, tools.told)
    return tuple(
        FoundChunks(question.id, _hits(corpus, ranking)[:k])
        for question, ranking in zip(questions, rankings, strict=True)
    )


def _reranked(
    corpus: Corpus,
    questions: Sequence[StudyQuestion],
    rankings: Sequence[Ranking],
    reranker: Reranker,
    told: Callable[[int, int], None] | None,
) -> list[Ranking]:
    options, done = RerankOptions(reranker, passages=NUM_RERANKED), []
    for question, ranking in zip(questions, rankings, strict=True):
        ranked, _ = rerank(question.text, corpus, Ranked(*ranking), reranker, options, by_words=False)
        done.append((ranked.ids, ranked.scores))
        if told is not None:
            told(len(done), len(questions))
    return done


def _rankings(
    corpus: Corpus, questions: Sequence[StudyQuestion], vectors: np.ndarray, k: int, scope: Scope
) -> list[Ranking]:
    among = _chunks_of_relevant(corpus, questions) if scope == "document" else None
    itself = [corpus.nodes_of(question.itself) for question in questions]
    found = search_vectors(vectors, corpus.unit_vectors, k + max(map(len, itself), default=0), among)
    kept = [~np.isin(places, own) for (places, _), own in zip(found, itself, strict=True)]
    return [(places[keep][:k], scores[keep][:k]) for (places, scores), keep in zip(found, kept, strict=True)]


def _recall(
    corpus: Corpus, task: StudyTask, vectors: np.ndarray, scope: Scope, tools: Tools, contexts: Contexts | None
) -> dict[str, tuple[float, ...]]:
    """Evidence recall in budgets; searched some questions at a time, as a context may take thousands of chunks."""
    if contexts is None or task.kind != "evidence":
        return {}
    embed = tools.encoder.sentence_embed(tools.cache, Meter())  # the sentences were paid for when they were cut
    points = known_points(corpus.made_by.chunking, section_points(task), embed, tools.encoder.fingerprint)
    filled = FilledCorpus(corpus, tools.encoder.count, tools.split, points)
    found: dict[str, list[float]] = {}
    for start in range(0, len(task.questions), _QUESTIONS_AT_ONCE):
        asked = task.questions[start : start + _QUESTIONS_AT_ONCE]
        own = vectors[start : start + _QUESTIONS_AT_ONCE]
        rankings = _rankings(corpus, asked, own, max(contexts.budgets), scope)
        for question, ranking in zip(asked, rankings, strict=True):
            for name, value in filled.recall(task, question, ranking, contexts):
                found.setdefault(name, []).append(value)
    return {name: tuple(values) for name, values in found.items()}


def _chunks_of_relevant(corpus: Corpus, questions: Sequence[StudyQuestion]) -> list[np.ndarray]:
    among = []
    for question in questions:
        chosen = sorted(node for name in question.relevant for node in corpus.nodes_of(name))
        if not chosen:
            raise InputError(f"question {question.id}: its documents {list(question.relevant)} have no chunks")
        among.append(np.array(chosen, np.int64))
    return among


def _hits(corpus: Corpus, ranking: Ranking) -> tuple[FoundChunk, ...]:
    places, scores = ranking
    chunks = [corpus.nodes[place] for place in places.tolist()]
    return tuple(
        FoundChunk(chunk.id, chunk.document_id, chunk.spans, chunk.num_tokens, float(score))
        for chunk, score in zip(chunks, scores, strict=True)
    )
