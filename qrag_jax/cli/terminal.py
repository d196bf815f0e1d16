"""What `qrag` says to a terminal and to files: messages, texts that no terminal obeys, JSON. Imports no JAX."""

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

# What texts need and no terminal obeys: between letters that join or do not, where a word may be divided.
_UNSEEN = "\u200b\u200c\u200d\u00ad"


def say(message: Words) -> None:
    """A message for the person at the terminal: standard error, so that standard output stays clean for `--json`.

    An argument of the library in it is told as its flag.
    Names of files stand in messages, and a terminal obeys what these may hold: each line goes through `shown`.
    """
    with may_be_lost(sys.stderr):
        print(shown_lines(worded(message, as_flag)), file=sys.stderr, flush=True)


@contextmanager
def may_be_lost(stream: object) -> Iterator[None]:
    """Messages to a stream whose reader may have left, or whose disk may be full: no reason to lose what was done."""
    try:
        yield
    except OSError:
        if stream is sys.stderr:  # what is left in its buffer would be an error again at exit
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def shown_lines(text: str) -> str:
    """`shown` for each line of a text."""
    return "\n".join(map(shown, text.split("\n")))


def shown(text: str) -> str:
    """Without characters that a terminal would obey (escapes, other directions of writing) or that UTF-8 cannot hold.

    All blanks of a line and what joins or divides words stay: no-break and ideographic spaces, ZWJ, ZWNJ. A tab is one
    blank, so that it moves nothing under another column.
    """
    return "".join(x if _is_shown(x) else "\ufffd" for x in text.replace("\t", " "))


def write_json(value: Any, path: str | Path | None = None, *, on_one_line: bool = False) -> None:
    """Strict JSON (no NaN), indented, to a file (whole or not at all), or to standard output for None and `-`.

    With `on_one_line` it is a line of JSON Lines, which a reader of standard output has at once.

    Texts are what they are, but for lone surrogates, which UTF-8 cannot hold and which become U+FFFD. What a terminal
    would obey, or standard output cannot encode, is written as an escape of JSON.
    """
    indent = None if on_one_line else 2
    text = readable(json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)) + "\n"
    # Outside of its strings JSON holds ASCII alone, all of it shown but the ends of lines.
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
    """As in a string of JSON: `\\u` and four digits, twice beyond the first 65,536 characters."""
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
