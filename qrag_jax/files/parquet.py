"""Tables of Parquet and Arrow files within the limit of inputs. Imports pyarrow only when one is read."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.files.reading import check_size

if TYPE_CHECKING:
    import pyarrow

_ROWS = 1024  # a time: a dictionary makes millions of long values from a few bytes


def read_parquet(path: Path) -> "pyarrow.Table":
    """The table of a Parquet file.

    Raises:
        InputTooLarge: it would take more memory than inputs may; said before that much is taken.
        OSError, ValueError, pyarrow.ArrowException: it is no whole Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        known = file.metadata
        check_size(sum(known.row_group(index).total_byte_size for index in range(known.num_row_groups)), path)
        batches = list(_within(file.iter_batches(_ROWS), path))
        return pa.Table.from_batches(batches, schema=file.schema_arrow)


def read_arrow(path: Path) -> "pyarrow.Table":
    """The table of an Arrow file, which lies in memory as far as it is read; what is compressed is counted unpacked.

    Raises:
        InputTooLarge: as `read_parquet`; a single batch is unpacked before it is counted.
        OSError, ValueError, pyarrow.ArrowException: it is neither an Arrow file nor a stream.
    """
    import pyarrow as pa

    with path.open("rb") as file:
        is_stream = file.read(6) != b"ARROW1"
    source = pa.memory_map(str(path))
    if is_stream:
        with pa.ipc.open_stream(source) as stream:
            return pa.Table.from_batches(_within(stream, path), schema=stream.schema)
    with pa.ipc.open_file(source) as file:
        parts = (file.get_batch(index) for index in range(file.num_record_batches))
        return pa.Table.from_batches(_within(parts, path), schema=file.schema)


def _within(batches: "Iterable[pyarrow.RecordBatch]", path: Path) -> "Iterable[pyarrow.RecordBatch]":
    size = 0
    for batch in batches:
        size += batch.nbytes
        check_size(size, path)
        yield batch
