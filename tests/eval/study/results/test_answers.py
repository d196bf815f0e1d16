"""Answers of a scripted language model: what it is asked, how it is scored, and that failures stay failures."""

import json
from dataclasses import replace

import numpy as np
import pytest

from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.records import FoundChunk, FoundChunks
from qrag_jax.eval.study.results.study_answers import answer_objects, answer_questions, make_prompt, prompt_sha256
from qrag_jax.measures.answer_vectors import BertScore
from qrag_jax.types import Document, Generation, InputError, Sampling, UsageError

WORDS = ("red", "blue", "green")


def count_colours(text):
    return np.array([text.lower().count(word) for word in WORDS], np.float32)


def embed(texts):
    return np.stack([count_colours(text) for text in texts])


def embed_tokens(text):
    found = [word for word in text.lower().replace(".", " ").split() if word in WORDS]
    vectors = np.array([count_colours(word) for word in found], np.float32).reshape(-1, len(WORDS))
    return vectors, np.zeros((len(found), 2), np.int64)


class Scripted:
    """A language model that says what it was told to say, and remembers what it was asked."""

    model = "scripted"

    def __init__(self, *generations):
        self.generations = generations
        self.calls = []

    def generate(self, prompts, *, sampling, finished=None):
        self.calls.append((prompts, sampling))
        return list(self.generations)


def says(text, finish_reason="stop"):
    return Generation(text, finish_reason, prompt_tokens=100, completion_tokens=len(text.split()))


FAILED = Generation("", "error", prompt_tokens=7, error="prompt of 9000 tokens, window of 8192")


def hit(chunk_id, document_id, *spans):
    return FoundChunk(chunk_id, document_id, spans, num_tokens=1, score=0.5)


@pytest.fixture
def task():
    return StudyTask(
        name="colours",
        kind="documents",
        documents=(Document("a", "Roses are red. Skies are blue."), Document("b", "Grass is green.")),
        questions=(
            StudyQuestion("q1", "Are roses red?", ("a",), answers=("Red.",)),
            StudyQuestion("q2", "Is grass blue?", ("b",), answers=("Green.", "Not blue.")),
            StudyQuestion("q3", "Is anything red?", ("a",)),
        ),
    )


FOUND = (
    FoundChunks("q1", (hit("c2", "b", (0, 15)), hit("c1", "a", (0, 14)), hit("c0", "a", (15, 30)))),
    FoundChunks("q2", (hit("c3", "a", (0, 5), (19, 30)),)),
    FoundChunks("q3", ()),
)


# --- what is asked


def test_passages_are_given_best_first_and_at_most_as_many_as_asked_for(task):
    model = Scripted(says("red"), says("green"), says("red"))
    result = answer_questions(task, FOUND, model, num_chunks=2)
    ((prompts, sampling),) = model.calls
    assert sampling == Sampling(max_tokens=400, temperature=0.0)
    assert [tuple(prompt) for prompt in prompts] == [
        make_prompt("Are roses red?", ["Grass is green.", "Roses are red."], "q1"),
        make_prompt("Is grass blue?", ["Roses\ns are blue."], "q2"),  # a chunk of two spans
        make_prompt("Is anything red?", [], "q3"),
    ]
    assert [answer.chunk_ids for answer in result.answers] == [("c2", "c1"), ("c3",), ()]
    assert (result.num_chunks, result.prompt_sha256) == (2, prompt_sha256())


def test_sampling_is_handed_on(task):
    model = Scripted(says("red"), says("green"), says("red"))
    answer_questions(task, FOUND, model, sampling=Sampling(max_tokens=3, seed=5))
    assert model.calls[0][1] == Sampling(max_tokens=3, seed=5)


def test_a_whole_document_is_not_cut(task):
    text = "A long tale. " * 50_000
    long = replace(task, documents=(Document("a", text), task.documents[1]))
    model = Scripted(says("red"), says("green"), says("red"))
    found = (FoundChunks("q1", (hit("c", "a", (0, len(text))),)), *FOUND[1:])
    answer_questions(long, found, model)
    assert text in model.calls[0][0][0][1].content


# --- scores


def test_scores_by_hand(task):
    model = Scripted(says("Red."), says("Blue."), says("Red and blue.", "length"))
    result = answer_questions(task, FOUND, model, embed=embed, embed_tokens=embed_tokens)
    first, second, third = result.answers
    assert (first.bert_score, second.bert_score, third.bert_score) == (BertScore(1, 1, 1), BertScore(1, 1, 1), None)
    assert (first.cosine, second.cosine) == (1.0, 1.0)
    assert third.cosine == pytest.approx(1 / np.sqrt(2))
    assert (result.num_answered, result.num_failed, result.num_cut, result.num_scored) == (3, 0, 1, 2)
    assert (result.bert_precision, result.bert_recall, result.bert_f1) == (1.0, 1.0, 1.0)
    assert result.cosine == pytest.approx((2 + 1 / np.sqrt(2)) / 3)
    assert (result.prompt_tokens, result.completion_tokens) == (300, 5)


def test_a_failed_call_is_in_no_mean_and_an_empty_answer_is_a_zero(task):
    model = Scripted(says(""), FAILED, says("Red."))
    result = answer_questions(task, FOUND, model, embed=embed, embed_tokens=embed_tokens)
    empty, failed, _ = result.answers
    assert (empty.bert_score, empty.cosine) == (BertScore(0, 0, 0), 0.0)
    assert (failed.bert_score, failed.cosine) == (None, None)
    assert (result.num_answered, result.num_failed, result.num_scored) == (2, 1, 1)
    assert (result.bert_f1, result.cosine) == (0.0, 0.5)  # over 1 and 2 questions
    assert result.prompt_tokens == 207  # what a failed call has read is paid for


def test_if_every_call_fails_there_are_no_means(task):
    result = answer_questions(task, FOUND, Scripted(*[FAILED] * 3), embed=embed, embed_tokens=embed_tokens)
    assert (result.num_answered, result.num_failed) == (0, 3)
    assert (result.bert_precision, result.bert_recall, result.bert_f1, result.cosine) == (None,) * 4


def test_without_encoders_nothing_is_scored(task):
    result = answer_questions(task, FOUND, Scripted(says("red"), says("green"), FAILED))
    assert {answer.bert_score for answer in result.answers} == {answer.cosine for answer in result.answers} == {None}
    assert (result.num_answered, result.num_scored, result.cosine) == (2, 0, None)


# --- per_query.jsonl


def test_objects_are_strict_json_and_tell_failed_from_empty(task):
    model = Scripted(says(""), FAILED, says("Red."))
    objects = answer_objects(answer_questions(task, FOUND, model, embed=embed, embed_tokens=embed_tokens))
    assert json.loads(json.dumps(objects, allow_nan=False)) == objects
    assert objects[0] == {
        "question_id": "q1",
        "chunks": ["c2", "c1", "c0"],
        "answer": "",
        "error": None,
        "finish_reason": "stop",
        "prompt_tokens": 100,
        "completion_tokens": 0,
        "bert_precision": 0.0,
        "bert_recall": 0.0,
        "bert_f1": 0.0,
        "cosine": 0.0,
    }
    assert (objects[1]["answer"], objects[1]["error"]) == (None, "prompt of 9000 tokens, window of 8192")
    assert (objects[1]["bert_f1"], objects[1]["cosine"]) == (None, None)
    assert (objects[2]["bert_f1"], objects[2]["cosine"]) == (None, 1.0)


# --- refusals


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (FOUND[:2], "colours: 3 questions, but chunks were found for 2"),
        ((FOUND[1], FOUND[0], FOUND[2]), "question q1: found holds 'q2' here: give the order of the questions"),
        ((FoundChunks("q1", (hit("c", "z", (0, 1)),)), *FOUND[1:]), "chunk c is of 'z', which is not in the corpus"),
        (
            (FoundChunks("q1", (hit("c", "b", (0, 16)),)), *FOUND[1:]),
            r"chunk c: spans \[\(0, 16\)\] outside of its document",
        ),
    ],
)
def test_chunks_of_another_task_are_refused_before_the_model_is_asked(task, found, message):
    model = Scripted(says("red"), says("green"), says("red"))
    with pytest.raises(InputError, match=message):
        answer_questions(task, found, model)
    assert not model.calls


def test_no_chunk_is_refused(task):
    with pytest.raises(UsageError, match="num_chunks 0: at least 1 passage a prompt"):
        answer_questions(task, FOUND, Scripted(), num_chunks=0)


def test_a_generator_that_breaks_its_contract_is_refused(task):
    with pytest.raises(InputError, match="generator: 1 answers to 3 prompts"):
        answer_questions(task, FOUND, Scripted(says("red")))
    with pytest.raises(InputError, match="finish_reason 'error' with error None"):
        answer_questions(task, FOUND, Scripted(says("red"), says("", "error"), says("red")))
    with pytest.raises(InputError, match="finish_reason 'stop' with error 'lost'"):
        answer_questions(task, FOUND, Scripted(says("red"), says("red"), replace(says(""), error="lost")))
