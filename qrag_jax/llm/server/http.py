"""The official `openai` client as this library uses it: answers are bounded, attempts counted, hosts never changed.

Asynchronous work on an event loop and a thread of its own, so that it runs inside of a running loop too.
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
    """Runs `work(report)` to its end; what it reports is handled in the calling thread, as it comes and in its order.

    Args:
        work: gets a function that it calls with what it has to report; that function never waits.
        handle: called with each report. Where it raises, or the caller is interrupted, the work is cancelled, waited
            for, and the exception goes on.
        keep: called then, and only then, with every report that was waiting, and once more with the last one that was
            taken: it may have been handled in part.

    Raises:
        BaseException: what `work`, `handle` or `keep` raises.
    """
    reports: SimpleQueue[tuple[T] | None] = SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(lambda report: reports.put((report,))))

    def run() -> None:
        try:
            loop.run_until_complete(asyncio.wait({task}))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            # Not `asyncio.run`: at its end that waits for a look-up of a host's name, however long it hangs.
            loop.close()
            reports.put(None)

    thread = Thread(target=run, daemon=True)
    thread.start()
    report: tuple[T] | None = None
    try:
        while (report := reports.get()) is not None:
            handle(report[0])
    except BaseException:  # Ctrl-C too: what was paid for is kept, then the exception goes on
        with suppress(RuntimeError):  # the loop is closed: it had ended already
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        left = [report]
        while not reports.empty():  # nobody adds to it any more
            left.append(reports.get())
        for report in left:
            if report is not None:
                keep(report[0])
        raise
    thread.join()
    task.result()


Text = TypeVar("Text", str, bytes)

_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 0.001  # for a byte behind an answer that has arrived, and lies in the buffer of TLS
_MAX_KEPT = 100  # idle connections
MIN_SECRET = 8  # letters; a shorter "key" is a word such as EMPTY, which texts hold by chance
_MOST_OF_WORDS = 20  # letters of "sk-no-key-required" and its like; a longer row of words is a pass phrase
_WORD = re.compile("[A-Za-z]?[a-z]+|[A-Z]+|[0-9]+")

# What decides how a server is reached, besides its address.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_VARIABLES = (*_PROXIES, *(name.lower() for name in _PROXIES), *_CERTIFICATES)
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# Of the library that the client sends through, which is its own affair: it is found by the class that it is made of.
_LIBRARY = openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0]
_CORE = _LIBRARY.replace("httpx", "httpcore")
_INVALID_URL: type[Exception] = sys.modules[_LIBRARY].InvalidURL
RESPONSE: type[Any] = sys.modules[_LIBRARY].Response  # asked for as such, an answer is not read by the client
_URL: Callable[[str], Any] = sys.modules[_LIBRARY].URL
_LIMITS: Callable[..., Any] = sys.modules[_LIBRARY].Limits
_TLS: Callable[..., Any] = sys.modules[_LIBRARY].create_ssl_context
# Headers that say how the body was sent; it is handed on as it is to be read. The charset is left out too: the client
# would read an error's body by any codec of Python's, and some of those take minutes, or raise, for some bytes.
_PACKING = (b"content-encoding", b"content-length", b"transfer-encoding", b"content-type")

# What became of the attempts of the call that this task makes; the client alone decides how many there are.
attempts: ContextVar[list[str]] = ContextVar("attempts")


class AnswerTooLarge(openai.OpenAIError):
    """More bytes came than are taken. The client hands its own errors on at once: this one is not asked for again."""


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Reads at most so many bytes of an answer, counted after decompression, and notes every attempt in `attempts`.

    Over https a connection is used again where its answer ended exactly (`watch_connections`), which saves the
    handshake. Over http, to servers that are near, every attempt has a connection of its own.

    The whole answer is read here, inside of the client's loop of retries: a connection that breaks in the middle of an
    answer counts as an attempt and is retried like any other. A key that is a secret (`is_secret`) is taken out before
    anybody sees the answer; one that is a word might be part of what the protocol says.

    No cookie is taken: what one answer sets would go out with every later call, which it could break.
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
        """As the base class, with the answer read."""
        notes = attempts.get([])
        notes.append("nothing came")
        if request.url.scheme != "https":
            request.headers["Connection"] = "close"
        response = await super().send(request, **{**options, "stream": True})
        wait = response.headers.get("retry-after")
        heard = f"HTTP {response.status_code}" + (f" with Retry-After: {wait[:40]}" if wait else "")
        notes[-1] = f"{heard}, not whole"
        try:
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > self._max_bytes:
                    raise AnswerTooLarge(f"more than {self._max_bytes} bytes")
        finally:
            await response.aclose()
        notes[-1] = heard
        # As bytes: a value need not be ASCII, and would not be encoded again.
        headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _PACKING]
        content = hide(bytes(body), self._key) if is_secret(self._key) else bytes(body)
        return type(response)(response.status_code, headers=headers, content=content, request=request)


def make_client(base_url: str, key: str, *, deadline: float, max_retries: int, max_bytes: int) -> openai.AsyncOpenAI:
    """A client for one event loop: an asynchronous context that closes its connections.

    Redirects are not followed: a prompt goes to no host that nobody named. Proxies of the environment are used, but not
    on the way to this machine. The variables OPENAI_ORG_ID and OPENAI_PROJECT_ID are heeded for OpenAI's own host only,
    and an Authorization in OPENAI_CUSTOM_HEADERS never.

    Args:
        base_url: checked by `check_base_url`.
        deadline: seconds that one read may take. A stalled answer is thus not asked for again: the caller bounds the
            whole call by the same number.
        max_retries: attempts after the first.
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
    """What a server's certificate is checked against: read once, since that takes longer than a short call."""
    return _TLS(trust_env=trust_env)


@contextmanager
def _named_variables() -> Iterator[None]:
    """What the variables of proxies and certificates break, with their names; their values may hold a password."""
    try:
        yield
    except (ImportError, ValueError, OSError, _INVALID_URL) as error:
        given = [name for name in _VARIABLES if os.environ.get(name)]
        if not given:
            raise
        hint = "; a SOCKS proxy needs the package socksio" if isinstance(error, ImportError) else ""
        raise UsageError(
            f"environment: {', '.join(given)}: a proxy or certificates that cannot be used ({type(error).__name__}"
            f"{hint}): mend or unset them"
        ) from None


def check_base_url(base_url: str) -> str:
    """The address without a slash at its end."""
    try:
        parts = urlsplit(base_url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        raise UsageError(f"base_url {base_url!r} is no address: write http://HOST:PORT/v1") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        # Not repeated: it may hold a secret.
        raise UsageError(
            "base_url holds a name, password, query or fragment: write http://HOST:PORT/v1, and put the key into an "
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
        raise UsageError(f"base_url {base_url!r} is no address of a server: write http://HOST:PORT/v1")
    return base_url.rstrip("/")


def _is_url(text: str) -> bool:
    """Whether the library that sends takes it: 256.1.1.1 and [v1.x] are no hosts."""
    try:
        _URL(text)
    except _INVALID_URL:
        return False
    return True


def check_key_name(key_name: str) -> None:
    """Refuses what is no name of an environment variable."""
    if not _VARIABLE.fullmatch(key_name):
        raise UsageError(
            "key_name: no name of an environment variable (letters, digits and _, no digit first). It is not repeated "
            "here, since it may be the key itself: put that into a variable, and give the variable's name"
        )


def check_key(environment: Mapping[str, str], key_name: str) -> str | None:
    """The key in a variable; None where it is missing or empty."""
    key = environment.get(key_name, "")
    if any(not "!" <= letter <= "~" for letter in key):
        raise UsageError(
            f"environment variable {key_name}: blanks, line breaks or non-ASCII letters: set the key alone"
        )
    return key or None


def is_secret(key: str) -> bool:
    """Whether a text that holds the key holds it because somebody repeated it.

    "whatever", "not-needed" and "20241022" stand in texts by chance: an answer without them would be another answer,
    and a body without "assistant" no answer at all. Such words are taken out of errors, and left in answers.
    """
    words = len(key) <= _MOST_OF_WORDS and all(_WORD.fullmatch(part) for part in re.split("[-_.]", key))
    return len(key) >= MIN_SECRET and not words


def hide(text: Text, key: str) -> Text:
    """The text or bytes without the key; a key of fewer than 8 letters is no secret."""
    if len(key) < MIN_SECRET:
        return text
    return text.replace(key, "***") if isinstance(text, str) else text.replace(key.encode(), b"***")


def is_openai(base_url: str) -> bool:
    """Whether the host is one of OpenAI's own."""
    host = urlsplit(base_url).hostname or ""
    return host == "api.openai.com" or host.endswith(".api.openai.com")


def is_this_machine(host: str) -> bool:
    """Whether a host's name is that of this machine, however it is spelled, without asking anybody."""
    host = host.lower().removesuffix(".")
    with suppress(OSError):  # 127.1, 0x7f.1, 2130706433: what the system takes for an address
        host = socket.inet_ntoa(socket.inet_aton(host))
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified


def watch_connections(pool: Any, library: str) -> None:
    """Has a pool of connections ask our streams whether they may be used again: where an answer ended where it said.

    HTTP/1.1 carries nothing that says to which request an answer belongs but their order on a connection: whatever a
    server sends behind an answer would be taken for the answer to the next request. So the bytes of every answer are
    followed as they come, and a connection on which a byte came behind the answer, or whose answer has no stated end,
    is closed.

    Args:
        pool: a connection pool of `library`, whose network backend is replaced.
        library: name of the package, httpcore or one that took its place.
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
    """A network stream that knows whether the answer to what was written last has ended, and nothing came behind it."""

    def __init__(self, stream: Any, errors: Any) -> None:
        self._stream, self._errors = stream, errors
        self._answer: h11.Connection | None = None  # None: nothing was written, or what came is no answer
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
        """As the stream below; one that may not be used again counts as readable, so that the pool closes it."""
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
        """True where another byte has come or the connection has ended. Reads, as TLS may hold bytes that the socket
        does not show."""
        try:
            await self._stream.read(1, _LOOK_SECONDS)
        except self._errors.ReadTimeout:
            return False
        except self._errors.ReadError:
            pass
        return True


def _expected_answer() -> h11.Connection:
    """The client's side of a connection on which a request was sent."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "server")]))
    connection.send(h11.EndOfMessage())
    return connection
