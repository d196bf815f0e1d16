"""The third task of a study: a language model answers every question from the chunks that were found for it.

The prompt of answer generation: text of documents in it is data (`llm/prompts.py:fence`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.records import FoundChunks
from qrag_jax.llm.calls import ask_all
from qrag_jax.llm.prompts import load_prompt, passages_prompt
from qrag_jax.llm.thinking import empty_answer
from qrag_jax.measures.answer_vectors import BertScore, answer_similarities, bert_score
from qrag_jax.types import (
    Embed,
    EmbedTokens,
    Generation,
    Message,
    Sampling,
    TextGenerator,
)


def make_prompt(question: str, passages: Sequence[str], name: str) -> tuple[Message, ...]:
    """The conversation that asks a question: what to do, then the passages in the order given and the question.

    Args:
        passages: texts of the chunks, whole; none is allowed.
        name: id of the question. The mark is drawn from it: the same for all strategies, known to no document.
    """
    return passages_prompt(load_prompt("study_answer"), question, passages, name)


_SAMPLING = Sampling(max_tokens=400)  # the paper's


@dataclass(frozen=True)
class StudyAnswer:
    """The answer of a language model to one question.

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


def answer_questions(
    task: StudyTask,
    found: Sequence[FoundChunks],
    generator: TextGenerator,
    *,
    num_chunks: int,
    embed: Embed | None = None,
    embed_tokens: EmbedTokens | None = None,
) -> tuple[StudyAnswer, ...]:
    """Asks the model every question with its best chunks, and scores the answers.

    Passages are in the order of the search, best first: the paper takes the top 5 and names no order. Nothing is cut:
    the generator refuses a prompt beyond the model's window (`Generation.error`), which counts as failed.

    Args:
        found: chunks of every question, in the order of `task.questions`.
        generator: called once with all prompts; a question for which nothing was found is asked too, without passages.
        num_chunks: passages a prompt, at most; the paper's text says 5, its code takes 1.
        embed: encoder of the query-answer cosine; None leaves it out.
        embed_tokens: encoder of BERTScore; None leaves it out.
    """
    texts = {document.id: document.text for document in task.documents}
    prompts = [
        make_prompt(
            question.text,
            [chunk_text(texts[hit.document_id], hit.spans) for hit in result.hits[:num_chunks]],
            question.id,
        )
        for question, result in zip(task.questions, found, strict=True)
    ]
    generations = [empty_answer(answer) for answer in ask_all(generator, prompts, sampling=_SAMPLING)]
    cosines = _cosines(task, generations, embed)
    return tuple(
        StudyAnswer(
            question.id,
            tuple(hit.chunk_id for hit in hits.hits[:num_chunks]),
            generation,
            _bert_score(question, generation, embed_tokens),
            cosine,
        )
        for question, hits, generation, cosine in zip(task.questions, found, generations, cosines, strict=True)
    )


def answer_means(answers: Sequence[StudyAnswer]) -> dict[str, float]:
    """`answers_failed`, the share of calls without an answer, and means of `answer_cosine` and `answer_bert_f1`.

    A failed call is not in the mean: it is neither an empty answer nor a 0. The means of two strategies are
    comparable only if neither has failures. A measure without values has no mean.
    """
    failed = sum(answer.generation.error is not None for answer in answers)
    values = {
        "answer_cosine": [answer.cosine for answer in answers if answer.cosine is not None],
        "answer_bert_f1": [answer.bert_score.f1 for answer in answers if answer.bert_score is not None],
    }
    means = {name: float(np.mean(own)) for name, own in values.items() if own}
    return {"answers_failed": failed / len(answers), **means}


def answer_objects(answers: Sequence[StudyAnswer]) -> list[dict[str, object]]:
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
        for answer in answers
    ]


def _bert_score(question: StudyQuestion, generation: Generation, embed_tokens: EmbedTokens | None) -> BertScore | None:
    if embed_tokens is None or generation.error is not None or not question.answers:
        return None
    return bert_score(generation.text, question.answers, embed_tokens)


def _cosines(task: StudyTask, generations: Sequence[Generation], embed: Embed | None) -> list[float | None]:
    """Cosines of every question; None without an answer."""
    cosines: list[float | None] = [None] * len(generations)
    if embed is not None:
        answered = [number for number, generation in enumerate(generations) if generation.error is None]
        questions = [task.questions[number].text for number in answered]
        values = answer_similarities(questions, [generations[number].text for number in answered], embed)
        for number, value in zip(answered, values.tolist(), strict=True):
            cosines[number] = value
    return cosines
