"""JSON schemas against Python's JSON: what they admit is what the schema says, in whatever layout."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.types import JsonSchema, UsageError

PLAN = {
    "type": "object",
    "title": "not read",
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 12},
        "level": {"type": "integer", "minimum": -3, "maximum": 120},
        "weight": {"type": "number", "minimum": 0, "maximum": 1},
        "tags": {"type": "array", "items": {"enum": ["a", "é", None, 2]}, "minItems": 1, "maxItems": 3},
        "more": {"anyOf": [{"type": "boolean"}, {"type": ["null", "string"], "maxLength": 3}]},
    },
    "required": ["query", "level", "tags"],
}


def admits(schema, text):
    return compile_grammar(JsonSchema.of(schema)).fault(text) is None


def texts(least, most):
    plain = st.characters(codec="utf-8", exclude_categories=["Cs"], max_codepoint=0xFFFF) | st.sampled_from('"\\/\n\t')
    return st.text(plain, min_size=least, max_size=most)


def plans():
    optional = {
        "weight": st.floats(0, 1).map(lambda value: round(value, 6)).filter(lambda value: "e" not in repr(value)),
        "more": st.none() | st.booleans() | texts(0, 3),
    }
    required = {
        "query": texts(1, 12).filter(lambda text: not text[0].isspace() and ord(text[0]) > 31),
        "level": st.integers(-3, 120),
        "tags": st.lists(st.sampled_from(["a", "é", None, 2]), min_size=1, max_size=3),
    }
    return st.fixed_dictionaries(required, optional=optional).map(
        lambda plan: {name: plan[name] for name in PLAN["properties"] if name in plan}
    )


@examples(200)
@given(plans(), st.sampled_from([None, 0, 1, 4]))
def test_what_fits_is_admitted(plan, indent):
    text = json.dumps(plan, indent=indent, ensure_ascii=False)
    assert admits(PLAN, text) and admits(PLAN, f"\n{text} ")
    assert not admits(PLAN, text + "}") and not admits(PLAN, text[:-1])


VALUE = {"query": "a", "level": 1, "tags": ["a"]}


@pytest.mark.parametrize(
    "changed",
    [
        {"query": ""}, {"query": " a"}, {"query": "\u00a0a"}, {"query": "x" * 13}, {"query": 1}, {"level": 121},
        {"level": -4}, {"level": 1.0}, {"level": "1"}, {"tags": []}, {"tags": ["a"] * 4}, {"tags": ["b"]},
        {"weight": 1.5}, {"weight": -0.5}, {"more": "xxxx"}, {"more": 1}, {"other": 1},
    ],
)  # fmt: skip
def test_what_does_not_fit_is_not(changed):
    merged = VALUE | changed
    ordered = {name: merged[name] for name in [*PLAN["properties"], "other"] if name in merged}
    assert admits(PLAN, json.dumps(VALUE)) and not admits(PLAN, json.dumps(ordered, ensure_ascii=False))


@pytest.mark.parametrize("missing", ["query", "level", "tags"])
def test_what_is_required_stands_there_and_the_order_is_that_of_the_schema(missing):
    assert not admits(PLAN, json.dumps({name: value for name, value in VALUE.items() if name != missing}))
    assert not admits(PLAN, json.dumps(dict(reversed(VALUE.items()))))


@pytest.mark.parametrize(
    ("least", "most"), [(0, 9), (7, 7), (3, 12), (-12, -3), (-5, 104), (98, 1003), (0, 99999), (-70, 0)]
)
def test_whole_numbers_between_bounds(least, most):
    schema = {"type": "integer", "minimum": least, "maximum": most}
    tried = {value + near for value in (least, most, 0, 10, 100, 1000, -10, -100) for near in range(-12, 13)}
    for value in tried:
        assert admits(schema, str(value)) == (least <= value <= most), value
    assert not any(admits(schema, text) for text in ("", "00", "+1", "1.", "0x1", "٣"))


@examples(100)
@given(st.integers(-5, 5), st.integers(0, 5), st.decimals(-12, 12, places=3))
def test_numbers_between_bounds(least, more, value):
    schema = {"type": "number", "minimum": least, "maximum": least + more}
    for text in (str(value), str(int(value))):
        assert admits(schema, text) == (least <= float(text) <= least + more), text


def test_texts_are_bounded_and_their_length_costs_no_states():
    short, long = ({"type": "string", "maxLength": most} for most in (3, 30_000))
    assert admits(short, '"é😀\\u00e9"') and not admits(short, '"éé😀a"')
    assert admits(long, json.dumps("x" * 30_000)) and not admits(long, json.dumps("x" * 30_001))
    states = [len(compile_grammar(JsonSchema.of(schema)).accepting) for schema in (short, long)]
    assert states[0] == states[1]
    assert not admits({"type": "string"}, json.dumps("x" * 1001))  # the bound of those that give none


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\x41"', '"\n"', '"\\u12"', "'a'", '"\ud800"', "NaN"])
def test_what_is_no_json_or_half_a_character_is_refused(text):
    assert not admits({"type": ["string", "number"]}, text)


def test_a_type_beside_values_is_that_of_all():
    values = [None, True, 1, 0.5, "a", [1], {"b": None}]
    kinds = ["null", "boolean", "integer", "number", "string", "array", "object"]
    assert all(admits({"type": kinds, "enum": values}, json.dumps(value)) for value in values)
    assert admits({"type": "number", "const": 1}, "1")


def test_white_space_comes_to_an_end():
    assert admits({"type": "null"}, " " * 32 + "null\n") and not admits({"type": "null"}, " " * 33 + "null")


def test_numbers_are_finite():
    assert admits({"type": "number"}, "-12.5e+99") and not admits({"type": "number"}, "1e999")
    assert not admits({"type": "integer"}, "1" * 17)


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (
            {"type": "object", "properties": {"a": {"oneOf": []}}},
            "$.a: unknown keyword 'oneOf'; known are additionalProp",
        ),
        ({"type": "string", "pattern": "a"}, "$: unknown keyword 'pattern'"),
        ({"type": "text"}, "$: type is 'text'; known are object, array"),
        ({}, "$: type is None"),
        ([], "$: []: an object with a type is needed"),
        ({"type": "string", "minItems": 1}, "keyword 'minItems' does not belong to type 'string'"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "maxLength 2 is below minLength 3"),
        ({"type": "string", "maxLength": -1}, "maxLength is -1, a whole number from 0 on is needed"),
        ({"type": "string", "maxLength": 40_000}, "a text of 40,000 characters, at most 32,767"),
        ({"type": "integer", "minimum": 0.5}, "minimum is 0.5, a whole number"),
        ({"type": "number", "maximum": True}, "maximum is True, a whole number"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "maximum 2 is below minimum 3"),
        ({"type": "array"}, "items is missing"),
        ({"type": "array", "items": {"type": "bool"}}, "$.items: type is 'bool'"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required is ['a'], a list of names in properties"),
        ({"type": "object", "properties": 3}, "properties must be an object, got 3"),
        ({"type": "object", "additionalProperties": True}, "additionalProperties must be false"),
        ({"enum": []}, "enum must be a list that is not empty"),
        ({"type": "string", "enum": ["a", 1]}, "$: 1 is not of type string"),
        ({"type": ["integer", "null"], "const": True}, "$: True is not of type integer or null"),
        ({"type": "text", "const": "a"}, "$: type is 'text'; known are object, array"),
        ({"enum": [1, [float("nan")]]}, "$: [nan] contains a number that is not finite"),
        ({"const": float("inf")}, "$: inf contains a number that is not finite"),
        ({"enum": ["a", "\ud800"]}, "contains half of a character"),
        ({"type": "object", "properties": {"a\udfff": {"type": "null"}}}, "contains half of a character"),
        ({"type": "object", "properties": {}, "required": [["a"]]}, "required is [['a']], a list of names"),
        (
            {"type": "object", "properties": {f"f{n}": {"type": "null"} for n in range(1_000)}},
            "nested too deep, or an object of some hundred fields",
        ),
        ({"enum": ["a"], "minLength": 1}, "keyword 'minLength' next to 'enum' is not read"),
        ({"anyOf": [{"type": "string"}, {"enum": ["a"]}]}, "two alternatives can begin with the same character"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 10_000}, "use fewer or smaller repetitions"),
    ],
)
def test_what_is_refused(schema, what):
    with pytest.raises(UsageError, match=re.escape(what)):
        compile_grammar(JsonSchema(json.dumps(schema)))


def test_many_fields_that_may_be_left_out_are_few_states():
    schema = {"type": "object", "properties": {f"field{n}": {"type": "boolean"} for n in range(20)}}
    assert len(compile_grammar(JsonSchema.of(schema)).accepting) < 3_000
    assert all(admits(schema, text) for text in ("{}", '{"field3": true}', '{"field0": true, "field19": false}'))
    assert not any(admits(schema, text) for text in ('{"field3": true,}', '{, "field3": true}', '{"field3": 1}'))
    assert not admits(schema, '{"field3": true, "field3": true}')


def test_a_nest_without_end_is_refused():
    schema = {"type": "null"}
    for _ in range(40):
        schema = {"type": "array", "items": schema, "maxItems": 1}
    with pytest.raises(UsageError, match="nested more than 32 deep"):
        compile_grammar(JsonSchema.of(schema))
