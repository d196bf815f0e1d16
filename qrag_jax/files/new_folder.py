"""A folder that appears when all of it is written, or not at all. Imports no JAX."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qrag_jax.files.folder_lock import lock_folder, remove_dead_lock
from qrag_jax.files.manifest import sync_folder
from qrag_jax.types import UsageError

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY)  # by another process, or a disk mounted there


@contextmanager
def new_folder(out: Path, verb: str, what: str = "") -> Iterator[Path]:
    """A folder to write into, which takes its place when the context ends, and is removed when an exception ends it.

    It is in `.VERB-NAME` beside `out`, so that a rename moves it there; what a process that was killed left in that,
    the next one removes.

    Args:
        out: empty or not there yet; the folders above it are made.
        verb: of the command, for the name.
        what: is done, for who is refused; empty is the command to `out`.
    """
    check_empty(out)
    check_replaceable(out)
    beside = folder_beside(out, verb)
    with lock_folder(beside, what or f"qrag {verb} to {out}"):
        made = beside / "new"
        try:
            shutil.rmtree(made, ignore_errors=True)  # of a process that was killed
            made.mkdir()
            yield made
            move_into(made, out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def check_empty(out: Path) -> None:
    """Refuses a folder that holds something, so that what is written is not mixed with what was there."""
    remove_dead_lock(out)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is a file: give a folder that is empty or not there yet")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out}: is not empty: give a folder that is empty or not there yet")


def check_replaceable(out: Path) -> None:
    """Refuses an empty folder whose place no other one can take, before gigabytes are brought beside it."""
    if out.is_symlink():
        raise UsageError(f"{out}: is a link: give the folder that it leads to, or another one")
    if out.is_dir() and (out.samefile(os.curdir) or os.path.ismount(out)):
        raise UsageError(f"{out}: is the current folder, or a disk of its own: give a new folder in it")


def folder_beside(out: Path, verb: str) -> Path:
    """On the file system of `out`, so that a rename moves what is in it there."""
    out = Path(os.path.abspath(out))
    beside = out.with_name(f".{verb}-{out.name}")
    if beside.is_symlink():
        raise UsageError(f"is a link, and in the way: remove it, or choose another place than {out}", file=beside)
    return beside


def move_into(folder: Path, out: Path) -> None:
    """Puts a folder where an empty one is, or none."""
    try:
        if out.is_dir():
            out.rmdir()  # refuses if it is no longer empty
        folder.rename(out)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        raise UsageError(f"{out}: cannot be put there ({error.strerror}); give a new folder") from error
    sync_folder(out.parent)
