"""Points where a language model sees the content change: windows of paragraphs, bad answers, what it costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import count
from support.scripted_models import lines_of, text_of
from support.tiers import examples

from qrag_jax.annotate import ask_chunks as calls
from qrag_jax.annotate import numbered_lines as rows
from qrag_jax.annotate.ask_chunks import prompt_tokens
from qrag_jax.annotate.lumber import LumberConfig, NumberForm, estimate_lumber, make_lumber
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.llm.prompts import load_prompt
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.types import InputError, UsageError

SMALL = LumberConfig(window_tokens=32)


def read(script, texts, config=SMALL):
    told = []
    generator = script if hasattr(script, "generate") else ScriptedGenerator(script)
    return make_lumber(generator, count, config, finished=told.append)(texts), told[0]


def by_topic(prompt):
    """A line's topic is its first word; the first line of another one than line 0's."""
    lines = lines_of(prompt)
    others = [number for number, text in lines if text.split()[0] != lines[0][1].split()[0]]
    return str(others[0]) if others else "none"


def of_topics(topics):
    return text_of([f"{topic} w{number}" for number, topic in enumerate(topics)])


def borders(topics):
    return [(number, 1) for number in range(1, len(topics)) if topics[number] != topics[number - 1]]


def test_changes_by_hand():
    topics = ["mill"] * 3 + ["bridge"] * 15 + ["mill", "road"]
    generator = ScriptedGenerator(by_topic)
    found, told = read(generator, [of_topics(topics)])
    assert found == [borders(topics)] == [[(3, 1), (18, 1), (19, 1)]]
    # Windows of 10 lines of 3 words: none changes in the second one, so the third begins with its last line.
    assert [lines_of(prompt)[0][1] for prompt in generator.asked] == ["mill w0", "bridge w3", "bridge w12", "mill w18"]
    assert (told.num_windows, told.num_rows, told.num_points, told.dropped) == (4, 3, 3, {})


@examples(40)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.integers(32, 64))
def test_a_model_that_sees_topics_finds_every_change(topics, window_tokens):
    config, texts = LumberConfig(window_tokens=window_tokens), [of_topics(topics)]
    generator = ScriptedGenerator(by_topic)
    found, _ = read(generator, texts, config)
    assert found == [borders(topics)]
    estimate = estimate_lumber(texts, count, config)
    assert len(generator.asked) <= estimate.num_calls
    assert sum(prompt_tokens(prompt, count) for prompt in generator.asked) <= estimate.prompt_tokens


def test_paragraphs_are_lines_where_there_are_any():
    first, rest = "One a. Two b.", "Three c. Four d."
    whole = f"{first}\n\n{rest}"
    spans = tuple(
        (at, at + len(one)) for one in ("One a.", "Two b.", "Three c.", "Four d.") for at in [whole.index(one)]
    )
    generator = ScriptedGenerator(["1"])
    assert read(generator, [SentenceText(whole, spans)])[0] == [[(2, 1)]]
    assert lines_of(generator.asked[0]) == [(0, first), (1, rest)]


@pytest.mark.parametrize(
    "answer, dropped",
    [
        ("0", {rows.OUT_OF_RANGE: 1}),
        ("99999", {rows.OUT_OF_RANGE: 1}),
        ("", {calls.UNREADABLE: 1}),
        ("1 or 2", {calls.UNREADABLE: 1}),
        ("None.", {}),
    ],
)
def test_bad_answers_name_nothing(answer, dropped):
    found, told = read(lambda prompt: answer, [of_topics("aab")])
    assert found == [[]] and told.dropped == dropped


def test_a_model_that_always_names_the_next_one_ends_within_the_estimate():
    texts = [of_topics("aaaa"), of_topics("b"), text_of(["word " * 99, "end"])]
    generator = ScriptedGenerator(lambda prompt: "Answer: 1, so 1")
    found, _ = read(generator, texts)
    assert found == [[(1, 1), (2, 1), (3, 1)], [], [(1, 1)]]
    assert len(generator.asked) == estimate_lumber(texts, count, SMALL).num_calls == 4
    assert estimate_lumber([], count).new_prompt_tokens == 0


def test_estimate_by_hand():
    template = load_prompt("lumber").fill(mark="passage-00000000", lines="<p>\n</p>", last="0")
    around, config = prompt_tokens(template, count), LumberConfig(window_tokens=32, max_answer_tokens=3)
    estimate = estimate_lumber([of_topics("aaa")], count, config)
    assert (estimate.num_calls, estimate.prompt_tokens, estimate.completion_tokens) == (2, 2 * around + 9 + 6, 6)
    assert estimate.new_prompt_tokens == estimate.prompt_tokens - prompt_tokens(template[:1], count)


def test_the_grammar_admits_what_is_read():
    automaton = compile_grammar(NumberForm().grammar)
    assert all(automaton.fault(text) is None for text in ("none", "1", "40"))
    assert all(automaton.fault(text) is not None for text in ("", "0", "01", "one", "1 2"))
    assert NumberForm().read("Paragraph 12.") == 12 and NumberForm().read("1000000000003") >= 10**8
    assert NumberForm().read("none") is None


def test_what_is_refused():
    with pytest.raises(InputError, match="a call of the language model failed.*down"):
        read(lambda prompt: failed("down"), [of_topics("ab")])
    with pytest.raises(UsageError, match="lumber.window_tokens 31: at least 32"):
        LumberConfig(window_tokens=31)
