"""The process that converts one untrusted file: `python -c "..." KIND OPTIONS`, bytes in, JSON out.

It sets its limits after it has imported the libraries and read the file. From then on it can open no file except those
of its libraries, no connection and no process, and a failure affects only this file.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.names import FILE_READERS
from qrag_jax.types import InputError

MEMORY = 512 * 2**20  # of address space, above what the process has before the conversion
SECONDS = 30  # of CPU time
_FORBIDDEN = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.remove", "os.rename",
    "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.kill", "urllib.",
    "ftplib.", "http.", "smtplib.", "webbrowser.", "shutil.", "ctypes.dlopen",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    """Converts standard input."""
    kind, told = sys.argv[1:]
    options = json.loads(told)
    read = reader(kind, ReadOptions(**options | {"fields": tuple(options["fields"])}))
    raw = sys.stdin.buffer.read()
    out = sys.stdout
    unlimited = _limit()
    sys.addaudithook(_refuse)
    try:
        found = read(raw)
        content = json.dumps(vars(found) | {"left_out": dict(found.left_out), "unlimited": unlimited})
    except InputError as error:
        content = json.dumps({"refused": str(error)})
    except MemoryError:
        content = json.dumps({"refused": f"needs more than {MEMORY // 2**20} MB of memory to be read; split it"})
    except RecursionError:
        content = json.dumps({"refused": "is nested too deep, so it is damaged or hostile; leave it out"})
    except Exception as error:  # noqa: BLE001 -- any library may raise anything on any bytes; the message names it
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        content = json.dumps({"refused": f"cannot be read as {kind.upper()} ({reason}); check it and save it again"})
    out.write(content)
    out.flush()
    os._exit(0)  # skips freeing deep trees


def reader(kind: str, options: ReadOptions) -> Callable[[bytes], Converted]:
    """The reader of a kind of file; imports its libraries."""
    return FILE_READERS.load(kind).load(options)


def _limit() -> list[str]:
    """Sets the limits; returns what this system cannot limit."""
    try:
        import resource  # here: not every system has it
    except ImportError:
        return ["memory", "CPU time"]
    spent = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(spent.ru_utime + spent.ru_stime) + 1 + SECONDS
    limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits[resource.RLIMIT_AS] = used + MEMORY
    except OSError:  # no Linux: how much address space is taken is not known
        pass
    for what, most in limits.items():
        allowed = resource.getrlimit(what)[1]
        hard = most + (what == resource.RLIMIT_CPU)  # SIGXCPU comes a second before SIGKILL
        hard = hard if allowed == resource.RLIM_INFINITY else min(hard, allowed)
        resource.setrlimit(what, (min(most, hard), hard))
    return [] if resource.RLIMIT_AS in limits else ["memory"]


def _refuse(event: str, arguments: tuple) -> None:
    """An audit hook: refuses everything that no conversion needs."""
    if event == "open":
        path, _, flags = arguments
        if flags & _WRITES or not _is_of_libraries(path):
            raise PermissionError(f"a document asked for {str(path)[:100]!r}")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"a document asked for {event}")


def _is_of_libraries(path: object) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False  # a descriptor
    real = os.path.realpath(os.fsdecode(path))
    return any(real.startswith(f"{folder}{os.sep}") for folder in _FOLDERS)


_FOLDERS = frozenset(os.path.realpath(folder) for folder in (sys.prefix, sys.base_prefix, *sys.path) if folder)
