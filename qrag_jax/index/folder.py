"""The folder of an index: its file names, and a lock for one writer at a time. Imports nothing heavy."""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from qrag_jax.files.folder_lock import FolderInUse, lock_folder
from qrag_jax.types import UsageError

ABOUT, CATALOGUE, SHARDS = "index.json", "catalogue.sqlite", "shards"
JOINED = ".shards-joined"  # the folder of shards once all of them are in the index, until it is removed
PATIENCE = 60.0  # seconds that a writer waits for another one
_PAUSE = 0.2
_SHARD = re.compile(r"(\d+)-of-(\d+)")


def is_index(path: str | os.PathLike) -> bool:
    """True if a folder looks like an index; checks one file name."""
    return os.path.isfile(os.path.join(path, ABOUT))


def is_filled(path: str | os.PathLike) -> bool:
    """True if a folder also has the documents of an index; other programs also write files called `index.json`."""
    return os.path.isfile(os.path.join(path, CATALOGUE))


def index_folder(path: str | os.PathLike) -> Path:
    """The folder of an index."""
    folder = Path(path)
    if not is_index(folder):
        names_in(folder)  # raises if the folder cannot be read: it may be an index
        what = "a file" if os.path.exists(folder) else "no such folder"
        what = f"no {ABOUT} in it" if os.path.isdir(folder) else what
        raise UsageError(f"{folder}: not an index ({what}); build one with `qrag index build {folder} PATHS...`")
    return folder


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none if it does not exist."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(
            f"{folder}: the folder cannot be read ({error.strerror}); change its permissions, or give another folder"
        ) from error


def finished_shards(folder: Path) -> list[str]:
    """Names of the shards that are finished and not merged yet, such as `3-of-8`."""
    return [name for name in names_in(folder / SHARDS) if _SHARD.fullmatch(name)]


def finish_merge(folder: Path) -> bool:
    """Removes shards that a killed merge had already joined. Returns whether there were any.

    The caller holds the lock of the folder.
    """
    if not os.path.isdir(folder / JOINED):
        return False
    shutil.rmtree(folder / JOINED)
    return True


@contextmanager
def one_writer(
    folder: Path, what: str, patience: float = PATIENCE, waits: Callable[[str], object] = lambda message: None
) -> Iterator[None]:
    """Locks the folder for one writer, and waits if another one has it.

    Args:
        what: what this writer does; shown to others who wait.
        patience: seconds to wait.
        waits: called once with a message if another writer has the folder.
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
