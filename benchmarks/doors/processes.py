"""Servers in processes, clients that ask them, and what both took."""

import http.client
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.common import timed

START_SECONDS = 600.0
_ANSWER_SECONDS = 300.0
_PAUSE = 0.02  # seconds between two tries to reach a server that starts
_KEPT = 300  # answers
_OFFLINE = {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}


@dataclass(frozen=True)
class Call:
    """A request.

    Attributes:
        body: of a POST; a GET has none.
        expected: the status that is no error.
        leaves_after: bytes of the answer after which the client hangs up; 0 waits for none, None stays to the end.
    """

    path: str
    body: str = ""
    expected: int = 200
    leaves_after: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Load:
    """Answers that clients had.

    Attributes:
        seconds: of every answer.
        faults: of every other request, status and path.
        wall: seconds of the whole.
        cores: processor time of the clients, in cores.
        bodies: of the first answers, by the number of the request.
    """

    seconds: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    wall: float = 0.0
    cores: float = 0.0
    bodies: dict[int, bytes] = field(default_factory=dict)

    def summary(self) -> dict[str, float]:
        """Counts, requests/s, and milliseconds at three percentiles."""
        p50, p95, p99 = (float(one) for one in np.percentile(self.seconds or [np.nan], (50, 95, 99)) * 1000)
        counts = {"requests": len(self.seconds), "errors": len(self.faults), "cores": self.cores}
        return counts | {"rate": len(self.seconds) / self.wall, "p50": p50, "p95": p95, "p99": p99}


class Server:
    """A server in a process, which the context manager ends.

    Args:
        command: starts it; `{port}` stands for its port.
        ask: the request of a question.
        **env: further variables of the process.
    """

    def __init__(self, command: Sequence[str], ask: Callable[[str], Call], **env: str) -> None:
        self.ask, self._port, self._began = ask, _free_port(), time.perf_counter()
        words = [word.replace("{port}", str(self._port)) for word in command]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=os.environ | _OFFLINE | env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def first_answer(self, question: str) -> float:
        """Seconds from the command to the first answer."""
        while time.perf_counter() - self._began < START_SECONDS:
            try:
                status, _ = self.get(self.ask(question))
            except OSError:
                if self._process.poll() is not None:
                    raise SystemExit(f"{self._process.args}: ended before it answered; its error is above") from None
                time.sleep(_PAUSE)
                continue
            if status == 200:
                return time.perf_counter() - self._began
            raise SystemExit(f"{self._process.args}: answered the first question with {status}")
        raise SystemExit(f"{self._process.args}: no answer within {START_SECONDS:g} seconds")

    def get(self, call: Call) -> tuple[int, bytes]:
        """The status and the body of one answer."""
        with closing(self.connect()) as connection:
            return answer(connection, call)

    def connect(self) -> http.client.HTTPConnection:
        """A connection of a client."""
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)

    def memory(self) -> dict[str, float]:
        """Resident MiB now (`rss`) and at most (`peak`)."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", text, re.MULTILINE))
        return {"rss": int(found["VmRSS"]) / 1024, "peak": int(found["VmHWM"]) / 1024}

    def handles(self) -> dict[str, int]:
        """Numbers of open files (`fds`) and threads."""
        base = f"/proc/{self._process.pid}"
        return {"fds": len(os.listdir(f"{base}/fd")), "threads": len(os.listdir(f"{base}/task"))}


def our_server(index: str, *flags: str) -> Server:
    """`qrag serve` over an index."""
    command = [sys.executable, "-m", "qrag_jax.cli.main", "serve", index, "--port", "{port}", *flags]
    return Server(command, lambda question: post("/v1/search", question=question, top_k=5))


def post(path: str, **fields: Any) -> Call:
    """A request with a JSON body."""
    return Call(path, json.dumps(fields))


def answer(connection: http.client.HTTPConnection, call: Call) -> tuple[int, bytes]:
    """The status and the body of an answer, as far as the client reads it."""
    headers = {"content-type": "application/json", **call.headers}
    connection.request("POST" if call.body else "GET", call.path, call.body.encode() or None, headers)
    if call.leaves_after == 0:
        connection.close()
        return call.expected, b""
    with connection.getresponse() as response:
        body = response.read(call.leaves_after)
        if call.leaves_after is not None:
            connection.close()
        return response.status, body


def load(
    server: Server, calls: Sequence[Call], *, clients: int = 1, most: float = np.inf, seconds: float = np.inf
) -> Load:
    """Clients that send one request after the other, each on a connection that stays open.

    Args:
        calls: taken in turn by all clients, from the beginning again after the last.
        clients: threads.
        most: requests of all clients.
        seconds: until the last request begins.
    """
    numbers, told, end = itertools.count(), Load(), time.perf_counter() + seconds

    def work() -> None:
        with closing(server.connect()) as connection:
            while (number := next(numbers)) < most and time.perf_counter() < end:
                _ask(connection, calls[number % len(calls)], number, told)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    with timed() as taken:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    told.wall, told.cores = taken["seconds"], taken["cpu_seconds"] / taken["seconds"]
    return told


def _ask(connection: http.client.HTTPConnection, call: Call, number: int, told: Load) -> None:
    began = time.perf_counter()
    try:
        status, body = answer(connection, call)
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        told.faults.append(f"{type(error).__name__} {call.path}")
        return
    if status == call.expected:
        told.seconds.append(time.perf_counter() - began)
        if number < _KEPT:
            told.bodies[number] = body
    else:
        told.faults.append(f"{status} {call.path}")


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]
