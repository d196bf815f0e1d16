import json

import pytest

from qrag_jax.documents.readers.json_records import read_json
from qrag_jax.types import InputError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('{"title": "Lamp", "n": 1.50, "ok": true, "x": null, "empty": " "}', "title: Lamp\nn: 1.50\nok: true"),
        ('[{"t": "x"}, {"t": "y"}]', "t: x\n\nt: y"),
        ('{"items": [{"t": "x"}, {"t": "y"}], "after": "z"}', "items.t: x\n\nitems.t: y\n\nafter: z"),
        ('{"tags": ["a", "b", 3], "by": {"name": "Jo"}}', "tags: a, b, 3\nby.name: Jo"),
        ('[{"t": "x", "by": [{"n": "Jo"}, {"n": "Al"}]}]', "t: x\nby.n: Jo\nby.n: Al"),
        ('{"a": {"b": {"c": {"d": "deep"}}}}', "b.c.d: deep"),
        ('["one", "two"]', "one, two"),
        ('"only a text"', "only a text"),
        ('{"t": "x", "t": "y"}', "t: x\nt: y"),  # a repeated name
        ('{"n": 12345678901234567890123, "f": 1e400}', "n: 12345678901234567890123\nf: 1e400"),
        ('{"a": 1}\n{"a": 2}\n', "a: 1\n\na: 2"),  # JSON Lines of another suffix
        ('{"t": "caf\\u00e9 \\ud83d"}', "t: café \ufffd"),
    ],
)
def test_values_are_lines_with_their_names(value, text):
    assert read_json(value.encode()).text == text


LINES = (
    b'{"title": "Mill", "body": "By the river.", "meta": {"title": "M", "id": 7}}\n\n{"title": "Lamp", "body": null}\n'
)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (("body",), "By the river."),  # a single field needs no name
        (("title",), "Mill\nM\n\nLamp"),
        (("title", "body"), "title: Mill\nbody: By the river.\nmeta.title: M\n\ntitle: Lamp"),
        (("meta.title",), "M"),
        (("meta",), "M\n7"),
    ],
)
def test_fields_are_chosen_by_name(fields, text):
    assert read_json(LINES, fields=fields, lines=True).text == text


def test_fields_that_are_not_there_are_refused_with_those_that_are():
    with pytest.raises(InputError, match="no value in its fields text; it has title, body, meta, id; name other"):
        read_json(LINES, fields=("text",), lines=True)


def test_what_is_no_text_is_counted():
    long = "QUJD" * 200
    found = read_json(json.dumps({"t": "x", "p": long, "q": f"data:image/png;base64,{long}"}).encode())
    assert (found.text, found.left_out) == ("t: x", {"base64 values": 2})
    found = read_json(b'{"t": "x"}\nno\n{"t": "y"}', lines=True)
    assert (found.text, found.left_out) == ("t: x\n\nt: y", {"lines that are not JSON": 1})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": 1,}', "not JSON: .*line 1 column"),
        (b"no\nnope", "not JSON"),
        (b"1\n" + b"{\n" * 200, "most of its lines are not JSON"),
        (b"[" * 200 + b"1" + b"]" * 200, "nested deeper than 100 levels"),
        (b"{}", "no text in its values"),
    ],
)
def test_what_is_not_json_is_refused(raw, message):
    with pytest.raises(InputError, match=message):
        read_json(raw)
    with pytest.raises(InputError, match="most of its lines are not JSON"):
        read_json(b"no\nnope", lines=True)


def test_long_names_are_not_repeated_for_every_value():
    raw = json.dumps({"k" * 100_000: {str(number): number for number in range(1_000)}}).encode()
    assert len(read_json(raw).text) < 200_000
