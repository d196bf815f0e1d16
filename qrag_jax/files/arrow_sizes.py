"""How large the parts of an Arrow file become, told before any is unpacked: from its messages, which say it.

    message          Flatbuffers table: version, header type, header, body length
    record batch     length, nodes, buffers [(offset, length) in the body], compression
    dictionary       id, record batch
    buffer           as it is; of a compressed batch: its size unpacked (int64, -1: as it is), and the packed bytes
    end of a file    footer: version, schema, dictionaries [block], batches [block]; its length (int32); "ARROW1"

Arrow's own library unpacks a batch whole, and takes as much memory as the file says.
"""

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

_MAGIC = b"ARROW1"
_DICTIONARY, _BATCH = 2, 3  # types of a message's header
_BLOCK = 24  # bytes: where a message begins (int64), and two lengths
_BUFFER = 16


def stream_sizes(source: "pyarrow.NativeFile") -> Iterator[int]:
    """Bytes of each batch and dictionary of a stream, unpacked.

    Raises:
        OSError, ValueError, EOFError, pyarrow.ArrowException: it is no whole stream.
    """
    import pyarrow as pa

    for message in pa.ipc.MessageReader.open_stream(source):
        yield _message_size(message)


def file_sizes(source: "pyarrow.NativeFile") -> Iterator[int]:
    """Bytes of each batch and dictionary of a file, unpacked.

    Raises:
        OSError, ValueError, EOFError, pyarrow.ArrowException: it is no whole file.
    """
    import pyarrow as pa

    end = source.size() - len(_MAGIC) - 4
    if end < 0 or source.read_at(len(_MAGIC), end + 4) != _MAGIC:
        raise ValueError("no end of an Arrow file")
    (size,) = struct.unpack("<i", source.read_at(4, end))
    if not 0 < size <= end:
        raise ValueError(f"a footer of {size} bytes")
    footer = _Flatbuffer(source.read_at(size, end - size))
    for field in (2, 3):
        start, count = footer.vector(footer.root, field, _BLOCK)
        for number in range(count):
            source.seek(footer.number("<q", start + number * _BLOCK))
            yield _message_size(pa.ipc.read_message(source))


def _message_size(message: "pyarrow.ipc.Message") -> int:
    told = _Flatbuffer(message.metadata.to_pybytes())
    kind = told.field(told.root, 1)
    header, kind = told.table(told.root, 2), told.number("<B", kind) if kind else 0
    if kind == _DICTIONARY and header:
        header = told.table(header, 1)
    if kind not in (_DICTIONARY, _BATCH) or not header:
        return 0
    start, count = told.vector(header, 2, _BUFFER)
    is_packed, body, total = bool(told.field(header, 3)), message.body, 0
    for number in range(count):
        offset, size = (told.number("<q", start + number * _BUFFER + half) for half in (0, 8))
        if offset < 0 or size < 0:
            raise ValueError(f"a buffer of {size} bytes at {offset}")
        total += _unpacked(body, offset, size) if is_packed and size else size
    return total


def _unpacked(body: "pyarrow.Buffer | None", offset: int, size: int) -> int:
    if body is None or size < 8 or offset + size > body.size:
        raise ValueError(f"a packed buffer of {size} bytes at {offset}")
    (said,) = struct.unpack("<q", body.slice(offset, 8).to_pybytes())
    return size - 8 if said == -1 else max(0, said)


class _Flatbuffer:
    """Places in a table of tables; a number outside of it raises ValueError."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.root = self.number("<I", 0)

    def number(self, kind: str, place: int) -> int:
        if not 0 <= place <= len(self.content) - struct.calcsize(kind):
            raise ValueError(f"a number at {place} of {len(self.content)} bytes")
        return struct.unpack_from(kind, self.content, place)[0]

    def field(self, table: int, number: int) -> int:
        """Where a field of a table stands; 0 where it is absent."""
        known = table - self.number("<i", table)
        if 4 + 2 * number >= self.number("<H", known):
            return 0
        offset = self.number("<H", known + 4 + 2 * number)
        return table + offset if offset else 0

    def table(self, table: int, number: int) -> int:
        """Where the table that a field leads to begins; 0 where it is absent."""
        place = self.field(table, number)
        return place + self.number("<I", place) if place else 0

    def vector(self, table: int, number: int, item: int) -> tuple[int, int]:
        """(where its first item stands, number of items) of a field that is a list of structures."""
        start = self.table(table, number)
        if not start:
            return 0, 0
        count = self.number("<I", start)
        if count * item > len(self.content):
            raise ValueError(f"a list of {count}")
        return start + 4, count
