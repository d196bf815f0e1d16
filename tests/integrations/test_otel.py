"""Spans of searches and answers: their tree, names and texts; what a dead, slow or full collector costs."""

import json
import logging
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from qrag_jax.cli.main import main
from qrag_jax.index.index import open_index
from qrag_jax.index.options import Found
from qrag_jax.integrations import otel_sending
from qrag_jax.integrations.otel import Spans
from qrag_jax.integrations.otel_sending import Counted, CountedBatches, send
from qrag_jax.search.answer import Answer
from qrag_jax.search.context.pack import Context, Passage
from qrag_jax.service.library import Library, Query
from qrag_jax.service.observing import Observed, traced
from qrag_jax.types import Cost, Document, Generation, Hit, InputError, InputWarning, Place, Sentence, UsageError

QUESTION, SECRET = "Who has the key?", "Mary has the key."
PICKED = {"openinference.span.kind": "RETRIEVER", "gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": "n"}

SEARCHED = {"qrag.num_chunks": 7}


@pytest.fixture
def seen():
    """`spans(trace_content)` makes an observer; `seen.all()` the finished spans, in the order of their ends."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    return SimpleNamespace(spans=lambda content=False: Spans(tracer, content), all=exporter.get_finished_spans)


def hit(rank, score, start, position=None, file="a.md"):
    place = Place(file, start, start + len(SECRET), 1)
    return Hit(rank, place, ((start, place.end),), SECRET, score, Sentence(SECRET, place), position=position)


def found(hits, retriever="hybrid", stop=None):
    return Found(QUESTION, hits, retriever, "none", 7, 0, Cost(), stop_reason=stop)


def observed(result, error=None):
    return Observed(QUESTION, {"n": result}, 1_000, 9_000_000_000, error)


def document(i, start, score, text=False):
    of = f"retrieval.documents.{i}.document"
    return {
        f"{of}.id": f"a.md#{start}-{start + 17}",
        f"{of}.score": score,
        f"{of}.metadata": json.dumps({"file": "a.md", "spans": [[start, start + 17]]}),
    } | ({f"{of}.content": SECRET} if text else {})


def listed(*rows):
    return {
        "gen_ai.retrieval.documents": json.dumps([{"id": f"a.md#{s}-{s + 17}", "score": score} for s, score in rows])
    }


def test_a_search_in_one_step_is_a_chain_with_one_retriever(seen):
    seen.spans()(observed(found([hit(1, 0.5, 0), hit(2, 0.25, 40)])))
    step, chain = seen.all()
    assert (chain.name, chain.attributes, chain.parent) == ("qrag", {"openinference.span.kind": "CHAIN"}, None)
    assert step.name == "retrieval" and step.parent.span_id == chain.context.span_id
    assert step.attributes == (
        PICKED | SEARCHED | document(0, 0, 0.5) | document(1, 40, 0.25) | listed((0, 0.5), (40, 0.25))
    )
    assert [(one.start_time, one.end_time) for one in (step, chain)] == [(1_000, 9_000_000_000)] * 2


def test_a_run_has_a_retriever_for_each_pick_with_its_q_value(seen):
    seen.spans(True)(observed(found([hit(1, 1.5, 40, 0.0), hit(2, -0.5, 0, 0.3)], "runs/mine", "budget")))
    first, second, chain = seen.all()
    texts = {"input.value": QUESTION, "gen_ai.retrieval.query.text": QUESTION}
    for span, rank, start, q_value in (first, 1, 40, 1.5), (second, 2, 0, -0.5):
        picked = {"qrag.step": rank, "qrag.q_value": q_value}
        assert span.attributes == PICKED | SEARCHED | {"qrag.stop_reason": "budget"} | picked | texts | document(
            0, start, q_value, True
        ) | listed((start, q_value))
    assert chain.attributes["input.value"] == QUESTION


def test_an_answer_has_a_language_model_with_its_tokens(seen):
    passages = (
        Passage(1, "a.md", ((0, 17),), SECRET, 5, 0.25, 2, 0),
        Passage(2, "a.md", ((40, 57),), SECRET, 5, 0.5, 1, 1),
    )
    made = Generation("Mary [1].", "stop", prompt_tokens=120, completion_tokens=5)
    answer = Answer(QUESTION, Context(passages, 10, 99, 0), (), (), 7, Cost({"retrieve": 1.0, "generate": 2.0}),
                    generation=made, model="smol", retriever="bm25")  # fmt: skip
    seen.spans(True)(observed(answer))
    model, step, chain = seen.all()
    assert model.attributes == {
        "openinference.span.kind": "LLM",
        "gen_ai.operation.name": "chat",
        "llm.model_name": "smol",
        "gen_ai.request.model": "smol",
        "llm.token_count.prompt": 120,
        "gen_ai.usage.input_tokens": 120,
        "llm.token_count.completion": 5,
        "gen_ai.usage.output_tokens": 5,
        "llm.token_count.total": 125,
        "gen_ai.response.finish_reasons": ("stop",),
        "input.value": QUESTION,
        "output.value": "Mary [1].",
    }
    assert (step.end_time, model.start_time, model.end_time) == (7_000_000_000, 7_000_000_000, 9_000_000_000)
    ids = [step.attributes[f"retrieval.documents.{i}.document.id"] for i in range(2)]
    assert ids == ["a.md#40-57", "a.md#0-17"]  # the best first
    assert model.parent == step.parent == chain.context


def test_no_text_leaves_without_trace_content(seen):
    passages = (Passage(1, "a.md", ((0, 17),), SECRET, 5, 0.25, 1, 0),)
    failed = Generation("Mary", "error", error=f"refused {SECRET}")
    answer = Answer(
        QUESTION, Context(passages, 5, 9, 0), (), (), 7, Cost(), generation=failed, model="m", retriever="bm25"
    )
    seen.spans()(observed(answer))
    seen.spans()(observed(found([hit(1, 0.5, 0)]), InputError(f"{QUESTION}: too long")))
    told = " ".join(span.to_json() for span in seen.all())
    assert "Mary" not in told and "Who" not in told
    statuses = [(span.attributes["openinference.span.kind"], span.status.status_code) for span in seen.all()]
    assert statuses == [("LLM", StatusCode.ERROR), ("RETRIEVER", StatusCode.UNSET), ("CHAIN", StatusCode.UNSET),
                        ("RETRIEVER", StatusCode.UNSET), ("CHAIN", StatusCode.ERROR)]  # fmt: skip
    assert seen.all()[-1].attributes["error.type"] == "InputError"


def test_texts_that_have_no_utf_8_are_sent_all_the_same(seen):
    place = Place("b\udcff.md", 0, 1, 1)
    one = Hit(1, place, ((0, 1),), "\ud800", 0.5, Sentence("\ud800", place))
    seen.spans(True)(observed(found([one])))
    seen.all()[0].to_json().encode()
    assert seen.all()[0].attributes["retrieval.documents.0.document.id"] == "b\ufffd.md#0-1"


def test_indexes_other_retrievers_and_libraries_are_observed(seen, tmp_path):
    (tmp_path / "a.md").write_text(f"{SECRET}\n")
    with traced(open_index([Document("a.md", SECRET)], retriever="bm25"), seen.spans()) as index:
        index.search(QUESTION, 2)
        with pytest.raises(UsageError):
            index.search(QUESTION, only="b.md")
        assert index.ask(QUESTION).quotes
    with Library.open([str(tmp_path / "a.md")], index_options("bm25"), observe=seen.spans()) as library:
        library.search(Query(QUESTION))
        library.ask(Query(QUESTION))
        with pytest.raises(UsageError):
            library.search(Query(QUESTION, index="none"))
    other = SimpleNamespace(search=lambda question, top_k=None: [hit(1, 0.5, 0)], name="mine")
    traced(other, seen.spans()).search(QUESTION, 3)
    kinds = [span.attributes["openinference.span.kind"] for span in seen.all()]
    pair = ["RETRIEVER", "CHAIN"]
    assert kinds == [*pair, "CHAIN", *pair, *pair, *pair, "CHAIN", *pair]  # warming up is no question
    sources = [span.attributes.get("gen_ai.data_source.id") for span in seen.all()]
    assert sources[5] == "a.md" and sources[-2] == "mine"


def index_options(retriever):
    from qrag_jax.index.options import SearchOptions

    return SearchOptions(retriever=retriever)


@contextmanager
def collector(status=200):
    """A collector on this machine: its address, and the requests that it received."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            requests.append((self.path, self.headers["content-type"], body))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def loggers_as_before():
    before = {name: logging.getLogger(name).level for name in otel_sending._SDK}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def spans_in(body):
    message = ExportTraceServiceRequest.FromString(body)
    return [span for one in message.resource_spans for scope in one.scope_spans for span in scope.spans]


def test_a_collector_receives_all_spans():
    with collector() as (address, requests):
        with send(address) as spans:
            spans(observed(found([hit(1, 0.5, i * 20) for i in range(100)])))
            for _ in range(299):
                spans(observed(found([])))
    assert {(path, kind) for path, kind, _ in requests} == {("/v1/traces", "application/x-protobuf")}
    received = [span for _, _, body in requests for span in spans_in(body)]
    assert len(received) == 600
    step = next(span for span in received if span.name == "retrieval")
    assert len(step.attributes) == 3 * 100 + 5 and step.dropped_attributes_count == 0


def test_the_command_line_sends_them_too(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_text(f"{SECRET}\n")
    with collector() as (address, requests):
        words = ["a.md", QUESTION, "--retriever", "bm25", "--trace", f"{address}/mine/v1/traces"]
        assert main(["find", *words]) == main(["ask", *words, "--trace_content"]) == 0
    assert [path for path, _, _ in requests] == ["/mine/v1/traces"] * 2
    contents = [
        any("content" in one.key for span in spans_in(body) for one in span.attributes) for _, _, body in requests
    ]
    assert contents == [False, True]
    assert main(["find", "a.md", QUESTION, "--trace_content"]) == 2
    assert main(["find", "a.md", QUESTION, "--trace", "localhost"]) == 2
    told = capsys.readouterr().err
    assert "--trace_content: works only with --trace URL" in told and "--trace 'localhost': is no address" in told


class Stuck(SpanExporter):
    """A collector that takes nothing until it is let go."""

    def __init__(self, result=SpanExportResult.SUCCESS):
        self.go, self.began, self._result = threading.Event(), threading.Event(), result

    def export(self, spans):
        self.began.set()
        self.go.wait(60)
        return self._result

    def shutdown(self):
        self.go.set()


def batches(exporter, size):
    counted = Counted(exporter, "http://there")
    processor = CountedBatches(counted, size)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider, processor, counted


def test_spans_that_find_the_queue_full_are_counted():
    stuck = Stuck()
    provider, processor, counted = batches(stuck, 8)
    tracer = provider.get_tracer("test")
    for _ in range(8):
        tracer.start_span("first").end()
    assert stuck.began.wait(60)  # the first batch is out of the queue, and goes nowhere
    for _ in range(5_000):
        tracer.start_span("more").end()
    stuck.go.set()
    with pytest.warns(InputWarning, match=r"^trace: 4,992 of 5,008 spans did not reach http://there: 4,992 found the "
                                          r"queue full, and 0 were not taken$"):  # fmt: skip
        otel_sending._end(provider, processor, counted, "http://there")
    assert (counted.num_tried, counted.num_sent) == (16, 16)


def test_nothing_waits_for_a_collector_that_takes_nothing(monkeypatch):
    monkeypatch.setattr(otel_sending, "_LAST_SECONDS", 0.05)
    stuck = Stuck()
    provider, processor, counted = batches(stuck, 64)
    for _ in range(10):
        provider.get_tracer("test").start_span("one").end()
    with pytest.warns(InputWarning, match=r"10 of 10 spans did not reach http://there: not within 0.05 seconds"):
        otel_sending._end(provider, processor, counted, "http://there")
    assert not stuck.go.is_set()  # it is still at work, in a thread that does not hold the exit
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "sends the last spans")
    stuck.go.set()


@pytest.mark.filterwarnings("ignore:trace. .* takes no spans now")
def test_refused_spans_are_said():
    with (
        collector(400) as (address, _),
        pytest.warns(InputWarning, match="0 found the queue full, and 2 were not taken"),
    ):
        with send(address) as spans:
            spans(observed(found([hit(1, 0.5, 0)])))


@pytest.mark.parametrize("address", ["", "localhost:4318", "ftp://a", "http://", "http://a:b"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UsageError, match="is no address of a collector"), send(address):
        pass
