"""Converts untrusted files in a separate process with limits on memory, time and size."""

import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import asdict
from functools import cache

from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.documents.kinds import INSTALL, is_light
from qrag_jax.names import FILE_READERS
from qrag_jax.types import InputError

_COMMAND = "from qrag_jax.documents.child import main; main()"
_WALL_SECONDS = 120  # CPU time runs out first, unless the machine is very busy: the process waits for nothing
_MAX_BYTES_HERE = 500_000  # of a file that is converted in this process
_REASONS = {
    signal.SIGXCPU: "takes more than 30 seconds of CPU time to be read; split it",
    signal.SIGKILL: "takes more than 30 seconds of CPU time, or more memory than there is, to be read; split it",
}


def convert(name: str, kind: str, raw: bytes, options: ReadOptions | None = None) -> Converted:
    """Converts a file to Markdown.

    A separate process reads it, with at most 512 MB of memory above that of its libraries, 30 seconds of CPU time and
    200 MB unpacked. It can open no connection, no process and no file except those of its libraries. Small files of
    records and tables (`FileKind.is_light`) are read in this process, which takes a hundredth of the time.

    Args:
        name: of the file, for messages.
        kind: a name of `FILE_READERS`.
        options: of the reader; None is the defaults.
    """
    options = options or ReadOptions()
    if is_light(kind) and len(raw) <= _MAX_BYTES_HERE:
        return _convert_here(name, kind, raw, options)
    told = json.dumps(asdict(options))
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", _COMMAND, kind, told],
            input=raw,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            timeout=_WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"takes more than {_WALL_SECONDS} seconds to be read; split it", file=name) from error
    if ended.returncode < 0:
        ending = signal.Signals(-ended.returncode)
        crash = f"its reader crashed ({ending.name}), so it is damaged, hostile or needs over 512 MB; leave it out"
        raise InputError(_REASONS.get(ending, crash), file=name)
    try:
        answer = json.loads(ended.stdout)
    except ValueError as error:
        raise InputError(
            f"its reader ended with code {ended.returncode}; check the file, or install the reader again ({INSTALL})",
            file=name,
        ) from error
    if "refused" in answer:
        raise InputError(answer["refused"], file=name)
    if answer["unlimited"]:
        _warn_of_no_limits(" and ".join(answer["unlimited"]))
    pages, labels = (None if answer[name] is None else tuple(answer[name]) for name in ("pages", "page_labels"))
    return Converted(answer["text"], pages, answer["left_out"], labels)


def _convert_here(name: str, kind: str, raw: bytes, options: ReadOptions) -> Converted:
    try:
        return FILE_READERS.load(kind).load(options)(raw)
    except InputError as error:
        raise error.at(name) from error
    except RecursionError as error:
        raise InputError("is nested too deep, so it is damaged or hostile; leave it out", file=name) from error


@cache
def _warn_of_no_limits(what: str) -> None:
    warnings.warn(
        f"this system cannot limit the {what} of the process that converts a file: read only files that you trust",
        stacklevel=4,
    )


def _environment() -> dict[str, str]:
    """Only the paths of modules: no keys, and no memory settings that the limits would break."""
    kept = {name: os.environ[name] for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME") if name in os.environ}
    paths = [path for path in sys.path if path and os.path.exists(path)]
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1", "MALLOC_ARENA_MAX": "1"}
