"""A folder that appears complete or not at all. Imports no JAX."""

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
    """A temporary folder that is renamed to `out` when the context ends, and removed if an exception ends it.

    It is in `.VERB-NAME` next to `out`, so a rename can move it. If a process is killed, the next one removes its rest.

    Args:
        out: empty or missing; the folders above it are made.
        verb: of the command, for the name.
        what: what is done, for the message to others; empty is the command to `out`.
    """
    check_empty(out)
    check_replaceable(out)
    beside = folder_beside(out, verb)
    with lock_folder(beside, what or f"qrag {verb} to {out}"):
        made = beside / "new"
        try:
            shutil.rmtree(made, ignore_errors=True)  # left by a process that was killed
            made.mkdir()
            yield made
            move_into(made, out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def check_empty(out: Path) -> None:
    """Refuses a folder with contents, to keep new and old files apart."""
    remove_dead_lock(out)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is a file; give a folder that is empty or does not exist")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out}: is not empty; give a folder that is empty or does not exist")


def check_replaceable(out: Path) -> None:
    """Refuses an empty folder that cannot be replaced, before gigabytes are written next to it."""
    if out.is_symlink():
        raise UsageError(f"{out}: is a link; give its target, or another folder")
    if out.is_dir() and (out.samefile(os.curdir) or os.path.ismount(out)):
        raise UsageError(f"{out}: is the current folder or a mounted disk; give a new folder in it")


def folder_beside(out: Path, verb: str) -> Path:
    """A folder next to `out` on the same file system, so a rename can move its contents there."""
    out = Path(os.path.abspath(out))
    beside = out.with_name(f".{verb}-{out.name}")
    if beside.is_symlink():
        raise UsageError(
            f"is a link, but its name is needed; remove it, or choose another place than {out}", file=beside
        )
    return beside


def move_into(folder: Path, out: Path) -> None:
    """Moves a folder to a place that is empty or does not exist."""
    try:
        if out.is_dir():
            out.rmdir()  # raises if it is no longer empty
        folder.rename(out)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        raise UsageError(f"{out}: cannot be put there ({error.strerror}); give a new folder") from error
    sync_folder(out.parent)
