"""Reader of passages without questions, to stand among others as distractors."""

import json
from collections.abc import Iterator
from pathlib import Path

from qrag_jax.data.files.rows import one_line, read_rows, short
from qrag_jax.data.files.textfile import begins_with, read_text_file
from qrag_jax.files.reading import check_json
from qrag_jax.types import InputError

_WHAT = 'passages: rows {"title", "text"}, or one JSON object {title: [sentence, ...]}'
_TEXT_FIELDS = ("text", "paragraph_text", "contents")


def read_passages(path: str | Path) -> list[tuple[str, str]]:
    """(title, text) of each passage, in order; white space collapsed, what has no text left out.

    Args:
        path: .json, .jsonl or either as .gz: a list or lines of `{"title", "text"}` (or `paragraph_text`, or
            `contents`), or one object of titles with a text or a list of sentences each.
    """
    path = Path(path)
    found = [(one_line(title), one_line(text)) for title, text in _passages(path)]
    kept = [(title, text) for title, text in found if text]
    if not kept:
        raise InputError(f"{path}: no passage with a text; expected {_WHAT}")
    return kept


def _passages(path: Path) -> Iterator[tuple[str, str]]:
    if path.name.endswith((".json", ".json.gz")) and begins_with(path, b"{", _WHAT):
        yield from _by_title(path)
        return
    for where, _, row in read_rows(path, _WHAT):
        name = next((name for name in _TEXT_FIELDS if name in row), "text")
        yield _text(row.get("title") or "", where, "title"), _text(row.get(name), where, name)


def _by_title(path: Path) -> Iterator[tuple[str, str]]:
    text = read_text_file(path, _WHAT)
    check_json(text, path)
    try:
        titles = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}); is the file whole? Expected {_WHAT}") from error
    for title, content in titles.items():
        yield title, _text(content, f"{path}: {title[:60]!r}", "text")


def _text(value: object, where: str, field: str) -> str:
    if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value):
        return " ".join(value)
    if not isinstance(value, str):
        raise InputError(f"{where}: {field} must be a text or sentences, got {short(value)}; expected {_WHAT}")
    return value
