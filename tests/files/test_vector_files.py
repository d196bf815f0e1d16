"""Matrices of vectors from .npy, Parquet, Arrow and saved datasets."""

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qrag_jax.files.reading import InputTooLarge, read_with
from qrag_jax.files.vector_files import read_vectors, write_vectors
from qrag_jax.types import InputError, UsageError

MATRIX = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def lists(matrix, kind=None) -> pa.Table:
    kind = kind or pa.list_(pa.float32())
    return pa.table({"id": list(range(len(matrix))), "embedding": pa.array([list(row) for row in matrix], type=kind)})


def write_arrow(path, table, opener):
    with pa.OSFile(str(path), "wb") as sink, opener(sink, table.schema) as writer:
        writer.write_table(table)


def test_npy_of_any_number_type(tmp_path):
    for dtype in (np.float32, np.float64, np.float16):
        np.save(tmp_path / "v.npy", MATRIX.astype(dtype))
        vectors = read_vectors(tmp_path / "v.npy")
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, MATRIX.astype(dtype).astype(np.float32))
    np.save(tmp_path / "v.npy", np.asfortranarray(MATRIX))
    assert read_vectors(tmp_path / "v.npy").flags.c_contiguous


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 3)])
def test_parquet_and_both_kinds_of_arrow_files(tmp_path, kind):
    table = lists(MATRIX, kind)
    pq.write_table(table, tmp_path / "v.parquet")
    write_arrow(tmp_path / "v.arrow", table, pa.ipc.new_stream)
    (tmp_path / "f").mkdir()
    write_arrow(tmp_path / "f" / "v.arrow", table, pa.ipc.new_file)
    for path in (tmp_path / "v.parquet", tmp_path / "v.arrow", tmp_path / "f" / "v.arrow"):
        np.testing.assert_array_equal(read_vectors(path), MATRIX)
        np.testing.assert_array_equal(read_vectors(path, "embedding"), MATRIX)


def test_a_saved_dataset_keeps_its_selection(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    dataset = datasets.Dataset.from_dict({"vector": MATRIX.tolist()}).select([2, 0])
    dataset.save_to_disk(str(tmp_path / "saved"))
    np.testing.assert_allclose(read_vectors(tmp_path / "saved"), MATRIX[[2, 0]])
    datasets.DatasetDict({"train": dataset}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(UsageError, match=r"a dataset of splits \['train'\]; give the folder of one"):
        read_vectors(tmp_path / "splits")
    np.testing.assert_allclose(read_vectors(tmp_path / "splits" / "train"), MATRIX[[2, 0]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_not_finite_names_file_and_row(tmp_path, bad):
    matrix = MATRIX.astype(np.float64)
    matrix[2, 1] = bad
    np.save(tmp_path / "v.npy", matrix)
    with pytest.raises(InputError, match=r"v.npy: row 2 contains NaN or infinity .* 1 rows in all"):
        read_vectors(tmp_path / "v.npy")


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (MATRIX[0], r"matrix of numbers \[num_vectors, dim\], got shape \(3,\)"),
        (MATRIX[:0], r"got shape \(0, 3\)"),
        (MATRIX > 0, "of bool"),
        (np.array([["a"]]), "of <U1"),
    ],
)
def test_not_a_matrix_of_numbers(tmp_path, matrix, message):
    np.save(tmp_path / "v.npy", matrix)
    with pytest.raises(InputError, match=message):
        read_vectors(tmp_path / "v.npy")


def test_broken_npy_files(tmp_path):
    np.save(tmp_path / "v.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="v.npy: a damaged .npy file"):
        read_vectors(tmp_path / "v.npy")
    np.save(tmp_path / "v.npy", MATRIX)
    (tmp_path / "v.npy").write_bytes((tmp_path / "v.npy").read_bytes()[:-5])
    with pytest.raises(InputError, match="a damaged .npy file"):
        read_vectors(tmp_path / "v.npy")
    with open(tmp_path / "v.npy", "wb") as file:
        np.savez(file, a=MATRIX)
    with pytest.raises(InputError, match="an .npz archive under the name .npy"):
        read_vectors(tmp_path / "v.npy")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 2.0], [1.0]], "row 1 has 1 numbers, row 0 has 2"),
        ([[1.0, 2.0], None], "row 1 of column 'embedding' is null"),
        ([[1.0, 2.0], [1.0, None]], "row 1 of column 'embedding' contains a null"),
        ([], r"got shape \(0, 0\)"),
        ([[], []], r"got shape \(2, 0\)"),
    ],
)
def test_bad_columns_name_the_row(tmp_path, rows, message):
    table = pa.table({"embedding": pa.array(rows, type=pa.list_(pa.float32()))})
    pq.write_table(table, tmp_path / "v.parquet")
    with pytest.raises(InputError, match=f"v.parquet: .*{message}"):
        read_vectors(tmp_path / "v.parquet")


def test_which_column_and_which_file(tmp_path):
    table = lists(MATRIX).append_column("other", pa.array(MATRIX.tolist()))
    pq.write_table(table, tmp_path / "v.parquet")
    with pytest.raises(UsageError, match=r"expected one column .* \['embedding', 'other'\]; name"):
        read_vectors(tmp_path / "v.parquet")
    with pytest.raises(UsageError, match="column 'id' is not a column of lists of numbers"):
        read_vectors(tmp_path / "v.parquet", "id")
    write_arrow(tmp_path / "v.arrow", table.rename_columns(["", "", "other"]), pa.ipc.new_stream)
    with pytest.raises(InputError, match="v.arrow: has 2 columns ''; keep only one"):
        read_vectors(tmp_path / "v.arrow", "")
    with pytest.raises(UsageError, match="no such file"):
        read_vectors(tmp_path / "none.npy")
    (tmp_path / "v.csv").write_text("1,2")
    with pytest.raises(UsageError, match="unknown kind of vector file"):
        read_vectors(tmp_path / "v.csv")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match="broken.parquet: cannot be read as .parquet"):
        read_vectors(tmp_path / "broken.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="cannot be read as a saved dataset"):
        read_vectors(tmp_path / "empty")


def test_vectors_are_written_whole_as_float32(tmp_path, monkeypatch):
    path, rows = tmp_path / "new" / "x.npy", np.arange(6.0).reshape(3, 2)
    write_vectors(path, rows)
    found = read_vectors(path)
    assert found.dtype == np.float32 and found.tolist() == rows.tolist()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_vectors(path, rows + 1)
    assert read_vectors(path).tolist() == rows.tolist() and list(path.parent.iterdir()) == [path]


def test_no_damage_of_a_header_is_a_traceback(tmp_path):
    """NumPy reads a header as Python, and takes the shape in it at its word."""
    path = tmp_path / "v.npy"
    np.save(path, np.ones((3, 2), np.float32))
    content = path.read_bytes()
    for place in range(80):
        for bit in range(8):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            try:
                assert read_vectors(path).size == 6
            except InputError as error:
                assert "v.npy: " in str(error)
    for shape in (b"(9" + b"9" * 15 + b", 2)", b"(-3, 2)", b"(3, 2"):
        header = content[10:128].replace(b"(3, 2)", shape)[:117].ljust(117) + b"\n"
        path.write_bytes(content[:10] + header + content[128:])
        with pytest.raises(InputError, match="v.npy: a damaged .npy file"):
            read_vectors(path)


@pytest.mark.parametrize("opener", [pa.ipc.new_stream, pa.ipc.new_file])
def test_no_cut_of_an_arrow_file_is_a_traceback(tmp_path, opener):
    path = tmp_path / "v.arrow"
    write_arrow(path, lists(MATRIX), opener)
    content = path.read_bytes()
    for size in range(0, len(content) - 8, 8):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match="v.arrow: "):
            read_vectors(path)


def test_offsets_outside_of_an_arrow_file_are_refused(tmp_path):
    """Arrow looks at none of them by itself, and may crash."""
    path = tmp_path / "v.arrow"
    write_arrow(path, lists(MATRIX), pa.ipc.new_stream)
    content, offsets = path.read_bytes(), np.array([0, 3, 6, 9, 12], np.int32).tobytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array([0, 3, 6, 9, 2**30], np.int32).tobytes()))
    with pytest.raises(InputError, match="v.arrow: cannot be read as .arrow"):
        read_vectors(path)


@pytest.mark.parametrize(
    "state", ["{}", "[]", '{"_data_files": [{}]}', '{"_data_files": [{"filename": 3}]}', "[" * 9_999]
)
def test_a_saved_dataset_with_a_strange_state(tmp_path, state):
    datasets.Dataset(lists(MATRIX)).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "saved" / "state.json").write_text(state)
    with pytest.raises(InputError, match="saved: cannot be read as a saved dataset"):
        read_vectors(tmp_path / "saved")


def test_a_saved_dataset_that_is_too_large_unpacked(tmp_path):
    datasets.Dataset(lists(MATRIX)).save_to_disk(str(tmp_path / "saved"))
    table = pa.table({"embedding": pa.array([[0.0] * 1_000] * 1_000)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(next((tmp_path / "saved").glob("*.arrow")), table.schema, options=options) as out:
        out.write_table(table)
    with read_with(max_bytes=1_000_000), pytest.raises(InputTooLarge, match="has more than 1,000,000 bytes"):
        read_vectors(tmp_path / "saved")
