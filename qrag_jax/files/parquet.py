"""Tables of Parquet and Arrow files within the limit of inputs. Imports pyarrow only when one is read."""

from collections.abc import Iterable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.files.reading import check_size

if TYPE_CHECKING:
    import pyarrow

_ROWS = 1024  # a time: a dictionary makes millions of long values from a few bytes


def read_parquet(path: Path) -> "pyarrow.Table":
    """The table of a Parquet file; columns of categories (dictionaries) come as their values.

    Raises:
        InputTooLarge: it would take more memory than inputs may; said before that much is taken.
        OSError, ValueError, pyarrow.ArrowException: it is no whole Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as opened, pq.ParquetFile(opened) as file:  # pyarrow takes no name that is not UTF-8
        known = file.metadata
        # Each batch would have the whole dictionary of its own, so the values are read in their place.
        schema = _without_dictionaries(file.schema_arrow)
        check_size(sum(known.row_group(index).total_byte_size for index in range(known.num_row_groups)), path)
        batches = (batch.cast(schema) for batch in file.iter_batches(_ROWS))
        return pa.Table.from_batches(_within(batches, path), schema=schema)


def read_arrow(path: Path) -> "pyarrow.Table":
    """The table of an Arrow file, which lies in memory as far as it is read; what is compressed is counted unpacked.

    Raises:
        InputTooLarge: as `read_parquet`; a single batch is unpacked before it is counted.
        OSError, ValueError, pyarrow.ArrowException: it is neither an Arrow file nor a stream.
    """
    import pyarrow as pa

    with path.open("rb") as opened:
        is_stream = opened.read(6) != b"ARROW1"
        source = pa.py_buffer(mmap(opened.fileno(), 0, access=ACCESS_READ))
    if is_stream:
        with pa.ipc.open_stream(source) as stream:
            return pa.Table.from_batches(_within(stream, path), schema=stream.schema)
    with pa.ipc.open_file(source) as file:
        parts = (file.get_batch(index) for index in range(file.num_record_batches))
        return pa.Table.from_batches(_within(parts, path), schema=file.schema)


def _without_dictionaries(schema: "pyarrow.Schema") -> "pyarrow.Schema":
    import pyarrow as pa

    for number, field in enumerate(schema):
        if pa.types.is_dictionary(field.type):
            schema = schema.set(number, field.with_type(field.type.value_type))
    return schema


def _within(batches: "Iterable[pyarrow.RecordBatch]", path: Path) -> "Iterable[pyarrow.RecordBatch]":
    import pyarrow as pa

    size, seen = 0, set()
    for batch in batches:
        for column in batch.columns:
            size += column.indices.nbytes if isinstance(column, pa.DictionaryArray) else column.nbytes
            if isinstance(column, pa.DictionaryArray) and (place := _places(column.dictionary)) not in seen:
                seen.add(place)  # the batches of an Arrow file share one
                size += column.dictionary.nbytes
        check_size(size, path)
        yield batch


def _places(values: "pyarrow.Array") -> tuple[int, ...]:
    return tuple(buffer.address for buffer in values.buffers() if buffer is not None)
