"""Writes messages, text without control characters, and JSON to terminals and files. Imports no JAX."""

import json
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qrag_jax.chunking.text.spans import readable
from qrag_jax.cli.errors import as_flag
from qrag_jax.errors import Words, worded
from qrag_jax.files.whole_file import write_whole

# Format characters that text needs and that are harmless to a terminal: joiners, non-joiners, soft hyphens.
_UNSEEN = "\u200b\u200c\u200d\u00ad"


def say(message: Words) -> None:
    """Prints a message on standard error, so standard output stays clean for `--json`.

    Arguments of the library appear as flags. Each line goes through `shown`, because file names may contain control
    characters.
    """
    with may_be_lost(sys.stderr):
        print(shown_lines(worded(message, as_flag)), file=sys.stderr, flush=True)


@contextmanager
def may_be_lost(stream: object) -> Iterator[None]:
    """Ignores errors of a stream whose reader has left or whose disk is full, so no finished work is lost."""
    try:
        yield
    except OSError:
        if stream is sys.stderr:  # text left in its buffer would raise again at exit
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def shown_lines(text: str) -> str:
    """Applies `shown` to each line of a text."""
    return "\n".join(map(shown, text.split("\n")))


def shown(text: str) -> str:
    """Replaces characters that control a terminal (escapes, writing direction) or that UTF-8 cannot encode by U+FFFD.

    Blanks, joiners and soft hyphens stay: no-break and ideographic spaces, ZWJ, ZWNJ. A tab becomes one blank, to keep
    columns aligned.
    """
    return "".join(x if _is_shown(x) else "\ufffd" for x in text.replace("\t", " "))


def write_json(value: Any, path: str | Path | None = None, *, on_one_line: bool = False) -> None:
    """Writes strict JSON (no NaN), indented, to a file; None and `-` are standard output.

    A file is written completely or not at all. Lone surrogates become U+FFFD, because UTF-8 cannot encode them. Control
    characters, and characters that standard output cannot encode, become JSON escapes.

    Args:
        on_one_line: write one line of JSON Lines, and flush standard output.
    """
    indent = None if on_one_line else 2
    text = readable(json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)) + "\n"
    # Outside its strings, JSON contains only printable ASCII and line ends.
    text = text.translate({ord(x): _escaped(x) for x in set(text) if x != "\n" and not _is_shown(x)})
    if path is None or str(path) == "-":
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            text = text.translate({ord(x): _escaped(x) for x in set(text) if not x.isascii()})
        sys.stdout.write(text)
        if on_one_line:
            sys.stdout.flush()
        return
    write_whole(path, text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in _UNSEEN or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    """The JSON escape of a character: `\\u` and four digits, twice for characters above U+FFFF."""
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
