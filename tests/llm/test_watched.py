"""A model that is watched tells of each answer, and changes none."""

import pytest

from qrag_jax.llm.calls import Hearing
from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.llm.wrappers import WatchedGenerator
from qrag_jax.types import Choice, Generation, Message, Sampling, TextGenerator

PROMPTS = [[Message("user", text)] for text in ("a", "b", "c")]


def echo():
    return ScriptedGenerator(lambda prompt: f"to {prompt[-1].content}")


def test_it_tells_of_the_beginning_and_of_every_answer():
    told, heard = [], {}
    inner = echo()
    watched = WatchedGenerator(inner, lambda *progress: told.append(progress))
    answers = watched.generate(PROMPTS, sampling=Sampling(), finished=heard.__setitem__)
    assert isinstance(watched, TextGenerator) and watched.model == inner.model
    assert list(answers) == list(echo().generate(PROMPTS, sampling=Sampling())) == [heard[place] for place in range(3)]
    assert told[0] == (0, 3, None) and [(done, of) for done, of, _ in told[1:]] == [(1, 3), (2, 3), (3, 3)]
    assert [answer.text for _, _, answer in told[1:]] == ["to a", "to b", "to c"]


def test_nothing_asked_nothing_told():
    told = []
    assert WatchedGenerator(echo(), lambda *progress: told.append(progress)).generate([], sampling=Sampling()) == []
    assert told == []


def test_answers_of_the_journal_are_told_as_such(tmp_path):
    told = []
    inner = JournaledGenerator(echo(), Journal(tmp_path / "journal.sqlite"))
    inner.generate(PROMPTS[:1], sampling=Sampling())
    WatchedGenerator(inner, lambda *progress: told.append(progress)).generate(PROMPTS, sampling=Sampling())
    assert [answer.from_journal for _, _, answer in told[1:]] == [True, False, False]


def test_a_batch_that_is_broken_off_keeps_what_was_there(tmp_path):
    """Whoever stores answers below a watched model has those that nobody was told of."""

    class Broken:
        model = "broken"

        def generate(self, prompts, *, sampling, finished=None):
            finished.keep(1, Generation("paid", "stop"))
            raise KeyboardInterrupt

    kept = {}
    watched = WatchedGenerator(Broken(), lambda *progress: None)
    with pytest.raises(KeyboardInterrupt):
        watched.generate(PROMPTS, sampling=Sampling(), finished=Hearing(lambda *heard: None, kept.__setitem__))
    assert kept == {1: Generation("paid", "stop")}


def test_the_question_about_grammars_is_handed_on():
    class Takes(ScriptedGenerator):
        def takes_grammar(self, grammar):
            return grammar == Choice(("yes",))

    watched = WatchedGenerator(Takes(lambda prompt: "yes"), lambda *progress: None)
    assert watched.takes_grammar(Choice(("yes",))) and not watched.takes_grammar(Choice(("no",)))
    assert not WatchedGenerator(echo(), lambda *progress: None).takes_grammar(Choice(("yes",)))
