"""Who is at work on a shared file: an owner is alive as long as a lock is held, and a killed process holds none.

The lock is `flock` on a file of the owner's own, which the system lets go of however a process ends. It belongs to the
open file, so that two owners in one process tell each other apart. A child that was forked while an owner was at work
holds the lock too: the owner counts as alive until both have ended.
"""

import fcntl
import glob
import os
import re
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from qrag_jax.types import InputError

_NAME = re.compile(r"[0-9a-f]{32}")


class Owner:
    """One that is at work on `path`, from its making until `leave`.

    Attributes:
        name: 32 hexadecimal digits, never used before.
    """

    def __init__(self, path: Path) -> None:
        """Makes and locks the file `PATH.owner-NAME`.

        Raises:
            OSError: the folder cannot be written, or the disk is full.
        """
        self.name = secrets.token_hex(16)
        self._path = _owner_path(path, self.name)
        self._handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.owner-")
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        os.rename(beside, self._path)  # nobody ever sees it unlocked, which would mean that its owner is dead

    def leave(self) -> None:
        """Ends this owner: what it held is free."""
        _remove(self._path)
        os.close(self._handle)


def is_alive(path: Path, name: str) -> bool:
    """Whether an owner of `path` is still at work; the file of one that is not is removed, if that may be.

    Raises:
        InputError: no name of an owner, so `path` is damaged (a name becomes part of a path here), or its file is no
            file of ours.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{path}: damaged (an owner {name[:40]!r}): move it away and start again")
    own = _owner_path(path, name)
    try:
        handle = os.open(own, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:  # no file of ours: a link, a folder
        raise InputError(f"{own}: cannot be opened ({error.strerror}): remove it") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(own)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def remove_dead(path: Path) -> None:
    """Removes the files of owners that were killed."""
    prefix = _owner_path(path, "").name
    for found in path.parent.glob(f"{glob.escape(prefix)}*"):
        name = found.name.removeprefix(prefix)
        if _NAME.fullmatch(name):
            is_alive(path, name)


def _remove(own: Path) -> None:
    """Removes the file of one that is at work no more; where the folder is read-only it stays, and is of the dead."""
    with suppress(OSError):
        own.unlink()


def _owner_path(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.owner-{name}")
