"""Prepares files as tasks of a Ray cluster, on as many machines as it has.

A task reads and embeds a group of files. Ray repeats it when its process or machine is lost. If that happens three
times, its files are tried alone, so a document that ends its process fails alone. This process writes the index.
"""

import logging
import os
import socket
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from typing import Any

from qrag_jax import __version__
from qrag_jax.errors import not_installed
from qrag_jax.index.prepare import Ask, Group, Made, MakeMaker, Maker, prepare
from qrag_jax.index.stores.sqlite.entries import Failure
from qrag_jax.types import InputError

_SECONDS = 10.0  # to wait for the head of a cluster
_RETRIES = 2  # of a task whose process was lost, so three tries
_MAKERS: dict[str, Maker] = {}  # of a process on the cluster, for the update that runs


@dataclass
class RayTasks:
    """A cluster that prepares groups of files while the context is open; as `workers.Workers`.

    Known vectors stay in this process, so a changed document is embedded whole.

    Attributes:
        number: of tasks at a time; 0 is one for each CPU of the cluster.
        make: loads the `Maker` in each process of the cluster, which needs this package and the encoder.
        check: called with the fingerprint of the encoder before a document is written; may refuse it.
        ask: None if equal texts may have different vectors.
    """

    number: int
    make: MakeMaker
    check: Callable[[str], None]
    ask: Ask | None

    def __enter__(self) -> "RayTasks":
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise not_installed("ray", "ray") from error
        # Without this setting, Ray repeats a task that ran out of memory without end.
        os.environ.setdefault("RAY_task_oom_retries", str(_RETRIES))
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints there what it repeats
            if not ray.is_initialized():
                _connect()
                stack.callback(ray.shutdown)
            self._ray, self._stack = ray, stack.pop_all()
        self.number = self.number or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._task = ray.remote(max_retries=_RETRIES, num_cpus=1)(_prepare)
        self._making = ray.put(self.make), uuid.uuid4().hex
        self._running: dict[Any, Group] = {}
        self._again: deque[Group] = deque()
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._stack.close()

    def run(self, groups: Iterator[Group]) -> Iterator[Made]:
        """The results of each group, in the order in which they are finished."""
        while True:
            while len(self._running) < self.number:
                group = self._again.popleft() if self._again else next(groups, None)
                if group is None:
                    break
                self._running[self._task.remote(*self._making, __version__, list(group), self.ask is not None)] = group
            if not self._running:
                return
            (task, *_), _ = self._ray.wait(list(self._running))
            made = self._result(task, self._running.pop(task))
            if made is not None:
                yield made

    def _result(self, task: Any, group: Group) -> Made | None:
        """The result of a task; None if its files are tried again, each alone."""
        lost = self._ray.exceptions
        try:
            fingerprint, made = self._ray.get(task)
        except lost.OutOfMemoryError as error:
            raise InputError(
                f"a machine of the Ray cluster ran out of memory {_RETRIES + 1} times while it read "
                f"{group[0].file.id}{' and others' * (len(group) > 1)}",
                field="num_workers",
                value=self.number,
                remedy="use fewer workers, or machines with more memory; what is finished is kept",
            ) from error
        except (lost.WorkerCrashedError, lost.NodeDiedError, lost.ObjectLostError) as error:
            return self._alone(group, error)
        except lost.RayError as error:
            said = str(error).strip().splitlines()
            raise InputError(
                f"engine ray: a task failed on the cluster ({said[-1] if said else type(error).__name__}); install the "
                "same version of qrag_jax with its extras on every machine, then start again; what is finished is kept"
            ) from error
        if isinstance(made, InputError):
            raise made
        self.check(fingerprint)
        return made

    def _alone(self, group: Group, error: Exception) -> Made | None:
        if len(group) > 1:
            self._again.extend((task,) for task in group)
            return None
        (task,) = group
        reason = (
            f"the process that read it ended {_RETRIES + 1} times ({type(error).__name__}); leave it out, or remove it "
            "from the index and add it to try again"
        )
        return Made((Failure(task.file.id, reason, task.origin),))


def _connect() -> None:
    """Connects to the cluster of RAY_ADDRESS, or to that of this machine."""
    import ray  # pyright: ignore[reportMissingImports]

    address = os.environ.get("RAY_ADDRESS") or "auto"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host:  # Ray itself would try for minutes, and then end this process
            socket.create_connection((host, int(port)), _SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        where, said = "here" if address == "auto" else f"at {address}", " ".join(str(error).split())
        raise InputError(
            f"engine ray: no cluster answers {where} ({said}); start one with `ray start --head`, or set RAY_ADDRESS "
            "to the address of its head"
        ) from error


def _prepare(
    make: MakeMaker, update: str, version: str, group: Group, are_equal: bool
) -> tuple[str, Made | InputError]:
    """The task, in a process of the cluster: the fingerprint of the encoder, and the results or why it was refused.

    Args:
        update: the encoder is loaded once in a process, for the update of this name.
        version: of qrag_jax where the index is written.
        are_equal: equal texts have equal vectors.
    """
    try:
        if version != __version__:
            raise InputError(
                f"engine ray: a machine of the cluster has qrag_jax {__version__}, this one has {version}; install the "
                "same version on all"
            )
        if update not in _MAKERS:
            _MAKERS.clear()
            _MAKERS[update] = make()
        maker = _MAKERS[update]
        return maker.embed.fingerprint, prepare(maker, group, (lambda keys: {}) if are_equal else None)
    except InputError as error:
        return "", error
