"""The size of the token vectors of an index, said and compared with the disk before they are written."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from qrag_jax.documents.found import DocumentFile
from qrag_jax.documents.kinds import kind_by_suffix
from qrag_jax.errors import Arg
from qrag_jax.types import InputError

_BYTES_PER_TOKEN = 2  # of Markdown and code; prose has four, so it takes half of the estimate


def check_room(folder: Path, files: Sequence[DocumentFile], dim: int, says: Callable[[str], object]) -> None:
    """Says how large the token vectors of files may become, and refuses them if the disk has no room.

        bytes = tokens * dim,    tokens <~ bytes of the text / 2

    Files that are converted, such as PDF, are not counted, because only their text tells; a message says so.

    Args:
        files: that are not in the index yet.
        dim: numbers of the vector of a token, a byte each.
        says: called with the message.

    Raises:
        InputError: the disk has less room.
    """
    kinds = kind_by_suffix()
    texts = [file.path for file in files if file.path is not None and file.path.suffix.lower() not in kinds]
    expected = sum(path.stat().st_size for path in texts if path.is_file()) // _BYTES_PER_TOKEN * dim
    free = shutil.disk_usage(folder).free
    num_more = len(files) - len(texts)
    more = f"; on top come those of converted files: {num_more:,}" if num_more else ""
    told = f"token vectors take up to {_size(expected)} ({len(texts):,} text files{more})"
    if expected > free:
        raise InputError(
            f"{told}, and the disk has {_size(free)} left",
            file=folder,
            remedy=(": make room, choose another folder, or build an index without ", Arg("late")),
        )
    says(f"{told}; the disk has {_size(free)} left")


def _size(number: int) -> str:
    for name, unit in (("GB", 1e9), ("MB", 1e6)):
        if number >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number / 1e3:,.1f} kB"
