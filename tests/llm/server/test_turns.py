"""Prompts that begin alike are asked one after the other, by one worker."""

import os

from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.llm.server.openai import Turns, runs_of
from qrag_jax.types import Message

SYSTEM = Message("system", "Look the answer up in a passage. " * 20)


def _prompts(*texts):
    return [(SYSTEM, Message("user", text)) for text in texts]


def _about(chunk, *questions):
    return [f"{chunk}\n\nQuestion: {question}" for question in questions]


RIVER = "The river Alm rises in the hills of Orr and flows south past three mills and a ford."
BRIDGE = "Ada Stern opened the bridge at Hale in 1931, and it has been closed since the flood."


def test_questions_about_a_chunk_are_a_run():
    texts = [*_about(RIVER, "Where?", "How many?"), *_about(BRIDGE, "Who?"), *_about(RIVER, "Whence?")]
    assert runs_of(_prompts(*texts)) == [[0, 1], [2], [3]]


def test_what_all_begin_with_joins_nothing():
    assert runs_of(_prompts(*_about(RIVER, "Where?", "How many?", "Who?"))) == [[0], [1], [2]]


def test_equal_prompts_and_none():
    assert runs_of([]) == []
    assert runs_of(_prompts("Who?", "Who?")) == [[0], [1]]  # all in common: may be asked at once


def test_half_of_the_longer_one_by_hand():
    # Beyond the first letter, which all share: 3 of 6 in common are half, 2 of 6 are not.
    assert runs_of([(Message("user", text),) for text in ("aXXX123", "aXXX456", "aXX4789", "a")]) == [[0, 1], [2], [3]]


def test_a_worker_goes_on_with_its_run_and_helps_with_the_longest():
    turns = Turns(_prompts(*_about(RIVER, "1", "2", "3", "4"), *_about(BRIDGE, "5")))
    first, second = turns.of_worker(), turns.of_worker()
    assert [next(first), next(second), next(second), next(first)] == [0, 4, 3, 1]
    assert [*second, *first] == [2]


def test_a_helper_stays_with_the_run_that_it_has_begun_to_help_with():
    turns = Turns(_prompts(*_about(RIVER, "1", "2", "3", "4"), *_about(BRIDGE, "5", "6", "7", "8"), "Who?"))
    first, second, helper = turns.of_worker(), turns.of_worker(), turns.of_worker()
    assert [next(first), next(second), next(helper)] == [0, 4, 8]
    assert [next(helper), next(helper), next(helper)] == [3, 2, 1]  # the longest, then 3 are left in the other run
    assert [*helper, *first, *second] == [7, 6, 5]


@given(st.lists(st.text("ab", max_size=6), max_size=20), st.integers(1, 5), st.randoms())
def test_every_prompt_has_one_turn(texts, num_workers, random):
    prompts = [(Message("user", text),) for text in texts]
    turns = Turns(prompts)
    workers, taken = [turns.of_worker() for _ in range(num_workers)], []
    while workers:
        worker = random.choice(workers)
        place = next(worker, None)
        if place is None:
            workers.remove(worker)
        else:
            taken.append(place)
    assert sorted(taken) == list(range(len(texts)))


@given(st.lists(st.text("ab", max_size=6), min_size=1, max_size=20))
def test_one_worker_takes_all_in_order(texts):
    prompts = [(Message("user", text),) for text in texts]
    assert list(Turns(prompts).of_worker()) == list(range(len(texts)))


@given(st.text("ab", max_size=40), st.text("ab", max_size=40))
def test_common_beginnings_are_those_of_the_library(one, other):
    from qrag_jax.llm.server.openai import _num_common

    assert _num_common(one, other) == len(os.path.commonprefix([one, other]))
