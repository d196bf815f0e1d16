"""Hides what other systems lack from Python code; a test puts a folder beside this first on PYTHONPATH."""

import os
import sys
from functools import wraps


def hide(modules: tuple[str, ...] = ()) -> None:
    """From here on there is no `os.sched_getaffinity`, nothing below /proc, and none of these modules."""
    for name in modules:
        sys.modules[name] = None
    for name in ("stat", "lstat", "readlink", "listdir", "scandir"):
        setattr(os, name, _hiding(getattr(os, name)))
    del os.sched_getaffinity
    sys.addaudithook(_hook)


def _is_hidden(path: object) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith("/proc")


def _hook(event: str, args: tuple) -> None:
    if event == "open" and _is_hidden(args[0]):
        raise FileNotFoundError(2, "No such file or directory", args[0])


def _hiding(call):
    @wraps(call)
    def look(path=".", *args, **kwargs):
        if _is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        return call(path, *args, **kwargs)

    return look
