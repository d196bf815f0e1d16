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
_BEGUN = re.compile(r"\w{8}")  # what tempfile ends a name with


class Owner:
    """One that is at work on `path`, from its making until `leave`.

    Attributes:
        name: 32 hexadecimal digits, never used before.
    """

    def __init__(self, path: Path) -> None:
        """Makes and locks the file `PATH.owner-NAME`."""
        self.name = secrets.token_hex(16)
        self._path = _owner_path(path, self.name)
        while not self._take(path):
            pass

    def _take(self, path: Path) -> bool:
        """Makes the file; False where another owner took its beginning for what a killed one has left."""
        self._handle, beside = tempfile.mkstemp(dir=path.parent, prefix=_begun(path))
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        try:
            os.rename(beside, self._path)  # nobody ever sees it unlocked, which would mean that its owner is dead
        except FileNotFoundError:
            os.close(self._handle)
            return False
        return True

    def leave(self) -> None:
        """Ends this owner: what it held is free."""
        _remove(self._path)
        os.close(self._handle)


def is_alive(path: Path, name: str) -> bool:
    """Whether an owner of `path` is still at work; the file of one that is not is removed, if that may be."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{path}: damaged (an owner {name[:40]!r}): move it away and start again")
    return _is_held(_owner_path(path, name))


def _is_held(own: Path) -> bool:
    """Whether a file of an owner is locked; one that is not is removed, if that may be."""
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
    for begun in path.parent.glob(f"{glob.escape(_begun(path))}*"):  # killed before its file had its name
        if _BEGUN.fullmatch(begun.name.removeprefix(_begun(path))):
            _is_held(begun)


def _remove(own: Path) -> None:
    """Removes the file of one that is at work no more; where the folder is read-only it stays, and is of the dead."""
    with suppress(OSError):
        own.unlink()


def _begun(path: Path) -> str:
    """How the name of a file begins that is not yet an owner's."""
    return f".{path.name}.owner-"


def _owner_path(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.owner-{name}")
