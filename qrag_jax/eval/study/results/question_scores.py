"""All measures of the results for the questions of a task, one value per question, and their means."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.records import FoundChunk, FoundChunks
from qrag_jax.measures.aggregate import Summary, mean_interval
from qrag_jax.measures.evidence_scores import (
    Sentence,
    document_scores,
    evidence_scores,
    harmonic_mean,
    make_sentence_finders,
    measure_tokens,
    span_scores,
)
from qrag_jax.measures.trec import ndcg
from qrag_jax.types import CountTokens, Hit, InputError, Retriever, Span

Values = Iterator[tuple[str, float]]  # measure@k, value
Score = Callable[[StudyQuestion, FoundChunks], Values]


@dataclass(frozen=True)
class RetrieverScores:
    """The scores of a retriever on a task.

    Attributes:
        means: measure@k -> mean over the questions and its 95% bootstrap interval, for all measures in [0, 1].
        values: measure@k -> a value a question, in the order of the task: for `paired_difference` with another one.
    """

    means: Mapping[str, Summary]
    values: Mapping[str, np.ndarray]


def score_retriever(
    retriever: Retriever | Callable[[str, int], Sequence[Hit]],
    task: StudyTask,
    ks: Sequence[int] = (1, 5),
    count: CountTokens = lambda text: len(text.split()),
) -> RetrieverScores:
    """Asks any retriever the questions of a task and compares the passages with the places of the evidence.

    The measures are those of `score_questions`, and `ndcg@k` over distinct documents in the order of their best
    passage, of the passages that the largest k asks for.

    Args:
        retriever: has searched the documents of the task; a function (question, top_k) -> hits does too. A document may
            have more folders before its name than the task gives it (`notes/key.md` is the task's `key.md`).
        ks: numbers of passages.
        count: tokens of a text; by default its words.

    Raises:
        InputError: a hit is of another document, or the document has another text at its place.
    """
    search = retriever.search if isinstance(retriever, Retriever) else retriever
    texts = {document.id: document.text for document in task.documents}
    found = [
        FoundChunks(
            question.id, tuple(_found(hit, question, texts, count) for hit in search(question.text, max(ks, default=1)))
        )
        for question in task.questions
    ]
    values = score_questions(task, found, ks, count)
    for k in ks:
        values[f"ndcg@{k}"] = np.array([_ndcg(*one, k) for one in zip(task.questions, found, strict=True)])
    shares = {name: one for name, one in values.items() if not name.startswith("context_tokens@")}
    return RetrieverScores({name: mean_interval(one) for name, one in shares.items()}, values)


def _found(hit: Hit, question: StudyQuestion, texts: Mapping[str, str], count: CountTokens) -> FoundChunk:
    places = [(_name_in_task(hit.place.document, texts), hit.spans), *_copies(hit, texts)]
    document, spans = places[0]
    if document in texts and chunk_text(texts[document], spans) != hit.text:
        raise InputError(f"{hit.place}: the task has another text there: search the documents of the task")
    document, spans = next((place for place in places if _answers(place, question)), places[0])
    return FoundChunk(str(hit.place), document, spans, count(hit.text), hit.score)


def _copies(hit: Hit, texts: Mapping[str, str]) -> Iterator[tuple[str, tuple[Span, ...]]]:
    """The documents and spans of the copies; a copy is told by its sentence, or whole where its white space differs."""
    for copy in hit.copies:
        document, shift = _name_in_task(copy.document, texts), copy.start - hit.sentence.place.start
        spans = tuple((start + shift, end + shift) for start, end in hit.spans)
        if document in texts:
            is_same = spans[0][0] >= 0 and chunk_text(texts[document], spans) == hit.text
            yield document, spans if is_same else ((copy.start, copy.end),)


def _answers(place: tuple[str, tuple[Span, ...]], question: StudyQuestion) -> bool:
    document, spans = place
    if not question.evidence:
        return document in question.relevant
    parts = [part for part in question.evidence if part.document_id == document]
    return any(part.start < end and start < part.end for part in parts for start, end in spans)


def _name_in_task(document: str, names: Collection[str]) -> str:
    parts = document.split("/")
    ends = ("/".join(parts[first:]) for first in range(len(parts)))
    return next((end for end in ends if end in names), document)


def _ndcg(question: StudyQuestion, found: FoundChunks, k: int) -> float:
    ranking = list(dict.fromkeys(hit.document_id for hit in found.hits))
    return ndcg(ranking, dict.fromkeys(question.relevant, 1), k)


def score_questions(
    task: StudyTask, found: Sequence[FoundChunks], ks: Sequence[int], count: CountTokens
) -> dict[str, np.ndarray]:
    """Measures of every question, at every k (a number of chunks).

    - of a task of documents: `recall@k`, `precision@k`, `f1@k` over distinct documents (`document_scores.py`);
    - of a task of evidence: the same names over sentences, long ones in parts (`evidence_scores.py`), and
      `token_recall@k`, `token_precision@k`, `iou@k` (`span_scores.py`);
    - of both: `context_tokens@k`, the tokens of the first k chunks together, overlaps counted as often as they occur.

    Args:
        found: one a question, in the order of `task.questions`.
        count: tokens of a word; each distinct word is counted once.

    Returns:
        name@k -> float64 [n questions], in the order of `task.questions`.
    """
    if not ks or min(ks) < 1:
        raise InputError(f"ks {list(ks)}: give at least one, each at least 1")
    if [item.question_id for item in found] != [question.id for question in task.questions]:
        raise InputError(f"{task.name}: found {len(found)} results of other questions, or in another order")
    _check_hits(task, found)
    score = _evidence_scorer(task, ks, count) if task.kind == "evidence" else _document_scorer(ks)
    columns: dict[str, list[float]] = {}
    for question, item in zip(task.questions, found, strict=True):
        try:
            for name, value in score(question, item):
                columns.setdefault(name, []).append(value)
        except InputError as error:
            raise InputError(f"{task.name}: question {question.id}: {error}") from error
        for k in ks:
            tokens = sum(hit.num_tokens for hit in item.hits[:k])
            columns.setdefault(f"context_tokens@{k}", []).append(tokens)
    return {name: np.array(values, np.float64) for name, values in columns.items()}


def headline_means(task_scores: Mapping[str, np.ndarray], ks: Sequence[int]) -> dict[str, float]:
    """Mean of every measure over the questions, and `f1_of_means@k`.

        f1_of_means@k = 2 * R * P / (R + P),   R, P = means of recall@k and precision@k over the questions

    `f1@k` is the mean of the F1 of each question and has an interval; `f1_of_means@k`, F1 of the means, is how the
    authors of the study average. They differ: a question with all the recall and another with all the precision have
    F1 of means 0.5 and mean F1 0.
    """
    means = {name: float(values.mean()) for name, values in task_scores.items()}
    for k in ks:
        means[f"f1_of_means@{k}"] = harmonic_mean(means[f"recall@{k}"], means[f"precision@{k}"])
    return means


def _document_scorer(ks: Sequence[int]) -> Score:
    def score(question: StudyQuestion, found: FoundChunks) -> Values:
        documents = [hit.document_id for hit in found.hits]
        for k in ks:
            of_k = document_scores(documents, question.relevant, k)
            yield from ((f"recall@{k}", of_k.recall), (f"precision@{k}", of_k.precision), (f"f1@{k}", of_k.f1))

    return score


def _evidence_scorer(task: StudyTask, ks: Sequence[int], count: CountTokens) -> Score:
    texts = {document.id: document.text for document in task.documents}
    count_word = cache(count)
    measure_of = cache(lambda name: measure_tokens(texts[name], count_word))
    held_by, evident_in = make_sentence_finders(texts, task.sentences)

    def score(question: StudyQuestion, found: FoundChunks) -> Values:
        evidence = [(part.document_id, ((part.start, part.end),)) for part in question.evidence]
        gold = frozenset[Sentence]().union(*(evident_in(*place) for place in evidence))
        retrieved = [(hit.document_id, hit.spans) for hit in found.hits[: max(ks)]]
        held = [held_by(*place) for place in retrieved]
        for k, tokens in zip(ks, span_scores(retrieved, evidence, ks, measure_of), strict=True):
            of_k = evidence_scores(held, gold, k)
            yield from ((f"recall@{k}", of_k.recall), (f"precision@{k}", of_k.precision), (f"f1@{k}", of_k.f1))
            yield from ((f"token_recall@{k}", tokens.recall), (f"token_precision@{k}", tokens.precision))
            yield f"iou@{k}", tokens.iou

    return score


def _check_hits(task: StudyTask, found: Sequence[FoundChunks]) -> None:
    lengths = {document.id: len(document.text) for document in task.documents}
    for item in found:
        for hit in item.hits:
            where = f"{task.name}: question {item.question_id}: chunk {hit.chunk_id}"
            if hit.document_id not in lengths:
                raise InputError(f"{where}: is of document {hit.document_id!r}, which is not in the corpus")
            done, length = 0, lengths[hit.document_id]
            for start, end in hit.spans:
                if not done <= start < end <= length:
                    raise InputError(f"{where}: span [{start}, {end}) after character {done} of {length}")
                done = end
            if not hit.spans:
                raise InputError(f"{where}: has no span")
