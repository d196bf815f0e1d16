"""Parquet and Arrow: the same table as was written, and no more memory than was allowed."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qrag_jax.files.parquet import read_arrow, read_parquet
from qrag_jax.files.reading import InputTooLarge, read_with

TABLE = pa.table(
    {"name": ["a", None, "c"] * 1000, "vector": pa.array([[1.0, 2.0]] * 3000, pa.list_(pa.float32(), 2))},
    metadata={"by": "us"},
)


def write(table, path, **options):
    if path.suffix == ".parquet":
        pq.write_table(table, path, **options)
        return path
    make = pa.ipc.new_stream if path.stem == "stream" else pa.ipc.new_file
    with make(path, table.schema, **options) as out:
        out.write_table(table, max_chunksize=700)
    return path


@pytest.mark.parametrize("name", ["a.parquet", "stream.arrow", "file.arrow"])
def test_a_table_comes_back(tmp_path, name):
    read = read_parquet if name.endswith("parquet") else read_arrow
    for table in (TABLE, TABLE.slice(0, 0)):
        assert read(write(table, tmp_path / name)).equals(table)
        assert read(tmp_path / name).schema.metadata[b"by"] == b"us"


def test_a_few_bytes_that_become_many_are_refused(tmp_path):
    """A long text once, and a million times its number: 1 MB on the disk, 1 TB in memory."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 10_000]))
    path = write(pa.table({"text": text}), tmp_path / "a.parquet", store_schema=False)
    assert path.stat().st_size < 100_000
    with (
        read_with(max_bytes=50_000_000),
        pytest.raises(InputTooLarge, match="a.parquet: has more than 50,000,000 bytes"),
    ):
        read_parquet(path)


@pytest.mark.parametrize("name", ["stream.arrow", "file.arrow"])
def test_compressed_batches_are_counted_unpacked(tmp_path, name):
    table = pa.table({"text": ["x" * 1000] * 7000})
    path = write(table, tmp_path / name, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    assert path.stat().st_size < 200_000
    with read_with(max_bytes=3_000_000), pytest.raises(InputTooLarge, match="has more than 3,000,000 bytes"):
        read_arrow(path)


@pytest.mark.parametrize("name", ["a.parquet", "stream.arrow", "file.arrow"])
def test_categories_take_no_more_than_their_values(tmp_path, name):
    """20,000 rows of 2,000 names in batches that all know the names: 0.4 MB, not 0.4 MB a batch."""
    names = pa.array([f"category {number % 2_000}" for number in range(20_000)])
    path = write(pa.table({"name": names.dictionary_encode()}), tmp_path / name)
    with read_with(max_bytes=500_000):
        table = (read_parquet if name.endswith("parquet") else read_arrow)(path)
    assert table["name"].cast(pa.string()).combine_chunks().equals(names)
