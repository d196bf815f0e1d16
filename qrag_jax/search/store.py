"""Stores of vectors: their interface, and the keys that name a chunk in one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.names import STORES
from qrag_jax.search.dense import Ranking

SURELY_FOUND = 10_000  # chunks of a search, where a store has as many; servers have limits
_NODE_BITS = 24  # of a key; the others are the number of the document's row


@runtime_checkable
class Store(Protocol):
    """A copy of the vectors of the chunks of an index, of length 1, by key. `index/store_writer.py` keeps it equal.

        key = (number of the document's row << 24) | number of the node in its document

    Rows are never numbered twice, so a key never names another text.
    """

    def put(self, number: int, nodes: Int[np.ndarray, " n"], vectors: Float[np.ndarray, "n dim"], stamp: int) -> None:
        """Adds a document, or replaces it.

        Args:
            number: of its row.
            nodes: numbers of its nodes that are searched.
            vectors: of these nodes, of length 1 or 0.
            stamp: of its contents, below 2**32.
        """
        ...

    def remove(self, numbers: Collection[int]) -> None:
        """Removes the documents of these rows; unknown ones are ignored."""
        ...

    def search(
        self,
        query: Float[np.ndarray, " dim"],
        k: int,
        only: Collection[int] | None = None,
        exclude: Collection[int] = (),
    ) -> Ranking:
        """The keys (int64) nearest to a vector of length 1, and their cosines, the best first.

        Args:
            query: float32.
            k: most keys.
            only, exclude: rows of documents that compete, or do not. Others are left out before the best are chosen.
        """
        ...

    def read(self, keys: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n dim"]:
        """The vectors of keys, float32, in their order; every key must exist."""
        ...

    def stamps(self) -> dict[int, int]:
        """The stamps of all documents by their rows; -1 for one of which some vectors are missing."""
        ...

    def is_settled(self, mark: str) -> bool:
        """True if `settle` was last called with this mark, and no vector was added or lost since."""
        ...

    def settle(self, mark: str) -> None:
        """Records a mark of the present contents."""
        ...


@dataclass(frozen=True)
class StorePlace:
    """Where a store has the vectors of an index.

    Attributes:
        folder: of the index.
        uri: address of a server; empty for a store without one.
        collection: name of the vectors of this index, and of no other one.
    """

    folder: Path
    uri: str = ""
    collection: str = ""


def keys_of(number: int, nodes: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The keys of nodes of the document in a row."""
    return (np.int64(number) << _NODE_BITS) | nodes.astype(np.int64)


def documents_of(keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The rows of the documents of keys."""
    return keys >> _NODE_BITS


def nodes_of(keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The numbers of the nodes of keys, each in its document."""
    return keys & ((1 << _NODE_BITS) - 1)


@dataclass(eq=False)
class StoredVectors:
    """The vectors of an index in a store, as a reader finds them. Connects at the first search.

    Attributes:
        kind: one of `names.STORES`.
        place: of the vectors.
        numbers: of the rows of all documents, by their ids, as the reader saw them.
    """

    kind: str
    place: StorePlace
    numbers: Mapping[str, int]

    @cached_property
    def store(self) -> Store:
        """The store, connected."""
        return STORES.load(self.kind)(self.place)

    @cached_property
    def _ids(self) -> dict[int, str]:
        return {number: name for name, number in self.numbers.items()}

    def names(self, numbers: Int[np.ndarray, " n"]) -> list[str]:
        """The ids of the documents in rows."""
        return [self._ids[number] for number in numbers.tolist()]

    def search(self, documents: Sequence[str], query: Float[np.ndarray, " dim"], k: int) -> Ranking:
        """As `Store.search`, among some of the documents.

        A writer puts vectors before it commits their document, so rows that this reader does not know are left out.
        """
        own = {self.numbers[name] for name in documents}
        few = len(own) <= len(self.numbers) // 2
        others: set[int] = set() if few else self._ids.keys() - own
        while True:
            keys, scores = self.store.search(query, k, own if few else None, others)
            unknown = set(documents_of(keys).tolist()) - own
            if not unknown:
                break
            others |= unknown
        return keys, scores
