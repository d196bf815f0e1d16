"""Summaries of parts: what is asked, kept, cut and counted."""

import pytest

from qrag_jax.annotate.ask_chunks import CALL_FAILED
from qrag_jax.annotate.summaries import EMPTY, SummariesConfig, summaries_fingerprint, summarise
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.types import InputError, Sampling, UsageError


def test_each_different_text_is_one_call_and_reasons_are_counted():
    def script(prompt):
        text = prompt[-1].content
        return "" if "empty" in text else failed("down") if "bad" in text else "It  says\nthat."

    generator, seen = ScriptedGenerator(script), []
    texts = ["one", "empty", "bad", "one", "bad", "\ud800"]
    found = summarise(generator, texts, progress=lambda *told: seen.append(told[:3]))
    assert found.texts == ("It says that.", None, None, "It says that.", None, "It says that.")
    assert found.left_out == {EMPTY: 1, CALL_FAILED: 2}
    assert len(generator.asked) == 4 and seen == [("summaries", number, 4) for number in (1, 2, 3, 4)]
    assert "\n\ufffd\n" in generator.asked[-1][-1].content
    reading = found.reading
    assert (reading.num_chunks, reading.num_calls, reading.num_failed, reading.errors) == (6, 4, 1, ("down",))
    assert reading.completion_tokens == 6


def test_a_summary_is_cut_at_its_size_and_none_are_asked_for_none():
    generator = ScriptedGenerator(lambda prompt: "one two three four")
    assert summarise(generator, ["text"], SummariesConfig(2, Sampling(max_tokens=9))).texts == ("one two",)
    assert summarise(generator, []).texts == ()
    with pytest.raises(UsageError, match="summaries.max_tokens 0: at least 1"):
        SummariesConfig(0)


def test_no_answer_at_all_is_no_set_of_summaries():
    with pytest.raises(InputError, match="summaries: all 2 calls of the language model failed; the first one: down"):
        summarise(ScriptedGenerator(lambda prompt: failed("down")), ["a", "b", "a"])


def test_what_it_is_known_by():
    generator = ScriptedGenerator([], model="M")
    names = {summaries_fingerprint(generator, SummariesConfig(tokens)) for tokens in (64, 128)}
    assert len(names) == 2 and summaries_fingerprint(generator) in names
