"""Errors that say what is wrong, where, and what to do, as text and as fields. Imports nothing of qrag_jax."""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

_Same = TypeVar("_Same", bound="_Told")


@dataclass(frozen=True)
class Arg:
    """An argument named in a sentence: `retriever='bm25'` in Python, `--retriever bm25` on the command line.

    Attributes:
        name: of the parameter, or of the field of a config.
        value: to give it; None names only the argument.
        python: how it is written in Python, if that is not an argument of this name.
    """

    name: str
    value: object = None
    python: str = ""

    def __str__(self) -> str:
        return self.python or (self.name if self.value is None else f"{self.name}={self.value!r}")


Words = str | tuple[str | Arg, ...]  # a sentence; in parts, so that each interface can write an `Arg` in its own way


def worded(words: Words, name: Callable[[Arg], str] = str) -> str:
    """A sentence as one string; `name` writes an argument for its reader."""
    parts = (words,) if isinstance(words, str) else words
    return "".join(part if isinstance(part, str) else name(part) for part in parts)


class _Told(Exception):
    """The parts of a message, `{file}:{line}: {field} {value}: {reason}; {remedy}`. Missing parts are left out.

    The reason alone may be the whole message. A `value` that is a string is quoted, and a tuple is written as its
    words. If the reason begins with the field, field and value are not repeated. The remedy follows a semicolon, unless
    it begins with a bracket or with its own `: `, `, ` or `. `.

    Attributes:
        reason: what is wrong.
        file, line: where.
        field, value: a parameter, or a field of a file or config, and its value.
        remedy: what to do.
    """

    def __init__(
        self,
        reason: Words,
        /,
        *,
        file: object = None,
        line: int | None = None,
        field: str | None = None,
        value: object = None,
        remedy: Words = "",
    ) -> None:
        self.reason, self.line, self.field, self.value, self.remedy = reason, line, field, value, remedy
        self.file = None if file is None else str(file)

    def __str__(self) -> str:
        return self.text()

    def __reduce__(self) -> tuple[Any, ...]:  # subclasses may take arguments that are not in `args`
        return _rebuilt, (type(self), self.args, vars(self))

    def text(self, name: Callable[[Arg], str] = str, with_file: bool = True) -> str:
        """The message.

        Args:
            name: writes an argument for the reader.
            with_file: begin with file and line.
        """
        parts = [self.file if self.line is None else f"{self.file}:{self.line}"] if self.file and with_file else []
        reason, remedy = worded(self.reason, name), worded(self.remedy, name)
        subject = name(Arg(self.field)) if self.field else ""
        if subject and not re.match(rf"{re.escape(subject)}(?![\w.])", reason):
            parts.append(subject + ("" if self.value is None else f" {_quoted(self.value)}"))
        joint = "" if remedy[:1] in ("", ":", ",", ".", " ") else " " if remedy[0] == "(" else "; "
        return ": ".join([*parts, reason]) + joint + remedy

    def at(self: _Same, file: object) -> _Same:
        """A copy for this file; if the error already names a file, this one comes before it."""
        told = copy.copy(self)
        told.file = str(file) if self.file is None else f"{file}: {self.file}"
        return told


class InputError(_Told, ValueError):
    """Bad data or a bad artefact: the message names the file, field and value, and says what to do. CLI exit code 1."""


class UsageError(InputError):
    """A wrong config, flag or path. CLI exit code 2."""


class InputWarning(_Told, UserWarning):
    """An input may have been read differently from what was meant."""


def not_installed(library: str | None, extra: str) -> UsageError:
    """The error of a library of an extra that is missing."""
    return UsageError(f"{library} is not installed; run: pip install 'qrag_jax[{extra}]'")


class Stopped(Exception):
    """A run was stopped on request; it has saved its state, and the message says how to continue."""


def check_fields(
    config: Any,
    prefix: str = "",
    *,
    positive: Sequence[str] = (),
    shares: Sequence[str] = (),
    at_least: Mapping[str, int] | None = None,
    within: Mapping[str, str] | None = None,
    error: type[InputError] = UsageError,
) -> None:
    """Refuses a dataclass with a field out of its bounds. For a list or mapping, checks every item; None passes.

    Args:
        prefix: of a field in the error: `hicbench`, for `hicbench.num_draws`.
        positive: fields of at least 1.
        shares: fields from 0 to 1.
        within: fields with their interval, such as `(0, 1]`; only `(0, inf]` includes infinity.
        error: to raise.
    """
    least = dict.fromkeys(positive, 1) | dict(at_least or {})
    intervals = {name: f"[{limit}, inf]" for name, limit in least.items()}
    for name, interval in (intervals | dict.fromkeys(shares, "[0, 1]") | dict(within or {})).items():
        value = getattr(config, name)
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else [value]
        if not all(item is None or _lies_in(item, interval) for item in items):
            hint = next(str(one.type) for one in fields(config) if one.name == name)
            reason = f"at least {least[name]}" if name in least else f"must lie in {interval}"
            raise error(reason + ", or null" * ("None" in hint), field=f"{prefix}.{name}".lstrip("."), value=value)


def _lies_in(value: Any, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    is_above = value > low if interval[0] == "(" else value >= low
    return is_above and (value < high if interval[-1] == ")" else value <= high)


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...], fields: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error


def _quoted(value: object) -> str:
    return " ".join(map(_quoted, value)) if isinstance(value, tuple) else f"{value!r:.80}"
