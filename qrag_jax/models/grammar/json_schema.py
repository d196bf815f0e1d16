"""A subset of JSON Schema as an expression: values that are bounded, so that none goes on without end.

Fields stand in the order of `properties`, and no others do. White space may stand wherever JSON allows it, at most
32 characters in one place. Where a schema gives no bound, texts have at most 1,000 characters, lists 64 items, numbers
16 digits before the point and 17 behind it. Stricter than JSON: `\\uXXXX` is a whole character, never half of one; with
a `minLength` a text begins neither with white space nor with `\\uXXXX`; values of `enum` and names of fields are spelt
in one way. Alternatives begin with different characters: two texts, two lists or two objects are refused.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qrag_jax.models.grammar.expressions import (
    Characters,
    Expression,
    Repeated,
    Run,
    either,
    literal,
    one_of,
    optional,
    sequence,
    union,
    without,
)
from qrag_jax.types import UsageError

MAX_CHARS, MAX_ITEMS = 1_000, 64
_MAX_WHITE, _MAX_DEPTH = 32, 32
_DIGITS, _FRACTION_DIGITS = 16, 17
_TOP = 10**_DIGITS - 1
_NOTES = frozenset({"title", "description", "$schema", "$id", "$comment", "default", "examples"})  # of people; not read
_OF_TYPE = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
    "boolean": set(),
    "null": set(),
}
_KINDS_OF = {  # a value of `json.loads`
    type(None): ["null"], bool: ["boolean"], int: ["number", "integer"], float: ["number"], str: ["string"],
    list: ["array"], dict: ["object"],
}  # fmt: skip
_KNOWN = sorted({"type", "enum", "const", "anyOf"}.union(*_OF_TYPE.values()))

_DIGIT = Characters(((48, 57),))
_HEX = one_of("0123456789abcdefABCDEF")
# Not D800 to DFFF, halves of characters.
_HIGH_BYTE = either(sequence(one_of("0123456789abcefABCEF"), _HEX), sequence(one_of("dD"), one_of("01234567")))
_ESCAPED = sequence("\\", either(one_of('"\\/bfnrt'), sequence("u", _HIGH_BYTE, _HEX, _HEX)))
_PLAIN = without(((0, 31), (34, 34), (92, 92)))
_CHARACTER = either(Characters(_PLAIN), _ESCAPED)
_WHITE_CHARACTERS = union([tuple((n, n) for n in range(0x3001) if chr(n).isspace())])
_VISIBLE = either(Characters(without(union([_WHITE_CHARACTERS, without(_PLAIN)]))), sequence("\\", one_of('"\\/')))


def parse_schema(schema: object) -> Expression:
    """The expression of a JSON schema, white space around the value allowed."""
    return sequence(_white(), _value(schema, "$", 0), _white())


def _white() -> Expression:
    return Run(one_of(" \n\r\t"), _MAX_WHITE)


def _fault(where: str, what: str) -> UsageError:
    return UsageError(f"grammar: JSON schema, {where}: {what}")


def _value(schema: object, where: str, depth: int) -> Expression:
    if not isinstance(schema, Mapping):
        raise _fault(where, f"{schema!r:.60}: an object with a type is needed")
    if depth > _MAX_DEPTH:
        raise _fault(where, f"nested more than {_MAX_DEPTH} deep")
    words = {word: value for word, value in schema.items() if word not in _NOTES}
    if strange := sorted(words.keys() - set(_KNOWN)):
        raise _fault(where, f"unknown keyword {strange[0]!r}; known are {', '.join(_KNOWN)}")
    for word in ("anyOf", "enum", "const"):
        if word in words:
            return _alternatives(word, words, where, depth)
    kinds = _kinds(words.get("type"), where)
    if strange := sorted(words.keys() - {"type"}.union(*(_OF_TYPE[kind] for kind in kinds))):
        raise _fault(where, f"keyword {strange[0]!r} does not belong to type {words['type']!r}")
    return either(*(_TYPES[kind](words, where, depth) for kind in kinds))


def _kinds(given: object, where: str) -> list[Any]:
    kinds: list[Any] = given if isinstance(given, list) else [given]
    if not kinds or not all(isinstance(kind, str) and kind in _OF_TYPE for kind in kinds):
        raise _fault(where, f"type is {given!r:.60}; known are {', '.join(_OF_TYPE)}")
    return kinds


def _alternatives(word: str, words: Mapping[str, Any], where: str, depth: int) -> Expression:
    others = words.keys() - {word} - ({"type"} if word != "anyOf" else set())
    if others:
        raise _fault(where, f"keyword {sorted(others)[0]!r} next to {word!r} is not read")
    values = [words[word]] if word == "const" else words[word]
    if not isinstance(values, list) or not values:
        raise _fault(where, f"{word} must be a list that is not empty, got {values!r:.60}")
    if word == "anyOf":
        return either(*(_value(one, f"{where}.anyOf[{number}]", depth + 1) for number, one in enumerate(values)))
    kinds = _kinds(words["type"], where) if "type" in words else [*_OF_TYPE]
    return either(*(_constant(value, kinds, where) for value in values))


def _constant(value: object, kinds: Sequence[str], where: str) -> str:
    """A value of `enum` or `const`, as JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise _fault(where, f"{value!r:.60} contains a number that is not finite, which is not JSON") from error
    if not set(_KINDS_OF[type(value)]) & set(kinds):
        raise _fault(where, f"{value!r:.60} is not of type {' or '.join(kinds)}")
    return text


def _object(words: Mapping[str, Any], where: str, depth: int) -> Expression:
    properties, required = words.get("properties", {}), words.get("required", [])
    if not isinstance(properties, Mapping):
        raise _fault(where, f"properties must be an object, got {properties!r:.60}")
    if not isinstance(required, list) or not all(name in [*properties] for name in required):
        raise _fault(where, f"required is {required!r:.60}, a list of names in properties is needed")
    if words.get("additionalProperties", False) is not False:
        raise _fault(where, "additionalProperties must be false: other fields than those named are not generated")
    fields = []
    for name, one in properties.items():
        value = _value(one, f"{where}.{name}", depth + 1)
        field = sequence(json.dumps(name, ensure_ascii=False), _white(), ":", _white(), value, _white())
        fields.append((field, name in required))
    return sequence("{", _white(), _fields(fields), "}")


def _fields(fields: Sequence[tuple[Expression, bool]]) -> Expression:
    """The fields in order, those that are not required left out or not.

    What may follow each is one object, built from the last field on: alternatives share it.
    """
    options: list[Expression] = []  # beginnings with each field that may come next
    is_over = True  # none has to
    for field, is_required in reversed(fields):
        more = sequence(",", _white(), either(*options)) if options else sequence()
        begin = sequence(field, optional(more) if is_over else more)
        options = [begin] if is_required else [begin, *options]
        is_over = is_over and not is_required
    return either(*options, *([sequence()] if is_over else []))


def _array(words: Mapping[str, Any], where: str, depth: int) -> Expression:
    if "items" not in words:
        raise _fault(where, "items is missing: give the type of the list's items")
    least, most = _bounds(words, "minItems", "maxItems", MAX_ITEMS, where)
    item = sequence(_value(words["items"], f"{where}.items", depth + 1), _white())
    more = Repeated(sequence(",", _white(), item), max(least - 1, 0), most - 1) if most > 1 else sequence()
    items = sequence(item, more) if most > 0 else sequence()
    return sequence("[", _white(), items if least > 0 else optional(items), "]")


def _string(words: Mapping[str, Any], where: str, depth: int) -> Expression:
    least, most = _bounds(words, "minLength", "maxLength", MAX_CHARS, where)
    if least == 0:
        return sequence('"', Run(_CHARACTER, most), '"')
    return sequence('"', _VISIBLE, Repeated(_CHARACTER, least - 1, least - 1), Run(_CHARACTER, most - least), '"')


def _number(words: Mapping[str, Any], where: str, depth: int) -> Expression:
    number = _signed(*_limits(words, where), _decimals)
    if "minimum" in words or "maximum" in words:
        return number
    return sequence(number, optional(sequence(one_of("eE"), optional(one_of("+-")), Repeated(_DIGIT, 1, 2))))


def _bounds(words: Mapping[str, Any], low: str, high: str, most: int, where: str) -> tuple[int, int]:
    """The bounds of a length. A bound that is not given leaves room for one that is."""
    least = words.get(low, 0)
    most = words.get(high, max(most, least if isinstance(least, int) else 0))
    for word, value in ((low, least), (high, most)):
        if type(value) is not int or value < 0:
            raise _fault(where, f"{word} is {value!r:.60}, a whole number from 0 on is needed")
    if most < least:
        raise _fault(where, f"{high} {most} is below {low} {least}")
    return least, most


def _limits(words: Mapping[str, Any], where: str) -> tuple[int, int]:
    """The limits of a number."""
    limits = []
    for word, default in (("minimum", -_TOP), ("maximum", _TOP)):
        value = words.get(word, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or abs(value) > _TOP:
            raise _fault(where, f"{word} is {value!r:.60}, a whole number of at most {_DIGITS} digits is needed")
        limits.append(int(value))
    if limits[0] > limits[1]:
        raise _fault(where, f"maximum {limits[1]} is below minimum {limits[0]}")
    return limits[0], limits[1]


def _signed(least: int, most: int, unsigned: Callable[[int, int], Expression]) -> Expression:
    options: list[Expression] = [sequence("-", unsigned(max(0, -most), -least))] if least < 0 else []
    return either(*options, *([unsigned(max(0, least), most)] if most >= 0 else []))


def _decimals(least: int, most: int) -> Expression:
    """From `least` to `most`, 0 or more, with or without digits behind the point."""
    point = sequence(".", Repeated(_DIGIT, 1, _FRACTION_DIGITS))
    zeros = sequence(".", Repeated(one_of("0"), 1, _FRACTION_DIGITS))
    below = [sequence(_naturals(least, most - 1), optional(point))] if least < most else []
    return either(*below, sequence(str(most), optional(zeros)))


def _naturals(least: int, most: int) -> Expression:
    """Whole numbers from `least`, 0 or more, to `most`, without zeros before them."""
    options = []
    for length in range(len(str(least)), len(str(most)) + 1):
        low, high = max(least, 10 ** (length - 1) if length > 1 else 0), min(most, 10**length - 1)
        options.append(_digits(str(low), str(high)))
    return either(*options)


def _digits(low: str, high: str) -> Expression:
    """Numbers between two of equal length."""
    if low == high:
        return literal(low)
    if low[0] == high[0]:
        return sequence(low[0], _digits(low[1:], high[1:]))
    rest = len(low) - 1
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return sequence(_from_to(low[0], high[0]), Repeated(_DIGIT, rest, rest))
    options = [sequence(low[0], _digits(low[1:], "9" * rest)), sequence(high[0], _digits("0" * rest, high[1:]))]
    if ord(high[0]) - ord(low[0]) > 1:
        between = _from_to(chr(ord(low[0]) + 1), chr(ord(high[0]) - 1))
        options.append(sequence(between, Repeated(_DIGIT, rest, rest)))
    return either(*options)


def _from_to(low: str, high: str) -> Expression:
    return Characters(((ord(low), ord(high)),))


_TYPES: dict[str, Callable[[Mapping[str, Any], str, int], Expression]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": lambda words, where, depth: _signed(*_limits(words, where), _naturals),
    "number": _number,
    "boolean": lambda words, where, depth: either("true", "false"),
    "null": lambda words, where, depth: either("null"),
}
