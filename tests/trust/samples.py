"""What a reader of files is, to those who attack it; and how samples are made."""

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qrag_jax.files.manifest import MANIFEST, json_text
from qrag_jax.types import InputError, UsageError

REFUSALS = (InputError, UsageError)
PROSE = "# Rye\n\nRye is a grass. It is hardy.\n\n- oats\n- barley\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nDr. Fen sails."


@dataclass(frozen=True)
class Reader:
    """A format and who reads it.

    Attributes:
        name: for the page of figures.
        make: writes a valid sample into an empty folder.
        read: reads all of a folder that `make` has filled.
        seal: makes the hashes of a changed folder fit again, where the format has some: what is behind them is read.
        cases: how many at full size.
        leaves: reading it writes beside it.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    seal: Callable[[Path], object] | None = None
    cases: int = 10_000
    leaves: bool = False


def texts(files: Mapping[str, object]) -> Callable[[Path], None]:
    """Makes files by their names, packed for `.gz`; what is neither text nor bytes becomes JSON, or JSON Lines."""

    def make(folder: Path) -> None:
        for name, value in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not isinstance(value, str | bytes):
                value = "\n".join(map(json.dumps, value)) if ".jsonl" in name else json.dumps(value)
            content = value.encode() if isinstance(value, str) else value
            path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)

    return make


def value_of(path: Path) -> Any:
    """JSON that stands for what another reader has read."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError("no JSON") from error


def reseal(folder: Path) -> None:
    """A manifest that fits what lies in a folder, as whoever can write there can make."""
    for path in folder.rglob(MANIFEST):
        names = [one for one in sorted(path.parent.rglob("*")) if one.is_file() and one != path]
        files = {}
        for one in names:
            content = one.read_bytes()
            known = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            files[one.relative_to(path.parent).as_posix()] = known
        own = hashlib.sha256(json_text(files, allow_nan=True)).hexdigest()
        path.write_bytes(json_text({"files": files, "sha256": own}))
