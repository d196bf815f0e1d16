"""Reads Parquet and Arrow tables within the size limit of inputs. Imports pyarrow only when needed.

The messages of an Arrow file give the size of its parts, before any part is unpacked.

    message          Flatbuffers table: version, header type, header, body length
    record batch     length, nodes, buffers [(offset, length) in the body], compression
    dictionary       id, record batch
    buffer           plain; in a compressed batch: unpacked size (int64, -1: plain), then the packed bytes
    end of a file    footer: version, schema, dictionaries [block], batches [block]; its length (int32); "ARROW1"

Arrow's own library unpacks a whole batch and takes as much memory as the file says.
"""

import struct
from collections.abc import Iterable, Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from qrag_jax.files.reading import check_size

if TYPE_CHECKING:
    import pyarrow

_MAGIC = b"ARROW1"
_DICTIONARY, _BATCH = 2, 3  # types of a message's header
_BLOCK = 24  # bytes: offset of a message (int64), and two lengths
_BUFFER = 16


def stream_sizes(source: "pyarrow.NativeFile") -> Iterator[int]:
    """Unpacked size in bytes of each batch and dictionary of a stream.

    Raises:
        OSError, ValueError, EOFError, pyarrow.ArrowException: the stream is incomplete or damaged.
    """
    import pyarrow as pa

    for message in pa.ipc.MessageReader.open_stream(source):
        yield _message_size(message)


def file_sizes(source: "pyarrow.NativeFile") -> Iterator[int]:
    """Unpacked size in bytes of each batch and dictionary of a file.

    Raises:
        OSError, ValueError, EOFError, pyarrow.ArrowException: the file is incomplete or damaged.
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
    """Offsets in a table of tables; one outside of it raises ValueError."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.root = self.number("<I", 0)

    def number(self, kind: str, place: int) -> int:
        if not 0 <= place <= len(self.content) - struct.calcsize(kind):
            raise ValueError(f"a number at {place} of {len(self.content)} bytes")
        return struct.unpack_from(kind, self.content, place)[0]

    def field(self, table: int, number: int) -> int:
        """The offset of a field of a table; 0 if it is absent."""
        known = table - self.number("<i", table)
        if 4 + 2 * number >= self.number("<H", known):
            return 0
        offset = self.number("<H", known + 4 + 2 * number)
        return table + offset if offset else 0

    def table(self, table: int, number: int) -> int:
        """The offset of the table that a field points to; 0 if it is absent."""
        place = self.field(table, number)
        return place + self.number("<I", place) if place else 0

    def vector(self, table: int, number: int, item: int) -> tuple[int, int]:
        """(offset of the first item, number of items) of a field that is a list of structures."""
        start = self.table(table, number)
        if not start:
            return 0, 0
        count = self.number("<I", start)
        if count * item > len(self.content):
            raise ValueError(f"a list of {count}")
        return start + 4, count


_ROWS = 1024  # at a time: a dictionary turns a few bytes into millions of long values


def read_parquet(path: Path) -> "pyarrow.Table":
    """Reads the table of a Parquet file; columns of categories (dictionaries) become plain values.

    Raises:
        InputTooLarge: it would exceed the memory limit of inputs; raised before that much is taken.
        OSError, ValueError, EOFError, pyarrow.ArrowException: the file is incomplete or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as opened, pq.ParquetFile(opened) as file:  # pyarrow refuses names that are not UTF-8
        known, schema = file.metadata, _without_dictionaries(file.schema_arrow)
        columns = [file.schema.column(number) for number in range(len(file.schema))]
    check_size(sum(known.row_group(index).total_byte_size for index in range(known.num_row_groups)), path)
    # Text is read as numbers of values, and written out after its total size is known.
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    with path.open("rb") as opened, pq.ParquetFile(opened, read_dictionary=texts) as file:
        batches = (batch.cast(schema) for batch in _within(file.iter_batches(_ROWS), path))
        return _valid(pa.Table.from_batches(batches, schema=schema))


def read_arrow(path: Path) -> "pyarrow.Table":
    """Reads the table of an Arrow file. It is mapped into memory; compressed parts count unpacked.

    The limit also applies to mapped parts, because a reader of the table goes through all of it.

    Raises:
        InputTooLarge: as `read_parquet`.
        OSError, ValueError, EOFError, pyarrow.ArrowException: it is neither an Arrow file nor a stream.
    """
    import pyarrow as pa

    with path.open("rb") as opened:
        is_stream = opened.read(6) != b"ARROW1"
        source = _mapped(opened)
    if is_stream:
        return read_stream(source, path)
    _check_sum(file_sizes(source), path)
    return _valid(pa.ipc.open_file(source).read_all())


def read_stream(source: "pyarrow.NativeFile", name: object) -> "pyarrow.Table":
    """Reads the table of an Arrow stream; `name` begins the message if it is too large.

    Raises:
        InputTooLarge, OSError, ValueError, EOFError, pyarrow.ArrowException: as `read_arrow`.
    """
    import pyarrow as pa

    _check_sum(stream_sizes(source), name)
    source.seek(0)
    return _valid(pa.ipc.open_stream(source).read_all())


def check_arrow_files(paths: Iterable[Path]) -> None:
    """Refuses Arrow streams that are too large together, before any is unpacked.

    Raises:
        InputTooLarge, OSError, ValueError, EOFError, pyarrow.ArrowException: as `read_arrow`.
    """
    total = 0
    for path in paths:
        with path.open("rb") as opened:
            for size in stream_sizes(_mapped(opened)):
                total += size
                check_size(total, path)


def _mapped(opened: BinaryIO) -> "pyarrow.NativeFile":
    """Maps an open file for Arrow; pyarrow would refuse names that are not UTF-8."""
    import pyarrow as pa

    return pa.BufferReader(pa.py_buffer(mmap(opened.fileno(), 0, access=ACCESS_READ)))


def _valid(table: "pyarrow.Table") -> "pyarrow.Table":
    """The table, if its offsets are valid and its text is UTF-8; otherwise Arrow may crash."""
    table.validate(full=True)
    return table


def _check_sum(sizes: Iterable[int], name: object) -> None:
    total = 0
    for size in sizes:
        total += size
        check_size(total, name)


def _without_dictionaries(schema: "pyarrow.Schema") -> "pyarrow.Schema":
    import pyarrow as pa

    for number, field in enumerate(schema):
        if pa.types.is_dictionary(field.type):
            schema = schema.set(number, field.with_type(field.type.value_type))
    return schema


def _within(batches: "Iterable[pyarrow.RecordBatch]", path: Path) -> "Iterable[pyarrow.RecordBatch]":
    size = 0
    for batch in batches:
        size += sum(map(_written_out, batch.columns))
        check_size(size, path)
        yield batch


def _written_out(array: "pyarrow.Array") -> int:
    """Bytes of an array whose dictionary numbers are replaced by the values."""
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute  # its functions are made at import, so type checkers do not see them
    if isinstance(array, pa.DictionaryArray):
        kind = array.dictionary.type
        is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
        if not (is_text or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
            return array.nbytes
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return array.indices.nbytes + int(compute.sum(lengths).as_py() or 0)
    if isinstance(array, pa.MapArray):
        return _written_out(array.keys) + _written_out(array.items)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return 4 * len(array) + _written_out(array.flatten())
    if isinstance(array, pa.StructArray):
        return sum(map(_written_out, array.flatten()))
    return array.nbytes
