"""Sends spans to a collector by OTLP over HTTP. A dead collector delays nothing, and lost spans are counted."""

import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from qrag_jax.errors import InputWarning, UsageError
from qrag_jax.integrations.otel import Spans

_QUEUE = 8_192  # most spans that wait; more are lost, which is said at the end
_BATCH = 512
_DELAY = 1.0  # seconds until a batch that is not full is sent
_LAST_SECONDS = 0.8  # for the spans that wait at the end
_MAX_ATTRIBUTES = 1_024  # of a span; a document has four
_SDK = ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal")  # their loggers: a line for each batch


class Counted(SpanExporter):
    """Counts what an exporter was given and what reached its collector; says the first failure.

    Attributes:
        num_tried, num_sent: spans.
    """

    def __init__(self, exporter: SpanExporter, to: str) -> None:
        self._exporter, self._to, self._failed = exporter, to, False
        self.num_tried = self.num_sent = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Exports a batch; called by one thread at a time."""
        self.num_tried += len(spans)
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.num_sent += len(spans)
        elif not self._failed:
            self._failed = True
            warnings.warn(InputWarning(f"trace: {self._to} takes no spans now; the work goes on"), stacklevel=2)
        return result

    def shutdown(self) -> None:
        """Ends the exporter, also one that waits for its collector."""
        self._exporter.shutdown()


class CountedBatches(BatchSpanProcessor):
    """Sends spans in batches, from a thread, and counts those that it was given."""

    def __init__(self, exporter: SpanExporter, size: int) -> None:
        super().__init__(exporter, size, 1e3 * _DELAY, min(size, _BATCH))
        self.num_ended, self._count = 0, threading.Lock()

    def on_end(self, span: ReadableSpan) -> None:
        """Takes a span; if too many wait, the oldest one is lost."""
        with self._count:
            self.num_ended += 1
        super().on_end(span)


@contextmanager
def send(endpoint: str, trace_content: bool = False) -> Iterator[Spans]:
    """Sends the spans of its body to a collector, and waits at most a second for the last ones.

    Args:
        endpoint: address of the collector; without a path it is that of the traces, /v1/traces.
        trace_content: as in `Spans`.

    Raises:
        UsageError: the endpoint is no address.
    """
    url = _address(endpoint)
    for name in _SDK:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    shown = urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()  # without a password
    exporter = Counted(OTLPSpanExporter(url, timeout=_LAST_SECONDS), shown)
    batches = CountedBatches(exporter, _QUEUE)
    limits, resource = SpanLimits(max_span_attributes=_MAX_ATTRIBUTES), Resource.create({"service.name": "qrag"})
    provider = TracerProvider(resource=resource, span_limits=limits, shutdown_on_exit=False)
    provider.add_span_processor(batches)
    try:
        yield Spans(provider.get_tracer("qrag_jax"), trace_content)
    finally:
        _end(provider, batches, exporter, shown)


def _end(provider: TracerProvider, batches: CountedBatches, exporter: Counted, url: str) -> None:
    """Gives the last spans their time in a thread that nothing waits for any longer, and says how many are lost."""
    ending = threading.Thread(target=provider.shutdown, daemon=True, name="sends the last spans")
    ending.start()
    ending.join(_LAST_SECONDS)
    ended, sent = batches.num_ended, exporter.num_sent
    if ended > sent:
        found_full, refused = ended - exporter.num_tried, exporter.num_tried - sent
        why = f"{found_full:,} found the queue full, and {refused:,} were not taken"
        if ending.is_alive():
            why = f"not within {_LAST_SECONDS:g} seconds after the end"
        warnings.warn(
            InputWarning(f"trace: {ended - sent:,} of {ended:,} spans did not reach {url}: {why}"), stacklevel=2
        )


def _address(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return endpoint if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()
    except ValueError:
        pass
    raise UsageError("is no address of a collector, such as http://127.0.0.1:4318", field="trace", value=endpoint)
