"""The catalogue as a store of vectors: they are columns of the documents' rows."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.index.stores.sqlite.database import reading_from
from qrag_jax.index.stores.sqlite.document_rows import read_row
from qrag_jax.index.stores.sqlite.entries import parents_in, unpack_nodes, unpack_vectors
from qrag_jax.search.dense import Ranking, search_vectors
from qrag_jax.search.store import StorePlace, documents_of, keys_of
from qrag_jax.unit_rows import unit_rows


def open_catalogue(place: StorePlace) -> "CatalogueStore":
    """The store of an index that has no other one (`names.STORES`)."""
    return CatalogueStore(place.folder)


class CatalogueStore:
    """The vectors in the rows of documents; a `Store`. A document's own transaction puts and removes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, number: int, nodes: Int[np.ndarray, " n"], vectors: Float[np.ndarray, "n dim"], stamp: int) -> None:
        """As `Store.put`; nothing is left to do."""

    def remove(self, numbers: Collection[int]) -> None:
        """As `Store.remove`; nothing is left to do."""

    def search(
        self,
        query: Float[np.ndarray, " dim"],
        k: int,
        only: Collection[int] | None = None,
        exclude: Collection[int] = (),
    ) -> Ranking:
        """As `Store.search`; scores are exact, and ties are in the order of the keys."""
        with reading_from(self._folder) as connection:
            rows = connection.execute("SELECT number FROM documents ORDER BY number")
            numbers = {number for (number,) in rows} if only is None else set(only)
        keys, vectors = self._of(numbers - set(exclude))
        ((places, scores),) = search_vectors(query[None], vectors, k) if len(keys) else [(keys, np.zeros(0))]
        return keys[places], scores

    def read(self, keys: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n dim"]:
        """As `Store.read`."""
        known, vectors = self._of(set(documents_of(keys).tolist()))
        return vectors[np.searchsorted(known, keys)]

    def _of(self, numbers: Collection[int]) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "n dim"]]:
        """The keys and vectors of documents, in the order of the keys."""
        found = []
        with reading_from(self._folder) as connection:
            for number in sorted(numbers):
                if (row := read_row(connection, number)) is not None:
                    num_nodes = len(unpack_nodes("", row)[0])
                    leaves = np.flatnonzero(~parents_in(row, num_nodes))
                    found.append((keys_of(number, leaves), unit_rows(unpack_vectors(row, num_nodes)[leaves])))
        if not found:
            return np.zeros(0, np.int64), np.zeros((0, 0), np.float32)
        keys, vectors = zip(*found, strict=True)
        return np.concatenate(keys), np.concatenate(vectors)
