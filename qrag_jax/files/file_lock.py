"""Locks of open files, and what replaces them on a system that has none. Imports no JAX.

The lock is `flock`, which the system releases however a process ends. A system without the module `fcntl` has no such
lock: there a file must name the process that holds it, and the file is free when no process has that number.
"""

import importlib.util
import os
import warnings
from functools import cache

HAS_LOCKS = importlib.util.find_spec("fcntl") is not None
_MAX_PID = 2**31


def lock_file(handle: int, wait: bool = False) -> bool:
    """Locks an open file until it is closed; False where the system has no such locks, with one warning a process.

    Args:
        wait: until another holder has ended; else this raises `BlockingIOError`.

    Raises:
        OSError: the file system has no such locks, or another process holds this one.
    """
    if not HAS_LOCKS:
        _warn_of_no_locks()
        return False
    import fcntl  # here: not every system has it

    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    return True


def unlock_file(handle: int) -> None:
    """Unlocks an open file, also for a forked child that has it open."""
    if HAS_LOCKS:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)


def is_running(pid: int) -> bool:
    """True if a process of this machine has a number; a number is given again after its process has ended."""
    if not 0 < pid < _MAX_PID:  # others name groups of processes
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


@cache
def _warn_of_no_locks() -> None:
    warnings.warn(
        "this system has no file locks (Python has no module fcntl): two commands that start in one folder or journal "
        "at the same moment may both continue and damage it; start them one after the other",
        stacklevel=3,
    )
