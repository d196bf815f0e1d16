"""Rows of a catalogue that can be trusted: each is checked against its hash whenever it is read.

A document whose file cannot be read any more stays, and beside it stands what was tried in vain, and why: in the column
`error` as a line with the hash of the bytes and what read them, and then the reason.

Damage, found before an index is written to: what is whole is kept, what is not is read again.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from qrag_jax.files.sqlite import SQLITE_ERRORS, Damaged
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.stores.sqlite.database import (
    advice,
    bring_up_to_format,
    looked_through,
    named,
    new_file,
    reading_from,
    transaction,
    writing_to,
)
from qrag_jax.index.stores.sqlite.entries import (
    Entry,
    Failure,
    Origin,
    Row,
    pack,
    parts_sha256,
    to_bytes,
    to_text,
    unpack,
    unpack_document,
    unpack_nodes,
    unpack_tree,
)
from qrag_jax.index.stores.sqlite.note_rows import (
    Pair,
    delete_notes_of,
    has_notes,
    put_note_row,
    read_note_row,
    survey_notes,
)
from qrag_jax.types import Chunk, Document, InputError

_LEDGER = "ledger.id, ledger.number, bytes_sha256, reader, error, sha256"
_ROW = "documents.id, text, metadata, ids, nodes, vectors, tree"
_FROM = "FROM ledger LEFT JOIN documents USING (number)"
LOST = Origin("", "")  # of a document whose row was damaged: no file is like it, so it is read again


@dataclass(frozen=True)
class Known:
    """A document that the catalogue has, as it was written.

    Attributes:
        id: its path.
        number: of its row, none is used twice; None where there is none, as it could never be read.
        origin: what it was made of; where there is no row, what was tried in vain.
        error: why its file could not be read, when that was last tried; empty where it could.
        row: what was read; None where that is not kept in memory, too.
        tried: what was tried in vain, if its file could not be read when that was last tried; else None.
    """

    id: str
    number: int | None
    origin: Origin
    error: str
    row: Row | None
    tried: Origin | None = None


@dataclass(frozen=True)
class Survey:
    """What a look at every row has found.

    Attributes:
        known: whole documents and recorded failures by their ids, without their rows.
        damaged: ids of those that are not what was written, or are gone.
        fault: what is wrong with the file itself; empty where nothing is.
        pairs: of whole rows of notes.
        damaged_notes: names of those that are not what was written.
        has_notes: the file has a place for notes; the first format had none.
    """

    known: dict[str, Known]
    damaged: tuple[str, ...]
    fault: str = ""
    pairs: tuple[Pair, ...] = ()
    damaged_notes: tuple[str, ...] = ()
    has_notes: bool = True

    @property
    def is_whole(self) -> bool:
        """Nothing is damaged."""
        return not self.damaged and not self.fault and not self.damaged_notes


def read_all(connection: sqlite3.Connection, folder: Path) -> Iterator[Known]:
    """Every document and failure, in the order of their ids, each checked.

    Raises:
        Damaged: one is not what was written, which names it, or one is not listed.
    """
    num_rows = 0
    with named(folder / CATALOGUE):
        for values in connection.execute(f"SELECT {_LEDGER}, {_ROW} {_FROM} ORDER BY ledger.id"):
            known, name = _checked(values)
            if known is None:
                raise Damaged(f"{folder}: document {name}: altered since it was written; {advice(folder)}")
            num_rows += known.number is not None
            yield known
        (count,) = connection.execute("SELECT count(*) FROM documents").fetchone()
    if count != num_rows:
        raise Damaged(f"{folder}: {count - num_rows} documents are not listed; {advice(folder)}")


def read_row(connection: sqlite3.Connection, number: int) -> Row | None:
    """The row of a number, as it is; None where there is none any more."""
    found = connection.execute(f"SELECT {_ROW} FROM documents WHERE number = ?", (number,)).fetchone()
    return None if found is None else Row(*found[1:])


def read_leaves(connection: sqlite3.Connection, folder: Path) -> tuple[list[Document], list[Chunk]]:
    """The documents in the order of their ids, and what is searched of them; without vectors, and not checked.

    Raises:
        Damaged: a row is none of ours.
    """
    documents, leaves = [], []
    query = f"SELECT ledger.id, text, metadata, ids, nodes, tree {_FROM} WHERE number IS NOT NULL ORDER BY ledger.id"
    with named(folder / CATALOGUE):
        for key, text, metadata, ids, nodes, tree in connection.execute(query):
            row, name = Row(text, metadata, ids, nodes, b"", tree), to_text(key)
            found, _ = unpack_nodes(name, row)
            whole = unpack_tree(name, row, found)
            documents.append(unpack_document(name, row))
            leaves += found if whole is None else [found[number] for number in whole.leaves.tolist()]
    return documents, leaves


def survey(connection: sqlite3.Connection, folder: Path) -> Survey:
    """Looks at every row, and goes on where one cannot be read.

    Raises:
        Damaged: there is no ledger of documents that could be read at all.
    """
    known: dict[str, Known] = {}
    damaged: set[str] = set()
    listed, fault = _ledger(connection, folder)
    numbers: set[int] = set()
    for key, number in listed:
        try:
            values = connection.execute(f"SELECT {_LEDGER}, {_ROW} {_FROM} WHERE ledger.id = ?", (key,)).fetchone()
        except SQLITE_ERRORS as error:
            fault, values = str(error), None
        found, name = _checked(values) if values is not None else (None, _name(key))
        if isinstance(number, int):
            numbers.add(number)
        if found is None:
            damaged.add(name)
        else:
            known[found.id] = replace(found, row=None)
    orphans, more = _orphans(connection, numbers)
    pairs, damaged_notes, of_notes = survey_notes(connection)
    fault = fault or more or of_notes or _structure(connection)
    gone = tuple(sorted((damaged | orphans) - known.keys()))
    return Survey(known, gone, fault, tuple(pairs), tuple(damaged_notes), has_notes(connection))


def put(connection: sqlite3.Connection, folder: Path, entry: Entry) -> int:
    """Writes a document in place of what was there under its id; all of it or nothing. Gives the number of its row."""
    row = astuple(pack(entry))
    with transaction(connection, folder / CATALOGUE):
        _delete(connection, entry.document.id)
        place = "(id, text, metadata, ids, nodes, vectors, tree) VALUES (?, ?, ?, ?, ?, ?, ?)"
        inserted = connection.execute(f"INSERT INTO documents {place}", (to_bytes(entry.document.id), *row))
        number = inserted.lastrowid
        assert number is not None  # an INSERT has one
        _enter(connection, entry.document.id, number, entry.origin, b"", row)
    return number


def put_failure(connection: sqlite3.Connection, folder: Path, failure: Failure) -> None:
    """Records that a document could not be read; what was known of it is removed."""
    with transaction(connection, folder / CATALOGUE):
        _delete(connection, failure.id)
        _enter(connection, failure.id, None, failure.origin, to_bytes(failure.reason), ())


def put_beside(connection: sqlite3.Connection, folder: Path, document_id: str, failure: Failure | None) -> None:
    """Records that the file of a document could not be read, and leaves the document; None takes such a record back.

    Raises:
        Damaged: the document is not there, as it was a moment ago.
        InputError: the disk is full.
    """
    key = to_bytes(document_id)
    with transaction(connection, folder / CATALOGUE):
        found = connection.execute(f"SELECT {_LEDGER}, {_ROW} {_FROM} WHERE ledger.id = ?", (key,)).fetchone()
        known = None if found is None else _checked(found)[0]
        if known is None or known.row is None:
            raise Damaged(f"{folder}: document {document_id}: altered since it was written; {advice(folder)}")
        error = b"" if failure is None else _join(failure)
        connection.execute("DELETE FROM ledger WHERE id = ?", (key,))
        _enter(connection, document_id, known.number, known.origin, error, astuple(known.row))


def remove(connection: sqlite3.Connection, folder: Path, document_id: str) -> None:
    """Removes all that is kept of a document."""
    with transaction(connection, folder / CATALOGUE):
        _delete(connection, document_id)


def copy(connection: sqlite3.Connection, folder: Path, known: Known) -> None:
    """Writes what another catalogue had, as it was."""
    if known.number is None:
        put_failure(connection, folder, Failure(known.id, known.error, known.origin))
        return
    put(connection, folder, entry_of(known, folder))
    if known.tried is not None:
        put_beside(connection, folder, known.id, Failure(known.id, known.error, known.tried))


def entry_of(known: Known, folder: Path) -> Entry:
    """The entry of a document that could be read."""
    assert known.row is not None
    try:
        return unpack(known.id, known.row, known.origin)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{folder}: document {known.id}: no row of an index ({error}); {advice(folder)}") from error


def _delete(connection: sqlite3.Connection, document_id: str) -> None:
    key = (to_bytes(document_id),)
    delete_notes_of(connection, document_id)
    connection.execute("DELETE FROM documents WHERE number = (SELECT number FROM ledger WHERE id = ?)", key)
    connection.execute("DELETE FROM ledger WHERE id = ?", key)


def _enter(
    connection: sqlite3.Connection,
    document_id: str,
    number: int | None,
    origin: Origin,
    error: bytes,
    row: tuple[bytes, ...],
) -> None:
    key, made_of = to_bytes(document_id), (origin.bytes_sha256.encode(), origin.reader.encode())
    sha256 = parts_sha256(key, *made_of, error, *row)
    connection.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?)", (key, number, *made_of, error, sha256))


def _checked(values: tuple) -> tuple[Known | None, str]:
    """What a joined row says if it is what was written, else None; and the name that it goes by."""
    key, number, *made_of, error, sha256, row_key = values[:7]
    row = values[7:] if number is not None else ()
    if not all(type(value) is bytes for value in (key, *made_of, error, sha256, *row)):
        return None, _name(row_key if type(row_key) is bytes else key)
    if parts_sha256(key, *made_of, error, *row) != sha256 or (row and row_key != key):
        # A name in the ledger may be what has changed: then the row has the right one.
        is_renamed = type(row_key) is bytes and parts_sha256(row_key, *made_of, error, *row) == sha256
        return None, _name(row_key if is_renamed else key)
    try:
        origin = Origin(*(value.decode() for value in made_of))
        reason, tried = to_text(error), None if row else origin
        if row and reason:
            reason, tried = split_error(reason)
        return Known(to_text(key), number, origin, reason, Row(*row) if row else None, tried), to_text(key)
    except UnicodeDecodeError:
        return None, _name(key)


def _join(failure: Failure) -> bytes:
    """What the column `error` has of a document that stays; neither hash nor reader has the marks that part them."""
    return to_bytes(f"{failure.origin.bytes_sha256} {failure.origin.reader}\n{failure.reason}")


def split_error(error: str) -> tuple[str, Origin]:
    """(reason, what was tried) of a document that stays."""
    tried, _, reason = error.partition("\n")
    bytes_sha256, _, reader = tried.partition(" ")
    return reason, Origin(bytes_sha256, reader)


def _name(key: object) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else repr(key)


def _ledger(connection: sqlite3.Connection, folder: Path) -> tuple[list[tuple], str]:
    """(id, number) of what the ledger lists, and what is wrong with it: from both ends, as far as it can be read."""
    found: dict[object, tuple] = {}
    fault = ""
    for order in ("ASC", "DESC"):
        try:
            for row in connection.execute(f"SELECT id, number FROM ledger ORDER BY id {order}"):
                found[row[0]] = row
        except SQLITE_ERRORS as error:
            if not found and order == "DESC":
                raise Damaged(f"{folder / CATALOGUE}: damaged ({error}); {advice(folder)}") from error
            fault = str(error)
            continue
        if order == "ASC":
            break
    return list(found.values()), fault


def _orphans(connection: sqlite3.Connection, numbers: set[int]) -> tuple[set[str], str]:
    """Names of documents that the ledger does not list, and what is wrong with their table."""
    found: set[str] = set()
    try:
        for number, key in connection.execute("SELECT number, id FROM documents ORDER BY number"):
            if number not in numbers:
                found.add(_name(key))
    except SQLITE_ERRORS as error:
        return found, str(error)
    return found, ""


def _structure(connection: sqlite3.Connection) -> str:
    """What SQLite finds wrong with its file; nothing where all is well."""
    try:
        said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except SQLITE_ERRORS as error:
        return str(error)
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return "" if text == "ok" else " ".join(text.split())


LOST_REASON = "its row in the index was damaged; add its file again"


def mend(folder: Path) -> Survey:
    """What a catalogue has, each row checked; a damaged catalogue is first written anew, of what is whole.

    A document that was damaged is recorded as one that could not be read, until its file is. The caller holds the
    folder.

    Raises:
        Damaged: nothing of it can be read.
        InputError: the disk is full.
    """
    with looked_through(folder):
        with reading_from(folder) as connection:
            found = survey(connection, folder)
        if found.is_whole:
            if not found.has_notes:
                bring_up_to_format(folder)
            return found
        with writing_to(folder):
            pass  # what a killed writer has left in the log goes into the file: the log is removed below
        # Not in place: in a file whose structure is wrong, each change may spoil what is whole.
        with new_file(folder) as beside, reading_from(folder) as connection:
            for known in found.known.values():
                row = None if known.number is None else read_row(connection, known.number)
                copy(beside, folder, replace(known, row=row))
            for name in found.damaged:
                put_failure(beside, folder, Failure(name, LOST_REASON, LOST))
            with transaction(beside, folder / CATALOGUE):
                for pair in found.pairs:  # without what they were made of: so they are made anew where one is missing
                    notes = read_note_row(connection, pair)
                    if notes is not None and all(name in found.known for name in pair):
                        put_note_row(beside, notes)
        with reading_from(folder) as connection:
            return replace(
                survey(connection, folder), damaged=found.damaged, fault=found.fault, damaged_notes=found.damaged_notes
            )
