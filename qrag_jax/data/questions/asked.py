"""Questions that are asked of a search, one a line: plain, or as JSON objects."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qrag_jax.data.dataset_rows import must_be
from qrag_jax.documents.read import STDIN
from qrag_jax.files.text_files import json_value, numbered_lines, read_text_file
from qrag_jax.types import InputError, UsageError

_EXPECTED = 'a question a line, or {"question": str, "id": str}'
_LONGEST_LINE = 1 << 20  # bytes of a line of standard input


@dataclass(frozen=True)
class Asked:
    """A question, the id from its line (or None), and its `file:line` if it comes from a file."""

    question: str
    id: str | None = None
    where: str = field(default="", compare=False)


def read_asked(path: str) -> list[Asked] | Iterator[Asked]:
    """The questions of a file, a list of which each is whole, or of standard input as they come.

    A line that begins with `{` is a JSON object with `question` and perhaps `id`, its other fields are left alone; any
    other line is a question. Blank lines are passed over.

    Args:
        path: a file, plain or .gz; `-` is standard input.
    """
    if path == STDIN:
        return _as_they_come()
    text = read_text_file(Path(path), _EXPECTED)
    asked = [_asked(line, f"{path}:{number}") for number, line in numbered_lines(text)]
    if not asked:
        raise InputError(f"no question in it; expected {_EXPECTED}", file=path)
    return asked


def _as_they_come() -> Iterator[Asked]:
    if sys.stdin is None:  # what Python makes of a closed one
        raise UsageError(f"{STDIN}: standard input is closed; name a file of questions")
    number = 0
    while raw := sys.stdin.buffer.readline(_LONGEST_LINE + 1):
        number += 1
        where = f"{STDIN}:{number}"
        if len(raw) > _LONGEST_LINE:
            raise InputError(f"a line of more than {_LONGEST_LINE:,} bytes; expected {_EXPECTED}", file=where)
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 text ({error}); convert it first", file=where) from error
        if line:
            yield _asked(line, where)


def _asked(line: str, where: str) -> Asked:
    line = line.strip()
    if not line.startswith("{"):
        return Asked(line, where=where)
    row = json_value(line, where, _EXPECTED)
    question, name = row.get("question"), row.get("id")
    if not isinstance(question, str) or not question.strip():
        raise must_be(where, "question", "a text that is not empty", question)
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        raise must_be(where, "id", "a text or an integer", name)
    return Asked(question, None if name is None else str(name), where)
