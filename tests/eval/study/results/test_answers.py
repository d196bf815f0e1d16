"""Answers of a scripted language model: what it is asked, how it is scored, and that failures stay failures."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.records import FoundChunk, FoundChunks
from qrag_jax.eval.study.results.study_answers import answer_means, answer_objects, answer_questions, make_prompt
from qrag_jax.measures.answer_vectors import BertScore
from qrag_jax.types import Document, Generation, InputError, Sampling

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


def ask(task, *generations, **encoders):
    return answer_questions(task, FOUND, Scripted(*generations), num_chunks=5, **encoders)


BOTH = {"embed": embed, "embed_tokens": embed_tokens}


def test_a_prompt_by_hand():
    system, user = make_prompt("Who built it?", ["Ann built it.", "In 1900.\nOr 1901."], "q1")
    mark = re.search(r"<(passage-[0-9a-f]{8})>", system.content).group(1)
    assert (system.role, user.role) == ("system", "user")
    assert f"</{mark}>" in system.content
    assert user.content == (
        f"<{mark}>\nAnn built it.\n</{mark}>\n\n<{mark}>\nIn 1900.\nOr 1901.\n</{mark}>\n\nQuestion: Who built it?"
    )
    assert make_prompt("Who?", [], "q1")[1].content == "Question: Who?"


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
    assert [answer.chunk_ids for answer in result] == [("c2", "c1"), ("c3",), ()]


def test_scores_by_hand(task):
    result = ask(task, says("Red."), says("Blue."), says("Red and blue.", "length"), **BOTH)
    first, second, third = result
    assert (first.bert_score, second.bert_score, third.bert_score) == (BertScore(1, 1, 1), BertScore(1, 1, 1), None)
    assert (first.cosine, second.cosine) == (1.0, 1.0)
    assert third.cosine == pytest.approx(1 / np.sqrt(2))
    assert answer_means(result) == {
        "answers_failed": 0.0,
        "answer_cosine": pytest.approx((2 + 1 / np.sqrt(2)) / 3),
        "answer_bert_f1": 1.0,
    }


def test_a_failed_call_is_in_no_mean_and_an_empty_answer_is_a_zero(task):
    result = ask(task, says(""), FAILED, says("Red."), **BOTH)
    empty, failed, _ = result
    assert (empty.bert_score, empty.cosine) == (BertScore(0, 0, 0), 0.0)
    assert (failed.bert_score, failed.cosine) == (None, None)
    means = answer_means(result)  # over all, 2 and 1 questions
    assert means == {"answers_failed": 1 / 3, "answer_cosine": 0.5, "answer_bert_f1": 0.0}


def test_if_every_call_fails_there_are_no_means(task):
    assert answer_means(ask(task, *[FAILED] * 3, **BOTH)) == {"answers_failed": 1.0}


def test_without_encoders_nothing_is_scored(task):
    result = ask(task, says("red"), says("green"), FAILED)
    assert {answer.bert_score for answer in result} == {answer.cosine for answer in result} == {None}
    assert answer_means(result) == {"answers_failed": 1 / 3}


def test_objects_are_strict_json_and_tell_failed_from_empty(task):
    objects = answer_objects(ask(task, says(""), FAILED, says("Red."), **BOTH))
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


def test_a_generator_that_breaks_its_contract_is_refused(task):
    with pytest.raises(InputError, match="generator: 1 answers to 3 prompts"):
        ask(task, says("red"))
    with pytest.raises(InputError, match="finish_reason 'error' with error None"):
        ask(task, says("red"), says("", "error"), says("red"))
    with pytest.raises(InputError, match="finish_reason 'stop' with error 'lost'"):
        ask(task, says("red"), says("red"), replace(says(""), error="lost"))
