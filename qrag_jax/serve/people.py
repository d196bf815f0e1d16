"""The page of the server: the routes that answer with HTML."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from qrag_jax import page
from qrag_jax.errors import InputError
from qrag_jax.search.answer import Answer
from qrag_jax.serve.guard import cookie_of, is_token
from qrag_jax.serve.schemas import MAX_QUESTION
from qrag_jax.serve.work import Busy
from qrag_jax.service.library import Library, Query

Run = Callable[[Callable[[], Any]], Awaitable[Any]]


class People:
    """The routes for people.

    Args:
        library: that is searched.
        token: of the server; empty if it has none.
        search: runs a search in the queue of searches, when the library is ready.
        answer: the same for answers.
    """

    def __init__(self, library: Library, token: str, search: Run, answer: Run) -> None:
        self._library, self._token, self._search, self._answer = library, token, search, answer

    def add_to(self, app: FastAPI) -> None:
        """Adds the routes; they are for browsers, so the OpenAPI leaves them out."""
        for path, route in (("/", self.start), ("/document", self.document), ("/login", self.login)):
            app.add_api_route(path, route, methods=["GET"], include_in_schema=False)
        app.add_api_route("/login", self.log_in, methods=["POST"], include_in_schema=False)
        app.add_api_route("/style.css", self.style, methods=["GET"], include_in_schema=False)

    async def start(self, question: str = "", index: str = "", mode: str = "search") -> Response:
        """The form, passages or an answer."""
        form = page.Form(
            self._library.names, question, index or None, "ask" if mode == "ask" else "search", self._library.warnings()
        )
        if not question.strip():
            return _html(page.start_page(form))
        if len(question) > MAX_QUESTION:
            return _html(page.start_page(form, f"the question is longer than {MAX_QUESTION:,} characters"), 422)
        asked = Query(question, index=index or None)
        try:
            if form.mode == "ask":
                name = self._library.index_of(asked)
                return _html(self._parts_of_answer(form, asked, name))
            found = await self._search(lambda: self._library.find(asked))
        except (InputError, Busy) as error:
            return _html(page.start_page(form, str(error)), 422 if isinstance(error, InputError) else 503)
        return _html(page.search_page(form, found))

    async def _parts_of_answer(self, form: page.Form, asked: Query, name: str) -> AsyncIterator[str]:
        """The page of an answer, each part as soon as it is there."""
        yield page.ask_start(form)
        passages: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def found(answer: Answer) -> None:
            passages.get_loop().call_soon_threadsafe(passages.set_result, page.ask_passages(answer, name))

        answering = asyncio.ensure_future(self._answer(lambda: self._library.ask(asked, found)))
        try:
            await asyncio.wait({passages, answering}, return_when=asyncio.FIRST_COMPLETED)
            if passages.done():
                yield passages.result()
            yield page.ask_end(await answering)
        except (InputError, Busy) as error:
            yield page.ask_end(None, str(error))
        finally:
            answering.cancel()  # the person may have gone away; then work that has not begun is dropped

    async def document(self, id: str, index: str = "", at: str = "", spans: str = "") -> Response:
        """A document with a passage marked."""
        try:
            passage, sentence = page.read_spans(spans), page.read_spans(at)
            name, document = await self._search(lambda: self._library.document(id, index or None))
        except (InputError, Busy) as error:
            form = page.Form(self._library.names)
            return _html(page.start_page(form, str(error)), 404 if isinstance(error, InputError) else 503)
        return _html(page.document_page(document, passage, sentence[0] if sentence else None, index=name))

    async def login(self, next: str = "/") -> Response:
        """The form for the token."""
        return _html(page.login_page("", next))

    async def log_in(self, request: Request) -> Response:
        """Keeps the right token as a cookie of this server, and opens the page that was wanted."""
        sent = parse_qs((await request.body()).decode("utf-8", "replace"))
        token, wanted = (sent.get(name, [""])[0] for name in ("token", "next"))
        if not is_token(token.encode(), self._token):
            return _html(page.login_page("this is not the token of the server", wanted), 401)
        is_ours = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
        answer = RedirectResponse(wanted if is_ours else "/", status_code=303)
        answer.set_cookie(*cookie_of(self._token), httponly=True, samesite="strict")
        return answer

    async def style(self) -> Response:
        """The style of all pages."""
        return Response(page.style(), media_type="text/css")


def _html(content: str | Iterator[str] | AsyncIterator[str], status: int = 200) -> Response:
    """A page, or its parts; a lone surrogate has no UTF-8, and becomes a question mark."""
    if isinstance(content, str):
        return HTMLResponse(_encoded(content), status)
    parts = (_encoded(x) async for x in content) if isinstance(content, AsyncIterator) else map(_encoded, content)
    return StreamingResponse(parts, status, media_type="text/html")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
