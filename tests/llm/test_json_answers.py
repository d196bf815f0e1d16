"""JSON of language models: what the strict parser takes, and what one repair mends."""

import json
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.llm.json_answers import (
    Boolean,
    Integer,
    ListOf,
    Number,
    OneOf,
    Record,
    Text,
    check_json,
    mend_json,
    parse_json,
    schema_grammar,
)
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.models.grammar.tokens import token_automaton
from qrag_jax.types import InputError

CLAIMS = Record({"claims": ListOf(Text(), min_items=1, max_items=3), "sure": Boolean()})
RECORD = '{"claims": ["It rains."], "sure": true}'
VALUE = {"claims": ["It rains."], "sure": True}
PARSE = partial(parse_json, schema=CLAIMS)


# --- the strict parser


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        (RECORD, CLAIMS, VALUE),
        (f" \n{RECORD}\n", CLAIMS, VALUE),
        ('"yes"', OneOf(("yes", "no")), "yes"),
        ("[]", ListOf(Text()), []),
        ("[1, 5]", ListOf(Integer(1, 5)), [1, 5]),
        ("[0, 0.5, 1]", ListOf(Number(0, 1)), [0, 0.5, 1]),
        ('{"a": {"b": [false]}}', Record({"a": Record({"b": ListOf(Boolean())})}), {"a": {"b": [False]}}),
        ('"\\ud83d\\ude00"', Text(), "\U0001f600"),
    ],
)
def test_what_fits_is_taken(text, schema, value):
    assert parse_json(text, schema) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (" \n", "it is empty"),
        ("It rains.", r"it is not JSON \(Expecting value, line 1, character 1\)"),
        (f"Here it is: {RECORD}", "it is not JSON"),
        (f"{RECORD} {RECORD}", "it is not JSON"),
        (RECORD[:-1], "it is not JSON"),
        (RECORD.replace("true", "NaN"), "it holds NaN, which is no JSON"),
        (RECORD.replace("true", "-Infinity"), "it holds -Infinity"),
        ('{"sure": true, "claims": ["a"], "sure": false}', 'field "sure" stands there twice'),
        ("[" * 100_000, "it is not JSON that can be read"),
        (f'{{"claims": ["a"], "sure": {"1" * 5_000}}}', "it is not JSON that can be read"),
        ('"' + "a" * 1_000_000 + '"', "it has 1,000,002 characters, at most 1,000,000"),
        ("[]", 'the value must be an object with the fields "claims", "sure", got a list of 0 items'),
        ('{"claims": ["a"]}', 'the value lacks the field "sure"; its fields are "claims", "sure"'),
        ('{"claims": ["a"], "sure": true, "x": 1}', 'the value has a field "x" too many'),
        ('{"claims": [], "sure": true}', "claims must be a list of 1 to 3 items, got a list of 0 items"),
        ('{"claims": ["a", "b", "c", "d"], "sure": true}', "claims must be a list of 1 to 3 items, got a list of 4"),
        ('{"claims": "a", "sure": true}', 'claims must be a list of 1 to 3 items, got "a"'),
        ('{"claims": ["a", {}], "sure": true}', r"claims\[1\] must be a text of 1 to 20000 characters, got an object"),
        ('{"claims": ["a", " "], "sure": true}', r"claims\[1\] must be a text of 1 to 20000 characters"),
        ('{"claims": ["\\ud800"], "sure": true}', r"claims\[0\] must be a text without half characters"),
        ('{"claims": ["a"], "sure": 1}', "sure must be true or false, got 1"),
        ('{"claims": ["a"], "sure": null}', "sure must be true or false, got null"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(text, reason):
    with pytest.raises(InputError, match=reason):
        parse_json(text, CLAIMS)


@pytest.mark.parametrize(
    ("value", "schema", "reason"),
    [
        (0, Integer(1, 5), "the value must be a whole number from 1 to 5, got 0"),
        (True, Integer(0, 5), "a whole number from 0 to 5, got true"),
        (2.0, Integer(1, 5), "a whole number"),
        (True, Number(0, 1), "a number from 0 to 1, got true"),
        (10**400, Number(0, float("inf")), "a number from 0 to inf, got 1000"),
        (1e400, Number(0, float("inf")), "a number from 0 to inf, got Infinity"),
        (float("nan"), Number(0, 1), "a number from 0 to 1, got NaN"),
        ("Yes", OneOf(("yes", "no")), 'the value must be "yes" or "no", got "Yes"'),
        ([], OneOf(("yes", "no")), 'must be "yes" or "no", got a list of 0 items'),
        ("a" * 90, Text(max_chars=80), f'got "{"a" * 59}...'),
        ({"a": {"b": 1}}, Record({"a": Record({"b": Text()})}), "a.b must be a text"),
    ],
)
def test_checks_by_hand(value, schema, reason):
    with pytest.raises(InputError, match=reason):
        check_json(value, schema)


# --- the repair


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{RECORD}\n```",
        f"Here's what I found:\n\n{RECORD}\nI hope that it's of use!",
        f"{RECORD}\n\n{RECORD}",
        '{"claims": ["It rains.",], "sure": true,\n}',
        '{"claims": ["It rains."], "sure": True}',
    ],
)
def test_what_is_nearly_json_is_mended(text):
    with pytest.raises(InputError):
        PARSE(text)
    assert PARSE(mend_json(text)) == VALUE


def test_mended_by_hand():
    assert mend_json('x [1, "a,]\n\tTrue", None,] y') == '[1, "a,]\\n\\tTrue", null]'
    assert mend_json('{"a": "}\\"]", "b": [{}]}') == '{"a": "}\\"]", "b": [{}]}'


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", "[1] and [2]", '{"a": 1} or {"a": 2}', RECORD[:-1], '{"a": "b', "{[}]", "]", 'a "quote" {'],
)
def test_what_is_not_known_is_not_guessed(text):
    assert mend_json(text) == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES.filter(lambda value: isinstance(value, list | dict)), st.text(alphabet='ab"\\:, \n'), st.booleans())
def test_mending_takes_nothing_from_a_value_and_adds_nothing(value, chatter, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert json.loads(mend_json(chatter + text + chatter)) == value


@given(VALUES.filter(lambda value: isinstance(value, list | dict)), st.data())
def test_a_value_that_was_cut_stays_cut(value, data):
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    assert mend_json(cut) == cut


@given(st.text(alphabet='{}[]",:\\ \n1eTrue\ud800') | st.text())
def test_whatever_a_model_says_is_a_value_or_a_reason(text):
    for one in (text, mend_json(text)):
        try:
            value = PARSE(one)
        except InputError as error:
            assert str(error)
        else:
            check_json(value, CLAIMS)


def test_deep_and_long_answers_are_refused_and_not_fatal():
    for text in ("[" * 300_000 + "]" * 300_000, '{"a":' * 50_000 + "1" + "}" * 50_000, '"' * 999_999, "{" * 2_000_000):
        with pytest.raises(InputError):
            PARSE(mend_json(text))


# --- the schema as a grammar

EVERY = Record(
    {
        "text": Text(1, 6),
        "blank": Text(0, 2),
        "level": Integer(-20, 7),
        "weight": Number(-1.5, 2),
        "kind": OneOf(("a", 'say "b"', "é")),
        "list": ListOf(ListOf(Boolean(), 0, 2), 1, 2),
    }
)


@given(st.integers(0, 10**6), st.integers(40, 200))
def test_what_the_grammar_admits_is_parsed(seed, length):
    """Random walks of a character a step, closed by the shortest way once they are long: the numbers rounded outwards
    are those of `Number` alone."""
    automaton = token_automaton(compile_grammar(schema_grammar(EVERY)), [bytes([n]) for n in range(256)], [0], 256)
    rng, state, left, said = random.Random(seed), 0, automaton.left, b""
    while len(said) < length or automaton.distance[state]:
        next_state, uses = automaton.next_state[state], automaton.uses[state]
        options = [
            n for n in range(1, 256) if next_state[(kind := automaton.class_of_token[n])] >= 0 and uses[kind] <= left
        ]
        if len(said) >= length:
            nearer = automaton.distance[state] - 1
            options = [n for n in options if automaton.distance[next_state[automaton.class_of_token[n]]] == nearer]
        if not options:
            break
        byte = rng.choice(options)
        kind = automaton.class_of_token[byte]
        granted = automaton.grants[state, kind]
        left, state, said = (left - uses[kind] if granted < 0 else granted), next_state[kind], said + bytes([byte])
    value = parse_json(said.decode(), Record(dict(EVERY.fields) | {"weight": Number(-2, 2)}))
    assert compile_grammar(schema_grammar(EVERY)).fault(json.dumps(value, ensure_ascii=False)) is None


def test_what_is_parsed_is_admitted():
    value = {"text": 'é"\n€x', "blank": "", "level": -3, "weight": 0.25, "kind": 'say "b"', "list": [[True], []]}
    parse_json(json.dumps(value), EVERY)
    for indent in (None, 2):
        text = json.dumps(value, indent=indent, ensure_ascii=False)
        assert compile_grammar(schema_grammar(EVERY)).fault(text) is None
