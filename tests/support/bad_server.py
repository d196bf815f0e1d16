"""An OpenAI-compatible server on this machine that answers well, and misbehaves on purpose at one chosen prompt."""

import json
import re
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread

from qrag_jax.types import Message

MODEL = "tiny-model"
CERTIFICATE = str(Path(__file__).parents[1] / "fixtures/localhost.pem")  # of 127.0.0.1, with its key, to the year 2126


def numbered_prompts(count):
    """Prompts that tell the server which one they are."""
    return [(Message("system", "Be brief."), Message("user", f"Question {place}?")) for place in range(count)]


@dataclass
class Request:
    """One attempt as the server saw it."""

    place: int
    attempt: int  # of this prompt, from 1 on
    time: float  # time.monotonic()
    headers: dict[str, str]  # names in lower case
    body: dict


@dataclass
class BadServer:
    """What the server does and saw; tests read and alter it.

    Attributes:
        misbehave: called with the handler and the request in place of an answer.
        position: the prompt at which it does; None for all.
        times: attempts of a prompt that it does so to, the first ones.
        requests: every attempt.
        answered: places whose whole answer was sent.
        alter: changes the good answers.
    """

    base_url: str
    misbehave: Callable | None = None
    position: int | None = None
    times: float = float("inf")
    requests: list[Request] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    alter: Callable[[dict], object] = lambda answer: None
    released: Event = field(default_factory=Event)  # ends the stalls
    is_down: bool = False
    go_down: Callable[[], None] = lambda: None
    lock: Lock = field(default_factory=Lock)
    connections: set[socket.socket] = field(default_factory=set)

    def attempts(self):
        """Attempts by place."""
        return Counter(request.place for request in self.requests)


def good_answer(place, model=MODEL):
    """A chat completion, as a server sends it."""
    return {
        "id": f"chatcmpl-{place}",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": f"Answer {place}."},
                "logprobs": {"content": [{"token": "A", "logprob": -0.5}, {"token": "n", "logprob": -0.25}]},
            }
        ],
        "usage": {"prompt_tokens": 10 + place, "completion_tokens": 3, "total_tokens": 13 + place},
    }


@contextmanager
def serve_badly(misbehave=None, position=None, times=float("inf"), port=0, tls=False):
    """A running server; `base_url` is where. Port 0 is any that is free; `tls` is by CERTIFICATE."""
    server = ThreadingHTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler)
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    host = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    state = BadServer(f"{host}/v1", misbehave, position, times)
    state.go_down = lambda: _close(server, state)
    server.RequestHandlerClass = _handler(state)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def free_port():
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _close(server, state):
    state.is_down = True
    # shutdown before close: a listening socket that another thread waits on goes on accepting after a mere close.
    with suppress(OSError):
        server.socket.shutdown(socket.SHUT_RDWR)
    server.socket.close()
    for connection in list(state.connections):  # as at the end of a process
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _handler(state):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a small answer waits 40 ms for the client's acknowledgement

        def log_message(self, *args):
            pass

        def handle(self):
            state.connections.add(self.connection)
            with suppress(ConnectionError, ValueError):  # the client went away, or `reset` closed the socket
                super().handle()
            state.connections.discard(self.connection)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            place = int(re.search(r"Question (\d+)", body["messages"][-1]["content"])[1])
            headers = {name.lower(): value for name, value in self.headers.items()}
            with state.lock:
                request = Request(place, state.attempts()[place] + 1, time.monotonic(), headers, body)
                state.requests.append(request)
            chosen = state.position is None or state.position == place
            if state.is_down:
                self.close_connection = True
            elif state.misbehave is not None and chosen and request.attempt <= state.times:
                state.misbehave(self, request)
            else:
                answer = good_answer(place)
                state.alter(answer)
                self.send(200, answer)
                state.answered.append(place)

        def send(self, status, value=None, headers=None, body=None):
            body = json.dumps(value).encode() if body is None else body
            self.send_response(status)
            for name, text in ({"Content-Type": "application/json"} | (headers or {})).items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    Handler.state = state
    return Handler


# Ways to misbehave: functions of the handler and the request.


def status(number, message, headers=None, **error):
    """An error as OpenAI's API sends it. The message repeats the key that came, as careless servers do."""

    def misbehave(handler, request):
        told = f"{message} [{request.headers.get('authorization')}]"
        handler.send(number, {"error": {"message": told, "type": "test", **error}}, headers)

    return misbehave


def body(content, content_type="application/json"):
    """Status 200 with some bytes."""
    return lambda handler, request: handler.send(200, headers={"Content-Type": content_type}, body=content)


def altered(change):
    """A good answer after `change(answer)`."""

    def misbehave(handler, request):
        answer = good_answer(request.place)
        change(answer)
        handler.send(200, answer)

    return misbehave


def reset(handler, request):
    """Half an answer, then a reset of the connection."""
    whole = json.dumps(good_answer(request.place)).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(whole)))
    handler.end_headers()
    handler.wfile.write(whole[: len(whole) // 2])
    _reset(handler)


def _reset(handler):
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.shutdown(socket.SHUT_RD)
    handler.close_connection = True
    handler.connection.close()
    handler.rfile.close()
    handler.wfile = open("/dev/null", "wb")  # noqa: SIM115 -- the base class flushes and closes it


def surplus(handler, request):
    """A good answer and, in the same packet, a second one behind it, on a connection that is said to stay."""
    answer = _whole(good_answer(request.place))
    handler.wfile.write(answer + answer)
    handler.close_connection = False


def late_surplus(handler, request):
    """A good answer, and a second one behind it as soon as the next request may be waiting for its own."""
    answer = _whole(good_answer(request.place))
    handler.wfile.write(answer)
    handler.state.released.wait(0.1)
    handler.wfile.write(answer)
    handler.close_connection = False


def _whole(answer, length=0):
    """A response in one piece; its Content-Length is off by `length`."""
    content = json.dumps(answer).encode()
    head = f"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: {len(content) + length}\r\n\r\n"
    return head.encode() + content


def wrong_length(off):
    """A good answer whose Content-Length is off by so many bytes, then the end of the connection."""

    def misbehave(handler, request):
        handler.wfile.write(_whole(good_answer(request.place), off))
        handler.close_connection = True

    return misbehave


def wire(write, pause=0.0):
    """Bytes as they are, head and all, then the end of the connection.

    Args:
        write: makes them of the body of a good answer: bytes, or parts that are sent one by one.
        pause: seconds between two parts.
    """

    def misbehave(handler, request):
        parts = write(json.dumps(good_answer(request.place)).encode())
        for part in [parts] if isinstance(parts, bytes) else parts:
            handler.wfile.write(part)
            if handler.state.released.wait(pause):
                break
        handler.close_connection = True

    return misbehave


def reset_at_once(handler, request):
    """A reset of the connection in place of an answer."""
    _reset(handler)


def stall(handler, request):
    """Nothing at all, until the test ends."""
    handler.state.released.wait()
    handler.close_connection = True


def trickle(handler, request):
    """A byte of a large answer now and then: no single read is slow."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.state.released.wait(0.05):
        handler.wfile.write(b" ")
    handler.close_connection = True


def go_down(handler, request):
    """The server closes its port and all connections, for good."""
    handler.state.go_down()
    handler.close_connection = True
