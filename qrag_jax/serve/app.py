"""The HTTP server over a library of indexes: search, answers, documents, health and metrics.

run(Library.open(["notes.index"]), ServeOptions(), listener)
make_app(Server(Library.open(["notes.index"]), ServeOptions()))     # for a server of your own
"""

import asyncio
import importlib
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import uvicorn
from fastapi import FastAPI, Request
from fastapi import Path as PathPart
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from qrag_jax import __version__
from qrag_jax.errors import InputError, UsageError
from qrag_jax.search.answer import Answer
from qrag_jax.serve.guard import Guard
from qrag_jax.serve.measured import Meters
from qrag_jax.serve.people import People
from qrag_jax.serve.schemas import (
    AskAnswer,
    AskBody,
    CitationFound,
    DocumentFound,
    Fault,
    Given,
    HitFound,
    Name,
    Refusal,
    SearchAnswer,
    SearchBody,
    Written,
)
from qrag_jax.serve.work import Busy, WorkQueue
from qrag_jax.service.library import Library

Result = TypeVar("Result")
_RETRY_SECONDS = 1
_MAX_CONNECTIONS = 1_000
_IDLE_SECONDS = 3.0
_LAST_SECONDS = 3  # for running requests, after a signal
_MISSING = ("id", "index", "only", "quotas")  # fields that may name something that does not exist
_BEAT_SECONDS = 10.0  # between two signs of life while a model writes
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": text}
    for status, text in {
        400: "the request is no HTTP request, or its body is no JSON",
        401: "no token, or a wrong one",
        403: "the request comes from a page of another site",
        404: "no such document or index",
        408: "the body came too slowly",
        413: "the body is too long",
        421: "the server has another name",
        422: "a field is wrong; the reason says what to do",
        503: "too many requests wait; Retry-After says when to come back",
    }.items()
}


@dataclass(frozen=True)
class ServeOptions:
    """How the server works.

    Attributes:
        host, token, names: as in `Guard`.
        max_waiting: most searches that wait or run, and most answers.
        seconds: longest time for a search; a language model has `answer_seconds`.
        answer_seconds: longest time for an answer.
        writers: answers that a language model writes at a time.
    """

    host: str = "127.0.0.1"
    token: str = ""
    names: tuple[str, ...] = ()
    max_waiting: int = 64
    seconds: float = 30.0
    answer_seconds: float = 600.0
    writers: int = 2


class _Json(Response):
    """JSON in ASCII: a lone surrogate in a text has no UTF-8, but an escape."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The content as bytes."""
        if isinstance(content, BaseModel):
            content = content.model_dump()
        return json.dumps(content, ensure_ascii=True, allow_nan=False).encode()


class Server:
    """The routes, with their queues and meters.

    Args:
        library: not yet warmed up; the app does that, and closes it.

    Attributes:
        failed: why the indexes cannot be searched; then no request is answered.
        on_failure: called then.
    """

    def __init__(self, library: Library, options: ServeOptions) -> None:
        self.library, self.options, self.ready = library, options, asyncio.Event()
        # One search at a time keeps both cores busy; a second thread only makes each slower.
        self.searches = WorkQueue(1, options.max_waiting, options.seconds)
        self.answers = WorkQueue(options.writers, options.max_waiting, options.answer_seconds)
        self.meters = Meters(library, self.searches, self.answers)
        self.failed: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None

    @asynccontextmanager
    async def life(self, _: FastAPI) -> AsyncIterator[None]:
        """Reads the indexes while the server already listens; requests wait for them in the queue."""
        # Not in the default threads of asyncio, whose end a stopped server would wait for.
        loading = asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), self.library.warm_up)
        loading.add_done_callback(self._loaded)
        practising = asyncio.create_task(self._practise())
        yield
        practising.cancel()
        self.searches.close()
        self.answers.close()
        self.library.close()

    def _loaded(self, loading: asyncio.Future[None]) -> None:
        if loading.cancelled():
            return
        self.failed = loading.exception()
        if self.failed is None:
            self.ready.set()
        else:
            self.on_failure()

    async def _practise(self) -> None:
        await self.ready.wait()
        await asyncio.sleep(_IDLE_SECONDS)  # the first question is not to wait for it
        await self.searches.run(self.library.practise)

    async def search(self, body: SearchBody) -> Response:
        """The passages that answer a question best, each with the sentence that answers."""
        found = await self.find(lambda: self.library.search(body.query))
        return _Json(SearchAnswer(hits=[HitFound.of(one) for one in found], warnings=self.library.warnings()))

    async def find(self, work: Callable[[], Result]) -> Result:
        """Runs work in the queue of searches, when the indexes are read."""
        await self._until_ready()
        return await self.searches.run(work)

    async def write(self, work: Callable[[], Result]) -> Result:
        """Runs work in the queue of answers, when the indexes are read."""
        await self._until_ready()
        return await self.answers.run(work)

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(self.options.seconds):
                await self.ready.wait()
        except TimeoutError as error:
            raise Busy("the indexes are still being read; try again soon") from error

    async def ask(self, body: AskBody) -> Response:
        """Answers a question from an index, with citations.

        A stream of server-sent events: `passages` as soon as they are found; `text` with the next part of the
        answer, if the model runs in this process; then the final `answer` with its citations, or `error`. Lines that
        begin with a colon are signs of life. `"stream": false` gives only the answer, as JSON.
        """
        query = body.query
        name = self.library.index_of(query)
        if not body.stream:
            answer = await self.write(lambda: self.library.ask(query))
            return _Json(AskAnswer.of(answer, name, self.library.warnings()))
        events: asyncio.Queue[tuple[str, BaseModel]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def found(answer: Answer) -> None:
            given = Given(passages=[CitationFound.of(one, name) for one in answer.given])
            loop.call_soon_threadsafe(events.put_nowait, ("passages", given))

        shown = ""

        def write(text: str) -> None:
            nonlocal shown
            if text.startswith(shown) and text != shown:
                loop.call_soon_threadsafe(events.put_nowait, ("text", Written(text=text[len(shown) :])))
                shown = text

        answering = asyncio.create_task(self.write(lambda: self.library.ask(query, found, write)))
        return StreamingResponse(self._events(answering, events, name), media_type="text/event-stream")

    async def _events(
        self, answering: asyncio.Task[Answer], events: asyncio.Queue[tuple[str, BaseModel]], name: str
    ) -> AsyncIterator[str]:
        coming = None
        try:
            while not answering.done():
                coming = asyncio.create_task(events.get())
                await asyncio.wait({coming, answering}, timeout=_BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    yield _event(*coming.result())
                    continue
                coming.cancel()
                if not answering.done():
                    yield ": the model reads and writes\n\n"
            while not events.empty():
                yield _event(*events.get_nowait())
            yield _event("answer", AskAnswer.of(answering.result(), name, self.library.warnings()))
        except (InputError, Busy) as error:
            yield _event("error", _fault(str(error), getattr(error, "field", None)))
        finally:
            if coming is not None:
                coming.cancel()
            answering.cancel()  # the client may have gone away; then work that has not begun is dropped

    async def document(self, id: Annotated[str, PathPart(max_length=4_096)], index: Name | None = None) -> Response:
        """A whole document by its id; `spans` of hits are characters of its text. Opens no file."""
        name, document = await self.find(lambda: self.library.document(id, index))
        return _Json(DocumentFound.of(document, name))

    async def health(self) -> Response:
        """`ready`, or `loading` with status 503; `stale` counts indexes whose folder cannot be read now."""
        status = "ready" if self.ready.is_set() else "loading"
        return _Json(
            {"status": status, "stale": len(self.library.faults)}, status_code=200 if status == "ready" else 503
        )

    async def metrics(self) -> Response:
        """Counts, seconds and sizes for Prometheus."""
        return Response(self.meters.text(), media_type="text/plain; version=0.0.4")


def run(library: Library, options: ServeOptions, listener: socket.socket) -> None:
    """Serves until a signal ends it.

    Args:
        library, options: as in `Server`.
        listener: a bound socket.

    Raises:
        InputError: the indexes cannot be searched.
    """
    routes = Server(library, options)
    config = uvicorn.Config(
        make_app(routes),
        log_config=None,  # else it closes the handlers of the whole process
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )
    server = uvicorn.Server(config)

    def end() -> None:
        server.should_exit = True

    routes.on_failure = end
    # A signal cancels what is not done in time; that is no error.
    logging.getLogger("uvicorn.error").addFilter(
        lambda one: not (one.exc_info and one.exc_info[0] is asyncio.CancelledError)
    )
    server.run(sockets=[listener])
    if routes.failed is not None:
        raise routes.failed


def make_app(server: Server) -> ASGIApp:
    """The routes of a server as an ASGI app, behind its guard."""
    options = server.options
    tools = _Tools(server)
    app = FastAPI(
        title="qrag",
        version=__version__,
        summary="Finds passages of indexed documents that answer a question",
        docs_url=None,
        redoc_url=None,
        lifespan=tools.life,
        responses=_REFUSALS,
    )
    app.add_api_route("/v1/search", server.search, methods=["POST"], response_model=SearchAnswer)
    events: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/event-stream": {}, "application/json": {}}, "model": AskAnswer}
    }
    app.add_api_route("/v1/ask", server.ask, methods=["POST"], responses=events)
    app.add_api_route("/v1/documents/{id:path}", server.document, methods=["GET"], response_model=DocumentFound)
    documents = app.routes[-1]
    assert isinstance(documents, Route)
    documents.path_regex = re.compile("/v1/documents/(?P<id>.*)", re.DOTALL)  # names may contain line breaks
    app.add_api_route("/healthz", server.health, methods=["GET"])
    app.add_api_route("/metrics", server.metrics, methods=["GET"], response_class=PlainTextResponse)
    app.routes.append(Route("/mcp", tools, methods=["POST"], include_in_schema=False))
    People(server.library, options.token, server.find, server.write).add_to(app)
    for kind, answer in _HANDLERS.items():
        app.add_exception_handler(kind, answer)
    app.middleware("http")(server.meters.measure)
    return Guard(_as_json(app), options.host, options.token, options.names)


class _Tools:
    """The tools for agents at /mcp, imported and started at the first request, because their import takes a second."""

    def __init__(self, server: Server) -> None:
        self._server, self._started, self._ended = server, asyncio.Lock(), asyncio.Event()
        self._app: ASGIApp | None = None
        self._living: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def life(self, app: FastAPI) -> AsyncIterator[None]:
        """The life of the server, and of the tools in it."""
        async with self._server.life(app):
            yield
            self._ended.set()
            if self._living is not None:
                await self._living

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a message of an agent; status 501 without the extra `mcp`."""
        async with self._started:
            if self._app is None:
                self._app = await self._start()
        await self._app(scope, receive, send)

    async def _start(self) -> ASGIApp:
        server = self._server
        try:
            module = await asyncio.to_thread(importlib.import_module, "qrag_jax.serve.mcp")
        except ImportError:
            return _Json(_fault("tools for agents need a package: pip install 'qrag_jax[mcp]'"), status_code=501)
        tools = module.mcp_asgi(lambda work: server.find(lambda: work(server.library)), server.library.names)
        begun = asyncio.Event()

        async def live() -> None:
            async with tools.router.lifespan_context(tools):
                begun.set()
                await self._ended.wait()

        self._living = asyncio.create_task(live())
        beginning = asyncio.create_task(begun.wait())
        await asyncio.wait({beginning, self._living}, return_when=asyncio.FIRST_COMPLETED)
        if not begun.is_set():
            beginning.cancel()
            await self._living  # raises why
        return tools


def _as_json(app: ASGIApp) -> ASGIApp:
    """Reads the body of a question as JSON whatever its declared type, because `curl -d` declares a form."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            others = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-type"]
            scope = {**scope, "headers": [*others, (b"content-type", b"application/json")]}
        await app(scope, receive, send)

    return called


def _event(name: str, data: BaseModel) -> str:
    return f"event: {name}\ndata: {json.dumps(data.model_dump())}\n\n"


def _fault(reason: str, field: str | None = None) -> Refusal:
    return Refusal(error=Fault(reason=reason, field=field))


async def _wrong_field(_: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    is_json = first["type"] != "json_invalid"
    reason = "it is blank; write a question" if first["type"] == "string_pattern_mismatch" else first["msg"]
    if not field:
        reason = f'{reason}: send a JSON object such as {{"question": "Who has the key?"}}'
    return _Json(_fault(reason, field if is_json else None), status_code=422 if is_json else 400)


async def _refused(_: Request, error: InputError) -> Response:
    is_missing = isinstance(error, UsageError) and error.field in _MISSING and error.value is not None
    return _Json(_fault(str(error), error.field), status_code=404 if is_missing else 422)


async def _busy(_: Request, error: Busy) -> Response:
    return _Json(_fault(str(error)), status_code=503, headers={"Retry-After": str(_RETRY_SECONDS)})


async def _http(_: Request, error: HTTPException) -> Response:
    return _Json(_fault(error.detail), status_code=error.status_code, headers=error.headers)


_HANDLERS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    RequestValidationError: _wrong_field,
    InputError: _refused,
    Busy: _busy,
    HTTPException: _http,
}
