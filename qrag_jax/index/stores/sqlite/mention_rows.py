"""Rows of what documents name, so that notes by names (`annotate/mentions.py`) are updated by what changed.

    names         one row for each chunk and name that it owns (a title, a file name or a heading): number and node of
                  the chunk, the name, whether it is a term, and a hash of 4 bytes of its first words
    mentions      one row for each document and name in its sentences: the places, and the number of chunks
    read          one row for each document whose names and mentions are there: hashes of 4 bytes of its pairs of words
                  and its words with a capital letter, by which a new name finds the documents that may contain it
    silent        names that make no notes, because too many chunks own or contain them
    changed       names of documents removed since the last update of the notes, and what those were to them
    stale         chunks whose notes have to be selected again; number 0 stands for all
    chunk_counts  one row for each chunk with notes: their number, and how many were left out
    read_by       the setting that all this was made with

All rows are derived from the documents. Those of a document are removed in its transaction. A name is stored once, by
its owner; elsewhere it is a hash of 8 bytes.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np

from qrag_jax.chunking.text.proper_names import Name
from qrag_jax.files.sqlite import SQLITE_ERRORS, Damaged
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.stores.sqlite.database import FORMAT, advice, format_of, named
from qrag_jax.index.stores.sqlite.entries import to_bytes, to_text
from qrag_jax.index.stores.sqlite.text_rows import find_keys

BEGIN_WORDS = 4  # so many that few names share them
AMBIGUOUS, COMMON = 1, 2  # reasons why a name is silent
ALL = (0, 0)  # the stale chunk that stands for all
_OF_DOCUMENTS = ("names", "mentions", "read", "stale", "chunk_counts")  # tables with rows of documents
_TABLES = (*_OF_DOCUMENTS, "silent", "changed", "read_by")
_BETWEEN_WORDS = "\n"  # no word contains it
_BEGIN, _BATCH = np.dtype("<u4"), 1_000  # documents whose words are compared at once
# A place of a name: chunk, number of the sentence in it, its span, number of the name in the sentence, whether the
# sentence only has the name, and a hash of the sentence's text.
PLACE = np.dtype(
    [
        ("node", "<i4"),
        ("sentence", "<i4"),
        ("start", "<i4"),
        ("end", "<i4"),
        ("order", "<i4"),
        ("is_whole", "<i4"),
        ("text", "<i8"),
    ]
)
_CRCS = {  # table -> its columns but the last one, which is their checksum
    "names": "key, number, node, is_term, begin, name",
    "mentions": "key, number, num_chunks, places",
    "read": "number, pairs",
    "silent": "key, reason",
    "chunk_counts": "number, node, num_notes, too_long, beyond",
}


def text_hash(text: str) -> int:
    """A hash of 8 bytes, signed."""
    return int.from_bytes(blake2b(to_bytes(text), digest_size=8).digest(), "little", signed=True)


def name_key(name: Name) -> int:
    """The key of a name."""
    return text_hash(_BETWEEN_WORDS.join(name))


def begin_key(words: Sequence[str]) -> int:
    """The key of the first words of a name, by which a document finds the names that it may contain."""
    return crc32(to_bytes(_BETWEEN_WORDS.join(words[:BEGIN_WORDS])))


def pair_keys(name: Name) -> list[int]:
    """The keys of the pairs of words of a name; of its word, if it has one."""
    return [begin_key(pair) for pair in pairwise(name)] or [begin_key(name)]


@dataclass(frozen=True)
class ChunkCount:
    """Numbers of a chunk: its notes, sentences too long for a note, and notes beyond the most."""

    num_notes: int
    too_long: int = 0
    beyond: int = 0


class MentionRows:
    """Reads and writes the rows; a caller who writes has opened a transaction.

    Raises:
        Damaged: of every function that reads: a row was changed.
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self.connection, self.folder, self._path = connection, folder, folder / CATALOGUE

    def setting(self) -> str | None:
        """The setting that the rows were made with; None if there are none."""
        found = self._all("SELECT setting FROM read_by")
        return to_text(found[0][0]) if found else None

    def begin_anew(self, setting: str) -> None:
        """Removes all rows; every document is then new, and every chunk stale."""
        clear_mentions(self.connection)
        self.connection.execute("INSERT INTO read_by VALUES (?)", (to_bytes(setting),))
        self.put_stale([ALL])

    def is_pending(self) -> bool:
        """True if names have changed, or chunks are stale."""
        query = "SELECT EXISTS (SELECT 1 FROM changed) OR EXISTS (SELECT 1 FROM stale)"
        return bool(self._all(query)[0][0])

    def has_read(self) -> bool:
        """True if any document was read."""
        return bool(self._all("SELECT EXISTS (SELECT 1 FROM read)")[0][0])

    def new_documents(self) -> list[int]:
        """Numbers of the documents that have not been read."""
        (last,) = self._all("SELECT coalesce(max(number), 0) FROM read")[0]
        return [number for (number,) in self._all("SELECT number FROM documents WHERE number > ? ORDER BY 1", last)]

    def document_id(self, number: int) -> bytes:
        """The id of a document."""
        return self._all("SELECT id FROM documents WHERE number = ?", number)[0][0]

    def take_changed(self) -> dict[int, tuple[bool, bool]]:
        """Names of removed documents: key -> whether these owned it, and as a term. Forgets them."""
        found = {key: (bool(owned), bool(term)) for key, owned, term in self._all("SELECT * FROM changed")}
        self.connection.execute("DELETE FROM changed")
        return found

    def put_names(self, number: int, names: Iterable[tuple[Name, int, bool]]) -> None:
        """Adds names of chunks of a document. If a chunk has a name twice, the name is a term if one of the two is.

        Args:
            names: (name, its chunk, whether it is a term), as from `names_of`.
        """
        terms: dict[tuple[Name, int], bool] = {}
        for name, node, is_term in names:
            terms[name, node] = terms.get((name, node), False) or is_term
        for (name, node), is_term in terms.items():
            text = to_bytes(_BETWEEN_WORDS.join(name))
            self._put("names", name_key(name), number, node, int(is_term), begin_key(name), text)

    def owners(self, key: int, most: int = -1) -> list[tuple[int, int]]:
        """(number, node) of the chunks that own a name, at most so many."""
        return self._all("SELECT number, node FROM names WHERE key = ? LIMIT ?", key, most)

    def is_owned(self, key: int) -> tuple[bool, bool]:
        """True for a name that chunks own, and True if it is a term in one of them."""
        found = self._all("SELECT count(*), coalesce(max(is_term), 0) FROM names WHERE key = ?", key)[0]
        return bool(found[0]), bool(found[1])

    def names_of_chunk(self, number: int, node: int) -> list[tuple[int, Name]]:
        """(key, name) of those that a chunk owns."""
        rows = self._checked("names", "number = ? AND node = ?", number, node)
        return [(key, _name(text)) for key, *_, text in rows]

    def names_by_begin(self, begins: Collection[int] | None) -> dict[Name, bool]:
        """Names with one of these beginnings, and whether each is a term; None is all names."""
        where, values = "TRUE", ()
        if begins is not None:
            where, values = "begin IN (SELECT value FROM json_each(?))", (json.dumps(list(begins)),)
        rows = self._checked("names", where, *values)
        found: dict[Name, bool] = {}
        for _, _, _, is_term, _, text in rows:
            name = _name(text)
            found[name] = found.get(name, False) or bool(is_term)
        return found

    def name(self, key: int) -> Name:
        """The name of a key that a chunk owns."""
        (text,) = self._all("SELECT name FROM names WHERE key = ? LIMIT 1", key)[0]
        return _name(text)

    def put_mentions(self, number: int, places: Mapping[int, np.ndarray]) -> None:
        """Writes the places of names in a document, by their keys; none removes a row."""
        for key, own in places.items():
            self.connection.execute("DELETE FROM mentions WHERE key = ? AND number = ?", (key, number))
            if len(own):
                self._put("mentions", key, number, len(np.unique(own["node"])), own.tobytes())

    def places_in(self, number: int) -> dict[int, np.ndarray]:
        """The places of all names in a document, by their keys."""
        rows = self._checked("mentions", "number = ?", number)
        return {key: np.frombuffer(places, PLACE) for key, _, _, places in rows}

    def places_of(self, key: int) -> list[tuple[int, np.ndarray]]:
        """(number of the document, places in it) of a name."""
        rows = self._checked("mentions", "key = ?", key)
        return [(number, np.frombuffer(places, PLACE)) for _, number, _, places in rows]

    def count_chunks(self, key: int, most: int) -> int:
        """The number of chunks with a name; if it is above `most`, any number above."""
        query = "SELECT coalesce(sum(num_chunks), 0) FROM (SELECT num_chunks FROM mentions WHERE key = ? LIMIT ?)"
        return self._all(query, key, most + 1)[0][0]

    def put_read(self, number: int, pairs: Collection[int]) -> None:
        """Records that a document was read, with the keys of its pairs of words."""
        self._put("read", number, np.array(sorted(pairs), _BEGIN).tobytes())

    def documents_with(self, names: Collection[Name]) -> list[int]:
        """Numbers of the documents that may contain one of these names: all pairs of its words are there."""
        wanted = np.unique(np.array([key for name in names for key in pair_keys(name)], _BEGIN))
        if not len(wanted):
            return []
        columns = [np.searchsorted(wanted, np.array(pair_keys(name), _BEGIN)) for name in names]
        found: list[int] = []
        rows = self._checked("read", "TRUE")
        for first in range(0, len(rows), _BATCH):
            numbers, contents = zip(*rows[first : first + _BATCH], strict=True)
            ends = np.cumsum([len(content) // _BEGIN.itemsize for content in contents])
            pairs = np.frombuffer(b"".join(contents), _BEGIN)
            hits = find_keys(wanted, pairs)
            there = np.zeros((len(numbers), len(wanted)), bool)
            there[np.searchsorted(ends, hits, "right"), np.searchsorted(wanted, pairs[hits])] = True
            may = np.any([there[:, own].all(axis=1) for own in columns], axis=0)
            found += [numbers[place] for place in np.flatnonzero(may).tolist()]
        return found

    def silence(self, key: int, reason: int) -> None:
        """Records that a name makes no notes; 0 is no reason."""
        self.connection.execute("DELETE FROM silent WHERE key = ?", (key,))
        if reason:
            self._put("silent", key, reason)

    def is_silent(self, key: int) -> bool:
        """True if a name makes no notes."""
        return bool(self._checked("silent", "key = ?", key))

    def count_silent(self, reason: int) -> int:
        """The number of names that make no notes for a reason."""
        return self._all("SELECT count(*) FROM silent WHERE reason = ?", reason)[0][0]

    def put_stale(self, chunks: Iterable[tuple[int, int]]) -> None:
        """Records that notes of chunks have to be selected again."""
        self.connection.executemany("INSERT OR IGNORE INTO stale VALUES (?, ?)", chunks)

    def stale(self) -> list[tuple[int, int]]:
        """(number, node) of the chunks whose notes have to be selected again."""
        return self._all("SELECT number, node FROM stale ORDER BY number, node")

    def finish(self, counts: Mapping[tuple[int, int], ChunkCount]) -> None:
        """Records the numbers of the stale chunks; none is stale any more."""
        if ALL in self.stale():
            self.connection.execute("DELETE FROM chunk_counts")
        self.connection.execute("DELETE FROM stale")
        for chunk, one in counts.items():
            self.connection.execute("DELETE FROM chunk_counts WHERE number = ? AND node = ?", chunk)
            if any((one.num_notes, one.too_long, one.beyond)):
                self._put("chunk_counts", *chunk, one.num_notes, one.too_long, one.beyond)

    def total(self) -> ChunkCount:
        """The numbers of all chunks together."""
        sums = (f"coalesce(sum({column}), 0)" for column in ("num_notes", "too_long", "beyond"))
        return ChunkCount(*self._all(f"SELECT {', '.join(sums)} FROM chunk_counts")[0])

    def _all(self, query: str, *values: object) -> list[tuple]:
        with named(self._path):
            return self.connection.execute(query, values).fetchall()

    def _checked(self, table: str, where: str, *values: object) -> list[tuple]:
        """Rows without their checksums."""
        rows = self._all(f"SELECT {_CRCS[table]}, crc FROM {table} WHERE {where}", *values)
        if not all(_crc(row[:-1]) == row[-1] for row in rows):
            raise Damaged(f"{self.folder}: {_FAULT}; {advice(self.folder)}")
        return [row[:-1] for row in rows]

    def _put(self, table: str, *values: int | bytes) -> None:
        marks = ", ".join("?" * (len(values) + 1))
        self.connection.execute(f"INSERT INTO {table} ({_CRCS[table]}, crc) VALUES ({marks})", (*values, _crc(values)))


_FAULT = "the list of names: changed since it was written"


def forget_mentions_of(connection: sqlite3.Connection, number: int) -> None:
    """Removes the rows of a document, and records its names as changed; the caller has opened a transaction."""
    connection.execute(
        "INSERT INTO changed SELECT key, 1, max(is_term) FROM names WHERE number = ? GROUP BY key "
        "ON CONFLICT (key) DO UPDATE SET is_owned = 1, is_term = max(is_term, excluded.is_term)",
        (number,),
    )
    connection.execute("INSERT OR IGNORE INTO changed SELECT key, 0, 0 FROM mentions WHERE number = ?", (number,))
    for table in _OF_DOCUMENTS:
        connection.execute(f"DELETE FROM {table} WHERE number = ?", (number,))


def clear_mentions(connection: sqlite3.Connection) -> None:
    """Removes all rows; the caller has opened a transaction."""
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table}")


def survey_mentions(connection: sqlite3.Connection) -> str:
    """Damage of the rows; empty if there is none."""
    try:
        if format_of(connection) < FORMAT:
            return ""
        for table, columns in _CRCS.items():
            for *values, crc in connection.execute(f"SELECT {columns}, crc FROM {table}"):
                if _crc(values) != crc:
                    return _FAULT
    except SQLITE_ERRORS as error:
        return str(error)
    return ""


def _name(text: bytes) -> Name:
    return tuple(to_text(text).split(_BETWEEN_WORDS))


def _crc(values: Iterable[object]) -> int:
    crc = 0
    for value in values:
        crc = crc32(value if type(value) is bytes else f"{value} ".encode(), crc)
    return crc
