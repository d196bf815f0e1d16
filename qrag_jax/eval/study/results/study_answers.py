"""The third task of a study: a language model answers every question from the chunks that were found for it.

The prompt of answer generation: what a document says in it is data (`llm/prompts.py:fence`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.records import FoundChunks
from qrag_jax.llm.calls import ask_all
from qrag_jax.llm.prompts import load_prompt, passages_prompt
from qrag_jax.measures.answer_vectors import BertScore, answer_similarities, bert_score
from qrag_jax.types import (
    Embed,
    EmbedTokens,
    Generation,
    InputError,
    Message,
    Sampling,
    TextGenerator,
    UsageError,
)

_NAME = "study_answer"


def make_prompt(question: str, passages: Sequence[str], name: str) -> tuple[Message, ...]:
    """The conversation that asks a question: what to do, then the passages in the order given and the question.

    Args:
        passages: texts of the chunks, whole; none is allowed.
        name: id of the question. The mark is drawn from it: the same for all strategies, known to no document.
    """
    return passages_prompt(load_prompt(_NAME), question, passages, name)


def prompt_sha256() -> str:
    """Hash of the templates, hexadecimal: answers to prompts of other templates cannot be compared."""
    return load_prompt(_NAME).sha256


_DEFAULT_SAMPLING = Sampling(max_tokens=400)


@dataclass(frozen=True)
class StudyAnswer:
    """What a language model said to one question.

    Attributes:
        question_id: of the task.
        chunk_ids: of the passages in the prompt, in their order.
        generation: text, why it ended, tokens, or the error.
        bert_score: against the reference answers; None where the call failed, there is no reference, or it was not
            asked for.
        cosine: of question and answer; None where the call failed or it was not asked for.
    """

    question_id: str
    chunk_ids: tuple[str, ...]
    generation: Generation
    bert_score: BertScore | None = None
    cosine: float | None = None


@dataclass(frozen=True)
class StudyAnswers:
    """All answers of one strategy on one task, in the order of the questions.

    A failed call counts in `num_failed` and in no mean: it is no empty answer, and no 0. Two strategies are comparable
    by their means only where neither failed; else compare the questions that both answered.

    Attributes:
        num_chunks: most passages in a prompt.
        prompt_sha256: of the templates of the prompt.
        answers: one a question.
        num_answered, num_failed: calls that gave an answer, maybe an empty one, and calls that gave none.
        num_cut: of the answered, those that ended at `max_tokens`.
        num_scored: of the answered, those with a BERTScore.
        bert_precision, bert_recall, bert_f1: means over the scored questions; None where there are none.
        cosine: mean over the answered questions; None where there are none or it was not asked for.
        prompt_tokens, completion_tokens: of all calls together, those that failed too.
    """

    num_chunks: int
    prompt_sha256: str
    answers: tuple[StudyAnswer, ...]
    num_answered: int
    num_failed: int
    num_cut: int
    num_scored: int
    bert_precision: float | None
    bert_recall: float | None
    bert_f1: float | None
    cosine: float | None
    prompt_tokens: int
    completion_tokens: int


def answer_questions(
    task: StudyTask,
    found: Sequence[FoundChunks],
    generator: TextGenerator,
    *,
    num_chunks: int = 5,
    sampling: Sampling = _DEFAULT_SAMPLING,
    embed: Embed | None = None,
    embed_tokens: EmbedTokens | None = None,
) -> StudyAnswers:
    """Asks the model every question with its best chunks, and scores what it says.

    Passages stand in the order of the search, best first: the paper takes the top 5 and names no order, and this is
    what a search hands to a model. Nothing is cut: a prompt beyond the model's window is for the generator to refuse
    (`Generation.error`), which counts as failed.

    Args:
        found: chunks of every question, in the order of `task.questions`.
        generator: called once with all prompts; a question for which nothing was found is asked too, without passages.
        num_chunks: passages a prompt, at most; the paper's text says 5, its code takes 1.
        sampling: the paper's 400 tokens, greedy.
        embed: encoder of the query-answer cosine; None leaves it out.
        embed_tokens: encoder of BERTScore; None leaves it out.
    """
    if num_chunks < 1:
        raise UsageError(f"num_chunks {num_chunks}: at least 1 passage a prompt")
    passages = _passages(task, found, num_chunks)
    prompts = [
        make_prompt(question.text, texts, question.id) for question, texts in zip(task.questions, passages, strict=True)
    ]
    generations = ask_all(generator, prompts, sampling=sampling)
    cosines = _cosines(task, generations, embed)
    answers = tuple(
        StudyAnswer(
            question.id,
            tuple(hit.chunk_id for hit in hits.hits[:num_chunks]),
            generation,
            _bert_score(question, generation, embed_tokens),
            cosine,
        )
        for question, hits, generation, cosine in zip(task.questions, found, generations, cosines, strict=True)
    )
    return _summarise(answers, num_chunks)


def answer_objects(result: StudyAnswers) -> list[dict[str, object]]:
    """One JSON-ready object a question, in order, for `per_query.jsonl`; the answer of a failed call is null."""
    return [
        {
            "question_id": answer.question_id,
            "chunks": list(answer.chunk_ids),
            "answer": answer.generation.text if answer.generation.error is None else None,
            "error": answer.generation.error,
            "finish_reason": answer.generation.finish_reason,
            "prompt_tokens": answer.generation.prompt_tokens,
            "completion_tokens": answer.generation.completion_tokens,
            "bert_precision": answer.bert_score.precision if answer.bert_score else None,
            "bert_recall": answer.bert_score.recall if answer.bert_score else None,
            "bert_f1": answer.bert_score.f1 if answer.bert_score else None,
            "cosine": answer.cosine,
        }
        for answer in result.answers
    ]


def _passages(task: StudyTask, found: Sequence[FoundChunks], num_chunks: int) -> list[list[str]]:
    """Texts of the best chunks of every question."""
    if len(found) != len(task.questions):
        raise InputError(f"{task.name}: {len(task.questions)} questions, but chunks were found for {len(found)}")
    texts = {document.id: document.text for document in task.documents}
    passages = []
    for question, result in zip(task.questions, found, strict=True):
        where = f"{task.name}: question {question.id}"
        if result.question_id != question.id:
            raise InputError(f"{where}: found holds {result.question_id!r} here: give the order of the questions")
        for hit in result.hits[:num_chunks]:
            if hit.document_id not in texts:
                raise InputError(f"{where}: chunk {hit.chunk_id} is of {hit.document_id!r}, which is not in the corpus")
            if any(not 0 <= start < end <= len(texts[hit.document_id]) for start, end in hit.spans):
                raise InputError(f"{where}: chunk {hit.chunk_id}: spans {list(hit.spans)} outside of its document")
        passages.append([chunk_text(texts[hit.document_id], hit.spans) for hit in result.hits[:num_chunks]])
    return passages


def _bert_score(question: StudyQuestion, generation: Generation, embed_tokens: EmbedTokens | None) -> BertScore | None:
    if embed_tokens is None or generation.error is not None or not question.answers:
        return None
    return bert_score(generation.text, question.answers, embed_tokens)


def _cosines(task: StudyTask, generations: Sequence[Generation], embed: Embed | None) -> list[float | None]:
    """Of every question; None where there is no answer."""
    cosines: list[float | None] = [None] * len(generations)
    if embed is not None:
        answered = [number for number, generation in enumerate(generations) if generation.error is None]
        questions = [task.questions[number].text for number in answered]
        values = answer_similarities(questions, [generations[number].text for number in answered], embed)
        for number, value in zip(answered, values.tolist(), strict=True):
            cosines[number] = value
    return cosines


def _summarise(answers: tuple[StudyAnswer, ...], num_chunks: int) -> StudyAnswers:
    generations = [answer.generation for answer in answers]
    answered = [generation for generation in generations if generation.error is None]
    scores = [answer.bert_score for answer in answers if answer.bert_score is not None]
    return StudyAnswers(
        num_chunks=num_chunks,
        prompt_sha256=prompt_sha256(),
        answers=answers,
        num_answered=len(answered),
        num_failed=len(answers) - len(answered),
        num_cut=sum(generation.finish_reason == "length" for generation in answered),
        num_scored=len(scores),
        bert_precision=_mean([score.precision for score in scores]),
        bert_recall=_mean([score.recall for score in scores]),
        bert_f1=_mean([score.f1 for score in scores]),
        cosine=_mean([answer.cosine for answer in answers if answer.cosine is not None]),
        prompt_tokens=sum(generation.prompt_tokens for generation in generations),
        completion_tokens=sum(generation.completion_tokens for generation in generations),
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
