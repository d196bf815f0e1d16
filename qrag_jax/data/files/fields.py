"""Fields of a row that must be an id, a whole number, a text or a list; errors name place and field."""

from qrag_jax.chunking.text.spans import readable
from qrag_jax.data.files.rows import short, text_field
from qrag_jax.types import InputError


def id_field(value: object, field: str, where: str) -> str:
    """A text or an integer as an id, as it is written; lone surrogates become U+FFFD."""
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise InputError(f"{where}: {field} must be a text or an integer, got {short(value)}")
    return readable(str(value))


def int_field(value: object, field: str, where: str) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: {field} must be an integer, got {short(value)}")
    return value


def any_text(value: object, field: str, where: str) -> str:
    """A text that must be there but may be blank; lone surrogates become U+FFFD."""
    return readable(text_field(value, field, where))


def full_text(value: object, field: str, where: str) -> str:
    """A text that is not blank; lone surrogates, which no tokenizer takes, become U+FFFD."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {field} must be a text that is not empty, got {short(value)}")
    return readable(value)


def optional_text(value: object, field: str, where: str) -> str:
    """A text that may be blank or missing (None), which is the empty text; lone surrogates become U+FFFD."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: {field} must be a text, got {short(value)}")
    return readable(value)


def list_field(value: object, field: str, where: str) -> list[object]:
    """A list; None is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError(f"{where}: {field} must be a list, got {short(value)}")
    return list(value)
