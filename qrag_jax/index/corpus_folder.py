"""A corpus on disk: a folder that appears complete or not at all, with a manifest of hashes.

    corpus.json        format, how it was made, what it cost
    documents.parquet  id, text, metadata (JSON, see `metadata.py`); one row for each document
    nodes.parquet      id, document (its number), level, num_tokens, spans (start, end, start, end, ...); one row for
                       each node
    trees.parquet      as in `chunking/tree/tree_files.py`; only if there are trees
    vectors.npy        float32 [nodes, dim]; only if there are vectors

Ids and text are stored as bytes: UTF-8 that keeps lone surrogates, because documents may contain them.
"""

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.chunking.tree.tree_files import load_trees, save_trees
from qrag_jax.config import config_from_dict, to_dict
from qrag_jax.files.manifest import MANIFEST, find_damage, json_text, write_manifest
from qrag_jax.files.new_folder import new_folder
from qrag_jax.files.parquet import read_parquet
from qrag_jax.files.reading import InputTooLarge, reading
from qrag_jax.files.vector_files import load_npy
from qrag_jax.files.whole_file import read_json
from qrag_jax.index.metadata import metadata_json, read_metadata
from qrag_jax.search.corpus import Corpus, MadeBy
from qrag_jax.types import Chunk, Cost, Document, InputError, UsageError

_FORMATS = (1, 2)  # format 1 turned tuples in metadata into lists
_ABOUT, _DOCUMENTS, _NODES = "corpus.json", "documents.parquet", "nodes.parquet"
_TREES, _VECTORS = "trees.parquet", "vectors.npy"
_COUNTS = ("embedder_tokens", "index_bytes", "prompt_tokens", "completion_tokens")  # fields of a cost
_TREE_ROW = 45  # bytes without the document's id
_DOCUMENT_COLUMNS = {"id": "binary", "text": "binary", "metadata": "string"}
_NODE_COLUMNS = {
    "id": "binary",
    "document": "int64",
    "level": "int64",
    "num_tokens": "int64",
    "spans": "list<element: int64>",
}
_ADVICE = "build the corpus again, or copy its folder again from the source"


def save_corpus(corpus: Corpus, folder: str | os.PathLike) -> None:
    """Writes a corpus into a new folder, which appears when it is complete on the disk.

    Files are first written to `.save-NAME` in the folder above. If a save is killed, the next save removes them.

    Args:
        corpus: its vectors need a known encoder; otherwise nothing could be compared with them later.
        folder: must not exist, or be empty; missing folders above it are made.

    Raises:
        UsageError: `folder` exists and is not empty, is a link or the current folder, or cannot be made; or another
            process saves a corpus there.
        InputError: the fingerprint of the encoder is missing, or JSON would change the metadata.
        OSError: the disk is full, or fails.

    Warns if a file is larger than readers accept by default (`files.reading.Reading.max_bytes`).
    """
    folder = Path(folder)
    if corpus.vectors is not None and not corpus.made_by.fingerprint:
        raise InputError(
            "corpus: its vectors have no fingerprint, so a later search could not check the encoder; embed it with a "
            "types.Encoder, such as the one that make_embedder returns"
        )
    with new_folder(folder, "save", f"save_corpus to {folder}") as made:
        sizes = _write(corpus, made)
    _warn_of_limit(sizes, folder)


def load_corpus(folder: str | os.PathLike) -> Corpus:
    """Reads a corpus that `save_corpus` wrote, and checks it against its manifest and as `Corpus` does.

    Raises:
        UsageError: the folder does not exist, or contains no corpus.
        InputError: a file is missing, changed or of another format; the message names it.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file() and not (folder / _ABOUT).is_file():
        raise UsageError(f"no corpus here: {_ABOUT} is missing; give a folder that save_corpus made", file=folder)
    if not (folder / MANIFEST).is_file():
        raise InputError(f"the corpus is incomplete: {MANIFEST} is missing; {_ADVICE}", file=folder)
    if fault := find_damage(folder):
        raise InputError(f"{fault}; {_ADVICE}")
    about = read_json(folder / _ABOUT)
    if about.get("format") not in _FORMATS:
        raise InputError(f"{folder / _ABOUT}: format {about.get('format')!r}, this version reads {_FORMATS}; {_ADVICE}")
    if wrong := [name for name in ("made_by", "cost") if not isinstance(about.get(name), dict)]:
        raise InputError(f"{folder / _ABOUT}: {' and '.join(wrong)} must be a JSON object; {_ADVICE}")
    has_trees, has_vectors = about.get("has_trees") is True, about.get("has_vectors") is True
    for name in (_DOCUMENTS, _NODES, *([_VECTORS] if has_vectors else [])):
        if not (folder / name).is_file():  # reading a pipe, which the manifest does not list, would wait forever
            raise InputError(f"{folder / name}: no such file; {_ADVICE}")
    documents = _read_documents(folder / _DOCUMENTS, json.loads if about["format"] == 1 else read_metadata)
    trees = load_trees(folder / _TREES, {one.id: one for one in documents}) if has_trees else []
    nodes = _read_nodes(folder / _NODES, documents)
    vectors = _read_vectors(folder / _VECTORS) if has_vectors else None
    try:
        known = {name: value for name, value in about["made_by"].items() if name != "store"}  # of earlier versions
        made_by = config_from_dict(MadeBy, known, str(folder / _ABOUT))
        cost, num_beyond = _read_cost(about["cost"]), about["num_beyond_window"]
        if type(num_beyond) is not int or not 0 <= num_beyond <= len(nodes):
            raise InputError(f"num_beyond_window {num_beyond!r:.80}: must be a count of the {len(nodes)} nodes")
        return Corpus(tuple(documents), tuple(nodes), vectors, made_by, cost, num_beyond, tuple(trees))
    except (InputError, KeyError, TypeError) as error:
        raise InputError(f"the corpus is damaged ({error}); {_ADVICE}", file=folder) from error


def is_corpus(folder: str | os.PathLike) -> bool:
    """True if a folder looks like a saved corpus; checks one file name."""
    return os.path.isfile(os.path.join(folder, _ABOUT))


def _read_cost(values: Mapping[str, Any]) -> Cost:
    """The cost of a corpus; checks that each number is possible."""
    cost = Cost(**values)
    if not isinstance(cost.seconds, dict):
        raise InputError(f"cost.seconds {cost.seconds!r:.80}: must be a JSON object")
    counts = {name: getattr(cost, name) for name in _COUNTS}
    amounts = {**cost.seconds, "flops": cost.flops, **({} if cost.dollars is None else {"dollars": cost.dollars})}
    for name, value in (counts | amounts).items():
        if type(value) not in ((int,) if name in counts else (int, float)) or not 0 <= value < math.inf:
            raise InputError(f"cost: {name} {value!r:.80}: not a possible cost")
    return cost


def _write(corpus: Corpus, folder: Path) -> dict[str, int]:
    """Writes all files. Returns the sizes, as readers count them, of those that grow with the corpus."""
    sizes: dict[str, int] = {}
    about = {
        "format": _FORMATS[-1],
        "has_trees": bool(corpus.trees),
        "has_vectors": corpus.vectors is not None,
        "made_by": to_dict(corpus.made_by),
        "cost": _plain(asdict(corpus.cost)),
        "num_beyond_window": _plain(corpus.num_beyond_window),
    }
    (folder / _ABOUT).write_bytes(json_text(about))
    rows = [(_bytes(x.id), _bytes(x.text), metadata_json(x)) for x in corpus.documents]
    sizes[_DOCUMENTS] = _write_table(folder / _DOCUMENTS, _DOCUMENT_COLUMNS, rows)
    numbers = {document.id: number for number, document in enumerate(corpus.documents)}
    rows = [
        (_bytes(x.id), numbers[x.document_id], x.level, x.num_tokens, [border for span in x.spans for border in span])
        for x in corpus.nodes
    ]
    sizes[_NODES] = _write_table(folder / _NODES, _NODE_COLUMNS, rows)
    if corpus.trees:
        save_trees(corpus.trees, folder / _TREES)
        sizes[_TREES] = sum(len(tree) * (_TREE_ROW + len(_bytes(tree.document_id))) for tree in corpus.trees)
    if corpus.vectors is not None:
        np.save(folder / _VECTORS, corpus.vectors, allow_pickle=False)
        sizes[_VECTORS] = (folder / _VECTORS).stat().st_size
    write_manifest(folder)
    return sizes


def _warn_of_limit(sizes: Mapping[str, int], folder: Path) -> None:
    """Warns if a file is larger than readers accept; the corpus is kept, because embedding may have taken hours."""
    name = max(sizes, key=lambda name: sizes[name])
    if sizes[name] > reading().max_bytes:
        enough = -(-sizes[name] * 21 // 20 // 2**20) * 2**20  # 5% more, because readers also count row offsets
        warnings.warn(
            f"{folder}: {name} has {sizes[name]:,} bytes, more than the {reading().max_bytes:,} that readers accept; "
            f"load it with qrag_jax.files.reading.read_with(max_bytes={enough}), or save fewer documents",
            UserWarning,
            stacklevel=3,
        )


def _write_table(path: Path, columns: Mapping[str, str], rows: Sequence[tuple]) -> int:
    """Writes a table; returns its size in memory, in bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"binary": pa.large_binary(), "string": pa.large_string(), "int64": pa.int64()}
    schema = pa.schema([(name, types.get(kind, pa.list_(pa.int64()))) for name, kind in columns.items()])
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    table = pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(values, schema, strict=True)], schema=schema)
    with path.open("wb") as file:  # pyarrow itself refuses names that are not UTF-8
        pq.write_table(table, file)
    return table.nbytes


def _read_documents(path: Path, read: Callable[[str], Any]) -> list[Document]:
    ids, texts, metadata = _read_table(path, _DOCUMENT_COLUMNS)
    documents = []
    for name, text, about in zip(ids, texts, metadata, strict=True):
        try:
            values = read(about)
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"metadata of {_text(name, path)!r}: {error}; {_ADVICE}", file=path) from error
        if not isinstance(values, dict):
            raise InputError(f"metadata of {_text(name, path)!r}: not a JSON object; {_ADVICE}", file=path)
        documents.append(Document(_text(name, path), _text(text, path), values))
    return documents


def _read_nodes(path: Path, documents: Sequence[Document]) -> list[Chunk]:
    nodes = []
    for row, (name, number, level, num_tokens, borders) in enumerate(
        zip(*_read_table(path, _NODE_COLUMNS), strict=True)
    ):
        if not 0 <= number < len(documents):
            reason = f"row {row}: document number {number}, but there are {len(documents)} documents; {_ADVICE}"
            raise InputError(reason, file=path)
        if len(borders) % 2:
            raise InputError(f"row {row}: invalid spans {borders} of document {number}; {_ADVICE}", file=path)
        if level < 0 or num_tokens < 0:
            raise InputError(f"row {row}: level {level}, num_tokens {num_tokens}: below 0; {_ADVICE}", file=path)
        spans = tuple(zip(borders[::2], borders[1::2], strict=True))
        nodes.append(Chunk(_text(name, path), documents[number].id, spans, level, num_tokens))
    return nodes


def _read_table(path: Path, columns: Mapping[str, str]) -> list[list[Any]]:
    """The values of each column, if the columns have the types that were written."""
    import pyarrow as pa

    try:
        table = read_parquet(path)
    except InputTooLarge:
        raise
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        raise InputError(f"cannot be read as Parquet ({error}); {_ADVICE}", file=path) from error
    found = {field.name: str(field.type).removeprefix("large_") for field in table.schema}
    if found != dict(columns) or any(column.null_count for column in table.columns):
        raise InputError(f"columns {found}: expected {dict(columns)} without nulls; {_ADVICE}", file=path)
    return [column.to_pylist() for column in table.columns]


def _read_vectors(path: Path) -> np.ndarray:
    try:
        return load_npy(path)
    except InputTooLarge:
        raise
    except OSError as error:
        raise InputError(f"damaged .npy file ({error}); {_ADVICE}", file=path) from error
    except InputError as error:
        raise InputError(f"{error}; {_ADVICE}") from error


def _plain(value: Any) -> Any:
    """Converts numbers of NumPy, which JSON does not know, to Python's."""
    if isinstance(value, dict):
        return {name: _plain(inside) for name, inside in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise InputError(f"{content[:40]!r} is not UTF-8; {_ADVICE}", file=path) from error
