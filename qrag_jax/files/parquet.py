"""Tables of Parquet and Arrow files within the limit of inputs. Imports pyarrow only when one is read."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.files.arrow_sizes import file_sizes, stream_sizes
from qrag_jax.files.reading import check_size

if TYPE_CHECKING:
    import pyarrow

_ROWS = 1024  # a time: a dictionary makes millions of long values from a few bytes


def read_parquet(path: Path) -> "pyarrow.Table":
    """The table of a Parquet file; columns of categories (dictionaries) come as their values.

    Raises:
        InputTooLarge: it would take more memory than inputs may; said before that much is taken.
        OSError, ValueError, EOFError, pyarrow.ArrowException: it is no whole Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        known, schema = file.metadata, _without_dictionaries(file.schema_arrow)
        columns = [file.schema.column(number) for number in range(len(file.schema))]
    check_size(sum(known.row_group(index).total_byte_size for index in range(known.num_row_groups)), path)
    # Texts come as numbers of values, and are written out when it is known how long they are together.
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        batches = (batch.cast(schema) for batch in _within(file.iter_batches(_ROWS), path))
        return _valid(pa.Table.from_batches(batches, schema=schema))


def read_arrow(path: Path) -> "pyarrow.Table":
    """The table of an Arrow file, which lies in memory as far as it is read; what is compressed is counted unpacked.

    The limit holds for what is only mapped into memory too: who reads the table goes through all of it.

    Raises:
        InputTooLarge: as `read_parquet`.
        OSError, ValueError, EOFError, pyarrow.ArrowException: it is neither an Arrow file nor a stream.
    """
    import pyarrow as pa

    with path.open("rb") as file:
        is_stream = file.read(6) != b"ARROW1"
    source = pa.memory_map(str(path))
    if is_stream:
        return read_stream(source, path)
    _check_sum(file_sizes(source), path)
    return _valid(pa.ipc.open_file(source).read_all())


def read_stream(source: "pyarrow.NativeFile", name: object) -> "pyarrow.Table":
    """The table of an Arrow stream; `name` opens the message where it is too large.

    Raises:
        InputTooLarge, OSError, ValueError, EOFError, pyarrow.ArrowException: as `read_arrow`.
    """
    import pyarrow as pa

    _check_sum(stream_sizes(source), name)
    source.seek(0)
    return _valid(pa.ipc.open_stream(source).read_all())


def check_arrow_files(paths: Iterable[Path]) -> None:
    """Refuses Arrow streams that together become too large, before any is unpacked.

    Raises:
        InputTooLarge, OSError, ValueError, EOFError, pyarrow.ArrowException: as `read_arrow`.
    """
    import pyarrow as pa

    total = 0
    for path in paths:
        with pa.memory_map(str(path)) as source:
            for size in stream_sizes(source):
                total += size
                check_size(total, path)


def _valid(table: "pyarrow.Table") -> "pyarrow.Table":
    """The table, if its offsets lie inside of it and its texts are UTF-8: who works on another one may crash."""
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
    """Bytes of an array whose numbers of values are replaced by the values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.DictionaryArray):
        kind = array.dictionary.type
        is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
        if not (is_text or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
            return array.nbytes
        lengths = pc.call_function("binary_length", [array.dictionary]).take(array.indices)
        return array.indices.nbytes + int(pc.call_function("sum", [lengths]).as_py() or 0)
    if isinstance(array, pa.MapArray):
        return _written_out(array.keys) + _written_out(array.items)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return 4 * len(array) + _written_out(array.flatten())
    if isinstance(array, pa.StructArray):
        return sum(map(_written_out, array.flatten()))
    return array.nbytes
