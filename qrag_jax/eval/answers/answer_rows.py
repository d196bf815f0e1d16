"""Answers of a language model from the chunks that methods chose, scored: one record an answer, one row a method.

The prompt contains all picks of a method in document order, each chunk between marks. The template `short_answer`
asks for the answer only. The whole answer is scored, without the white space around it. The prompt is not cut either:
the generator refuses one beyond the model's window (`Generation.error`).

Methods that chose the same chunks ask the same prompt, which is answered once for all of them.

A `Reading` has the questions, with the chunks that a method chose for each, or with the bounds of any choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qrag_jax.eval.answers.measure_answers import DEFAULT_MEASURES, MeasureOptions, check_measures, measure_answers
from qrag_jax.eval.answers.records import MEASURES, AnswerRecord, AnswerRow, Score
from qrag_jax.eval.retrieval.harness import draw_contexts
from qrag_jax.eval.retrieval.records import QueryRecord
from qrag_jax.eval.setting import Setting
from qrag_jax.llm.calls import SHORT_ANSWER_TOKENS, ask_all
from qrag_jax.llm.judges import Agreement
from qrag_jax.llm.prompts import PromptTemplate, load_prompt, passages_prompt
from qrag_jax.llm.thinking import empty_answer
from qrag_jax.measures.aggregate import mean_interval
from qrag_jax.measures.answer_scores import GivenAnswer
from qrag_jax.qrag.tasks import Task
from qrag_jax.types import Generation, InputError, Message, Sampling, TextGenerator

# Chunks that no retriever chose, as methods: all gold chunks and no other, and none. What a reader is worth without
# the search: no choice of chunks should be better than the first; the second is what the model knows by itself.
BOUNDS = ("gold_chunks", "no_chunks")


@dataclass(frozen=True)
class Reading:
    """One question and the chunks that it is to be answered from.

    Attributes:
        query_id, question, setting, fact_em, fact_f1: as of the `QueryRecord`; the method may also be one of `BOUNDS`.
        chosen: places of the chunks in the context, in document order.
        texts: of the chunks, in that order.
    """

    query_id: str
    question: str
    setting: Setting
    fact_em: float
    fact_f1: float
    chosen: tuple[int, ...]
    texts: tuple[str, ...]


def make_readings(records: Sequence[QueryRecord]) -> list[Reading]:
    """The chosen chunks of every record, in document order whatever the order of retrieval: a story has an order."""
    return [_reading(record) for record in records]


def bound_readings(
    task: Task, records: Sequence[QueryRecord], num_questions: int | None = None, seed: int = 0
) -> list[Reading]:
    """The same questions with all their gold chunks and nothing else, then without any chunk (`BOUNDS`).

    Args:
        records: of one method under one protocol, as an evaluation gives them.
    """
    queries, contexts = draw_contexts(task, num_questions, seed)
    same = [task.query_ids[int(i)] for i in queries] == [record.query_id for record in records]
    if not same or any(np.flatnonzero(g).tolist() != list(r.gold) for g, r in zip(contexts.gold, records, strict=True)):
        raise InputError(f"{task.name}: the records have other contexts than the task has with seed {seed}")
    readings = []
    for method, share in zip(BOUNDS, (1.0, 0.0), strict=True):
        for record, chunks in zip(records, contexts.chunks, strict=True):
            chosen = record.gold if method == "gold_chunks" else ()
            readings.append(
                Reading(
                    query_id=record.query_id,
                    question=record.question,
                    setting=_bound(method, record.setting),
                    fact_em=share,
                    fact_f1=share,
                    chosen=chosen,
                    texts=tuple(str(task.texts[int(chunks[place])]) for place in chosen),
                )
            )
    return readings


def _bound(method: str, of: Setting) -> Setting:
    """The setting of a bound next to the rows of a method."""
    return replace(of, method=method, mode="none", positions="none", protocol="none", beam_width=1)


def _reading(record: QueryRecord) -> Reading:
    if record.texts is None:
        raise InputError(
            f"query {record.query_id}, {record.setting.method}: its record has no texts of the chosen chunks: answers "
            "are read from texts, not from vectors"
        )
    order = sorted(range(len(record.chosen)), key=record.chosen.__getitem__)
    return Reading(
        query_id=record.query_id,
        question=record.question,
        setting=record.setting,
        fact_em=record.fact_em,
        fact_f1=record.fact_f1,
        chosen=tuple(record.chosen[place] for place in order),
        texts=tuple(record.texts[place] for place in order),
    )


SHORT_ANSWER = Sampling(max_tokens=SHORT_ANSWER_TOKENS)
_Answers = Mapping[str, tuple[str, ...]]  # query id -> right answers


@dataclass(frozen=True)
class AnswerResult:
    """Answers of all methods on one task.

    Attributes:
        rows: in the order in which methods and protocols come in the readings.
        records: one a question with a reference and row, in the order of the readings.
        calls: of the answers, one per distinct prompt, then of the judges, for all rows together.
    """

    rows: tuple[AnswerRow, ...]
    records: tuple[AnswerRecord, ...]
    calls: tuple[Generation, ...]


def answer_rows(
    task: Task,
    readings: Sequence[Reading],
    generator: TextGenerator,
    *,
    judges: Sequence[TextGenerator] = (),
    sampling: Sampling = SHORT_ANSWER,
    measures: MeasureOptions = DEFAULT_MEASURES,
    prompts: Path | None = None,
) -> AnswerResult:
    """Asks every question from its chunks, and scores the answers; questions without a reference are not asked.

    Args:
        task: with reference answers.
        readings: questions of that task with their chunks.
        generator: called once, with all distinct prompts.
        judges: of the measures `claims` and `judge`.
        sampling: of the answers.
        measures: what they are scored by.
        prompts: folder of the user's templates; None takes ours.

    Raises:
        UsageError: a measure that cannot score anything: before the model is asked.
        InputError: no question with a reference answer, a question of another task, or a generator that breaks its
            contract.
    """
    check_measures(measures, len(judges))
    right = _reference_answers(task, readings)
    template = load_prompt("short_answer", prompts)
    asked = [reading for reading in readings if right[reading.query_id]]
    conversations = [make_prompt(template, reading) for reading in asked]
    distinct = ask_distinct(generator, conversations, sampling)
    generations = [distinct[conversation] for conversation in conversations]
    answered = [number for number, generation in enumerate(generations) if generation.error is None]
    given = [_given(asked[number], generations[number], right) for number in answered]
    measured = measure_answers(given, judges, measures)
    scores = dict(zip(answered, zip(measured.scores, measured.errors, strict=True), strict=True))
    records = [
        _record(reading, right, generation, *scores.get(number, ({}, {})), generator.model, template.sha256)
        for number, (reading, generation) in enumerate(zip(asked, generations, strict=True))
    ]
    names = tuple(judge.model for judge in judges) if measured.agreement else ()
    rows = []
    for setting in dict.fromkeys(reading.setting for reading in asked):
        own = [number for number, reading in enumerate(asked) if reading.setting == setting]
        left_out = sum(reading.setting == setting for reading in readings) - len(own)
        facts = [(asked[number].fact_em, asked[number].fact_f1) for number in own]
        values = [records[number] for number in own]
        rows.append(_row(task.name, values, facts, left_out, sampling, measures, names, measured.agreement))
    return AnswerResult(tuple(rows), tuple(records), (*distinct.values(), *measured.calls))


def _reference_answers(task: Task, readings: Sequence[Reading]) -> dict[str, tuple[str, ...]]:
    """Right answers of the questions by query id; empty where the data has none."""
    known = dict(zip(task.query_ids, task.answers or [()] * len(task), strict=True))
    stranger = next((reading.query_id for reading in readings if reading.query_id not in known), None)
    if stranger is not None:
        raise InputError(f"{task.name}: query {stranger} is not of this task")
    if not any(known[reading.query_id] for reading in readings):
        raise InputError(f'{task.name}: no question has a reference answer; give each one a field "answer"')
    return known


def make_prompt(template: PromptTemplate, reading: Reading) -> tuple[Message, ...]:
    """The conversation that asks a question: its chunks in document order, each between marks, then the question."""
    return passages_prompt(template, reading.question, reading.texts, reading.query_id, nothing="(no passages)")


def ask_distinct(
    generator: TextGenerator, prompts: Sequence[tuple[Message, ...]], sampling: Sampling
) -> dict[tuple[Message, ...], Generation]:
    """The answer to every prompt; prompts that are equal are asked once."""
    distinct = list(dict.fromkeys(prompts))
    answers = map(empty_answer, ask_all(generator, distinct, sampling=sampling))
    return dict(zip(distinct, answers, strict=True))


def _given(reading: Reading, generation: Generation, right: _Answers) -> GivenAnswer:
    return GivenAnswer(reading.query_id, reading.question, generation.text.strip(), right[reading.query_id])


def _record(
    reading: Reading,
    right: _Answers,
    generation: Generation,
    scores: dict[str, float],
    errors: dict[str, str],
    model: str,
    prompt_sha256: str,
) -> AnswerRecord:
    return AnswerRecord(
        query_id=reading.query_id,
        question=reading.question,
        setting=reading.setting,
        chosen=reading.chosen,
        references=right[reading.query_id],
        answer=None if generation.error is not None else generation.text.strip(),
        error=generation.error,
        finish_reason=generation.finish_reason,
        prompt_tokens=generation.prompt_tokens,
        completion_tokens=generation.completion_tokens,
        scores=scores,
        errors=errors,
        model=model,
        prompt_sha256=prompt_sha256,
    )


def _row(
    task: str,
    records: Sequence[AnswerRecord],
    facts: Sequence[tuple[float, float]],
    num_without_reference: int,
    sampling: Sampling,
    measures: MeasureOptions,
    judges: tuple[str, ...],
    agreement: dict[str, Agreement],
) -> AnswerRow:
    first, answered = records[0], [record for record in records if record.error is None]
    fact_em, fact_f1 = (float(value) for value in np.mean(facts, axis=0))
    return AnswerRow(
        task=task,
        setting=first.setting,
        n=len(records),
        num_answered=len(answered),
        num_failed=len(records) - len(answered),
        num_cut=sum(record.finish_reason == "length" for record in answered),
        num_without_reference=num_without_reference,
        fact_em=fact_em,
        fact_f1=fact_f1,
        scores={name: _score(answered, m, name) for m in measures.measures for name in MEASURES[m]},
        prompt_tokens=sum(record.prompt_tokens for record in records),
        completion_tokens=sum(record.completion_tokens for record in records),
        model=first.model,
        prompt_sha256=first.prompt_sha256,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        convention=measures.convention,
        judges=judges,
        agreement=agreement,
    )


def _score(answered: Sequence[AnswerRecord], measure: str, name: str) -> Score:
    """The mean over the answers that have a score, with its interval."""
    values = np.array([record.scores[name] for record in answered if name in record.scores], np.float64)
    num_failed = sum(measure in record.errors for record in answered)
    if not len(values):
        return Score(None, None, None, 0, num_failed)
    found = mean_interval(values)
    return Score(found.mean, found.low, found.high, found.n, num_failed)
