"""Where an index is: names of its files, and one writer at a time in its folder. Imports nothing heavy."""

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
JOINED = ".shards-joined"  # the folder of shards from when all of them are in the index until it is removed
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
    """The folder of an index."""
    folder = Path(path)
    if not is_index(folder):
        names_in(folder)  # one that may not be looked into may be an index
        what = "a file" if os.path.exists(folder) else "no such folder"
        what = f"no {ABOUT} in it" if os.path.isdir(folder) else what
        raise UsageError(f"{folder}: not an index ({what}); make one with `qrag index build {folder} PATHS...`")
    return folder


def names_in(folder: Path) -> list[str]:
    """What is in a folder; nothing where there is none."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be looked into ({error.strerror}): change its rights, or give another folder"
        ) from error


def finished_shards(folder: Path) -> list[str]:
    """Names of the shards that are finished and not joined yet, `3-of-8`."""
    return [name for name in names_in(folder / SHARDS) if _SHARD.fullmatch(name)]


def finish_merge(folder: Path) -> bool:
    """Removes what a merge that was killed left of its shards, which were all joined; whether there was any.

    The caller holds the folder.
    """
    if not os.path.isdir(folder / JOINED):
        return False
    shutil.rmtree(folder / JOINED)
    return True


@contextmanager
def one_writer(
    folder: Path, what: str, patience: float = PATIENCE, waits: Callable[[str], object] = lambda message: None
) -> Iterator[None]:
    """Holds the folder for one writer; another one that holds it is waited for.

    Args:
        what: this writer does, for the one who waits.
        patience: seconds to wait.
        waits: told once whom it waits for.
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
