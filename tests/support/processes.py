"""Processes that tests start: forked ones that need no new import, and holders of locks."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

from qrag_jax.types import UsageError
from support.syscalls import RefusedError, Traced, trace
from support.tiers import PATIENCE

_IMPORTED = "qrag_jax.cli.main qrag_jax.cli.train qrag_jax.service.training qrag_jax.index.corpus_folder rich.progress"
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(_IMPORTED.split())


def start(work: Callable[..., object], *args: object) -> BaseProcess:
    """A process that calls a function of a module which can be imported."""
    process = CONTEXT.Process(target=work, args=args, daemon=True)
    process.start()
    return process


def ended(process: BaseProcess) -> int:
    """The exit code of a process that ends by itself, or has been killed: then negative."""
    process.join(PATIENCE)
    assert process.exitcode is not None, "it does not end"
    return process.exitcode


def answers_of(work: Callable[..., object], *calls: tuple) -> list:
    """What functions in as many processes send back, all at work at the same time.

    Args:
        work: called as `work(connection, *call)`; sends one answer.
        calls: arguments, a process each.
    """
    pipes = [CONTEXT.Pipe(duplex=False) for _ in calls]
    processes = [start(work, there, *call) for (_, there), call in zip(pipes, calls, strict=True)]
    for _, there in pipes:
        there.close()
    found = [here.recv() for here, _ in pipes]  # EOFError: it died before
    assert [ended(process) for process in processes] == [0] * len(calls)
    return found


def qrag(
    argv: list[str], log: Path, devices: int = 1, will_be_killed: bool = False, gate: Barrier | None = None
) -> None:
    """Becomes `qrag ARGV`.

    Args:
        argv: its arguments.
        log: gets what it prints.
        devices: virtual ones.
        will_be_killed: compiled programs are read and not kept: half an entry would stay there for good.
        gate: all that are to start together wait at it.
    """
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={devices}"  # the last one counts
    import jax

    from qrag_jax.cli.main import main

    if not will_be_killed:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if gate is not None:
        gate.wait(PATIENCE)
    sys.exit(main(argv))


def save_traced(answer: Connection, folder: Path, step: int, keep: int, seed: int, kill_before: int | None) -> None:
    """Answers with a `Traced` of a save that is killed at a system call, or with what refuses the tracing."""
    from support.runs import save_seeded, seeded_arrays

    def work(begin: Callable[[], None]) -> None:
        arrays = seeded_arrays(seed)
        begin()
        save_seeded(folder, step, seed, keep, arrays)

    found: Traced | str
    try:
        found = trace(work, folder, kill_before)
    except RefusedError as error:
        found = str(error)
    answer.send(found)


def write_in_rounds(
    answer: Connection, write: Callable[..., object], folder: Path, seed: int, rounds: int, gate: Barrier
) -> None:
    """Answers with what came of `write(folder / ROUND, seed=seed)` in each round, which all processes begin together.

    It is a pair: the message of who was refused, empty where nobody was, and the time at the end.
    """
    found = []
    for number in range(rounds):
        gate.wait(PATIENCE)
        refusal = ""
        try:
            write(folder / str(number), seed=seed)
        except UsageError as error:
            refusal = str(error)
        found.append((refusal, time.monotonic()))
    answer.send(found)


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
