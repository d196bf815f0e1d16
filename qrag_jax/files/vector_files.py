"""Reads given vectors: .npy, Parquet, Arrow, or a folder saved by `datasets`."""

import io
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from qrag_jax.files.parquet import check_arrow_files, read_arrow, read_parquet
from qrag_jax.files.reading import check_size
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import InputError, UsageError

if TYPE_CHECKING:
    import pyarrow

# NumPy parses the header as Python, so a damaged one may raise any of these.
NPY_ERRORS = (
    ValueError, OSError, EOFError, SyntaxError, TokenError, MemoryError, OverflowError, TypeError, KeyError,
    RecursionError,
)  # fmt: skip
VECTOR_SUFFIXES = (".npy", ".parquet", ".arrow")


def read_vectors(path: str | Path, column: str | None = None) -> np.ndarray:
    """Reads float32 [n, d] from a .npy matrix or a column of lists in Parquet, Arrow or a saved `datasets` folder.

    Args:
        path: the file, or a folder written by `Dataset.save_to_disk`.
        column: its name; None is the only column of lists of numbers.

    Raises:
        UsageError: the file, its kind or the column is unknown.
        InputError: it is not a matrix of numbers, is empty, or has unequal rows, NaN or infinity; names file and row.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError("no such file; expected vectors as .npy, .parquet or .arrow", file=path)
    matrix = load_npy(path) if path.suffix == ".npy" else _list_column(path, column)
    if matrix.ndim != 2 or 0 in matrix.shape or matrix.dtype.kind not in "fiu":
        raise InputError(
            f"expected a matrix of numbers [num_vectors, dim], got shape {matrix.shape} of {matrix.dtype}", file=path
        )
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(matrix, np.float32)
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"row {row} contains NaN or infinity (or overflows float32), {int(bad.sum())} rows in all; "
            "embed those texts again or remove them",
            file=path,
        )
    return vectors


def write_vectors(path: str | Path, vectors: np.ndarray) -> None:
    """Writes a .npy file of float32 [n, d], complete or not at all."""
    content = io.BytesIO()
    np.save(content, vectors.astype(np.float32, copy=False), allow_pickle=False)
    write_whole(path, content.getvalue())


def load_npy(path: Path) -> np.ndarray:
    """The array of a .npy file, of any shape and type of numbers. Allocates no more than the file contains.

    Raises:
        InputError: the .npy file is damaged.
        InputTooLarge: it has more bytes than `files.reading.Reading.max_bytes`.
    """
    check_size(path.stat().st_size, path)
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)  # its header may claim more than there is
    except NPY_ERRORS as error:
        raise InputError(f"a damaged .npy file ({error}); write it again with np.save", file=path) from error
    if not isinstance(matrix, np.ndarray):
        raise InputError("an .npz archive under the name .npy; save one matrix with np.save", file=path)
    if isinstance(matrix, np.memmap) and (surplus := path.stat().st_size - matrix.offset - matrix.nbytes):
        raise InputError(
            f"a damaged .npy file ({surplus} bytes after the array of its header); write it again", file=path
        )
    return np.array(matrix)


def _list_column(path: Path, column: str | None) -> np.ndarray:
    """One column of lists of numbers as a matrix."""
    import pyarrow as pa

    table = read_table(path)
    lists = [
        field.name
        for field in table.schema
        if (
            pa.types.is_list(field.type)
            or pa.types.is_large_list(field.type)
            or pa.types.is_fixed_size_list(field.type)
        )
        and (pa.types.is_floating(field.type.value_type) or pa.types.is_integer(field.type.value_type))
    ]
    if column is None and len(lists) != 1:
        raise UsageError(
            f"expected one column of lists of numbers, found {lists}; name the column of vectors", file=path
        )
    name = column or lists[0]
    if name not in lists:
        raise UsageError(f"column {name!r} is not a column of lists of numbers; choose one of {lists}", file=path)
    if table.schema.names.count(name) > 1:
        raise InputError(f"has {table.schema.names.count(name)} columns {name!r}; keep only one", file=path)
    data = table[name].combine_chunks()
    if isinstance(data, pa.ChunkedArray):  # combine_chunks of an empty or very large column
        data = pa.concat_arrays(data.chunks) if data.num_chunks else pa.array([], type=table.schema.field(name).type)
    if data.null_count:
        raise InputError(
            f"row {data.is_null().to_pylist().index(True)} of column {name!r} is null; fill it or remove the row",
            file=path,
        )
    lengths = np.asarray(data.value_lengths()) if len(data) else np.zeros(0, np.int64)
    if len(lengths) and (lengths != lengths[0]).any():
        row = int(np.flatnonzero(lengths != lengths[0])[0])
        raise InputError(
            f"row {row} has {lengths[row]} numbers, row 0 has {lengths[0]}; make all rows equally long", file=path
        )
    values = data.flatten()
    if values.null_count:
        row = values.is_null().to_pylist().index(True) // max(int(lengths[0]), 1)
        raise InputError(f"row {row} of column {name!r} contains a null; fill it or remove the row", file=path)
    return values.to_numpy(zero_copy_only=False).reshape(len(data), -1 if len(data) else 0)


def _saved(folder: Path) -> Any:
    """Loads a dataset that `datasets` saved; its tables are mapped into memory.

    Raises:
        InputError: it cannot be read; the library itself does not check its files.
        InputTooLarge: the tables would exceed the memory limit of inputs.
    """
    import datasets

    check_arrow_files(sorted(folder.rglob("*.arrow")))
    try:
        return datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"cannot be read as a saved dataset ({reason}); save or copy it again", file=folder) from error


def read_table(path: Path) -> "pyarrow.Table":
    """The table of a .parquet or .arrow file or of a saved dataset. Imports pyarrow and datasets only here."""
    import datasets
    import pyarrow as pa

    try:
        if path.is_dir():
            saved = _saved(path)
            if isinstance(saved, datasets.DatasetDict):
                raise UsageError(f"a dataset of splits {list(saved)}; give the folder of one of them", file=path)
            saved.data.table.validate(full=True)
            return saved.data.table
        if path.suffix == ".parquet":
            return read_parquet(path)
        if path.suffix == ".arrow":
            return read_arrow(path)
    except InputError:
        raise
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        raise InputError(f"cannot be read as {path.suffix or 'a saved dataset'} ({error})", file=path) from error
    raise UsageError("unknown kind of vector file; give .npy, .parquet, .arrow or a saved dataset folder", file=path)
