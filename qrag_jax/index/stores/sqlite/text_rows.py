"""Keys of the texts of chunks: one row for each document, so that equal texts are not embedded again.

    texts    number: of the row of the document; keys: for each chunk 8 bytes of the hash of its text, `text_key`

A row is written and removed in the transaction of its document. The keys of all documents are read at once, since they
have 8 bytes for each chunk. A key only says where to look: whoever finds one compares the whole text.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt64

from qrag_jax.files.sqlite import SQLITE_ERRORS

_SIZE, _KEY = 8, np.dtype("<u8")


def pack_keys(keys: Iterable[bytes | None]) -> bytes:
    """The beginnings of the keys of the chunks of a document; zeros where there is none."""
    return b"".join((key or bytes(_SIZE))[:_SIZE] for key in keys)


def put_keys(connection: sqlite3.Connection, number: int, keys: bytes) -> None:
    """Writes those of a document; the caller has opened a transaction."""
    if keys:
        connection.execute("INSERT INTO texts VALUES (?, ?)", (number, keys))


def delete_keys(connection: sqlite3.Connection, number: int) -> None:
    """Removes those of a document; the caller has opened a transaction."""
    connection.execute("DELETE FROM texts WHERE number = ?", (number,))


def read_keys(connection: sqlite3.Connection, number: int) -> bytes:
    """Those of a document, unchecked; empty if there are none, also if they are damaged or of an older format."""
    try:
        found = connection.execute("SELECT keys FROM texts WHERE number = ?", (number,)).fetchone()
    except SQLITE_ERRORS:
        return b""
    return b"" if found is None or type(found[0]) is not bytes else found[0]


@dataclass(frozen=True)
class TextKeys:
    """The keys of all documents at one moment, unchecked.

    Attributes:
        keys: uint64 [chunks], ascending.
        numbers: int64 [chunks], the row of the document of each.
        nodes: int64 [chunks], the number of the chunk in it.
    """

    keys: UInt64[np.ndarray, " chunks"]
    numbers: Int[np.ndarray, " chunks"]
    nodes: Int[np.ndarray, " chunks"]

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> "TextKeys":
        """Reads them."""
        query = "SELECT number, keys FROM texts WHERE typeof(keys) = 'blob' AND length(keys) % 8 = 0"
        rows = connection.execute(query).fetchall()
        sizes = np.array([len(keys) // _SIZE for _, keys in rows], np.int64)
        keys = np.frombuffer(b"".join(keys for _, keys in rows), _KEY)
        numbers = np.repeat(np.array([number for number, _ in rows], np.int64), sizes)
        nodes = np.arange(len(keys)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], numbers[order], nodes[order])

    def find(self, key: bytes) -> list[tuple[int, int]]:
        """(number, node) of the chunks whose texts may have this key."""
        value = np.frombuffer(key[:_SIZE], _KEY)
        first, last = (int(np.searchsorted(self.keys, value, side)[0]) for side in ("left", "right"))
        return list(zip(self.numbers[first:last].tolist(), self.nodes[first:last].tolist(), strict=True))
