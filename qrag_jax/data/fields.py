"""Fields of a row that must be an id, a text that is not blank, or one or more texts; errors name place and field."""

import re
from urllib.parse import quote

from qrag_jax.chunking.spans import readable
from qrag_jax.data.rows import short
from qrag_jax.types import InputError

_BLANK = re.compile(r"\s")


def id_field(value: object, field: str, where: str) -> str:
    """A text or an integer as an id without white space: a blank becomes `%20`, as in an address.

    Raises:
        InputError: it is something else, or blank.
    """
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise InputError(f"{where}: {field} must be a text or an integer, got {short(value)}")
    return _BLANK.sub(lambda match: quote(match[0]), readable(str(value)))


def full_text(value: object, field: str, where: str) -> str:
    """A text that is not blank; lone surrogates, which no tokenizer takes, become U+FFFD.

    Raises:
        InputError: it is something else, or blank.
    """
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {field} must be a text that is not empty, got {short(value)}")
    return readable(value)


def optional_text(value: object, field: str, where: str) -> str:
    """A text that may be blank or missing (None), which is the empty text; lone surrogates become U+FFFD.

    Raises:
        InputError: it is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: {field} must be a text, got {short(value)}")
    return readable(value)


def list_field(value: object, field: str, where: str) -> list[object]:
    """A list; None is an empty one.

    Raises:
        InputError: it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError(f"{where}: {field} must be a list, got {short(value)}")
    return list(value)
