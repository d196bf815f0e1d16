"""Search of the vectors in the rows of documents, with which other stores are compared."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.index.stores.sqlite.database import reading_from
from qrag_jax.index.stores.sqlite.document_rows import read_row
from qrag_jax.index.stores.sqlite.entries import parents_in, unpack_nodes, unpack_vectors
from qrag_jax.search.dense import Ranking, search_vectors
from qrag_jax.search.store import documents_of, keys_of
from qrag_jax.unit_rows import unit_rows


class CatalogueStore:
    """The vectors in the rows of documents; has what searches need of a `Store`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
