"""A server of a library on a port of this machine, and requests to it, well-formed and raw."""

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import uvicorn

from qrag_jax.serve.app import ServeOptions, Server, make_app
from support.tiers import PATIENCE

JSON = {"Content-Type": "application/json"}


class Client:
    """Requests to a server, each on a connection of its own."""

    def __init__(self, port):
        self.port = port

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return SimpleNamespace(status=answer.status, headers=answer.headers, body=answer.read())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path, body, headers=None):
        """The status, and the answer from JSON."""
        sent = body if isinstance(body, bytes | str) else json.dumps(body)
        answer = self.request("POST", path, sent, JSON | (headers or {}))
        return answer.status, json.loads(answer.body)

    def search(self, question, **more):
        return self.post("/v1/search", {"question": question, **more})

    def events(self, body):
        """The events of an answer: (name, data)."""
        answer = self.request("POST", "/v1/ask", json.dumps(body), JSON)
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream"), answer.body
        blocks = [block.split("\n") for block in answer.body.decode().split("\n\n") if not block.startswith(":")]
        return [
            (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
            for name, data in filter(any, blocks)
        ]

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)


@contextmanager
def serving(library, **options):
    """Serves a library from a thread, and ends it."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = make_app(Server(library, ServeOptions(**options)))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    client = Client(listener.getsockname()[1])
    try:
        wait_for(lambda: client.get("/healthz").status == 200)
        yield client
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


def wait_for(condition):
    """Returns when a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
