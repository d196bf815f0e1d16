"""A lock on a folder for one process at a time; others are refused with the name of the holder. Imports no JAX.

The lock is `flock` on the file `.qrag.lock` in the folder. The system releases it however a process ends, so a file of
a killed process locks nothing. The file names the holder. That record decides if `flock` cannot: on a file system
without locks, or one shared with other machines, which its locks may not reach.
"""

import errno
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path

from qrag_jax.files.file_lock import is_running, lock_file, unlock_file
from qrag_jax.types import UsageError

LOCK = ".qrag.lock"
_HELD: ContextVar[frozenset[tuple[int, int]]] = ContextVar("folders locked by the caller", default=frozenset())
_NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EBADF)
_NO_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)
# Disks of one machine: a record of another kernel there is from before a restart, or was copied.
_LOCAL = frozenset("bcachefs btrfs ext2 ext3 ext4 f2fs jfs overlay ramfs tmpfs xfs zfs".split())
_MAX_RECORD = 4096
_WAITS, _WAIT_S = 20, 0.05  # for a holder to write its record, which it does immediately


@dataclass(frozen=True)
class Holder:
    """The holder of a lock, from the lock file.

    Attributes:
        what: what it does, such as `qrag train`.
        pid: of its process.
        host: its machine's name, for people.
        since: when it began, with the time zone.
        kernel: identifies the machine since its last start: the same in all its containers, another after a restart.
        pids: the namespace in which `pid` is a process.
        started: when the process started, because a later one may have the same `pid`.
    """

    what: str
    pid: int
    host: str
    since: str
    kernel: str
    pids: str
    started: str

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid} on {self.host}, since {self.since})"


class FolderInUse(UsageError):
    """Another process, or another thread of this one, holds the lock; wait until it has ended."""


@contextmanager
def lock_folder(folder: str | Path, what: str, reads: bool = False) -> Iterator[None]:
    """Locks a folder while the context is open; inside, the caller may lock the same folder again.

    A folder that was made for the lock and is still empty at the end is removed.

    Args:
        what: what the caller does, for messages to others.
        reads: the caller writes nothing. A missing folder is not made, and a read-only folder is only checked.

    Raises:
        FolderInUse: another process, or another thread of this one, holds the lock.
        UsageError: a process on another machine may hold it; or the folder or file cannot be made.
    """
    folder = Path(folder).absolute()
    if reads and not folder.is_dir():
        yield
        return
    made = _make(folder)
    try:
        if _identity(folder) in _HELD.get():
            yield
            return
        handle = _hold(folder / LOCK, what, reads)
        token = _HELD.set(_HELD.get() | {_identity(folder)})
        try:
            yield
        finally:
            _HELD.reset(token)
            if handle is not None:
                _release(folder / LOCK, handle)
    finally:
        for path in made:
            with suppress(OSError):  # not empty: another process uses it
                path.rmdir()


def remove_dead_lock(folder: Path) -> None:
    """Removes the lock file of a killed process; a lock that may be held stays."""
    if os.path.lexists(folder / LOCK):
        with suppress(UsageError), lock_folder(folder, "a look at a lock"):
            pass


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _make(folder: Path) -> list[Path]:
    """Makes a folder and its parents; returns the new ones, inner ones first."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in its name
        if folder.exists():
            raise UsageError("is a file", file=folder, remedy="choose another folder") from error
        what = (isinstance(error, OSError) and error.strerror) or error
        raise UsageError(f"cannot be made ({what}); choose another folder", file=folder) from error
    return absent


def _hold(path: Path, what: str, reads: bool) -> int | None:
    """An open lock file that is ours; None if none can be written and none is needed."""
    while True:
        try:
            handle, is_new = _open(path)
        except FileNotFoundError:  # its holder has just ended, and may have removed the folder
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        except OSError as error:
            if reads and error.errno in _NO_WRITE:
                return _look(path)
            raise UsageError(
                f"cannot be written ({error.strerror or error}); choose another folder", file=path
            ) from error
        try:
            _claim(path, handle, is_new)
            if _is_at(path, handle):
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(asdict(_myself(what))).encode() + b"\n", 0)
                return handle
        except OSError as error:  # a full disk
            os.close(handle)
            raise UsageError(
                f"cannot be locked ({error.strerror or error}); free some space there", file=path
            ) from error
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # of a holder that has just ended


def _open(path: Path) -> tuple[int, bool]:
    """(lock file, whether it was made now); links are not followed."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), True
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), False


def _look(path: Path) -> None:
    """Refuses a folder that is in use, if no lock can be written there."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"cannot be read ({error.strerror or error}); check its permissions, or "
            "delete it if no other command uses this folder",
            file=path,
        ) from error
    try:
        _claim(path, handle, is_new=False)
    finally:
        os.close(handle)


def _claim(path: Path, handle: int, is_new: bool) -> None:
    """Locks an open lock file, or refuses and names its holder."""
    if not is_new:
        _wait_for_record(handle)
    try:
        is_locked = _flock(handle)
    except BlockingIOError:
        raise _in_use(path, _read(handle)) from None
    holder = _read(handle)
    if is_new or (is_locked and (_is_of_this_kernel(holder) or _is_on_local_disk(path.parent))):
        return
    if holder is None or not _is_of_this_kernel(holder) or holder.pids != _namespace():
        raise UsageError(
            f"{path.parent}: {path} says that {holder or 'another process'} is at work here, but this machine cannot "
            "check whether it still is; if it has ended, delete that file"
        )
    if not is_locked and _is_alive(holder):
        raise _in_use(path, holder)


def _in_use(path: Path, holder: Holder | None) -> FolderInUse:
    return FolderInUse(
        f"{path.parent}: in use by {holder or 'another process'}; wait until it has ended, or choose another folder"
    )


def _wait_for_record(handle: int) -> None:
    """Waits until a process that has just made the file has locked and written it."""
    for _ in range(_WAITS):
        if os.fstat(handle).st_size:
            return
        time.sleep(_WAIT_S)


def _flock(handle: int) -> bool:
    """Locks a file; False where its file system has no such locks. BlockingIOError: another holds it."""
    try:
        return lock_file(handle)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        return False


def _release(path: Path, handle: int) -> None:
    """Removes the file, then unlocks it; a file that is no longer ours stays."""
    try:
        if _is_at(path, handle):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # a forked child has the file open too; where there are no locks this fails
            unlock_file(handle)
    finally:
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    """True if an open file is still the one at its path."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False


def _read(handle: int) -> Holder | None:
    """The contents of a lock file; None if it is empty or was not written by this package."""
    try:
        known = json.loads(os.pread(handle, _MAX_RECORD, 0))
        values = {field.name: known[field.name] for field in fields(Holder)}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = [value for name, value in values.items() if name != "pid"]
    fits = type(values["pid"]) is int and all(isinstance(text, str) and text.isprintable() for text in texts)
    return Holder(**values) if fits else None


def _myself(what: str) -> Holder:
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    pid = os.getpid()
    return Holder(what, pid, platform.node(), now, _kernel(), _namespace(), _start_of(pid) or "")


def _is_of_this_kernel(holder: Holder | None) -> bool:
    return holder is not None and holder.kernel == _kernel()


def _kernel() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _is_alive(holder: Holder) -> bool:
    """True if the process of a holder on this machine still runs; without /proc, whether one with its number does."""
    started = _start_of(holder.pid)
    return started is not None and (started == holder.started or "" in (started, holder.started))


def _start_of(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; "" without /proc; None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "" if not os.path.exists("/proc/self/stat") and is_running(pid) else None
    return stat.rpartition(")")[2].split()[19]  # its name, in brackets, may hold anything


def _is_on_local_disk(folder: Path) -> bool:
    """True if no other machine can write to a folder; False also if that is unknown."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    kinds = {end.split()[0] for start, _, end in (line.partition(" - ") for line in mounts) if number in start.split()}
    return bool(kinds) and kinds <= _LOCAL
