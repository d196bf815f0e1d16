"""The command line `qrag`: the only place that knows every package. Importing it imports no JAX."""

import json
import sys
from pathlib import Path
from typing import Any


def say(message: str) -> None:
    """A message for the person at the terminal: standard error, so that standard output stays clean for `--json`."""
    print(message, file=sys.stderr, flush=True)


def shown(text: str) -> str:
    """Without characters that a terminal would obey (escapes) or that UTF-8 cannot hold (bytes of a file name)."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def write_json(value: Any, path: str | Path | None = None) -> None:
    """Strict JSON (no NaN), indented, to a file (its folder is made), or to standard output for None and `-`."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if path is None or str(path) == "-":
        sys.stdout.write(text)
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
