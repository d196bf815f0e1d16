"""Files of strangers converted in a process of their own, with limits of memory, time and size."""

import json
import os
import signal
import subprocess
import sys

from qrag_jax.data.documents.converted import Converted
from qrag_jax.data.documents.kinds import INSTALL
from qrag_jax.types import InputError

_COMMAND = "from qrag_jax.data.documents.child import main; main()"
_WALL_SECONDS = 120  # the child waits for nothing, so CPU time ends it first, unless the machine is very busy
_REASONS = {
    signal.SIGXCPU: "takes more than 30 seconds of CPU time to be read: split it",
    signal.SIGKILL: "takes more than 30 seconds of CPU time, or more memory than there is, to be read: split it",
}


def convert(name: str, kind: str, raw: bytes, encoding: str = "utf-8") -> Converted:
    """A file as Markdown.

    A child reads it: at most 512 MB of memory above what its libraries take, 30 seconds of CPU time, 200 MB unpacked;
    it can open no connection, no process and no file but its libraries.

    Args:
        name: of the file; opens the message.
        kind: one of `kinds.KINDS`.
        encoding: of HTML that does not say its own.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", _COMMAND, kind, encoding],
            input=raw,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            timeout=_WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{name}: takes more than {_WALL_SECONDS} seconds to be read: split it") from error
    if ended.returncode < 0:
        ending = signal.Signals(-ended.returncode)
        crash = f"its reader crashed ({ending.name}): it is damaged or hostile, or needs more than 512 MB of memory"
        raise InputError(f"{name}: {_REASONS.get(ending, crash)}")
    try:
        answer = json.loads(ended.stdout)
    except ValueError as error:
        raise InputError(
            f"{name}: its reader ended with code {ended.returncode}: it is damaged, or what reads it is ({INSTALL})"
        ) from error
    if "refused" in answer:
        raise InputError(f"{name}: {answer['refused']}")
    pages = answer["pages"]
    return Converted(answer["text"], None if pages is None else tuple(pages), tuple(answer["left_out"]))


def _environment() -> dict[str, str]:
    """Nothing of ours but where modules are: no keys, and no settings of memory, which the limits would meet."""
    kept = {name: os.environ[name] for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME") if name in os.environ}
    paths = [path for path in sys.path if path and os.path.exists(path)]
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1", "MALLOC_ARENA_MAX": "1"}
