"""Rows of notes in the catalogue. One row has all notes that one document has from another one, or from itself.

    notes     answering, asking: ids of the documents; the notes as a JSON list; the tokens of each (int64); float32
              vectors of their texts and then of their questions, if they have one; one row each
    noted     at most one row: the documents and the setting that the notes were made from, and the result

A row is removed in the same transaction as either of its documents. So no text of a removed or changed document stays,
and every row left is valid, even if the writer is killed. `noted` says whether the notes are complete.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.files.sqlite import SQLITE_ERRORS, Damaged
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.stores.sqlite.database import advice, named, transaction
from qrag_jax.index.stores.sqlite.entries import parts_sha256, to_bytes, to_text
from qrag_jax.index.stores.sqlite.mention_rows import clear_mentions
from qrag_jax.types import Note

_INTEGER, _FLOAT = np.dtype("<i8"), np.dtype("<f4")
_COLUMNS = "answering, asking, notes, num_tokens, vectors"
_TEXTS = ("asking", "answering", "text", "quote", "reader", "question", "answer")
_PLACE = "place"  # position of a note among those of its chunk
Pair = tuple[str, str]  # ids of the answering and of the asking document


@dataclass(frozen=True)
class NoteRow:
    """The notes that a document has from another one, as bytes.

    Attributes:
        pair: the document with the notes, and the one that they come from.
        content, num_tokens, vectors: as in the module docstring.
    """

    pair: Pair
    content: bytes
    num_tokens: bytes
    vectors: bytes

    @cached_property
    def placed(self) -> tuple[tuple[int, Note], ...]:
        """The notes, each with its position among those of its chunk.

        Raises:
            ValueError, TypeError, KeyError, RecursionError: the row cannot be decoded.
        """
        return unpack_notes(self.content)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The embedded texts of the notes, in the order of the vectors; raises as `placed`."""
        return texts_of([note for _, note in self.placed])

    def unpack_vectors(self) -> tuple[Int[np.ndarray, " notes"], Float[np.ndarray, "texts dim"]]:
        """Token counts of the notes and vectors of the texts, read-only.

        Raises:
            ValueError: the row cannot be decoded; or as `placed`.
        """
        num_tokens = np.frombuffer(self.num_tokens, _INTEGER)
        vectors = np.frombuffer(self.vectors, _FLOAT).reshape(len(self.texts), -1)
        if len(num_tokens) != len(self.placed) or not vectors.size or not np.isfinite(vectors).all():
            raise ValueError(f"{len(self.placed)} notes with {len(num_tokens)} counts and {vectors.shape} vectors")
        return num_tokens, vectors


@dataclass(frozen=True)
class Mark:
    """The origin of the notes of an index, and the omissions.

    Attributes:
        documents: hash of the documents (`documents_sha256`).
        setting: the writer and its options.
        num_notes: number of notes written.
        left_out: number of notes not written or kept, by reason.
        is_complete: as in `ReadNotes`; if False, the next update has all notes written again.
    """

    documents: bytes
    setting: str
    num_notes: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    is_complete: bool = True


@dataclass(frozen=True)
class NotesMade:
    """The results of an update of the notes.

    Attributes:
        num_notes: number of notes in the index.
        num_embedded: number of texts of notes embedded.
        left_out: number of notes not written or kept, by reason.
    """

    num_notes: int = 0
    num_embedded: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)


def pack_notes(notes: Sequence[tuple[int, Note]]) -> bytes:
    """Encodes notes with their positions among those of their chunks."""
    return json.dumps([asdict(note) | {_PLACE: place} for place, note in notes]).encode()


def unpack_notes(content: bytes) -> tuple[tuple[int, Note], ...]:
    """Decodes the result of `pack_notes`."""
    return tuple(_unpack_note(fields) for fields in json.loads(content))


def texts_of(notes: Sequence[Note]) -> tuple[str, ...]:
    """The texts to embed for the notes of a row, in the order of its vectors."""
    return (*(note.text for note in notes), *(note.question for note in notes if note.question))


def pack_vectors(num_tokens: Sequence[int], vectors: Sequence[np.ndarray]) -> tuple[bytes, bytes]:
    """Encodes the token counts and vectors of a row."""
    return np.array(num_tokens, _INTEGER).tobytes(), np.array(vectors, _FLOAT).tobytes()


def rows_from(connection: sqlite3.Connection, folder: Path, asking: str, answering: str | None = None) -> list[NoteRow]:
    """The rows of notes that come from a document; only those of another one, if it is given.

    Raises:
        Damaged: a row was changed.
    """
    query, keys = f"SELECT {_COLUMNS}, sha256 FROM notes WHERE asking = ?", (to_bytes(asking),)
    if answering is not None:
        query, keys = f"{query} AND answering = ?", (*keys, to_bytes(answering))
    with named(folder / CATALOGUE):
        return [_whole(values, folder) for values in connection.execute(query, keys)]


def has_notes(connection: sqlite3.Connection) -> bool:
    """True if the catalogue has tables for notes; the first format had none."""
    return connection.execute("PRAGMA user_version").fetchone()[0] > 1


def read_pairs(connection: sqlite3.Connection, folder: Path) -> dict[Pair, bytes]:
    """The notes of each row, without vectors, unchecked."""
    with named(folder / CATALOGUE):
        rows = connection.execute("SELECT answering, asking, notes FROM notes")
        return {(to_text(answering), to_text(asking)): notes for answering, asking, notes in rows}


def documents_with_notes(connection: sqlite3.Connection, folder: Path) -> list[int]:
    """Numbers of the documents that have notes."""
    with named(folder / CATALOGUE):
        query = "SELECT number FROM ledger WHERE id IN (SELECT answering FROM notes) AND number IS NOT NULL"
        return [number for (number,) in connection.execute(query)]


def read_note_row(connection: sqlite3.Connection, pair: Pair) -> NoteRow | None:
    """The row of a pair, unchecked; None if there is none."""
    query = f"SELECT {_COLUMNS} FROM notes WHERE answering = ? AND asking = ?"
    found = connection.execute(query, tuple(map(to_bytes, pair))).fetchone()
    return None if found is None else NoteRow(pair, *found[2:])


def read_note_rows(connection: sqlite3.Connection, folder: Path) -> Iterator[NoteRow]:
    """Reads and checks all rows, in the order of their documents.

    Raises:
        Damaged: a row was changed; the message names it.
    """
    with named(folder / CATALOGUE):
        if not has_notes(connection):
            return
        for values in connection.execute(f"SELECT {_COLUMNS}, sha256 FROM notes ORDER BY answering, asking"):
            yield _whole(values, folder)


def read_notes_of(connection: sqlite3.Connection, folder: Path, document_id: str) -> list[NoteRow]:
    """Reads and checks the rows of the notes that a document has, in the order of the documents they come from.

    Raises:
        Damaged: a row was changed; the message names it.
    """
    query = f"SELECT {_COLUMNS}, sha256 FROM notes WHERE answering = ? ORDER BY asking"
    with named(folder / CATALOGUE):
        return [_whole(values, folder) for values in connection.execute(query, (to_bytes(document_id),))]


def list_notes(connection: sqlite3.Connection, folder: Path, numbers: Mapping[str, int]) -> dict[str, bytes]:
    """Those of some documents that have notes from some of them, each with a hash of these rows, which are not checked.

    The hash also has the numbers of the documents that the notes come from: if one of those is written again, its notes
    may stay the same, and its chunks have other places.

    Args:
        numbers: of the rows of the documents, by their ids.
    """
    digests: dict[str, Any] = {}
    with named(folder / CATALOGUE):
        if has_notes(connection):
            query = "SELECT answering, asking, sha256 FROM notes ORDER BY answering, asking"
            for *pair, sha256 in connection.execute(query):
                answering, asking = map(to_text, pair)
                if answering in numbers and asking in numbers:
                    digests.setdefault(answering, hashlib.sha256()).update(sha256 + numbers[asking].to_bytes(8, "big"))
    return {answering: digest.digest() for answering, digest in digests.items()}


def index_notes(connection: sqlite3.Connection, folder: Path) -> None:
    """Makes `list_notes` fast: SQLite then need not read past the vectors of each row."""
    with named(folder / CATALOGUE):
        if has_notes(connection):
            connection.execute("CREATE INDEX IF NOT EXISTS notes_by_answering ON notes (answering, asking, sha256)")


def put_note_row(connection: sqlite3.Connection, row: NoteRow) -> None:
    """Writes or replaces a row; the caller has opened a transaction."""
    _forget_mark(connection)
    values = (*map(to_bytes, row.pair), row.content, row.num_tokens, row.vectors)
    connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?, ?)", (*values, parts_sha256(*values)))


def delete_pair(connection: sqlite3.Connection, pair: Pair) -> None:
    """Removes a row; the caller has opened a transaction."""
    _forget_mark(connection)
    connection.execute("DELETE FROM notes WHERE answering = ? AND asking = ?", tuple(map(to_bytes, pair)))


def delete_notes_of(connection: sqlite3.Connection, document_id: str) -> None:
    """Removes the notes that a document has or that come from it; the caller has opened a transaction."""
    _forget_mark(connection)
    key = to_bytes(document_id)
    connection.execute("DELETE FROM notes WHERE answering = ? OR asking = ?", (key, key))


def survey_notes(connection: sqlite3.Connection) -> tuple[list[Pair], list[str], str]:
    """Pairs of undamaged rows, names of damaged rows, and any damage of their tables.

    Reads row by row through the index of names, because a scan would end at the first page that cannot be read.
    """
    whole: list[Pair] = []
    damaged: list[str] = []
    fault = ""
    try:
        if not has_notes(connection):
            return [], [], ""
        read_mark(connection)
        keys = connection.execute("SELECT answering, asking FROM notes ORDER BY answering, asking").fetchall()
    except SQLITE_ERRORS as error:
        return [], [], str(error)
    for key in keys:
        query = f"SELECT {_COLUMNS}, sha256 FROM notes WHERE answering = ? AND asking = ?"
        try:
            values = connection.execute(query, key).fetchone()
        except SQLITE_ERRORS as error:
            values, fault = None, str(error)
        row, name = _checked(values) if values is not None else (None, _name(*key))
        if row is None:
            damaged.append(name)
        else:
            whole.append(row.pair)
    return whole, damaged, fault


def count_notes(connection: sqlite3.Connection, pairs: Sequence[Pair] | None = None) -> int:
    """The number of notes in the rows of these pairs; None is all."""
    if pairs is None and not has_notes(connection):
        return 0
    query = "SELECT coalesce(sum(length(num_tokens)), 0) FROM notes"
    if pairs is None:
        return connection.execute(query).fetchone()[0] // _INTEGER.itemsize
    one = f"{query} WHERE answering = ? AND asking = ?"
    return sum(connection.execute(one, tuple(map(to_bytes, pair))).fetchone()[0] for pair in pairs) // _INTEGER.itemsize


def documents_sha256(connection: sqlite3.Connection) -> bytes:
    """A hash of the ids and origins of all documents that could be read."""
    digest = hashlib.sha256()
    query = "SELECT id, bytes_sha256, reader FROM ledger WHERE number IS NOT NULL ORDER BY id"
    for parts in connection.execute(query):
        if not all(type(part) is bytes for part in parts):
            return b""  # a damaged row; equals no hash
        digest.update(parts_sha256(*parts))
    return digest.digest()


def current_mark(connection: sqlite3.Connection, folder: Path, setting: str) -> Mark | None:
    """The origin of the notes, if the documents and the setting are still the same; else None.

    Args:
        setting: `NotesSetting.key`.

    Raises:
        Damaged: the file is damaged.
    """
    with named(folder / CATALOGUE):
        mark = read_mark(connection)
        if mark is None or mark.setting != setting or mark.documents != documents_sha256(connection):
            return None
    return mark


def read_mark(connection: sqlite3.Connection) -> Mark | None:
    """The origin of the notes; None if it is unknown or damaged."""
    if not has_notes(connection):
        return None
    found = connection.execute("SELECT documents, setting, result, sha256 FROM noted").fetchone()
    if found is None or not all(type(value) is bytes for value in found) or parts_sha256(*found[:3]) != found[3]:
        return None
    documents, setting, result, _ = found
    try:
        made = json.loads(result)
        left_out = {str(reason): int(number) for reason, number in made["left_out"].items()}
        return Mark(documents, setting.decode(), int(made["num_notes"]), left_out, "is_complete" not in made)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # right hash, wrong contents
        return None


def write_mark(connection: sqlite3.Connection, mark: Mark) -> None:
    """Records what the notes were made from; the caller has opened a transaction."""
    result = {"num_notes": mark.num_notes, "left_out": dict(mark.left_out)}
    if not mark.is_complete:
        result["is_complete"] = False
    values = (mark.documents, mark.setting.encode(), json.dumps(result, sort_keys=True).encode())
    _forget_mark(connection)
    connection.execute("INSERT INTO noted VALUES (?, ?, ?, ?)", (*values, parts_sha256(*values)))


def clear_notes(connection: sqlite3.Connection, folder: Path) -> None:
    """Removes all notes, if there are any."""
    with named(folder / CATALOGUE):
        query = "SELECT EXISTS (SELECT 1 FROM notes) OR EXISTS (SELECT 1 FROM noted) OR EXISTS (SELECT 1 FROM read_by)"
        (is_filled,) = connection.execute(query).fetchone()
    if is_filled:
        with transaction(connection, folder / CATALOGUE):
            connection.execute("DELETE FROM notes")
            connection.execute("DELETE FROM noted")
            clear_mentions(connection)


def _forget_mark(connection: sqlite3.Connection) -> None:
    """Removes the mark at any change of a row, because documents and setting may return to the recorded state."""
    connection.execute("DELETE FROM noted")


def _unpack_note(fields: dict[str, Any]) -> tuple[int, Note]:
    place, (start, end), (first, last) = (fields[name] for name in (_PLACE, "source", "evidence"))
    texts = {name: fields[name] for name in _TEXTS}
    if not all(type(text) is str for text in texts.values()):
        raise TypeError("a text of a note is not a string")
    if not all(type(number) is int for number in (place, start, end, first, last)):
        raise TypeError("a place of a note is not a number")
    return place, Note(**texts, source=(start, end), evidence=(first, last))


def _whole(values: tuple, folder: Path) -> NoteRow:
    row, name = _checked(values)
    if row is None:
        raise Damaged(f"{folder}: {name}: changed since they were written; {advice(folder)}")
    return row


def _checked(values: tuple) -> tuple[NoteRow | None, str]:
    """The row, or None if it is damaged; and its name."""
    answering, asking, *row, sha256 = values
    name = _name(answering, asking)
    if not all(type(value) is bytes for value in values) or parts_sha256(*values[:-1]) != sha256:
        return None, name
    try:
        found = NoteRow((to_text(answering), to_text(asking)), *row)
        found.unpack_vectors()
    except (ValueError, TypeError, KeyError, RecursionError):  # right hash, wrong contents
        return None, name
    return found, name


def _name(*pair: object) -> str:
    names = (key.decode("utf-8", "replace") if isinstance(key, bytes) else repr(key) for key in pair)
    return f"notes of {' from '.join(names)}"
