"""Connections that are used again only where an answer ended exactly where it said it would.

HTTP/1.1 carries nothing that says to which request an answer belongs but their order on a connection: whatever a server
sends behind an answer would be taken for the answer to the next request. So the bytes of every answer are followed as
they come, and a connection on which a byte came behind the answer, or whose answer has no stated end, is closed.
"""

import importlib
from typing import Any

import h11

_LOOK_SECONDS = 0.001  # for a byte behind an answer that has arrived, and lies in the buffer of TLS


def watch_connections(pool: Any, library: str) -> None:
    """Has a pool of connections ask our streams whether they may be used again.

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
        """Whether another byte is there already, or the connection has ended; TLS may hold what no socket shows."""
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
