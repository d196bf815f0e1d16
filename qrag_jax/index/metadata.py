"""Metadata of documents as JSON. Reading gives back exactly what was written, tuples included.

JSON has no tuples, so a tuple is written as `{"$tuple": [...]}`.
"""

import json
import math
import re
from typing import Any

from qrag_jax.types import Document, InputError

_TUPLE = "$tuple"
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_ADVICE = "give strings, plain Python numbers (x.item()), lists, tuples and dicts with string keys"


def metadata_json(document: Document) -> str:
    """The metadata of a document as JSON; `read_metadata` reads it."""
    try:
        return json.dumps(_written(dict(document.metadata), "metadata"))
    except InputError as error:
        raise InputError(f"document {document.id!r}: {error}; {_ADVICE}") from error
    except RecursionError as error:
        raise InputError(
            f"document {document.id!r}: metadata contain themselves, or are nested too deeply; flatten them"
        ) from error
    except ValueError as error:
        raise InputError(
            f"document {document.id!r}: metadata cannot be written as JSON ({error}); {_ADVICE}"
        ) from error


def read_metadata(text: str) -> Any:
    """Reads the JSON that `metadata_json` wrote."""
    return json.loads(text, object_hook=_read_tuple)


def _read_tuple(value: dict[str, Any]) -> Any:
    if value.keys() != {_TUPLE}:
        return value
    if not isinstance(value[_TUPLE], list):
        raise ValueError(f"{_TUPLE} is not a list")
    return tuple(value[_TUPLE])


def _written(value: object, place: str) -> object:
    """Converts a value to JSON types. Compares type(): JSON would turn subclasses such as numpy.float64 into floats."""
    kind = type(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{place} cannot be written as JSON: {value} is not finite")
    if isinstance(value, str) and kind is str:
        _check_text(value, place)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple) and kind in (list, tuple):
        items = [_written(item, f"{place}[{number}]") for number, item in enumerate(value)]
        return items if kind is list else {_TUPLE: items}
    if not isinstance(value, dict) or kind is not dict:
        raise InputError(f"{place} cannot be stored exactly as JSON: type {kind.__module__}.{kind.__name__}")
    for key in value:
        if type(key) is not str or key == _TUPLE:
            raise InputError(f"{place} cannot be stored exactly as JSON: key {key!r}")
        _check_text(key, place)
    return {key: _written(inside, f"{place}[{key!r}]") for key, inside in value.items()}


def _check_text(text: str, place: str) -> None:
    """Refuses two adjacent halves of a character, because JSON would join them."""
    if _HALVES.search(text):
        raise InputError(f"{place} cannot be stored exactly as JSON: surrogates in {text[:60]!r}")
