"""Parquet and Arrow: the same table as was written, and no more memory than was allowed."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qrag_jax.files.parquet import file_sizes, read_arrow, read_parquet, stream_sizes
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


@pytest.mark.parametrize("name", ["stream.arrow", "file.arrow"])
def test_one_batch_is_counted_before_it_is_unpacked(tmp_path, name):
    table = pa.table({"v": np.zeros(10_000_000)})
    make = pa.ipc.new_stream if name == "stream.arrow" else pa.ipc.new_file
    with make(tmp_path / name, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
        out.write_table(table)
    del table
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    with read_with(max_bytes=50_000_000), pytest.raises(InputTooLarge, match=f"{name}: has more than 50,000,000"):
        read_arrow(tmp_path / name)
    assert pa.total_allocated_bytes() == before and pa.default_memory_pool().max_memory() == peak
    with read_with(max_bytes=80_000_100):
        assert read_arrow(tmp_path / name).num_rows == 10_000_000


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("name", ["stream.arrow", "file.arrow"])
def test_sizes_are_those_of_the_table(tmp_path, name, compression):
    """Nulls, texts, lists, categories: what messages say is what there is, up to padding."""
    table = pa.table(
        {
            "name": ["a", None, "c" * 50] * 500,
            "list": [[1, 2], [], None] * 500,
            "kind": pa.array(["x", "y", "z"] * 500).dictionary_encode(),
        }
    )
    path = write(table, tmp_path / name, options=pa.ipc.IpcWriteOptions(compression=compression))
    sizes = list((stream_sizes if name == "stream.arrow" else file_sizes)(pa.memory_map(str(path))))
    assert sum(size > 0 for size in sizes) == 4 and 0.9 * table.nbytes < sum(sizes) < 1.2 * table.nbytes


@pytest.mark.parametrize("name", ["a.parquet", "stream.arrow", "file.arrow"])
def test_categories_take_no_more_than_their_values(tmp_path, name):
    """20,000 rows of 2,000 names in batches that all know the names: 0.4 MB, not 0.4 MB a batch."""
    names = pa.array([f"category {number % 2_000}" for number in range(20_000)])
    path = write(pa.table({"name": names.dictionary_encode()}), tmp_path / name)
    with read_with(max_bytes=500_000):
        table = (read_parquet if name.endswith("parquet") else read_arrow)(path)
    assert table["name"].cast(pa.string()).combine_chunks().equals(names)


def test_a_value_that_is_repeated_is_counted_before_it_is_written_out(tmp_path):
    """1,000 texts of 100 kB in one batch, and in the list of one row: the same one."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), pa.array(["x" * 100_000]))
    nested = pa.ListArray.from_arrays(pa.array([0, 1_000], pa.int32()), texts)
    for column in (texts, nested, pa.StructArray.from_arrays([texts], ["a"])):
        path = write(pa.table({"text": column}), tmp_path / "a.parquet", store_schema=False)
        before = pa.total_allocated_bytes()
        pool = pa.default_memory_pool()
        peak = pool.max_memory()
        with read_with(max_bytes=50_000_000), pytest.raises(InputTooLarge, match="a.parquet: has more than 50,000,000"):
            read_parquet(path)
        assert pool.max_memory() <= max(peak, before + 20_000_000)


def test_values_of_every_kind_come_back(tmp_path):
    columns = {
        "list": [["p", "q"], [], None, ["p"]],
        "struct": [{"u": "m", "v": [{"w": "z"}]}] * 4,
        "large": pa.array([b"k"] * 4, pa.large_binary()),
        "fixed": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
        "map": pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64())),
        "none": [None] * 4,
    }
    table = pa.table(columns)
    assert read_parquet(write(table, tmp_path / "a.parquet")).equals(table)
