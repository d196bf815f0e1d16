"""Keys of the texts of chunks: one row for each document, so that equal texts are not embedded again.

    texts    number: of the row of the document; keys: for each chunk 8 bytes of the hash of its text, `text_key`

A row is written and removed in the transaction of its document. The keys of all documents are read at once, since they
have 8 bytes for each chunk. A key only says where to look: whoever finds one compares the whole text.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt, UInt64

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
        keys: uint64 [chunks], document by document.
        numbers: int64 [documents], of their rows.
        ends: int64 [documents], the number of keys up to the end of each.
    """

    keys: UInt64[np.ndarray, " chunks"]
    numbers: Int[np.ndarray, " documents"]
    ends: Int[np.ndarray, " documents"]

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> "TextKeys":
        """Reads them."""
        query = "SELECT number, keys FROM texts WHERE typeof(keys) = 'blob' AND length(keys) % 8 = 0"
        rows = connection.execute(query).fetchall()
        numbers = np.array([number for number, _ in rows], np.int64)
        ends = np.cumsum([len(keys) // _SIZE for _, keys in rows], dtype=np.int64)
        return cls(np.frombuffer(b"".join(keys for _, keys in rows), _KEY), numbers, ends)

    def find(self, keys: Iterable[bytes]) -> dict[bytes, list[tuple[int, int]]]:
        """(number, node) of the chunks whose texts may have these keys, by the beginnings of the keys."""
        wanted = np.frombuffer(b"".join({key[:_SIZE] for key in keys}), _KEY)
        places = find_keys(wanted, self.keys)
        rows = np.searchsorted(self.ends, places, "right")
        nodes = places - np.concatenate([[0], self.ends])[rows]
        found: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for place, number, node in zip(places.tolist(), self.numbers[rows].tolist(), nodes.tolist(), strict=True):
            found[self.keys[place].tobytes()].append((number, node))
        return found


def find_keys(wanted: UInt[np.ndarray, " wanted"], keys: UInt[np.ndarray, " keys"]) -> Int[np.ndarray, " _"]:
    """The increasing positions of a few wanted keys among many."""
    is_wanted = np.zeros(1 << 16, bool)  # by the lowest bits, which exclude most keys
    is_wanted[wanted & 0xFFFF] = True
    near = np.flatnonzero(is_wanted[keys & 0xFFFF])
    return near[np.isin(keys[near], wanted)]
