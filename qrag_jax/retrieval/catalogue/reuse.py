"""Vectors that an index has already, by the text of their chunk."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.retrieval.catalogue.entries import Entry, text_key, to_text, unpack_nodes, unpack_vectors
from qrag_jax.retrieval.catalogue.rows import read_row
from qrag_jax.types import Chunk, Document

# Keys of texts -> of those that are known, the vector and whether the text is cut.
Ask = Callable[[Sequence[bytes]], dict[bytes, tuple[np.ndarray, bool]]]


@dataclass
class KnownVectors:
    """Finds vectors of an index by the texts of their chunks; an `Ask`.

    Texts are hashed when first asked for: where nothing is to be embedded, none is.
    """

    connection: sqlite3.Connection
    numbers: Sequence[int]  # of the rows that were there before
    _places: dict[bytes, tuple[int, int]] | None = field(default=None, repr=False)  # row and chunk by text

    def __call__(self, keys: Sequence[bytes]) -> dict[bytes, tuple[np.ndarray, bool]]:
        """The vectors of the texts that are known, by their keys."""
        if self._places is None:
            self._places = {}
            for number in self.numbers:
                row = read_row(self.connection, number)
                if row is not None:
                    self._enter(number, to_text(row.text), unpack_nodes("", row)[0])
        wanted: dict[int, list[tuple[bytes, int]]] = {}
        for key in keys:
            if key in self._places:
                number, node = self._places[key]
                wanted.setdefault(number, []).append((key, node))
        found = {}
        for number, places in wanted.items():
            row = read_row(self.connection, number)
            if row is None:  # removed since
                continue
            nodes, is_cut = unpack_nodes("", row)
            vectors = unpack_vectors(row, len(nodes))
            found |= {key: (vectors[node], bool(is_cut[node])) for key, node in places}
        return found

    def add(self, number: int, entry: Entry) -> None:
        """Takes up what was written."""
        if self._places is not None:
            self._enter(number, entry.document.text, entry.nodes)

    def _enter(self, number: int, text: str, nodes: Sequence[Chunk]) -> None:
        assert self._places is not None
        for place, node in enumerate(nodes):
            self._places[text_key(chunk_text(text, node.spans))] = number, place


def keys_of(document: Document, nodes: Sequence[Chunk]) -> list[bytes]:
    """The key of the text of each chunk."""
    return [text_key(chunk_text(document.text, node.spans)) for node in nodes]
