"""Files of an evaluation as text: one JSON object a line, written whole, and read with errors that say what to do."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from qrag_jax.files.reading import read_text_limited
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import InputError, UsageError


def write_lines(path: str | os.PathLike, objects: Iterable[Mapping[str, Any]]) -> None:
    """Writes one strict JSON object a line, its texts as they are, the whole file or nothing; makes parent folders."""
    write_whole(path, "".join(json.dumps(x, ensure_ascii=False, allow_nan=False) + "\n" for x in objects))


def read_text(path: str | os.PathLike) -> str:
    """The text of a file that an evaluation wrote."""
    try:
        return read_text_limited(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UsageError(f"{path}: no such file; give the path of a file that an evaluation wrote") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; the file is damaged or not ours") from error
