"""Retrieval tasks: a pool of chunk texts, a pool of questions, and contexts with gold drawn from them.

Training and evaluation see every source of data through `Task`: stories hidden in a haystack, examples of a JSONL file,
or episodes over the user's vectors.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.data.questions.vector_task import VectorTask, stack_episodes
from qrag_jax.data.stories.babilong import compose, draw_noise_pool, fits, text_table
from qrag_jax.data.stories.haystack import Haystack
from qrag_jax.data.stories.stories import Stories
from qrag_jax.qrag.batching import Contexts
from qrag_jax.search.pool_texts import PoolTexts
from qrag_jax.types import Example, InputError, InputWarning, UsageError

PADDING = -1


@dataclass(frozen=True)
class Task:
    """A source of contexts.

    Attributes:
        name: for reports.
        texts: chunk texts (or their vectors, float32 [n, dim]) that ids of `Contexts.chunks` point to.
        questions: question texts (or vectors) that ids of `Contexts.questions` point to.
        query_ids: one per query.
        sizes: int [queries], chunks in the context of each.
        contexts: (query numbers int [batch], generator) -> contexts of these queries; fixed contexts ignore the
            generator.
        fingerprint: query number -> digest of the question and its gold, independent of id, noise, case and white
            space. It shows whether a value was fitted on a question that it is now reported on. Other gold makes
            another question.
        num_left_out: number of queries that do not fit this length; they are not among `query_ids`.
        notes: remarks of the reader of the data, one line each.
        answers: reference answers of every query; empty if a query has none. None if the data has no answers.
        noise: ids of texts that may be in any context and answer nothing (a haystack); None: there are none.
        sets: the data set of every query, in a mixture of several; None: one set.
        num_gold: int [queries], gold chunks of each; None: not known.
        chunk_ids: (query number, numbers of chunks of its context) -> ids of these chunks; None: their numbers.
        judged: judgements of every query, by id of the chunk; None: gold chunks have 1.
        pool: the pool that all queries search; their contexts then hold the gold chunks only. None: a query searches
            its context.
    """

    name: str
    texts: Sequence[str] | np.ndarray
    questions: Sequence[str] | np.ndarray
    query_ids: Sequence[str]
    sizes: np.ndarray
    contexts: Callable[[np.ndarray, np.random.Generator], Contexts]
    fingerprint: Callable[[int], str]
    num_left_out: int = 0
    notes: tuple[str, ...] = ()
    answers: Sequence[tuple[str, ...]] | None = None
    noise: np.ndarray | None = None
    sets: Sequence[str] | None = None
    num_gold: np.ndarray | None = None
    chunk_ids: Callable[[int, Sequence[int]], Sequence[str]] | None = None
    judged: Sequence[Mapping[str, int]] | None = None
    pool: PoolTexts | None = None

    def __len__(self) -> int:
        return len(self.query_ids)

    def check_steps(self, num_steps: int) -> None:
        """Raises an error if a context has fewer chunks than steps.

        Raises:
            InputError: names the query.
        """
        short = np.flatnonzero(self.sizes < num_steps)
        if len(short):
            raise InputError(
                f"{self.name}: query {self.query_ids[int(short[0])]} has {int(self.sizes[short[0]])} chunks, which "
                f"cannot give {num_steps} picks ({len(short)} such queries): make fewer or leave them out"
            )

    def warn_of_steps(self, num_steps: int) -> None:
        """Warns of queries with more gold chunks than steps, because no episode of theirs can be complete."""
        long = [] if self.num_gold is None else self.num_gold[self.num_gold > num_steps]
        if len(long):
            warnings.warn(
                InputWarning(
                    f"{self.name}: {len(long):,} of {len(self):,} questions have more gold chunks (up to {max(long)}) "
                    f"than an episode has picks ({num_steps}), so they can never be complete",
                    remedy=f"set env.num_steps={max(long)}, or leave these questions out",
                ),
                stacklevel=2,
            )


def subset(task: Task, queries: np.ndarray, name: str | None = None) -> Task:
    """The queries of the given numbers, in that order, over the same pools."""
    ids = task.chunk_ids
    return replace(
        task,
        name=name or task.name,
        query_ids=[task.query_ids[int(i)] for i in queries],
        sizes=task.sizes[queries],
        contexts=lambda chosen, rng: task.contexts(queries[chosen], rng),
        fingerprint=lambda query: task.fingerprint(int(queries[query])),
        answers=None if task.answers is None else [task.answers[int(i)] for i in queries],
        sets=None if task.sets is None else [task.sets[int(i)] for i in queries],
        num_gold=None if task.num_gold is None else task.num_gold[queries],
        chunk_ids=None if ids is None else lambda query, numbers: ids(int(queries[query]), numbers),
        judged=None if task.judged is None else [task.judged[int(i)] for i in queries],
    )


def _digest(parts: Iterable[str | bytes]) -> str:
    """16 hexadecimal digits of texts (without case and white space) or bytes, in their order."""
    digest = blake2b(digest_size=8)
    for part in parts:
        text = part if isinstance(part, bytes) else " ".join(part.split()).casefold().encode("utf-8", "surrogatepass")
        digest.update(text)
        digest.update(b"\0")
    return digest.hexdigest()


def hidden_stories_tasks(
    name: str,
    stories: Stories,
    haystack: Haystack,
    lengths: Sequence[int],
    shared_haystack: int | None = None,
) -> list[Task]:
    """Stories whose facts are hidden among the sentences of a haystack, at several lengths; every draw hides them at
    new places.

    Args:
        name: for reports.
        stories: facts, questions, gold.
        haystack: noise; sentences that are facts are removed.
        lengths: chunks of a context, one task each; queries whose story has more facts are left out and counted.
        shared_haystack: the contexts of a batch share a pool of this many noise sentences; None draws freely.

    Returns:
        Tasks over one and the same pool of texts.

    Raises:
        UsageError: no story fits.
    """
    haystack = haystack.without(stories.texts)
    texts = text_table(stories, haystack)

    def at_length(num_chunks: int) -> Task:
        keep = np.flatnonzero(fits(stories, num_chunks))
        if not len(keep):
            raise UsageError(
                f"{name}: none of {len(stories)} questions has its story fit in {num_chunks} chunks: raise num_chunks"
            )

        def contexts(queries: np.ndarray, rng: np.random.Generator) -> Contexts:
            pool = None if shared_haystack is None else draw_noise_pool(haystack, shared_haystack, rng)
            composed = compose(stories, haystack, keep[queries], num_chunks, rng, noise_pool=pool)
            return Contexts(composed.question_ids, composed.chunks, composed.gold)

        def fingerprint(query: int) -> str:
            story = int(keep[query])
            return _digest([stories.question(story), *stories.fact_texts(story)])

        left_out = stories.num_left_out + len(stories) - len(keep)
        query_ids = [stories.query_ids[i] for i in keep]
        sizes = np.full(len(keep), num_chunks)
        return Task(
            name,
            texts,
            stories.questions,
            query_ids,
            sizes,
            contexts,
            fingerprint,
            left_out,
            answers=_answers([(stories.answers[i],) for i in keep]),
            noise=np.arange(len(stories.texts), len(texts)),
            num_gold=np.array([len(stories.gold[i]) for i in keep]),
        )

    return [at_length(num_chunks) for num_chunks in lengths]


def _answers(answers: Sequence[Sequence[str | None]]) -> list[tuple[str, ...]] | None:
    """Reference answers without missing, blank and repeated ones; None if none is left."""
    kept = [tuple(dict.fromkeys(text for text in row if text is not None and text.strip())) for row in answers]
    return kept if any(kept) else None


def examples_task(
    name: str,
    examples: Sequence[Example],
    num_left_out: int = 0,
    notes: tuple[str, ...] = (),
    answers: Sequence[tuple[str, ...]] | None = None,
    sets: Sequence[str] | None = None,
) -> Task:
    """Examples with contexts of their own, padded to the longest of all; equal texts are stored once.

    Args:
        name: for reports.
        examples: at least one, each with gold or an answer.
        num_left_out, notes: as of `Task`.
        answers: reference answers of every example; by default its own answer.
        sets: as of `Task`.

    Raises:
        InputError: no example, an example without gold and answer, or a wrong number of answers or sets.
    """
    if answers is not None and len(answers) != len(examples):
        raise InputError(f"{name}: answers of {len(answers)} questions for {len(examples)} examples: give one row each")
    if sets is not None and len(sets) != len(examples):
        raise InputError(f"{name}: sets of {len(sets)} questions for {len(examples)} examples: give one each")
    if not examples:
        raise InputError(f"{name}: no example")
    text_ids: dict[str, int] = {}
    question_ids: dict[str, int] = {}
    chunks = [np.array([text_ids.setdefault(c, len(text_ids)) for c in e.chunks], np.int32) for e in examples]
    questions = np.array([question_ids.setdefault(e.question, len(question_ids)) for e in examples], np.int32)
    width = max(len(row) for row in chunks)

    def contexts(queries: np.ndarray, rng: np.random.Generator) -> Contexts:
        del rng
        ids = np.full((len(queries), width), PADDING, np.int32)
        gold = np.zeros(ids.shape, bool)
        for row, query in enumerate(queries):
            ids[row, : len(chunks[query])] = chunks[query]
            gold[row, list(examples[query].gold)] = True
        return Contexts(questions[queries], ids, gold)

    def fingerprint(query: int) -> str:
        example = examples[query]
        return _digest([example.question, *sorted(example.chunks[i] for i in example.gold)])

    sizes = np.array([len(row) for row in chunks])
    query_ids = [e.query_id for e in examples]
    texts, asked = list(text_ids), list(question_ids)
    right = _answers([(example.answer,) for example in examples] if answers is None else answers)
    silent = [e.query_id for i, e in enumerate(examples) if not e.gold and not (right and right[i])]
    if silent:
        raise InputError(
            f"{name}: query {silent[0]} has no gold chunk and no answer, so nothing can be rewarded: leave it out"
        )
    num_gold = np.array([len(set(example.gold)) for example in examples])
    return Task(
        name, texts, asked, query_ids, sizes, contexts, fingerprint, num_left_out, notes, right, None, sets, num_gold
    )


def corpus_task(study: StudyTask, judged: Mapping[str, Mapping[str, int]], num_left_out: int = 0) -> Task:
    """Questions that all search one corpus: a document is a chunk, and a context has all of them in their order.

    A document that is the question itself is not in the context of that question (`StudyQuestion.itself`).

    Args:
        study: documents and questions.
        judged: question id -> document id -> judgement.
        num_left_out: as of `Task`.
    """
    place = {document.id: number for number, document in enumerate(study.documents)}
    names, asked = list(place), study.questions
    gold_of = [[place[name] for name in question.relevant] for question in asked]

    def chunks_of(query: int) -> np.ndarray:
        return np.delete(np.arange(len(names), dtype=np.int32), [place[name] for name in [asked[query].itself] if name])

    def contexts(queries: np.ndarray, rng: np.random.Generator) -> Contexts:
        del rng
        ids = np.full((len(queries), len(names)), PADDING, np.int32)
        gold = np.zeros(ids.shape, bool)
        for row, query in enumerate(queries.tolist()):
            own = chunks_of(query)
            ids[row, : len(own)] = own
            gold[row, np.searchsorted(own, gold_of[query])] = True
        return Contexts(np.asarray(queries, np.int32), ids, gold)

    return Task(
        study.name,
        [document.text for document in study.documents],
        [question.text for question in asked],
        [question.id for question in asked],
        np.array([len(names) - bool(question.itself) for question in asked]),
        contexts,
        lambda query: _digest([asked[query].text, *sorted(study.documents[i].text for i in gold_of[query])]),
        num_left_out,
        num_gold=np.array([len(question.relevant) for question in asked]),
        chunk_ids=lambda query, numbers: [names[i] for i in chunks_of(query)[list(numbers)]],
        judged=[judged[question.id] for question in asked],
    )


@dataclass(frozen=True)
class PoolQuestion:
    """A question to a pool, the numbers of the chunks that answer it together, and its right answers.

    Only a run that is paid by answers may have questions without gold.
    """

    id: str
    text: str
    gold: tuple[int, ...]
    answers: tuple[str, ...] = ()


def pool_task(
    name: str,
    pool: PoolTexts,
    questions: Sequence[PoolQuestion],
    num_left_out: int = 0,
    notes: tuple[str, ...] = (),
    sets: Sequence[str] | None = None,
) -> Task:
    """Questions that search one pool of many documents. The context of a question holds its gold chunks.

    Args:
        name, num_left_out, notes, sets: as of `Task`.
        questions: at least one.

    Raises:
        InputError: no question is left.
    """
    if not questions:
        raise InputError(f"{name}: no question has its gold in the pool: {'; '.join(notes) or 'the file is empty'}")
    width = max(1, *(len(question.gold) for question in questions))

    def contexts(queries: np.ndarray, rng: np.random.Generator) -> Contexts:
        del rng
        ids = np.full((len(queries), width), PADDING, np.int32)
        for row, query in zip(ids, queries.tolist(), strict=True):
            row[: len(questions[query].gold)] = questions[query].gold
        return Contexts(np.asarray(queries, np.int32), ids, ids != PADDING)

    return Task(
        name,
        pool.texts,
        [question.text for question in questions],
        [question.id for question in questions],
        np.full(len(questions), len(pool.texts)),
        contexts,
        lambda query: _digest([questions[query].text, *sorted(pool.texts[i] for i in questions[query].gold)]),
        num_left_out,
        notes,
        answers=_answers([question.answers for question in questions]),
        noise=np.arange(len(pool.texts)),
        sets=sets,
        num_gold=np.array([len(question.gold) for question in questions]),
        pool=pool,
    )


def vectors_task(name: str, task: VectorTask) -> Task:
    """Episodes over given vectors; chunk and question vectors must have the same width."""
    if task.chunk_vectors.shape[1] != task.question_vectors.shape[1]:
        raise InputError(
            f"{name}: chunk vectors have {task.chunk_vectors.shape[1]} components, question vectors "
            f"{task.question_vectors.shape[1]}: embed both with the same model"
        )
    width = max(len(row) for row in task.chunks)

    def contexts(queries: np.ndarray, rng: np.random.Generator) -> Contexts:
        del rng
        batch = stack_episodes(task, queries, width)
        return Contexts(batch.question_ids, np.where(batch.valid, batch.chunks, PADDING), batch.gold)

    def fingerprint(query: int) -> str:
        gold = task.chunk_vectors[task.chunks[query][task.gold[query]]]
        return _digest([task.question_vectors[task.question_ids[query]].tobytes(), gold.tobytes()])

    sizes = np.array([len(row) for row in task.chunks])
    num_gold = np.array([len(row) for row in task.gold])
    texts, asked = task.chunk_vectors, task.question_vectors
    return Task(name, texts, asked, task.query_ids, sizes, contexts, fingerprint, num_gold=num_gold)
