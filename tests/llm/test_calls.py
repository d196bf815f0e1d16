"""One way to ask a wrapped model: every answer is heard once, and a broken contract is refused."""

import pytest

from qrag_jax.llm.calls import Hearing, ask_all, ask_some, keep, not_asked, unasked
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.types import Generation, InputError, Message, Sampling

PROMPTS = [[Message("user", letter)] for letter in "abcd"]
ANSWER, FATAL = Generation("a", "stop"), Generation("", "error", 5, 0, error="HTTP 401", is_fatal=True)


class Silent(ScriptedGenerator):
    """Tells nothing before it returns."""

    def generate(self, prompts, *, sampling, finished=None):
        return super().generate(prompts, sampling=sampling)


class Reckless(ScriptedGenerator):
    """Tells what it is told to tell, and returns nothing but the rest."""

    def __init__(self, *told, returned=()):
        super().__init__([])
        self.told, self.returned = told, returned

    def generate(self, prompts, *, sampling, finished=None):
        for number, generation in self.told:
            finished(number, generation)
        return list(self.returned)


def heard(generator, places):
    told = []
    ask_some(generator, PROMPTS, places, sampling=Sampling(), tell=lambda place, one: told.append((place, one.text)))
    return told


@pytest.mark.parametrize("kind", [ScriptedGenerator, Silent])
def test_every_answer_is_heard_once_at_its_place(kind):
    assert heard(kind(lambda prompt: prompt[0].content), [3, 1]) == [(3, "d"), (1, "b")]


def test_an_answer_that_is_told_twice_is_heard_once():
    one, other = Generation("one", "stop"), Generation("other", "stop")
    assert heard(Reckless((1, one), (1, other), returned=(one, one)), [0, 2]) == [(2, "one"), (0, "one")]


def test_for_no_place_the_model_is_not_called():
    generator = ScriptedGenerator([])
    assert heard(generator, []) == [] == generator.asked


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        (Reckless(), "generator: 0 answers to 2 prompts; fix the generator"),
        (Reckless((2, Generation("a", "stop"))), "generator: reported answer 2, but was given only 2 prompts"),
        (Reckless((0, Generation("", "error"))), "finish_reason 'error' with error None; a failed call has an error"),
        (Reckless((0, Generation("", "stop", error="lost"))), "finish_reason 'stop' with error 'lost'"),
    ],
)
def test_a_model_that_breaks_its_contract_is_refused(generator, message):
    with pytest.raises(InputError, match=message):
        heard(generator, [0, 1])


class BrokenOff(ScriptedGenerator):
    """Tells of the first answer, and is broken off when the second one is there."""

    def generate(self, prompts, *, sampling, finished=None):
        finished(0, Generation("one", "stop"))
        keep(finished, 0, Generation("one", "stop"))
        keep(finished, 1, Generation("two", "stop"))
        raise KeyboardInterrupt


def test_what_is_broken_off_is_kept_at_its_place_by_who_keeps():
    heard, kept = [], []
    hearing = Hearing(lambda place, one: heard.append((place, one.text)), lambda place, one: kept.append(place))
    for tell in (hearing, hearing.hear):
        with pytest.raises(KeyboardInterrupt):
            ask_some(BrokenOff([]), PROMPTS, [3, 1], sampling=Sampling(), tell=tell)
    assert heard == [(3, "one"), (3, "one")] and kept == [3, 1]  # a plain function is not asked to keep


def test_all_answers_in_order():
    told = []
    generator = ScriptedGenerator(lambda prompt: prompt[0].content)
    answers = ask_all(generator, PROMPTS, sampling=Sampling(), tell=lambda place, one: told.append(place))
    assert [one.text for one in answers] == [*"abcd"] and told == [0, 1, 2, 3]
    assert ask_all(generator, [], sampling=Sampling()) == []


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([ANSWER, Generation("", "error", error="HTTP 500")], None),
        ([ANSWER, FATAL], "not asked, since another call failed: HTTP 401"),
        ([unasked(FATAL), ANSWER], "not asked, since another call failed: HTTP 401"),
        ([], None),
    ],
)
def test_what_says_that_no_other_call_need_be_made(answers, error):
    assert not_asked(answers) == (None if error is None else Generation("", "error", error=error, is_fatal=True))
