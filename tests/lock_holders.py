"""Processes that hold the lock of a folder. They import no JAX, so that they start at once."""

import os
import subprocess
import sys
from contextlib import contextmanager

_HOLD = """
import sys
from qrag_jax.files.folder_lock import lock_folder
with lock_folder(sys.argv[1], sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(folder, what="qrag train"):
    """A process that holds the lock until it is killed, at the end or before."""
    argv = [sys.executable, "-c", _HOLD, str(folder), what]
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
