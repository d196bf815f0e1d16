"""Keeps a store beside the catalogue equal to it. The catalogue is the truth.

    a new document      vectors -> the store; then its transaction ends
    a removed document  its transaction ends; then the store forgets its vectors

So vectors without a document can be left over, but no document is without vectors. When a writer begins, it removes
vectors without a document, and puts vectors that the store has lost.
"""

import hashlib
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from qrag_jax.index.folder import is_index
from qrag_jax.index.settings import IndexSettings, read_settings, write_settings
from qrag_jax.index.stores.sqlite.document_rows import entry_of, list_documents, read_document
from qrag_jax.index.stores.sqlite.entries import Entry, parts_sha256, to_bytes
from qrag_jax.names import BESIDE, STORES
from qrag_jax.search.store import Store, StorePlace
from qrag_jax.unit_rows import unit_rows

_STAMP_BYTES = 4


def with_collection(settings: IndexSettings) -> IndexSettings:
    """The settings with a new name for the collection of the index, if its store needs one and it has none."""
    if settings.collection or settings.store not in STORES.choices(*BESIDE):
        return settings
    return replace(settings, collection=f"qrag_{secrets.token_hex(8)}")


def no_store(place: StorePlace) -> None:
    """The store of an index whose catalogue alone has the vectors (`names.STORES`)."""


@contextmanager
def writing_store(folder: Path, connection: sqlite3.Connection, settings: IndexSettings) -> Iterator["StoreWriter"]:
    """The store of an index, made equal to the catalogue at the beginning, and marked as equal at the end.

    Args:
        folder: of the index.
        connection: to its catalogue.
        settings: as from `with_collection`; an index that had another store takes this one.

    Raises:
        UsageError, InputError: the store cannot be opened. Nothing is changed.
    """
    store = STORES.load(settings.store)(StorePlace(folder, settings.uri, settings.collection))
    writer = StoreWriter(store, folder, connection)
    if store is None:
        yield writer
        return
    if is_index(folder):
        used = {name: getattr(settings, name) for name in ("store", "uri", "collection")}
        if (there := read_settings(folder)) != (now := replace(there, **used)):
            write_settings(folder, now)
    writer.sweep()
    yield writer
    writer.settle()


class StoreWriter:
    """Writes vectors to the store of an index; does nothing if the catalogue is the store."""

    def __init__(self, store: Store | None, folder: Path, connection: sqlite3.Connection) -> None:
        self._store, self._folder, self._connection = store, folder, connection

    def put(self, number: int, entry: Entry) -> None:
        """Adds the vectors of a document, before its transaction ends."""
        if self._store is not None:
            leaves = np.arange(len(entry.nodes)) if entry.tree is None else entry.tree.leaves
            origin = entry.origin.bytes_sha256.encode(), entry.origin.reader.encode()
            stamp = _stamp(parts_sha256(to_bytes(entry.document.id), *origin))
            self._store.put(number, leaves, unit_rows(entry.vectors[leaves]), stamp)

    def remove(self, *numbers: int | None) -> None:
        """Removes the vectors of documents, after their transactions; None is the number of no document."""
        gone = [number for number in numbers if number is not None]
        if self._store is not None and gone:
            self._store.remove(gone)

    def sweep(self) -> None:
        """Removes vectors whose document is not in the catalogue, and puts those that are missing."""
        assert self._store is not None
        ledger = self._ledger()
        if self._store.is_settled(_mark(ledger)):
            return
        wanted = {number: _stamp(digest) for _, number, digest in ledger}
        there = self._store.stamps()
        self.remove(*(number for number, stamp in there.items() if wanted.get(number) != stamp))
        for name, number, _ in ledger:
            if there.get(number) != wanted[number]:
                known = read_document(self._connection, self._folder, name)
                assert known is not None  # the ledger lists it
                self.put(number, entry_of(known, self._folder))

    def settle(self) -> None:
        """Marks the store as equal to the catalogue, so the next writer need not compare them."""
        if self._store is not None:
            mark = _mark(self._ledger())
            if not self._store.is_settled(mark):
                self._store.settle(mark)

    def _ledger(self) -> list[tuple[str, int, bytes]]:
        return list(list_documents(self._connection, self._folder))


def _stamp(digest: bytes) -> int:
    """A number that differs for different contents: equal origins give equal entries."""
    return int.from_bytes(digest[:_STAMP_BYTES], "big")


def _mark(ledger: list[tuple[str, int, bytes]]) -> str:
    return hashlib.sha256(repr(ledger).encode()).hexdigest()
