"""Prepares files in other processes. If one is killed, another repeats its files.

A file becomes a failure if its process ends several times while it has no other file.
"""

import multiprocessing as mp
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from qrag_jax.index.prepare import Ask, Group, Made, MakeMaker, Vector, prepare
from qrag_jax.index.stores.sqlite.entries import Failure
from qrag_jax.types import InputError

_MAX_DEATHS = 3  # of processes with the same single file; and of processes that could not start
_GONE = (EOFError, ConnectionResetError, BrokenPipeError)


@dataclass
class _Worker:
    """A process and its current files."""

    process: BaseProcess
    group: Group | None = None
    is_ready: bool = False


@dataclass
class Workers:
    """Processes that prepare groups of files while the context is open.

    Attributes:
        number: of processes.
        make: loads the `Maker` in each process.
        check: called with the fingerprint of the encoder before the first file; may refuse it.
        ask: as in `prepare`; answered in this process.
    """

    number: int
    make: MakeMaker
    check: Callable[[str], None]
    ask: Ask | None

    def __post_init__(self) -> None:
        self._workers: dict[Connection, _Worker] = {}
        self._again: deque[Group] = deque()
        self._deaths: dict[str, int] = {}  # of processes that had only this file
        self._early_deaths = 0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for connection, worker in self._workers.items():
            connection.close()  # ends a process that waits for work
            worker.process.terminate()
            worker.process.join()
        self._workers = {}

    def run(self, groups: Iterator[Group]) -> Iterator[Made]:
        """The results of each group, in the order in which they are finished."""
        while True:
            self._hand_out(groups)
            if not any(worker.group for worker in self._workers.values()):
                return
            for connection in wait(list(self._workers)):
                assert isinstance(connection, Connection)
                made = self._hear(connection)
                if made is not None:
                    yield made

    def _hand_out(self, groups: Iterator[Group]) -> None:
        """Gives every idle process a group, and starts processes for more groups."""
        idle = [connection for connection, worker in self._workers.items() if worker.group is None]
        while idle or len(self._workers) < self.number:
            group = self._again.popleft() if self._again else next(groups, None)
            if group is None:
                return
            connection = idle.pop() if idle else self._start()
            self._workers[connection].group = group
            with suppress(*_GONE):  # it has ended; `_hear` notices
                connection.send(group)

    def _start(self) -> Connection:
        context = mp.get_context("spawn")  # a fork of a process with threads, such as JAX's, may hang
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self.make, self.ask is not None))
        process.start()
        theirs.close()
        self._workers[ours] = _Worker(process)
        return ours

    def _hear(self, connection: Connection) -> Made | None:
        """Receives one message; returns the results of a group, if the message contains them."""
        try:
            kind, value = connection.recv()
        except _GONE:
            return self._bury(connection)
        worker = self._workers[connection]
        if kind == "refused":
            raise value
        if kind == "ready":
            worker.is_ready, self._early_deaths = True, 0
            self.check(value)
        elif kind == "ask":
            assert self.ask is not None
            with suppress(*_GONE):
                connection.send(self.ask(value))
        else:
            worker.group = None
            return value
        return None

    def _bury(self, connection: Connection) -> Made | None:
        """Handles a process that has ended: retries its files, or returns a failure after several deaths."""
        worker = self._workers.pop(connection)
        connection.close()
        worker.process.join()
        group = worker.group
        if not worker.is_ready:
            self._early_deaths += 1
            if self._early_deaths >= _MAX_DEATHS:
                raise InputError(
                    f"worker processes crash while they load the encoder (exit code {worker.process.exitcode})",
                    field="num_workers",
                    value=self.number,
                    remedy="free some memory, or use fewer processes",
                )
        if group is None:
            return None
        if len(group) > 1:  # retry each alone, to find the one that kills its process
            self._again.extend((task,) for task in group)
            return None
        (task,) = group
        self._deaths[task.file.id] = self._deaths.get(task.file.id, 0) + worker.is_ready
        if self._deaths[task.file.id] < _MAX_DEATHS:
            self._again.append(group)
            return None
        reason = (
            f"the process that read it ended {_MAX_DEATHS} times (exit code {worker.process.exitcode}); leave it out, "
            "or remove it from the index and add it to try again"
        )
        return Made((Failure(task.file.id, reason, task.origin),))


def _work(connection: Connection, make: MakeMaker, may_ask: bool) -> None:
    """Runs a process until its connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process

    def ask(keys: Sequence[bytes]) -> dict[bytes, Vector]:
        connection.send(("ask", keys))
        return connection.recv()

    with suppress(*_GONE):
        try:
            maker = make()
            connection.send(("ready", maker.embed.fingerprint))
            while True:
                connection.send(("made", prepare(maker, connection.recv(), ask if may_ask else None)))
        except InputError as error:
            connection.send(("refused", error))
