import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.files.strict_yaml import dump_yaml, parse_yaml, parse_yaml_lines
from qrag_jax.types import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("3.", 3.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("+3", 3),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2001-01-01", "2001-01-01"),
        ("=", "="),
        ("'3'", "3"),
        ("", None),
        ("[1, [2.5, x]]", [1, [2.5, "x"]]),
        ("a: {b: 1}", {"a": {"b": 1}}),
        ("a: &x 1\nb: *x", {"a": 1, "b": 1}),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    parsed = parse_yaml(text, "here")
    assert parsed == value
    assert type(parsed) is type(value)


def test_nan_is_a_number():
    assert math.isnan(parse_yaml(".nan", "here"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"f\.yaml:3: duplicate key 'a' \(first on line 1\)"),
        ("a: !!python/name:os.system x", r"f\.yaml:1: .*tag '.*python/name:os.system' is not allowed"),
        ("a: !include /etc/hostname", r"f\.yaml:1: .*tag '!include' is not allowed"),
        ("\na: !!float 3", r"f\.yaml:2: .*tag"),
        ("a: [1, 2", r"f\.yaml:1: malformed YAML"),
        ("a: 1\n  b: 2", r"f\.yaml:2: malformed YAML"),
        ("a: 1\n---\nb: 2", r"f\.yaml:2: malformed YAML: but found another document"),
        ("1: a", r"f\.yaml:1: a key must be text"),
        ("[a]: b", r"f\.yaml:1: a key must be text"),
        ("a: 1\nb: \x00", r"f\.yaml:2: malformed YAML"),
        ("[" * 2000, r"f\.yaml:1: .*nested more than 50 deep"),
        ("&a [*a]", r"f\.yaml:1: anchors expand"),
        ("a: *b", r"f\.yaml:1: .*undefined alias"),
        ("9" * 5000, r"f\.yaml:1: an integer of more than 100 digits"),
    ],
)
def test_refuses_with_file_and_line(text, message):
    with pytest.raises(UsageError, match=message):
        parse_yaml(text, "f.yaml")


def test_aliases_cannot_blow_up():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(UsageError, match=r"f\.yaml:\d+: anchors expand"):
        parse_yaml("\n".join(rows), "f.yaml")


def test_a_megabyte_of_keys_is_left_when_there_are_too_many():
    parse_yaml("".join(f"k{number}: 1\n" for number in range(9_000)), "f.yaml")
    with pytest.raises(UsageError, match=r"f\.yaml:10000: malformed YAML: more than 10,000 values"):
        parse_yaml("".join(f"k{number}: 1\n" for number in range(100_000))[: 2**20], "f.yaml")


def test_lines_by_dotted_path():
    _, lines = parse_yaml_lines("a:\n  b: 1\n  c:\n    - 2\n    - 3\n", "f.yaml")
    assert (lines["a"], lines["a.b"], lines["a.c"], lines["a.c.1"]) == (1, 2, 3, 5)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))
plain_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain_values)
def test_what_is_dumped_is_read_back(value):
    parsed = parse_yaml(dump_yaml(value), "here")
    assert parsed == value
    assert repr(parsed) == repr(value)  # also the types, and the sign of zero


@pytest.mark.parametrize(
    "word", ["no", "1e3", "1e-3", "0o7", "null", "", "true", "3.5", "- a", "a: b", "#x", ".inf", " x"]
)
def test_text_that_looks_like_something_else_stays_text(word):
    assert parse_yaml(dump_yaml({"a": word}), "here") == {"a": word}


@pytest.mark.parametrize("value", [{1: 2}, {"a": b"x"}, object(), {"a": {1, 2}}])
def test_only_plain_values_are_written(value):
    with pytest.raises(TypeError):
        dump_yaml(value)


@pytest.mark.parametrize("value", ["\u202etxt.exe", "a\u2028b", "\x9b2J", "\u200bx"])
def test_what_a_terminal_would_obey_is_written_as_an_escape(value):
    text = dump_yaml({"init": value})
    assert text.isascii() and value not in text and parse_yaml(text, "c.yaml") == {"init": value}
    assert dump_yaml({"name": "Zoë 中"}) == "name: Zoë 中\n"
