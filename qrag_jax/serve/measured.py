"""Meters of a server, in the format of Prometheus."""

import time
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from qrag_jax.serve.work import WorkQueue
from qrag_jax.service.library import Library

_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)  # seconds


class Meters:
    """Counts and times requests by route. Paths of clients are no labels, so their number is bounded."""

    def __init__(self, library: Library, searches: WorkQueue, answers: WorkQueue) -> None:
        self._library = library
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        labels = ["route", "status"]
        self._requests = Counter("qrag_requests", "Requests by route and status", labels, registry=self._registry)
        self._seconds = Histogram(
            "qrag_request_seconds",
            "Seconds until an answer begins",
            ["route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        waiting = Gauge("qrag_waiting", "Requests that wait or run, by queue", ["queue"], registry=self._registry)
        waiting.labels("searches").set_function(lambda: searches.num_waiting)
        waiting.labels("answers").set_function(lambda: answers.num_waiting)
        self._sizes = {
            name: Gauge(f"qrag_index_{name}", text, ["index"], registry=self._registry)
            for name, text in {
                "documents": "Documents of an index",
                "chunks": "Chunks of an index",
                "stale": "1 if the folder of an index cannot be read now",
            }.items()
        }

    async def measure(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answers a request, and counts it."""
        start = time.perf_counter()
        status = 500
        try:
            response = await answer(request)
            status = response.status_code
            return response
        finally:
            route = getattr(request.scope.get("route"), "path", "none")
            self._requests.labels(route, status).inc()
            self._seconds.labels(route).observe(time.perf_counter() - start)

    def text(self) -> bytes:
        """All meters as text."""
        faults = self._library.faults
        for name, (documents, chunks) in self._library.sizes().items():
            values = {"documents": documents, "chunks": chunks, "stale": int(name in faults)}
            for kind, value in values.items():
                self._sizes[kind].labels(name).set(value)
        return generate_latest(self._registry)
