"""The official `openai` client with bounded answers, counted attempts and no redirects.

Runs asynchronous work in its own thread and event loop, so it also works inside a running loop.
"""

import asyncio
import importlib
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h11
import openai

from qrag_jax.types import UsageError

T = TypeVar("T")


def run_in_own_loop(
    work: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]],
    handle: Callable[[T], None],
    keep: Callable[[T], None] = lambda report: None,
) -> None:
    """Runs `work(report)`, and handles its reports in the calling thread, in order, as they come.

    Args:
        work: calls its argument with each report; that function never waits.
        handle: called with each report. If it raises, or the caller is interrupted, the work is cancelled and the
            exception is raised again.
        keep: called only after such an interruption, with the last report taken (which may have been handled in part)
            and all waiting reports.

    Raises:
        BaseException: any exception of `work`, `handle` or `keep`.
    """
    reports: SimpleQueue[tuple[T] | None] = SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(lambda report: reports.put((report,))))

    def run() -> None:
        try:
            loop.run_until_complete(asyncio.wait({task}))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            # Not `asyncio.run`, which waits at its end for hanging look-ups of host names.
            loop.close()
            reports.put(None)

    thread = Thread(target=run, daemon=True)
    thread.start()
    report: tuple[T] | None = None
    try:
        while (report := reports.get()) is not None:
            handle(report[0])
    except BaseException:  # also Ctrl-C: keep the paid answers, then raise again
        with suppress(RuntimeError):  # the loop is already closed
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        left = [report]
        while not reports.empty():  # no more reports are added
            left.append(reports.get())
        for report in left:
            if report is not None:
                keep(report[0])
        raise
    thread.join()
    task.result()


Text = TypeVar("Text", str, bytes)

_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 0.001  # wait for a byte after an answer that may be in the TLS buffer
_MAX_KEPT = 100  # idle connections
MIN_SECRET = 8  # letters; a shorter "key" is a word such as EMPTY, which texts contain by chance
_MOST_OF_WORDS = 20  # letters of placeholders such as "sk-no-key-required"; a longer one is a pass phrase
_WORD = re.compile("[A-Za-z]?[a-z]+|[A-Z]+|[0-9]+")

# Variables that change how a server is reached.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_VARIABLES = (*_PROXIES, *(name.lower() for name in _PROXIES), *_CERTIFICATES)
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# The library below the client may change, so it is found by the base class of the client.
_LIBRARY = openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0]
_CORE = _LIBRARY.replace("httpx", "httpcore")
_INVALID_URL: type[Exception] = sys.modules[_LIBRARY].InvalidURL
RESPONSE: type[Any] = sys.modules[_LIBRARY].Response  # with this type the client does not parse an answer
_URL: Callable[[str], Any] = sys.modules[_LIBRARY].URL
_LIMITS: Callable[..., Any] = sys.modules[_LIBRARY].Limits
_TLS: Callable[..., Any] = sys.modules[_LIBRARY].create_ssl_context
# Headers about the transfer of the body, which is passed on decoded. The charset is left out too: the client would read
# an error's body with any Python codec, and some take minutes, or raise, for some bytes.
_PACKING = (b"content-encoding", b"content-length", b"transfer-encoding", b"content-type")

# The results of the attempts of this task's call; the client decides their number.
attempts: ContextVar[list[str]] = ContextVar("attempts")


class AnswerTooLarge(openai.OpenAIError):
    """An answer has more bytes than allowed. As an error of the client, it is raised without a retry."""


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Reads at most `max_bytes` of an answer, counted after decompression, and records every attempt in `attempts`.

    Over https, a connection is reused if its answer ended exactly (`watch_connections`), which saves the handshake.
    Over http, every attempt has its own connection.

    The whole answer is read inside the client's retry loop, so a connection that breaks in the middle of an answer
    counts as an attempt and is retried. A secret key (`is_secret`) is removed from the answer here; a key that is a
    word may be part of the protocol, and stays.

    Cookies are ignored, since they could break later calls.
    """

    def __init__(self, max_bytes: int, key: str, **settings: Any) -> None:
        limits = _LIMITS(max_connections=None, max_keepalive_connections=_MAX_KEPT)
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        super().__init__(**settings, http2=False, limits=limits, cookies=no_cookies)
        transports: list[Any] = [self._transport, *self._mounts.values()]
        for transport in filter(None, transports):
            watch_connections(transport._pool, _CORE)
        self._max_bytes = max_bytes
        self._key = key

    async def send(self, request: Any, **options: Any) -> Any:
        """Sends a request like the base class, and reads the whole answer."""
        notes = attempts.get([])
        notes.append("no answer")
        if request.url.scheme != "https":
            request.headers["Connection"] = "close"
        response = await super().send(request, **{**options, "stream": True})
        wait = response.headers.get("retry-after")
        heard = f"HTTP {response.status_code}" + (f" with Retry-After: {wait[:40]}" if wait else "")
        notes[-1] = f"{heard}, incomplete"
        try:
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > self._max_bytes:
                    raise AnswerTooLarge(f"more than {self._max_bytes} bytes")
        finally:
            await response.aclose()
        notes[-1] = heard
        # As bytes, since a value need not be ASCII and cannot always be encoded again.
        headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _PACKING]
        content = hide(bytes(body), self._key) if is_secret(self._key) else bytes(body)
        return type(response)(response.status_code, headers=headers, content=content, request=request)


def make_client(base_url: str, key: str, *, deadline: float, max_retries: int, max_bytes: int) -> openai.AsyncOpenAI:
    """Makes a client for one event loop: an asynchronous context that closes its connections.

    Redirects are not followed, so prompts go only to the named host. Proxies of the environment are used, except for
    this machine. OPENAI_ORG_ID and OPENAI_PROJECT_ID are used only for OpenAI's own hosts; an Authorization in
    OPENAI_CUSTOM_HEADERS is never used.

    Args:
        base_url: checked by `check_base_url`.
        key: of the server.
        deadline: seconds that one read may take. A stalled answer is not retried, because the caller limits the whole
            call to the same time.
        max_retries: attempts after the first.
        max_bytes: most bytes of an answer.

    Raises:
        UsageError: proxies or certificates of the environment cannot be used.
    """
    host = urlsplit(base_url).hostname or ""
    timeout = openai.Timeout(deadline, connect=min(_CONNECT_SECONDS, deadline))
    trust_env = not is_this_machine(host)
    with _named_variables():
        client = openai.AsyncOpenAI(
            api_key=key,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
            default_headers={"Authorization": f"Bearer {key}"},
            http_client=BoundedClient(
                max_bytes,
                key,
                timeout=timeout,
                follow_redirects=False,
                trust_env=trust_env,
                verify=_tls(trust_env, *map(os.environ.get, _CERTIFICATES)),
            ),
        )
    if not is_openai(base_url):
        client.organization = client.project = None
    return client


@lru_cache(maxsize=4)
def _tls(trust_env: bool, *_certificates: str | None) -> Any:
    """The TLS context. It is read once, since reading it takes longer than a short call."""
    return _TLS(trust_env=trust_env)


@contextmanager
def _named_variables() -> Iterator[None]:
    """Reports errors from variables of proxies and certificates with their names; the values may contain a password."""
    try:
        yield
    except (ImportError, ValueError, OSError, _INVALID_URL) as error:
        given = [name for name in _VARIABLES if os.environ.get(name)]
        if not given:
            raise
        hint = "; a SOCKS proxy needs the package socksio" if isinstance(error, ImportError) else ""
        raise UsageError(
            f"environment: {', '.join(given)}: the proxy or certificates cannot be used ({type(error).__name__}"
            f"{hint}); correct or unset them"
        ) from None


def check_base_url(base_url: str) -> str:
    """The address without a slash at its end.

    Raises:
        UsageError: it is not the address of a server, or contains more than host, port and path.
    """
    try:
        parts = urlsplit(base_url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        raise UsageError(f"base_url {base_url!r} is not an address; write http://HOST:PORT/v1") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        # Not shown, since it may contain a secret.
        raise UsageError(
            "base_url contains a name, password, query or fragment; write http://HOST:PORT/v1, and put the key into an "
            "environment variable"
        )
    blank = any(not " " < letter < "\x7f" for letter in base_url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not port_is_good
        or blank
        or not _is_url(base_url)
    ):
        raise UsageError(f"base_url {base_url!r} is not the address of a server; write http://HOST:PORT/v1")
    return base_url.rstrip("/")


def _is_url(text: str) -> bool:
    """True if the transport accepts it; 256.1.1.1 and [v1.x] are not hosts."""
    try:
        _URL(text)
    except _INVALID_URL:
        return False
    return True


def check_key_name(key_name: str) -> None:
    """Checks that this is the name of an environment variable.

    Raises:
        UsageError: it is not.
    """
    if not _VARIABLE.fullmatch(key_name):
        raise UsageError(
            "key_name: not the name of an environment variable (letters, digits and _, no digit first); put the key "
            "into a variable, and give the variable's name (the value is not shown, since it may be the key)"
        )


def check_key(environment: Mapping[str, str], key_name: str) -> str | None:
    """The key in a variable; None if it is missing or empty.

    Raises:
        UsageError: the key has characters that cannot be sent.
    """
    key = environment.get(key_name, "")
    if any(not "!" <= letter <= "~" for letter in key):
        raise UsageError(
            f"environment variable {key_name}: contains blanks, line breaks or non-ASCII letters; set only the key"
        )
    return key or None


def is_secret(key: str) -> bool:
    """True if a key is a secret, and not a word that texts contain by chance.

    Words such as "whatever", "not-needed" and "20241022" occur in answers by chance, and "assistant" is part of every
    answer's body. Such words are removed from errors but stay in answers.
    """
    words = len(key) <= _MOST_OF_WORDS and all(_WORD.fullmatch(part) for part in re.split("[-_.]", key))
    return len(key) >= MIN_SECRET and not words


def hide(text: Text, key: str) -> Text:
    """The text or bytes without the key; a key of fewer than 8 letters is not a secret and stays."""
    if len(key) < MIN_SECRET:
        return text
    return text.replace(key, "***") if isinstance(text, str) else text.replace(key.encode(), b"***")


def is_openai(base_url: str) -> bool:
    """True if the host is one of OpenAI's own."""
    host = urlsplit(base_url).hostname or ""
    return host == "api.openai.com" or host.endswith(".api.openai.com")


def is_this_machine(host: str) -> bool:
    """True if a host name means this machine, in any spelling, without a look-up."""
    host = host.lower().removesuffix(".")
    with suppress(OSError):  # 127.1, 0x7f.1 and 2130706433 are addresses too
        host = socket.inet_ntoa(socket.inet_aton(host))
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified


def watch_connections(pool: Any, library: str) -> None:
    """Makes a connection pool reuse a connection only if its last answer ended exactly where it said.

    HTTP/1.1 matches answers to requests only by their order on a connection. Extra bytes after an answer would be read
    as the answer to the next request. So every answer is followed byte by byte, and a connection is closed if a byte
    comes after the answer, or if the answer has no stated end.

    Args:
        pool: a connection pool of `library`; its network backend is replaced.
        library: name of the package: httpcore or its successor.
    """
    pool._network_backend = _Backend(pool._network_backend, importlib.import_module(library))


class _Backend:
    """A network backend whose streams are watched."""

    def __init__(self, backend: Any, errors: Any) -> None:
        self._backend, self._errors = backend, errors

    async def connect_tcp(self, *args: Any, **more: Any) -> "_Stream":
        return _Stream(await self._backend.connect_tcp(*args, **more), self._errors)

    async def connect_unix_socket(self, *args: Any, **more: Any) -> "_Stream":
        return _Stream(await self._backend.connect_unix_socket(*args, **more), self._errors)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _Stream:
    """A network stream that knows whether the answer to the last request has ended, with nothing after it."""

    def __init__(self, stream: Any, errors: Any) -> None:
        self._stream, self._errors = stream, errors
        self._answer: h11.Connection | None = None  # None: nothing was sent, or the reply is not HTTP
        self._has_ended = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        self._has_ended = self._ends_with(data) and not await self._has_more()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._answer, self._has_ended = _expected_answer(), False
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(self, *args: Any, **more: Any) -> "_Stream":
        return _Stream(await self._stream.start_tls(*args, **more), self._errors)

    def get_extra_info(self, info: str) -> Any:
        """As the stream below; a stream that must not be reused counts as readable, so the pool closes it."""
        return (info == "is_readable" and not self._has_ended) or self._stream.get_extra_info(info)

    def _ends_with(self, data: bytes) -> bool:
        if self._answer is None:
            return False
        try:
            self._answer.receive_data(data)
            while (event := self._answer.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.EndOfMessage):
                    stays = self._answer.their_state is h11.DONE
                    return stays and self._answer.trailing_data == (b"", False)
                if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                    return False
        except h11.RemoteProtocolError:
            self._answer = None
        return False

    async def _has_more(self) -> bool:
        """True if another byte has come or the connection has ended. It must read, since TLS may buffer bytes."""
        try:
            await self._stream.read(1, _LOOK_SECONDS)
        except self._errors.ReadTimeout:
            return False
        except self._errors.ReadError:
            pass
        return True


def _expected_answer() -> h11.Connection:
    """The client side of a connection after sending a request."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "server")]))
    connection.send(h11.EndOfMessage())
    return connection
