"""The stored form of a document: bytes, hashed together so that every changed bit is noticed.

    nodes     int64, little endian: the levels of all chunks, their tokens, their states (0 embedded whole, 1 cut by
              the encoder, 2 without a vector), their numbers of spans, and then all spans (start, end, start, ...)
    vectors   float32, little endian, one row for each chunk with a vector
    ids       of the chunks, a JSON list
    tree      int64, little endian: the parent of each node, -1 for the root; empty if there is no tree

Ids of documents and text are UTF-8 that keeps lone surrogates.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from typing import overload

import numpy as np
from jaxtyping import Bool, Float

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.index.metadata import metadata_json, read_metadata
from qrag_jax.types import Chunk, Document, Span

_INTEGER, _FLOAT = np.dtype("<i8"), np.dtype("<f4")
_COLUMNS = 4  # of the nodes: level, num_tokens, state, number of spans
_CUT, _NO_VECTOR = 1, 2


@dataclass(frozen=True)
class Origin:
    """The origin of a document. Equal origins and equal settings give equal entries.

    Attributes:
        bytes_sha256: of the file, hexadecimal.
        reader: the reader and its version.
    """

    bytes_sha256: str
    reader: str


@dataclass(frozen=True, eq=False)
class Entry:
    """A document with its chunks and vectors.

    Attributes:
        document: its text and metadata.
        nodes: its chunks, in order.
        vectors: of the chunks, from the encoder or made from children; zeros if a chunk has none.
        is_cut: for each chunk, whether it is longer than the encoder's window.
        origin: what it was made from.
        tree: the tree of these nodes; None if they are plain chunks.
        has_vector: which chunks have a vector; None is all.
        tokens: number of a chunk -> hash of its embedded text, and codes of its tokens (`token_rows`); of all leaves,
            or empty.
        keys: of the texts of the chunks (`text_rows`); empty if its vectors are not looked up.
    """

    document: Document
    nodes: tuple[Chunk, ...]
    vectors: Float[np.ndarray, "nodes dim"]
    is_cut: Bool[np.ndarray, " nodes"]
    origin: Origin
    tree: ChunkTree | None = None
    has_vector: Bool[np.ndarray, " nodes"] | None = None
    tokens: Mapping[int, tuple[bytes, bytes]] = field(default_factory=dict)
    keys: bytes = b""


@dataclass(frozen=True)
class Failure:
    """A document that could not be read.

    Attributes:
        id: its path.
        reason: why, and what to do.
        origin: what was tried; it is not tried again.
    """

    id: str
    reason: str
    origin: Origin


@dataclass(frozen=True)
class Row:
    """An entry as bytes, in the order of the table's columns."""

    text: bytes
    metadata: bytes
    ids: bytes
    nodes: bytes
    vectors: bytes
    tree: bytes = b""


def pack(entry: Entry) -> Row:
    """Encodes an entry as bytes."""
    there = np.full(len(entry.nodes), True) if entry.has_vector is None else entry.has_vector
    columns = [
        [node.level for node in entry.nodes],
        [node.num_tokens for node in entry.nodes],
        np.where(there, _CUT * entry.is_cut, _NO_VECTOR).tolist(),
        [len(node.spans) for node in entry.nodes],
        [border for node in entry.nodes for span in node.spans for border in span],
    ]
    return Row(
        text=to_bytes(entry.document.text),
        metadata=metadata_json(entry.document).encode(),
        ids=json.dumps([node.id for node in entry.nodes]).encode(),
        nodes=np.concatenate([np.array(column, _INTEGER) for column in columns]).tobytes(),
        vectors=np.ascontiguousarray(entry.vectors[there], _FLOAT).tobytes(),
        tree=b"" if entry.tree is None else entry.tree.parent.astype(_INTEGER).tobytes(),
    )


def unpack_document(document_id: str, row: Row) -> Document:
    """Decodes the document of a row."""
    metadata = read_metadata(row.metadata.decode())
    if not isinstance(metadata, dict):
        raise TypeError("metadata: not a JSON object")
    return Document(document_id, to_text(row.text), metadata)


class PackedNodes(Sequence[Chunk]):
    """The chunks of a row. One is decoded when it is asked for; an iteration decodes all together.

    Attributes:
        is_cut: bool [nodes], which of them are longer than the encoder's window.
    """

    def __init__(self, document_id: str, row: Row) -> None:
        self._document_id, self._ids = document_id, json.loads(row.ids)
        if not isinstance(self._ids, list) or not all(isinstance(name, str) for name in self._ids):
            raise TypeError("ids of chunks: not a list of strings")
        values, size = np.frombuffer(row.nodes, _INTEGER), len(self._ids)
        self._columns = values[: _COLUMNS * size].reshape(_COLUMNS, size)
        self._borders = values[_COLUMNS * size :].reshape(-1, 2)
        self._first = np.concatenate([[0], np.cumsum(self._columns[3])])
        if (self._columns[3] < 0).any() or self._first[-1] != len(self._borders):
            raise ValueError("spans of chunks: not as many as they say")
        self.is_cut = self._columns[2] == _CUT

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, number: int) -> Chunk: ...

    @overload
    def __getitem__(self, number: slice) -> list[Chunk]: ...

    def __getitem__(self, number: int | slice) -> Chunk | list[Chunk]:
        if isinstance(number, slice):
            return list(self)[number]
        number = range(len(self))[number]
        borders = self._borders[self._first[number] : self._first[number + 1]].ravel().tolist()
        (spans,) = _spans(borders, self._columns[3, number : number + 1])
        level, num_tokens = self._columns[:2, number].tolist()
        return Chunk(self._ids[number], self._document_id, spans, level, num_tokens)

    def __iter__(self) -> Iterator[Chunk]:
        levels, num_tokens, _, num_spans = self._columns
        spans = _spans(self._borders.ravel().tolist(), num_spans)
        return map(Chunk, self._ids, repeat(self._document_id), spans, levels.tolist(), num_tokens.tolist())

    def are_in(self, document: Document) -> bool:
        """True if every chunk has spans, and they are in the document and in order."""
        if not (self._columns[3] > 0).all():
            return False
        starts, ends = self._borders.T
        follow = np.full(len(starts), True)
        follow[1:] = starts[1:] >= ends[:-1]
        follow[self._first[:-1]] = True  # the first span of a chunk may lie before those of the chunk before it
        inside = (0 <= starts) & (starts < ends) & (ends <= len(document.text))
        return bool((follow & inside).all())


def unpack_nodes(document_id: str, row: Row) -> tuple[list[Chunk], Bool[np.ndarray, " nodes"]]:
    """Decodes the chunks of a row, and which of them are cut."""
    nodes = PackedNodes(document_id, row)
    return list(nodes), nodes.is_cut


def has_vectors(row: Row, num_nodes: int) -> Bool[np.ndarray, " nodes"]:
    """Which chunks of a row have a vector."""
    return np.frombuffer(row.nodes, _INTEGER)[2 * num_nodes : 3 * num_nodes] != _NO_VECTOR


def unpack_vectors(row: Row, num_nodes: int) -> Float[np.ndarray, "nodes dim"]:
    """The vectors of a row, zeros for chunks without one; read-only if all have one."""
    there = has_vectors(row, num_nodes)
    kept = np.frombuffer(row.vectors, _FLOAT).reshape(int(there.sum()), -1)
    if there.all():
        return kept
    vectors = np.zeros((num_nodes, kept.shape[1]), np.float32)
    vectors[there] = kept
    return vectors


def parents_in(row: Row, num_nodes: int) -> Bool[np.ndarray, " nodes"]:
    """Which nodes of a row have children."""
    holds = np.zeros(num_nodes, bool)
    above = np.frombuffer(row.tree, _INTEGER)
    holds[above[above >= 0]] = True
    return holds


def unpack_tree(document_id: str, row: Row, nodes: Sequence[Chunk]) -> ChunkTree | None:
    """Decodes the tree of a row; None if it has none."""
    if not row.tree:
        return None
    parent = np.frombuffer(row.tree, _INTEGER).astype(np.int64)
    borders = np.array([node.spans for node in nodes], np.int64).reshape(len(nodes), 2)  # one span each
    level = np.array([node.level for node in nodes], np.int64)
    leaves = np.setdiff1d(np.arange(len(nodes)), parent)
    return ChunkTree(document_id, borders[:, 0], borders[:, 1], level, parent, leaves)


def unpack(document_id: str, row: Row, origin: Origin) -> Entry:
    """Decodes the entry of a row."""
    nodes, is_cut = unpack_nodes(document_id, row)
    tree = unpack_tree(document_id, row, nodes)
    document, vectors = unpack_document(document_id, row), unpack_vectors(row, len(nodes))
    there = has_vectors(row, len(nodes))
    return Entry(document, tuple(nodes), vectors, is_cut, origin, tree, None if there.all() else there)


def parts_sha256(*parts: bytes) -> bytes:
    """The sha256 of several parts. Each is hashed with its length, so no byte can move between parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def text_key(text: str) -> bytes:
    """The sha256 of the text of a chunk; equal texts have equal vectors."""
    return hashlib.sha256(to_bytes(text)).digest()


def to_bytes(text: str) -> bytes:
    """Encodes text as UTF-8 that keeps lone surrogates; the bytes sort like the text."""
    return text.encode("utf-8", "surrogatepass")


def to_text(content: bytes) -> str:
    """Decodes the result of `to_bytes`."""
    return content.decode("utf-8", "surrogatepass")


def _spans(borders: list[int], num_spans: np.ndarray) -> list[tuple[Span, ...]]:
    pairs = zip(borders[::2], borders[1::2], strict=True)
    if (num_spans == 1).all():
        return list(zip(pairs, strict=True))  # a tuple of one span each
    all_spans = list(pairs)
    return [tuple(all_spans[start:end]) for start, end in pairwise([0, *np.cumsum(num_spans).tolist()])]
