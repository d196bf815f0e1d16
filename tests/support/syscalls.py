"""A tracer that ends a process just before a chosen system call: ptrace by ctypes, for Linux on x86-64 and aarch64.

What counts are the calls that change files, or bring them to the disk, in any thread of the traced process. The kernel
never begins the call that a process is killed at: after a kill before call n the disk holds what n - 1 calls left.
"""

import ctypes
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# By the machine: how the kernel names it in a stop, and its numbers of calls.
_MACHINES = {
    "x86_64": (
        0xC000003E,
        {
            1: "write", 18: "pwrite64", 20: "writev", 296: "pwritev", 328: "pwritev2", 77: "ftruncate", 74: "fsync",
            75: "fdatasync", 285: "fallocate", 82: "rename", 264: "renameat", 316: "renameat2", 83: "mkdir",
            258: "mkdirat", 84: "rmdir", 87: "unlink", 263: "unlinkat", 86: "link", 265: "linkat", 88: "symlink",
            266: "symlinkat", 257: "openat",
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            64: "write", 68: "pwrite64", 66: "writev", 70: "pwritev", 287: "pwritev2", 46: "ftruncate", 82: "fsync",
            83: "fdatasync", 47: "fallocate", 38: "renameat", 276: "renameat2", 34: "mkdirat", 35: "unlinkat",
            37: "linkat", 36: "symlinkat", 56: "openat",
        },
    ),
}  # fmt: skip
# Their first argument is an open file; only those of the folder count: pipes and logs are written to as well.
_OF_A_FILE = frozenset("write pwrite64 writev pwritev pwritev2 ftruncate fsync fdatasync fallocate".split())
_OPENAT_FLAGS = 2  # which argument; only a file that is made or emptied counts
_SEIZE, _CONT, _SYSCALL, _INTERRUPT, _GET_SYSCALL_INFO = 0x4206, 7, 24, 0x4207, 0x420E
_OPTIONS = 0x1 | 0x8 | 0x100000  # calls are told from traps; new threads are traced; all die with the tracer
_AT_CALL = signal.SIGTRAP | 0x80
_ENTRY = 1
_WALL = 0x40000000
_BEGIN = signal.SIGUSR1


class RefusedError(Exception):
    """No process can be traced here."""


class _Call(ctypes.Structure):
    """`struct ptrace_syscall_info` at an entry."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction_pointer", ctypes.c_uint64),
        ("stack_pointer", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 6),
    )


@dataclass(frozen=True)
class Traced:
    """What became of a process.

    Attributes:
        calls: names of those that were begun, in order.
        at: the call that it was killed at; empty where it ended by itself.
        exit_code: negative for a signal.
    """

    calls: tuple[str, ...]
    at: str
    exit_code: int


def trace(work: Callable[[Callable[[], None]], None], folder: Path, kill_before: int | None = None) -> Traced:
    """Runs `work` in a forked child. Call it where no other thread and no other child is.

    Args:
        work: is handed a function that it calls where counting is to begin.
        folder: whose files count.
        kill_before: number of the call, from 1, that the child is killed at; None lets it end.

    Raises:
        RefusedError: says what refuses.
    """
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        raise RefusedError(f"no tracer for {sys.platform} on {platform.machine()}")
    may_begin, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(work, may_begin)
    try:
        _seize(pid)
        os.write(begin, b"x")
        return _Tracer(pid, os.path.realpath(folder), kill_before).run()
    finally:
        _end(pid)
        os.close(may_begin)
        os.close(begin)


def _become(work: Callable[[Callable[[], None]], None], may_begin: int) -> None:
    """The child: does its work, and never comes back."""
    code = 1
    try:
        os.read(may_begin, 1)
        work(lambda: signal.raise_signal(_BEGIN))
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


class _Tracer:
    """Lets a process go from call to call."""

    def __init__(self, pid: int, folder: str, kill_before: int | None) -> None:
        self.pid, self.folder, self.kill_before = pid, folder, kill_before
        self.arch, self.names = _MACHINES[platform.machine()]
        self.threads, self.onward = {pid}, _CONT  # without a stop at calls, until the work begins
        self.calls: list[str] = []
        self.at = ""

    def run(self) -> Traced:
        """Until the process has ended."""
        while True:
            thread, status = os.waitpid(-1, _WALL)
            if os.WIFSTOPPED(status):
                self.threads.add(thread)
                self._stopped(thread, os.WSTOPSIG(status), status >> 16)
            elif thread == self.pid:
                return Traced(tuple(self.calls), self.at, os.waitstatus_to_exitcode(status))
            else:
                self.threads.discard(thread)

    def _stopped(self, thread: int, number: int, event: int) -> None:
        is_call, is_begin = number == _AT_CALL, number == _BEGIN and not event
        if is_call and not self.at:
            self._count(thread)
        if self.at:  # nobody goes on
            return
        if is_begin:
            self.onward = _SYSCALL
            for other in self.threads - {thread}:
                _try(_INTERRUPT, other)
        _try(self.onward, thread, 0, 0 if event or is_call or is_begin else number)  # any other signal is its own

    def _count(self, thread: int) -> None:
        call = _Call()
        try:
            is_there = _try(_GET_SYSCALL_INFO, thread, ctypes.sizeof(call), ctypes.addressof(call))
        except OSError as error:  # Linux before 5.3
            raise RefusedError(f"ptrace does not tell what is called: {error.strerror}") from error
        if not is_there or call.op != _ENTRY:
            return
        if call.arch != self.arch:
            raise RefusedError(f"calls of architecture {call.arch:#x}, not {self.arch:#x}")
        name = self.names.get(call.number)
        if name is None or not self._is_counted(name, call):
            return
        if len(self.calls) + 1 == self.kill_before:
            self.at = name
            os.kill(self.pid, signal.SIGKILL)
        else:
            self.calls.append(name)

    def _is_counted(self, name: str, call: _Call) -> bool:
        if name == "openat":
            return bool(call.args[_OPENAT_FLAGS] & (os.O_CREAT | os.O_TRUNC))
        if name not in _OF_A_FILE:
            return True
        try:
            path = os.readlink(f"/proc/{self.pid}/fd/{call.args[0]}")
        except OSError:  # not open: the call fails
            return False
        return path == self.folder or path.startswith(f"{self.folder}/")


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return libc


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> None:
    if _libc().ptrace(request, thread, address, data) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _seize(pid: int) -> None:
    try:
        _ptrace(_SEIZE, pid, 0, _OPTIONS)
    except OSError as error:
        raise RefusedError(f"ptrace is refused: {error.strerror}") from error


def _try(request: int, thread: int, address: int = 0, data: int = 0) -> bool:
    """True if a thread was there to be asked: it may have ended meanwhile."""
    try:
        _ptrace(request, thread, address, data)
    except ProcessLookupError:
        return False
    return True


def _end(pid: int) -> None:
    """No child stays, whatever went wrong."""
    try:
        os.kill(pid, signal.SIGKILL)
        while True:
            os.waitpid(-1, _WALL)
    except (ProcessLookupError, ChildProcessError):
        return
