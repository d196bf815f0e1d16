"""Where an index is: names of its files, and one writer at a time in its folder. Imports nothing heavy."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from qrag_jax.files.folder_lock import FolderInUse, lock_folder
from qrag_jax.types import UsageError

ABOUT, CATALOGUE, SHARDS = "index.json", "catalogue.sqlite", "shards"
PATIENCE = 60.0  # seconds that a writer waits for another one
_PAUSE = 0.2
_SHARD = re.compile(r"(\d+)-of-(\d+)")


def is_index(path: str | os.PathLike) -> bool:
    """Whether a folder says that it is an index; a look at one name."""
    return os.path.isfile(os.path.join(path, ABOUT))


def is_filled(path: str | os.PathLike) -> bool:
    """Whether a folder has the documents of an index too: others call a file `index.json` as well."""
    return os.path.isfile(os.path.join(path, CATALOGUE))


def index_folder(path: str | os.PathLike) -> Path:
    """The folder of an index.

    Raises:
        UsageError: there is none.
    """
    folder = Path(path)
    if not is_index(folder):
        what = "no such folder" if not folder.exists() else "a file" if folder.is_file() else f"no {ABOUT} in it"
        raise UsageError(f"{folder}: not an index ({what}); make one with `qrag index build {folder} PATHS...`")
    return folder


def finished_shards(folder: Path) -> list[str]:
    """Names of the shards that are finished and not joined yet, `3-of-8`."""
    there = folder / SHARDS
    return [path.name for path in there.iterdir() if _SHARD.fullmatch(path.name)] if os.path.isdir(there) else []


@contextmanager
def one_writer(
    folder: Path, what: str, patience: float = PATIENCE, waits: Callable[[str], object] = lambda message: None
) -> Iterator[None]:
    """Holds the folder for one writer; another one that holds it is waited for.

    Args:
        folder: made when absent.
        what: this writer does, for the one who waits.
        patience: seconds to wait.
        waits: told once whom it waits for.

    Raises:
        UsageError: the other one is still at it; the message says who. Or as `lock_folder`.
    """
    until, was_told = time.monotonic() + patience, False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock_folder(folder, what))
                break
            except FolderInUse as error:
                if time.monotonic() >= until:
                    raise
                if not was_told:
                    waits(f"{error}; waiting for up to {patience:.0f} seconds")
                    was_told = True
                time.sleep(_PAUSE)
        yield
