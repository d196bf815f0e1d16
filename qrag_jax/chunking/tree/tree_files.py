"""Chunk trees on disk: Parquet or Arrow for `datasets`, one row for each node and many trees in a file; JSON for one.

    tree         int64   number of the tree in the file, from 0
    document_id  string  the same in all rows of a tree
    start, end, level, parent   int64   as in `ChunkTree`; `parent` is a node number of the same tree
    leaf         bool    the node is one of `ChunkTree.leaves`

Rows are in the order of the nodes, trees one after the other. Loaded trees are checked like built ones, and against
their text if documents are given.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qrag_jax.chunking.tree.rules import TreeError
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.files.parquet import read_parquet, read_stream
from qrag_jax.files.reading import InputTooLarge, read_limited
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import Document, InputError, UsageError

if TYPE_CHECKING:
    import pyarrow

_MARK = b"qrag_jax sha256 "
_COLUMNS = {
    "tree": "int64",
    "document_id": "string",
    "start": "int64",
    "end": "int64",
    "level": "int64",
    "parent": "int64",
    "leaf": "bool",
}
_ARRAYS = ("start", "end", "level", "parent", "leaves")


def save_trees(trees: Iterable[ChunkTree], path: str | os.PathLike) -> None:
    """Writes trees to a .parquet or .arrow file; readers see the old file or the whole new one.

    Args:
        trees: several may be of one document.
        path: missing folders are made; `datasets.Dataset.from_parquet`, or `from_file` for .arrow, reads it too.

    Raises:
        UsageError: the file is of another kind, or cannot be written.
        InputError: a document id is not Unicode text.
    """
    path = check_kind(Path(path))
    if path.is_dir():
        raise UsageError(f"{path}: cannot be written (it is a folder); give another path")
    content = _bytes(_table(list(trees)), path.suffix)
    try:
        write_whole(path, content)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error}); give another path") from error


def load_trees(path: str | os.PathLike, documents: Mapping[str, Document] | None = None) -> list[ChunkTree]:
    """Reads what `save_trees` wrote, and checks every tree.

    Args:
        path: a .parquet or .arrow file.
        documents: by id; if given, each tree is checked against its text (`ChunkTree.check_document`).

    Raises:
        UsageError: the file does not exist, or is of another kind.
        InputError: the file cannot be read, a column is missing or of another type, or a row is invalid; names file,
            row (from 0) and field.
    """
    path = check_kind(Path(path))
    if not path.is_file():
        raise UsageError(f"{path}: no such file; expected trees as .parquet or .arrow")
    columns = _columns(_read(path), path)
    starts = _tree_starts(columns["tree"], path)
    borders = [*starts, len(columns["tree"])]
    return [_tree(columns, start, stop, path, documents) for start, stop in pairwise(borders)]


def to_json(tree: ChunkTree) -> str:
    """One tree as a JSON object of its fields, on one line."""
    return json.dumps(
        {"document_id": tree.document_id, **{name: getattr(tree, name).tolist() for name in _ARRAYS}},
        separators=(",", ":"),
    )


def from_json(text: str) -> ChunkTree:
    """Reads and checks a tree that `to_json` wrote."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"chunk tree: not JSON ({error})") from error
    if not isinstance(fields, dict) or set(fields) != {"document_id", *_ARRAYS}:
        given = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
        raise InputError(f"chunk tree: expected an object of document_id, {', '.join(_ARRAYS)}, not {given}")
    if not isinstance(fields["document_id"], str):
        raise InputError(f"chunk tree: document_id {fields['document_id']!r}: expected a string")
    return ChunkTree(fields["document_id"], *(_int64(name, fields[name]) for name in _ARRAYS))


def _int64(name: str, values: object) -> np.ndarray:
    if not isinstance(values, list):
        raise InputError(f"chunk tree: {name} {values!r}: expected a list of whole numbers")
    for place, value in enumerate(values):
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise InputError(f"chunk tree: {name}[{place}] {value!r}: expected a whole number of 64 bits")
    return np.array(values, np.int64)


def check_kind(path: Path) -> Path:
    """The path, if it has a suffix for files of trees."""
    if path.suffix not in (".parquet", ".arrow"):
        raise UsageError(f"{path}: unknown kind of file for trees; give .parquet or .arrow")
    return path


def _table(trees: Sequence[ChunkTree]) -> "pyarrow.Table":
    """The rows of all trees, with the column types of `datasets`."""
    import datasets

    none = [np.empty(0, np.int64)]
    rows: dict[str, object] = {
        name: np.concatenate(none + [getattr(tree, name) for tree in trees])
        for name in ("start", "end", "level", "parent")
    }
    sizes = [len(tree) for tree in trees]
    leaf = np.zeros(sum(sizes), bool)
    for first, tree in zip(np.cumsum([0, *sizes])[:-1], trees, strict=True):
        leaf[first + tree.leaves] = True
    rows["leaf"] = leaf
    rows["tree"] = np.repeat(np.arange(len(trees)), sizes)
    rows["document_id"] = [tree.document_id for tree in trees for _ in range(len(tree))]
    types = datasets.Features({name: datasets.Value(kind) for name, kind in _COLUMNS.items()})
    try:
        return datasets.Dataset.from_dict({name: rows[name] for name in _COLUMNS}, features=types).data.table
    except UnicodeEncodeError as error:
        raise InputError(
            f"document id {error.object!r}: cannot be written ({error.reason}); rename the document"
        ) from error


def _bytes(table: "pyarrow.Table", kind: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = io.BytesIO()
    if kind == ".parquet":
        pq.write_table(table, content)
        return content.getvalue()
    with pa.ipc.new_stream(content, table.schema) as stream:
        stream.write_table(table)
    # After the end, where no reader looks: a stream has no checksum of its own, and a damaged one can crash Arrow.
    return content.getvalue() + _MARK + hashlib.sha256(content.getvalue()).digest()


def _read(path: Path) -> "pyarrow.Table":
    import pyarrow as pa

    try:
        if path.suffix == ".parquet":
            return read_parquet(path)
        content = read_limited(path)
        stream, digest = content[: -len(_MARK) - 32], content[-len(_MARK) - 32 :]
        if digest != _MARK + hashlib.sha256(stream).digest():
            raise InputError(f"{path}: damaged, or not written by `save_trees`; copy it again, or give Parquet")
        return read_stream(pa.BufferReader(stream), path)
    except InputTooLarge:
        raise
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as {path.suffix} ({error}); copy it again") from error


def _columns(table: "pyarrow.Table", path: Path) -> dict[str, np.ndarray]:
    """The columns as arrays, of the right types and without nulls."""
    found = {}
    for name, kind in _COLUMNS.items():
        if table.column_names.count(name) != 1:
            raise InputError(f"{path}: column {name} is missing; it has {table.column_names}")
        column = table.column(name)
        if str(column.type) != kind:
            raise InputError(f"{path}: column {name} is {column.type}: expected {kind}")
        if column.null_count:
            raise InputError(f"{path}: row {column.is_null().to_pylist().index(True)}: {name} is missing")
        found[name] = column.to_numpy()
    return found


def _tree_starts(number: np.ndarray, path: Path) -> list[int]:
    """The first row of each tree; trees are numbered from 0, one after the other."""
    before = np.concatenate([[-1], number])[:-1]
    wrong = (number != before) & (number != before + 1)
    wrong[:1] = number[:1] != 0
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{path}: row {row}: tree {number[row]}: trees are numbered from 0, one after the other")
    return np.flatnonzero(number != before).tolist()


def _tree(
    columns: Mapping[str, np.ndarray], start: int, stop: int, path: Path, documents: Mapping[str, Document] | None
) -> ChunkTree:
    """The tree of some rows."""
    rows = {name: column[start:stop] for name, column in columns.items()}
    document_id = rows["document_id"][0]
    for row, other in enumerate(rows["document_id"].tolist()):  # NumPy ignores a NUL at the end of an id
        if other != document_id:
            problem = f"document_id {other!r}: tree {rows['tree'][0]} has {document_id!r}"
            raise InputError(f"{path}: row {start + row}: {problem}")
    if documents is not None and document_id not in documents:
        raise InputError(f"{path}: row {start}: document_id {document_id!r}: not among the documents given")
    try:
        leaves = np.flatnonzero(rows["leaf"])
        tree = ChunkTree(document_id, rows["start"], rows["end"], rows["level"], rows["parent"], leaves)
        if documents is not None:
            tree.check_document(documents[document_id])
    except TreeError as error:
        raise InputError(f"{path}: row {start + error.node}: {error}") from error
    return tree
