"""Structured answers: what is read, mended, asked for again, and failed; nothing is dropped or becomes empty."""

from dataclasses import replace
from functools import partial

import pytest

from qrag_jax.llm.calls import takes_grammar
from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.json_answers import Boolean, ListOf, Record, Text, parse_json, schema_grammar
from qrag_jax.llm.prompts import PromptTemplate
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.llm.structured import Structured, ask_structured
from qrag_jax.llm.wrappers import BudgetedGenerator
from qrag_jax.types import Choice, Generation, InputError, JsonSchema, Message, Sampling, UsageError

CLAIMS = Record({"claims": ListOf(Text(), min_items=1, max_items=3), "sure": Boolean()})
RECORD = '{"claims": ["It rains."], "sure": true}'
VALUE = {"claims": ["It rains."], "sure": True}
PARSE = partial(parse_json, schema=CLAIMS)
SAMPLING = Sampling()


def ask(text="Is it?"):
    return [Message("system", "Answer in JSON."), Message("user", text)]


def test_a_good_answer_is_asked_for_once():
    generator = ScriptedGenerator(lambda prompt: RECORD)
    (outcome,) = ask_structured(generator, [ask()], PARSE, sampling=SAMPLING)
    assert outcome == Structured(VALUE, None, 1, False, (Generation(RECORD, "stop", 5, 5),))
    assert generator.asked == [tuple(ask())]


def test_a_mended_answer_is_marked():
    generator = ScriptedGenerator(lambda prompt: f"Sure! {RECORD}")
    (outcome,) = ask_structured(generator, [ask()], PARSE, sampling=SAMPLING)
    assert (outcome.value, outcome.error, outcome.num_asks, outcome.was_repaired) == (VALUE, None, 1, True)


def test_a_bad_answer_is_asked_again_with_the_reason_and_the_rest_is_left_alone():
    generator = ScriptedGenerator(["no", RECORD, " ", RECORD, RECORD])
    outcomes = ask_structured(generator, [ask("a"), ask("b"), ask("c")], PARSE, sampling=SAMPLING)
    assert [(one.value, one.num_asks) for one in outcomes] == [(VALUE, 2), (VALUE, 1), (VALUE, 2)]
    assert [one.text for one in outcomes[0].generations] == ["no", RECORD]
    assert len(generator.asked) == 5
    first, third = generator.asked[3:]
    assert first[:2] == tuple(ask("a")) and first[2] == Message("assistant", "no")
    assert first[3].role == "user" and "it is not JSON (Expecting value" in first[3].content
    assert third[2] == Message("assistant", "(nothing)") and "it is empty" in third[3].content


def test_after_the_last_ask_it_is_failed_with_the_reason_and_never_empty():
    generator = ScriptedGenerator(["no", "no", '{"claims": [], "sure": true}'])
    (outcome,) = ask_structured(generator, [ask()], PARSE, sampling=SAMPLING, max_asks=3)
    assert (outcome.value, outcome.num_asks, outcome.was_repaired, len(outcome.generations)) == (None, 3, False, 3)
    assert (
        outcome.error
        == "no answer of 3 could be used; the last one: claims must be a list of 1 to 3 items, got a list of 0 items"
    )
    assert len(generator.asked[2]) == 6  # both answers and both reasons are in the conversation


def test_a_failed_call_is_not_asked_again():
    generator = ScriptedGenerator([failed("the server is down"), "no", failed("budget")])
    outcomes = ask_structured(generator, [ask("a"), ask("b")], PARSE, sampling=SAMPLING, max_asks=5)
    assert [(one.value, one.error, one.num_asks) for one in outcomes] == [
        (None, "the server is down", 1),
        (None, "budget", 2),
    ]


def test_an_answer_that_was_cut_is_not_mended():
    """Its only object is whole, but what came behind it is not known."""
    cut = Generation(f"First guess: {RECORD}, or", "length", 5, 400)
    generator = ScriptedGenerator([cut, Generation(RECORD, "length", 5, 400)])
    (outcome,) = ask_structured(generator, [ask()], PARSE, sampling=SAMPLING)
    assert "it was cut after 400 tokens, be shorter (it is not JSON" in generator.asked[1][3].content
    assert (outcome.value, outcome.num_asks, outcome.was_repaired) == (VALUE, 2, False)


def test_what_is_settled_is_told_at_once():
    told, told_before = {}, []

    def script(prompt):
        told_before.append(list(told))
        return "no" if prompt[-1].content == "b" else RECORD

    prompts = [ask("a"), ask("b"), ask("c")]
    outcomes = ask_structured(ScriptedGenerator(script), prompts, PARSE, sampling=SAMPLING, finished=told.__setitem__)
    assert told_before == [[], [0], [0], [0, 2]]
    assert [told[place] for place in range(3)] == outcomes


def test_parsers_that_are_not_of_json():
    def yes_or_no(text):
        if text.strip().lower() not in ("yes", "no"):
            raise InputError("it must be yes or no")
        return text.strip().lower() == "yes"

    generator = ScriptedGenerator(["Yes", "perhaps {", "no"])
    outcomes = ask_structured(generator, [ask("a"), ask("b")], yes_or_no, sampling=SAMPLING)
    assert [one.value for one in outcomes] == [True, False]


def test_the_message_that_asks_again_can_be_another_one():
    again = PromptTemplate("again", "", "Wrong: $reason")
    generator = ScriptedGenerator(["", RECORD])
    ask_structured(generator, [ask()], PARSE, sampling=SAMPLING, again=again)
    assert generator.asked[1][3].content == "Wrong: it is empty"
    with pytest.raises(InputError, match="prompt 'again': has the places"):
        ask_structured(generator, [ask()], PARSE, sampling=SAMPLING, again=PromptTemplate("again", "", "Wrong."))
    assert len(generator.asked) == 2


def test_no_prompt_no_call():
    generator = ScriptedGenerator([])
    assert ask_structured(generator, [], PARSE, sampling=SAMPLING) == [] == generator.asked


def test_no_ask_is_refused():
    with pytest.raises(UsageError, match="max_asks 0: must be at least 1"):
        ask_structured(ScriptedGenerator([]), [ask()], PARSE, sampling=SAMPLING, max_asks=0)


class Taking(ScriptedGenerator):
    """One that takes grammars of one kind, and notes what it is asked with."""

    def __init__(self, kind):
        super().__init__(lambda prompt: RECORD)
        self.kind, self.samplings = kind, []

    def takes_grammar(self, grammar):
        return isinstance(grammar, self.kind)

    def generate(self, prompts, *, sampling, finished=None):
        self.samplings.append(sampling)
        return super().generate(prompts, sampling=sampling, finished=finished)


def test_a_grammar_is_used_where_the_generator_takes_it():
    grammar = schema_grammar(CLAIMS)
    own = Sampling(grammar=Choice((RECORD,)))
    for kind, sampling, used in (
        (JsonSchema, SAMPLING, replace(SAMPLING, grammar=grammar)),
        (Choice, SAMPLING, SAMPLING),
        (JsonSchema, Sampling(stop=("\n\n",)), Sampling(stop=("\n\n",))),
        (JsonSchema, own, own),
    ):
        generator = Taking(kind)
        (outcome,) = ask_structured(generator, [ask()], PARSE, sampling=sampling, grammar=grammar)
        assert outcome.value == VALUE and generator.samplings == [used]
    # A scripted model takes none: its broken replies are there to be parsed.
    (outcome,) = ask_structured(ScriptedGenerator(["no", RECORD]), [ask()], PARSE, sampling=SAMPLING, grammar=grammar)
    assert (outcome.value, outcome.num_asks) == (VALUE, 2)


def test_what_wraps_a_generator_takes_what_that_takes(tmp_path):
    inner, grammar = Taking(Choice), Choice(("a",))
    journaled = JournaledGenerator(BudgetedGenerator(inner), Journal(tmp_path / "j.sqlite"))
    assert takes_grammar(journaled, grammar) and not takes_grammar(journaled, schema_grammar(CLAIMS))
    assert not takes_grammar(BudgetedGenerator(ScriptedGenerator([])), grammar)
    sampling = Sampling(grammar=Choice((RECORD,)))
    assert [journaled.generate([ask()], sampling=sampling)[0].from_journal for _ in range(2)] == [False, True]
    assert not journaled.generate([ask()], sampling=SAMPLING)[0].from_journal
    assert inner.samplings == [sampling, SAMPLING]
