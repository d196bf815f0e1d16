"""Reads JSON from a language model: a strict parser with a small schema, and one lenient repair."""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qrag_jax.types import InputError, JsonSchema

_MAX_CHARS = 1_000_000  # of an answer; no schema of a prompt needs more
_SHOWN_CHARS = 60
_CLOSING = {"{": "}", "[": "]"}
# A string; a comma before an end; a constant as Python writes it.
_MENDED = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])|\b(?:True|False|None)\b', re.DOTALL)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class Text:
    """A text; `min_chars` counts characters without surrounding white space."""

    min_chars: int = 1
    max_chars: int = 20_000


@dataclass(frozen=True)
class Integer:
    """A whole number from `least` to `most`, inclusive."""

    least: int
    most: int


@dataclass(frozen=True)
class Number:
    """A finite number from `least` to `most`, inclusive."""

    least: float
    most: float


@dataclass(frozen=True)
class Boolean:
    """true or false."""


@dataclass(frozen=True)
class OneOf:
    """Exactly one of these texts."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class ListOf:
    """A list of items with one schema."""

    item: "Schema"
    min_items: int = 0
    max_items: int = 1_000


@dataclass(frozen=True)
class Record:
    """An object with exactly these fields."""

    fields: Mapping[str, "Schema"]


Schema = Text | Integer | Number | Boolean | OneOf | ListOf | Record


def parse_json(text: str, schema: Schema) -> Any:
    """Parses an answer that is one JSON value and matches a schema.

    Strict: no text around the value, no duplicate fields, no NaN or Infinity, no number that becomes infinite.

    Raises:
        InputError: the answer is not such a value; the message is a reason for the model.
    """
    if not text.strip():
        raise InputError("it is empty")
    if len(text) > _MAX_CHARS:
        raise InputError(f"it has {len(text):,} characters, at most {_MAX_CHARS:,} are read")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(f"it is not JSON ({error.msg}, line {error.lineno}, character {error.colno})") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits; nested too deep
        raise InputError(f"it is not JSON that can be read ({error})") from error
    check_json(value, schema)
    return value


def check_json(value: object, schema: Schema, where: str = "the value") -> None:
    """Checks a parsed JSON value against a schema.

    Args:
        value: from `json.loads`.
        where: place of the value, for the message.

    Raises:
        InputError: the value does not match.
    """
    match schema:
        case Record(fields):
            _check_record(value, fields, where)
        case ListOf(item, least, most):
            items = value if isinstance(value, list) else None
            fits = items is not None and least <= len(items) <= most
            _expect(fits, value, where, f"a list of {least} to {most} items")
            for number, one in enumerate(items or ()):
                check_json(one, item, f"{where}[{number}]")
        case Text(least, most):
            fits = isinstance(value, str) and least <= len(value.strip()) and len(value) <= most
            _expect(fits, value, where, f"a text of {least} to {most} characters")
            is_whole = not any("\ud800" <= character <= "\udfff" for character in str(value))
            _expect(is_whole, value, where, "a text without half characters (lone surrogates)")
        case OneOf(values):
            _expect(value in values, value, where, " or ".join(json.dumps(one) for one in values))
        case Boolean():
            _expect(isinstance(value, bool), value, where, "true or false")
        case Integer(least, most):
            fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
            _expect(fits, value, where, f"a whole number from {least} to {most}")
        case Number(least, most):
            fits = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
            is_finite = isinstance(value, int | float) and abs(value) <= sys.float_info.max
            _expect(fits and is_finite, value, where, f"a number from {least} to {most}")


def schema_grammar(schema: Schema) -> JsonSchema:
    """The schema as a grammar of answers.

    It allows only answers that `parse_json` accepts, with two exceptions: bounds of numbers are rounded outwards to
    whole numbers, and texts may use white space to reach `min_chars`.
    """
    return JsonSchema.of(_keywords(schema))


def _keywords(schema: Schema) -> dict[str, Any]:
    match schema:
        case Record(fields):
            properties = {name: _keywords(one) for name, one in fields.items()}
            return {"type": "object", "properties": properties, "required": [*fields], "additionalProperties": False}
        case ListOf(item, least, most):
            return {"type": "array", "items": _keywords(item), "minItems": least, "maxItems": most}
        case Text(least, most):
            return {"type": "string", "minLength": least, "maxLength": most}
        case OneOf(values):
            return {"type": "string", "enum": [*values]}
        case Boolean():
            return {"type": "boolean"}
        case Integer(least, most):
            return {"type": "integer", "minimum": least, "maximum": most}
        case Number(least, most):
            return {"type": "number", "minimum": math.floor(least), "maximum": math.ceil(most)}


def mend_json(text: str) -> str:
    """Repairs an answer that is almost JSON.

    Returns the only object or list in the text, without the text around it. Removes trailing commas, replaces `True`,
    `False` and `None` by their JSON forms, and escapes line ends and tabs in strings. An unfinished value is not
    closed. A text with several values or none is returned unchanged, because the intended one is unknown.
    """
    values = set(_outer_values(text)) if len(text) <= _MAX_CHARS else set()
    return _MENDED.sub(_mend_part, values.pop()) if len(values) == 1 else text


def _mend_part(found: re.Match[str]) -> str:
    part = found[0]
    if part.startswith('"'):
        return re.sub(r"[\x00-\x1f]", lambda control: json.dumps(control[0])[1:-1], part)
    return _CONSTANTS.get(part, "")


def _outer_values(text: str) -> Iterator[str]:
    """Closed objects and lists that are not inside another one; quotes count only inside them."""
    start, in_string, is_escaped = 0, False, False
    closing: list[str] = []
    for place, character in enumerate(text):
        if in_string:
            in_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character in _CLOSING:
            start = start if closing else place
            closing.append(_CLOSING[character])
        elif closing and character == '"':
            in_string = True
        elif closing and character == closing[-1]:
            closing.pop()
            if not closing:
                yield text[start : place + 1]


def _without_doubles(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"field {_short(twice)} stands there twice")
    return record


def _refuse_constant(name: str) -> object:
    raise InputError(f"it holds {name}, which is no JSON")


def _check_record(value: object, fields: Mapping[str, Schema], where: str) -> None:
    names = ", ".join(json.dumps(name) for name in fields)
    _expect(isinstance(value, dict), value, where, f"an object with the fields {names}")
    record = value if isinstance(value, dict) else {}
    for name, schema in fields.items():
        if name not in record:
            raise InputError(f"{where} lacks the field {json.dumps(name)}; its fields are {names}")
        check_json(record[name], schema, name if where == "the value" else f"{where}.{name}")
    for name in record:
        if name not in fields:
            raise InputError(f"{where} has a field {_short(name)} too many; its fields are {names}")


def _expect(fits: bool, value: object, where: str, what: str) -> None:
    if not fits:
        raise InputError(f"{where} must be {what}, got {_short(value)}")


def _short(value: object) -> str:
    if isinstance(value, list | dict):  # may be nested deeper than can be written
        return f"a list of {len(value)} items" if isinstance(value, list) else "an object"
    shown = json.dumps(value)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}..."
