"""A journaled model: finished calls are never made again, by this process or another one; failed ones are."""

import hashlib
import threading
import time
import warnings
from dataclasses import fields, replace

import pytest
from support.bad_server import MODEL, numbered_prompts, serve_badly
from support.tiers import PATIENCE

from qrag_jax.llm.calls import unasked
from qrag_jax.llm.journal.journal import Journal, JournaledGenerator, call_key
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.llm.server.openai import OpenAIGenerator
from qrag_jax.llm.wrappers import BudgetedGenerator
from qrag_jax.types import (
    Choice,
    Generation,
    InputError,
    JsonSchema,
    Message,
    Regex,
    Sampling,
    TextGenerator,
    UsageError,
)

SAMPLING = Sampling()


def prompts(*texts):
    return [[Message("system", "Say it."), Message("user", text)] for text in texts]


def asked(generator):
    return "".join(prompt[-1].content for prompt in generator.asked)


def parrot(*failing, model="parrot"):
    """Says the prompt again; fails on what it is told to."""

    def script(prompt):
        text = prompt[-1].content
        return Generation("", "error", 3, 0, "no line") if text in failing else Generation(text, "stop", 3, 1)

    return ScriptedGenerator(script, model=model)


def generate(generator, path, *texts, sampling=SAMPLING, finished=None, claim_size=64):
    journaled = JournaledGenerator(generator, Journal(path), claim_size=claim_size)
    return journaled.generate(prompts(*texts), sampling=sampling, finished=finished)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "journal.sqlite"


# --- one process


def test_what_was_answered_is_not_asked_again_and_what_failed_is(path):
    first, second = parrot("b"), parrot()
    answers = generate(first, path, "a", "b", "c")
    assert answers == [
        Generation("a", "stop", 3, 1),
        Generation("", "error", 3, 0, "no line"),
        Generation("c", "stop", 3, 1),
    ]
    again = generate(second, path, "c", "b", "d")
    assert again == [
        Generation("c", "stop", 3, 1, from_journal=True),
        Generation("b", "stop", 3, 1),
        Generation("d", "stop", 3, 1),
    ]
    assert (asked(first), asked(second)) == ("abc", "bd")
    assert Journal(path).num_answers() == 4


def test_every_field_of_an_answer_comes_back(path):
    answer = Generation("x\ud800\0\n", "length", 7, 9, logprobs=(-0.1, -2.0))
    model = ScriptedGenerator([answer, Generation("", "stop", logprobs=())])
    generate(model, path, "a", "b")
    assert generate(model, path, "a", "b") == [
        replace(answer, from_journal=True),
        Generation("", "stop", logprobs=(), from_journal=True),
    ]


def test_another_model_or_sampling_is_another_call(path):
    generator = parrot()
    generate(generator, path, "a")
    generate(generator, path, "a", sampling=Sampling(seed=1))
    generate(parrot(model="other"), path, "a")
    assert asked(generator) == "aa" and Journal(path).num_answers() == 3
    assert JournaledGenerator(generator, Journal(path)).model == "parrot"
    assert isinstance(JournaledGenerator(generator, Journal(path)), TextGenerator)


def test_equal_calls_of_a_batch_are_made_and_paid_once(path):
    generator = parrot("b")
    answers = generate(generator, path, "a", "b", "a", "b")
    assert asked(generator) == "ab"
    assert [one.from_journal for one in answers] == [False, False, True, True]
    assert [one.error for one in answers] == [None, "no line", None, "no line"]


@pytest.mark.parametrize("claim_size", [1, 2, 64])
def test_every_answer_is_stored_before_it_is_told(path, claim_size):
    told, stored = {}, []

    def finished(place, generation):
        told[place] = generation
        stored.append(Journal(path).num_answers())

    generate(parrot(), path, "b")
    answers = generate(parrot(), path, "a", "b", "c", finished=finished, claim_size=claim_size)
    assert [told[place] for place in range(3)] == answers
    assert sorted(stored) == [1 + (claim_size == 1), 2, 3]


def test_no_prompt_no_call(path):
    assert generate(parrot(), path) == []


def test_a_run_that_ends_in_the_middle_keeps_what_it_paid_for(path):
    def script(prompt):
        if len(unplugged.asked) == 3:
            raise KeyboardInterrupt
        return prompt[-1].content

    unplugged, generator = ScriptedGenerator(script, model="parrot"), parrot()
    with pytest.raises(KeyboardInterrupt):
        generate(unplugged, path, *"abcde")
    assert [one.text for one in generate(generator, path, *"abcde")] == [*"abcde"]
    assert asked(generator) == "cde"
    assert sorted(file.name for file in path.parent.iterdir()) == ["journal.sqlite"]


def test_a_model_that_breaks_its_contract_is_refused_and_what_it_said_stays(path):
    class Forgetful(ScriptedGenerator):
        def generate(self, prompts, *, sampling, finished=None):
            return super().generate(prompts, sampling=sampling, finished=finished)[1:]

    with pytest.raises(InputError, match="1 answers to 2 prompts; fix the generator"):
        generate(Forgetful(["a", "b"]), path, "a", "b")
    assert Journal(path).num_answers() == 2
    with pytest.raises(InputError, match="a number that is not finite"):
        generate(ScriptedGenerator([Generation("a", "stop", logprobs=(float("nan"),))]), path, "c")
    with pytest.raises(UsageError, match="claim_size 0: must be at least 1"):
        JournaledGenerator(parrot(), Journal(path), claim_size=0)


# --- the key


def test_key_by_hand():
    content = (
        '{"messages": [{"content": "Wer?", "role": "user"}], "model": "m", "sampling": {"logprobs": false, '
        '"max_tokens": 5, "seed": 0, "stop": ["."], "temperature": 0.0, "top_k": 0, "top_p": 1.0}}'
    )
    sampling = Sampling(max_tokens=5, temperature=0, top_p=1, stop=(".",))
    assert call_key("m", [Message("user", "Wer?")], sampling) == hashlib.sha256(content.encode()).hexdigest()


def test_all_that_decides_an_answer_is_in_the_key():
    prompt = (Message("user", "a"),)
    other_sampling = {
        "max_tokens": 1, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 2, "stop": ("a",), "logprobs": True,
        "grammar": Choice(("a",)),
    }  # fmt: skip
    assert set(other_sampling) == {field.name for field in fields(Sampling)}
    calls = [
        ("m", prompt, SAMPLING),
        ("n", prompt, SAMPLING),
        ("m", (), SAMPLING),
        ("m", (Message("user", "b"),), SAMPLING),
        ("m", (Message("system", "a"),), SAMPLING),
        ("m", (Message("user", "\ud800"),), SAMPLING),
        ("m", (*prompt, *prompt), SAMPLING),
        *(("m", prompt, replace(SAMPLING, **{name: value})) for name, value in other_sampling.items()),
        *(("m", prompt, replace(SAMPLING, grammar=other)) for other in (Choice(("b",)), Regex("a"), JsonSchema("{}"))),
    ]
    assert len({call_key(*call) for call in calls}) == len(calls)
    assert call_key("m", list(prompt), Sampling()) == call_key(*calls[0])


# --- several at once; threads, since an owner is a session and not a process


class Held(ScriptedGenerator):
    """Waits before each answer until it is let on."""

    def __init__(self, script):
        super().__init__(self.answer, model="parrot")
        self.script, self.begun, self.may_go_on = script, threading.Event(), threading.Event()

    def answer(self, prompt):
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE)
        return self.script(prompt)


def in_thread(*arguments, **options):
    """A thread that generates, and the list that its answers come into."""
    answers = []
    thread = threading.Thread(target=lambda: answers.extend(generate(*arguments, **options)), daemon=True)
    thread.start()
    return thread, answers


def test_a_call_in_flight_is_waited_for_after_the_rest_was_done(path):
    held, other = Held(lambda prompt: prompt[-1].content), parrot()
    Journal(path)
    first, first_answers = in_thread(held, path, *"ab")
    assert held.begun.wait(PATIENCE)
    told = []

    def finished(place, generation):
        told.append(place)
        if len(told) == 2:
            held.may_go_on.set()

    second_answers = generate(other, path, *"abcd", finished=finished)
    first.join(PATIENCE)
    assert (asked(held), asked(other)) == ("ab", "cd")
    assert told == [2, 3, 0, 1] or told == [2, 3, 1, 0]
    assert [one.text for one in second_answers] == [*"abcd"]
    assert [one.from_journal for one in second_answers] == [True, True, False, False]
    assert [one.text for one in first_answers] == [*"ab"]


def test_a_call_that_fails_elsewhere_is_made_here(path):
    """It is free as soon as it has failed, while the rest of that batch is in flight still."""
    failing = ScriptedGenerator(lambda prompt: failed("no line"), model="parrot")
    other, seen = parrot(), []

    def finished(place, generation):
        if place == 0:
            seen.extend(generate(other, path, "a"))

    first = generate(failing, path, "a", "b", finished=finished)
    assert [one.error for one in first] == ["no line", "no line"]
    assert seen == [Generation("a", "stop", 3, 1)] and asked(other) == "a"


def test_two_share_a_batch_in_parts(path):
    models = [parrot(), parrot()]
    texts = [str(number) for number in range(10, 50)]
    Journal(path)
    threads = [in_thread(model, path, *texts, claim_size=4) for model in models]
    for thread, _ in threads:
        thread.join(PATIENCE)
    assert all([one.text for one in answers] == texts for _, answers in threads)
    everything = [prompt[-1].content for model in models for prompt in model.asked]
    assert sorted(everything) == texts  # each once


def test_who_waits_for_a_process_that_does_not_go_on_is_told(path, monkeypatch):
    monkeypatch.setattr("qrag_jax.llm.journal.journal._PATIENCE", 0.02)
    with Journal(path).session() as stopped:
        key = call_key("parrot", prompts("a")[0], SAMPLING)
        stopped.claim([key], 1)
        with warnings.catch_warnings(record=True, action="always") as caught:
            waiting = threading.Thread(target=generate, args=(parrot(), path, "a"))
            waiting.start()
            waiting.join(0.2)
            stopped.release(key)
            waiting.join(PATIENCE)
    (message,) = [str(warning.message) for warning in caught]
    assert "journal.sqlite: waiting for 1 answers from other processes" in message and "or end it" in message


def test_what_ends_a_batch_ends_it_in_all_its_rounds_and_is_not_stored(path):
    sizes = []

    class Stopped:
        model = "parrot"

        def generate(self, prompts, *, sampling, finished=None):
            sizes.append(len(prompts))
            return [unasked(failed("HTTP 401"))] * len(prompts)

    answers = generate(Stopped(), path, *"abcdefghij", claim_size=3)
    assert sizes == [3]
    assert [answer.error for answer in answers] == ["not asked, since another call failed: HTTP 401"] * 10
    assert Journal(path).num_answers() == 0
    later = generate(parrot(), path, *"abcdefghij")  # nothing stayed claimed
    assert [answer.text for answer in later] == list("abcdefghij")


def test_a_fatal_failure_that_is_the_last_of_its_round_ends_the_batch_too(path):
    fatal = ScriptedGenerator(lambda prompt: replace(failed("HTTP 401"), is_fatal=True), model="parrot")
    answers = generate(fatal, path, *"abc", claim_size=1)
    assert asked(fatal) == "a"
    unmade = "not asked, since another call failed: HTTP 401"
    assert [answer.error for answer in answers] == ["HTTP 401", unmade, unmade]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("is_budgeted", [False, True])
def test_answers_that_wait_to_be_told_when_the_batch_ends_are_kept(path, error, is_budgeted):
    """The caller is busy with the first of four answers while the others come; the server is paid for all of them."""
    told = []
    with serve_badly() as server:
        model = OpenAIGenerator(MODEL, server.base_url, concurrency=4, deadline=30.0)
        generator = BudgetedGenerator(model, max_tokens=10**6) if is_budgeted else model

        def finished(place, generation):
            told.append(place)
            until = time.monotonic() + PATIENCE
            while len(server.answered) < 4 and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.3)  # the last one is read
            raise error

        journaled = JournaledGenerator(generator, Journal(path))
        with pytest.raises(error):
            journaled.generate(numbered_prompts(4), sampling=SAMPLING, finished=finished)
        assert len(told) == 1 and Journal(path).num_answers() == 4
        assert not isinstance(generator, BudgetedGenerator) or generator.cost.prompt_tokens == 10 + 11 + 12 + 13
        again = journaled.generate(numbered_prompts(4), sampling=SAMPLING)
        assert all(one.from_journal for one in again) and len(server.requests) == 4


def test_asking_inside_of_finished_for_what_this_batch_has_in_flight_is_refused(path):
    generator, seen = parrot(), []

    def finished(place, generation):
        seen.extend(generate(parrot(), path, ["a", "x"][place]))  # what is answered, and what nobody has asked

    generate(generator, path, "a", "b", finished=finished)
    assert [one.text for one in seen] == ["a", "x"]

    def waits_for_itself(place, generation):
        if place == 0:
            generate(parrot(), path, "d")

    with pytest.raises(UsageError, match="`finished` asked a prompt that its own batch is still running"):
        generate(parrot(), path, "c", "d", finished=waits_for_itself)
    assert [one.text for one in generate(parrot(), path, "c", "d")] == ["c", "d"]  # nothing stayed claimed
