"""Guards every route: checks the host, the origin, the token and the body, and adds headers that keep pages inert."""

import asyncio
import hmac
import ipaddress
import socket
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlencode, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PAGES = frozenset({"/", "/document"})
OPEN_PATHS = frozenset({"/healthz", "/login", "/style.css"})  # answered without the token
MAX_BODY = 64 * 1024  # bytes
BODY_SECONDS = 10.0  # to send a body
_OTHER_SITE = "the request comes from a page of another site"
_EVERY_ADDRESS = {"0.0.0.0", "::"}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # with none, a browser sends `Origin: null` from our own form
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Guard:
    """An ASGI app that passes on only the requests that may come in, and adds headers to all answers.

    A page of another site can make a browser send requests here. So the name in `Host` must be one of ours, which
    stops names that an attacker lets point here, and `Origin`, where a browser sends it, must be this server. A browser
    sends no `Origin` for an image or a script, so `Sec-Fetch-Site` must not name another site either, except where a
    person follows a link.

    Attributes:
        app: answers the requests.
        host: address that the server listens on.
        token: that clients must send; empty asks for none.
        names: further host names of this server, for example behind a proxy.
    """

    app: ASGIApp
    host: str = "127.0.0.1"
    token: str = ""
    names: tuple[str, ...] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        request, send = Request(scope, receive), _with_headers(send)
        refused, body = self._refusal(request), b""
        if refused is None:
            refused, body = await _read(request)
        if refused is not None:
            await _answer(scope, *refused)(scope, receive, send)
            return
        await self.app(scope, _replayed(body, receive), send)

    def allows_host(self, given: str) -> bool:
        """True if a `Host` header names this server: an address that it listens on, or a name of it."""
        try:
            name = (urlsplit(f"//{given}").hostname or "").lower()
        except ValueError:
            return False
        if name in {"localhost", self.host.lower(), *(one.lower() for one in self.names)}:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return self.host in _EVERY_ADDRESS and name in _own_names()
        return address.is_loopback or self.host in _EVERY_ADDRESS  # no attacker can let an address point elsewhere

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not self.allows_host(host):
            return (
                421,
                "this server has another name; if a proxy calls it so, `qrag serve --allowed_host NAME` allows it",
            )
        if origin is not None and origin.lower() not in {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}:
            return 403, _OTHER_SITE
        if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and not _is_link(request):
            return 403, _OTHER_SITE
        if request.scope["path"] not in OPEN_PATHS and not self._knows_token(request):
            return 401, "send the token of the server as `Authorization: Bearer TOKEN`"
        return None

    def _knows_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return not self.token or is_token(given.strip().encode("latin-1"), self.token)
        return not self.token or _has_cookie(request, self.token)


@cache
def _own_names() -> frozenset[str]:
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


def _is_link(request: Request) -> bool:
    """True if a browser opens a page in its window, as for a link, and not for another page."""
    headers = request.headers
    return (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")


def is_token(given: bytes, token: str) -> bool:
    """True if both are equal; takes as long if they are not."""
    return hmac.compare_digest(given, token.encode())


def cookie_of(token: str) -> tuple[str, str]:
    """Name and value of the cookie of a person who has entered the token; none contains the token.

    Servers on other ports of a machine get it too, so each has a name of its own.
    """
    name = hmac.new(token.encode(), b"name", "sha256").hexdigest()[:16]
    return f"qrag_{name}", hmac.new(token.encode(), b"qrag page", "sha256").hexdigest()


def _has_cookie(request: Request, token: str) -> bool:
    name, value = cookie_of(token)
    return is_token(request.cookies.get(name, "").encode("latin-1"), value)


async def _read(request: Request) -> tuple[tuple[int, str] | None, bytes]:
    """The refusal of a body, or None, and the body."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    return (413, f"the body is longer than {MAX_BODY:,} bytes; send a shorter question"), b""
    except ClientDisconnect:
        return (400, "the connection was closed within the body"), b""
    except TimeoutError:
        return (408, f"the body did not arrive within {BODY_SECONDS:g} seconds"), b""
    return None, bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, then what still comes."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _with_headers(send: Send) -> Send:
    """Adds the headers of all answers; the browser keeps nothing of them."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *ours]}
        await send(message)

    return sent


def _answer(scope: Scope, status: int, reason: str) -> Response:
    """The answer to a request that is refused; a person without the token gets its form."""
    if status == 401 and scope["path"] in _PAGES:
        wanted = scope["path"] + (f"?{query}" if (query := scope["query_string"].decode("latin-1")) else "")
        return RedirectResponse(f"/login?{urlencode({'next': wanted})}", status_code=303)
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    if status in (408, 413):  # the rest of the body is not read
        headers = {"connection": "close"}
    return JSONResponse({"error": {"reason": reason, "field": None}}, status, headers)
