"""Reads text files, plain or gzip, and JSON Lines; errors name the file and line."""

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qrag_jax.files.reading import Source, check_json, pieces
from qrag_jax.types import InputError, UsageError


def read_text_file(path: Path, what: str) -> str:
    """The text of a UTF-8 file, decompressed if its name ends in .gz; `what` describes the wanted file in errors.

    Raises:
        UsageError: there is no such file.
        InputError: it cannot be read, is a truncated archive, or is not UTF-8.
        InputTooLarge: it has more bytes than `files.reading.Reading.max_bytes`.
    """
    with _opened(path, what) as file:
        return b"".join(pieces(file, path)).decode("utf-8-sig")


@contextmanager
def _opened(path: Path, what: str) -> Iterator[Source]:
    """Opens a file of bytes, decompressed; errors during reading name it."""
    if not os.path.isfile(path):  # also for impossible names
        raise UsageError(f"no such file; expected {what}", file=path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be read ({error}); check that the file is complete", file=path) from error
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text ({error}); convert it first", file=path) from error


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank with their 1-based numbers; only newlines (and a return before them) end a line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.rstrip("\r")


def json_value(text: str, where: object, what: str) -> Any:
    """The value of a JSON text, within the size limit of inputs."""
    check_json(text, where)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error}); expected {what}", file=where) from error


def read_json_lines(path: Path, what: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yields (`file:line`, object) for every line of a .jsonl or .jsonl.gz file."""
    count = 0
    for number, line in _numbered_lines(path, what):
        where = f"{path}:{number}"
        row = json_value(line, where, what)
        if not isinstance(row, dict):
            raise InputError(f"expected a JSON object, got {type(row).__name__}; expected {what}", file=where)
        count += 1
        yield where, row
    if not count:
        raise InputError(f"empty file; expected {what}", file=path)


def _numbered_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """`numbered_lines` of a file that is never wholly in memory."""
    with _opened(path, what) as file:
        number, left, codec = 0, [], "utf-8-sig"
        for piece in pieces(file, path):
            *lines, rest = piece.split(b"\n")
            for line in lines:
                number += 1
                text = _line_text(b"".join((*left, line)), codec, path, number)
                left, codec = [], "utf-8"
                if text.strip():
                    yield number, text.rstrip("\r")
            left.append(rest)
        text = _line_text(b"".join(left), codec, path, number + 1)
        if text.strip():
            yield number + 1, text.rstrip("\r")


def _line_text(line: bytes, codec: str, path: Path, number: int) -> str:
    try:
        return line.decode(codec)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{number}: not UTF-8 text ({error} of the line); convert it first") from error


def begins_with(path: Path, mark: bytes, what: str) -> bool:
    """True if the first characters of a file, after white space, are these."""
    with _opened(path, what) as file:
        found = b""
        for piece in pieces(file, path):
            found = (found + piece).removeprefix(codecs.BOM_UTF8).lstrip()
            if len(found) >= len(mark):
                break
    return found.startswith(mark)


def plain_or_gz(path: Path) -> Path:
    """The path with `.gz` added if only that file exists, else the path itself."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if os.path.isfile(packed) and not os.path.isfile(path) else path


def usual_file(path: Path, names: Sequence[str], what: str) -> Path:
    """`path` if it is a file, else the first of the usual `names` in the folder `path`, plain or as .gz."""
    for candidate in (path, *(plain_or_gz(path / name) for name in names)):
        if os.path.isfile(candidate):
            return candidate
    raise UsageError(
        f"neither a file nor a folder with {' or '.join(names)} (or .gz of it); expected {what}", file=path
    )
