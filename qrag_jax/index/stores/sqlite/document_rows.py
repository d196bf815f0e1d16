"""Rows of documents in the catalogue. Every read checks a row against its hash.

If a file cannot be read any more, its document stays. The column `error` then has a line with the hash of the new bytes
and their reader, and after it the reason.

An update checks the rows that it reads, and those of the documents that it may replace (`look_over`). If it meets
damage, every row is checked and the whole ones are moved to a new file (`mend`); damaged documents are read again.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np

from qrag_jax.files.sqlite import SQLITE_ERRORS, Damaged
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.stores.sqlite.database import (
    advice,
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
    parents_in,
    parts_sha256,
    to_bytes,
    to_text,
    unpack,
    unpack_document,
    unpack_nodes,
    unpack_tree,
)
from qrag_jax.index.stores.sqlite.mention_rows import forget_mentions_of, survey_mentions
from qrag_jax.index.stores.sqlite.note_rows import (
    Pair,
    delete_notes_of,
    put_note_row,
    read_note_row,
    read_notes_of,
    rows_from,
    survey_notes,
)
from qrag_jax.index.stores.sqlite.text_rows import delete_keys, put_keys, read_keys
from qrag_jax.index.stores.sqlite.token_rows import (
    delete_tokens,
    has_tokens,
    put_tokens,
    read_tokens,
)
from qrag_jax.types import Chunk, Document, InputError

_LEDGER = "ledger.id, ledger.number, bytes_sha256, reader, error, sha256"
_ROW = "documents.id, text, metadata, ids, nodes, vectors, tree"
_FROM = "FROM ledger LEFT JOIN documents USING (number)"
LOST = Origin("", "")  # of a damaged document: equals no file, so the file is read again


@dataclass(frozen=True)
class Known:
    """A document in the catalogue.

    Attributes:
        id: its path.
        number: of its row, never used twice; None if it could never be read.
        origin: what it was made from; without a row, what could not be read.
        error: why the file could not be read at the last try; empty if it could.
        row: its contents; None if there is none, or if it is not kept in memory.
        tried: what could not be read at the last try; None if the file could be read.
    """

    id: str
    number: int | None
    origin: Origin
    error: str
    row: Row | None
    tried: Origin | None = None


@dataclass(frozen=True)
class Survey:
    """The result of checking every row.

    Attributes:
        known: undamaged documents and recorded failures by id, without their rows.
        damaged: ids of documents that are damaged or missing.
        fault: damage of the file itself; empty if there is none.
        pairs: of undamaged rows of notes.
        damaged_notes: names of damaged rows of notes.
    """

    known: dict[str, Known]
    damaged: tuple[str, ...]
    fault: str = ""
    pairs: tuple[Pair, ...] = ()
    damaged_notes: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if nothing is damaged."""
        return not self.damaged and not self.fault and not self.damaged_notes


def read_all(connection: sqlite3.Connection, folder: Path) -> Iterator[Known]:
    """Reads and checks every document and failure, in the order of their ids.

    Raises:
        Damaged: a document is damaged or not listed; the message names it.
    """
    num_rows = 0
    with named(folder / CATALOGUE):
        for values in connection.execute(f"SELECT {_LEDGER}, {_ROW} {_FROM} ORDER BY ledger.id"):
            known, name = _checked(values)
            if known is None:
                raise Damaged(f"{folder}: document {name}: changed since it was written; {advice(folder)}")
            num_rows += known.number is not None
            yield known
        (count,) = connection.execute("SELECT count(*) FROM documents").fetchone()
    if count != num_rows:
        raise Damaged(f"{folder}: {count - num_rows} documents are not listed; {advice(folder)}")


def list_documents(connection: sqlite3.Connection, folder: Path) -> Iterator[tuple[str, int, bytes]]:
    """(id, number, hash of its id and origin) of every document that could be read, in the order of their ids.

    The hash stays as long as the document is not read again. Rows are not checked.
    """
    query = "SELECT id, number, bytes_sha256, reader FROM ledger WHERE number IS NOT NULL ORDER BY id"
    with named(folder / CATALOGUE):
        for key, number, *origin in connection.execute(query):
            yield to_text(key), number, parts_sha256(key, *origin)


def read_document(connection: sqlite3.Connection, folder: Path, document_id: str) -> Known | None:
    """Reads and checks a document; None if there is none.

    Raises:
        Damaged: it was changed since it was written.
    """
    with named(folder / CATALOGUE):
        query = f"SELECT {_LEDGER}, {_ROW} {_FROM} WHERE ledger.id = ?"
        values = connection.execute(query, (to_bytes(document_id),)).fetchone()
    if values is None:
        return None
    known, name = _checked(values)
    if known is None:
        raise Damaged(f"{folder}: document {name}: changed since it was written; {advice(folder)}")
    return known


def read_row(connection: sqlite3.Connection, number: int) -> Row | None:
    """The row of a number, unchecked; None if it is gone."""
    found = connection.execute(f"SELECT {_ROW} FROM documents WHERE number = ?", (number,)).fetchone()
    return None if found is None else Row(*found[1:])


def vector_bytes(connection: sqlite3.Connection, number: int) -> int:
    """The size of the vectors of a row; 0 if it is gone."""
    found = connection.execute("SELECT length(vectors) FROM documents WHERE number = ?", (number,)).fetchone()
    return 0 if found is None else found[0]


def read_whole(connection: sqlite3.Connection, folder: Path, number: int) -> Known | None:
    """The document of a number; None if it is gone.

    Raises:
        Damaged: it was changed; the message names it.
    """
    with named(folder / CATALOGUE):
        found = connection.execute("SELECT id FROM documents WHERE number = ?", (number,)).fetchone()
        return None if found is None else _read_checked(connection, folder, found[0])


def read_ledger(connection: sqlite3.Connection, folder: Path) -> dict[str, Known]:
    """All documents and failures by id, in order, without their rows and unchecked.

    Raises:
        Damaged: a line cannot be decoded.
    """
    with named(folder / CATALOGUE):
        lines = connection.execute(f"SELECT {_LEDGER} FROM ledger ORDER BY id").fetchall()
        if not all(type(value) is bytes for key, _, *rest in lines for value in (key, *rest)):
            raise Damaged(f"{folder}: its list of documents: changed since it was written; {advice(folder)}")
        return {one.id: one for one in map(_line, lines)}


def look_over(folder: Path, names: Collection[str] | None, known: dict[str, Known] | None = None) -> Survey:
    """Checks documents before they are replaced or removed; repairs the file if they are damaged (`mend`).

    Damage elsewhere stays until a row is read: a search checks what it reads, and so does an update.

    Args:
        names: ids of the documents; others may be among them. None checks every row.
        known: the ledger, if it has been read.
    """
    if names is not None:
        try:
            with reading_from(folder) as connection:
                known = known or read_ledger(connection, folder)
                if known.keys() - names:
                    for name in known.keys() & names:  # a read checks what it reads
                        _read_checked(connection, folder, to_bytes(name))
                        read_notes_of(connection, folder, name)
                        rows_from(connection, folder, name)
                    return Survey(known, ())
        except Damaged:
            pass
    return mend(folder)


def read_leaves(connection: sqlite3.Connection, folder: Path) -> tuple[list[Document], list[Chunk]]:
    """The documents in the order of their ids, and the chunks that are searched; without vectors, unchecked.

    Raises:
        Damaged: a row cannot be decoded.
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
    """Checks every row, and continues past rows that cannot be read.

    Raises:
        Damaged: the ledger of documents cannot be read at all.
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
        if found is None or not _has_all_tokens(connection, folder, found):
            damaged.add(name)
        else:
            known[found.id] = replace(found, row=None)
    orphans, more = _orphans(connection, numbers)
    pairs, damaged_notes, of_notes = survey_notes(connection)
    fault = fault or more or of_notes or survey_mentions(connection) or _structure(connection)
    twice = (damaged | orphans) & known.keys()
    fault = fault or (f"{min(twice)} is listed twice" if twice else "")
    gone = tuple(sorted((damaged | orphans) - known.keys()))
    return Survey(known, gone, fault, tuple(pairs), tuple(damaged_notes))


def put(
    connection: sqlite3.Connection,
    folder: Path,
    entry: Entry,
    beside: Callable[[int, Entry], object] = lambda number, entry: None,
) -> int:
    """Writes or replaces a document, completely or not at all. Returns the number of its row.

    Args:
        beside: called with the number and the entry before the transaction ends; an error undoes it.
    """
    row = astuple(pack(entry))
    with transaction(connection, folder / CATALOGUE):
        _delete(connection, entry.document.id)
        place = "(id, text, metadata, ids, nodes, vectors, tree) VALUES (?, ?, ?, ?, ?, ?, ?)"
        inserted = connection.execute(f"INSERT INTO documents {place}", (to_bytes(entry.document.id), *row))
        number = inserted.lastrowid
        assert number is not None  # every INSERT has one
        _enter(connection, entry.document.id, number, entry.origin, b"", row)
        put_tokens(connection, number, entry.tokens)
        beside(number, entry)
        put_keys(connection, number, entry.keys)
    return number


def put_failure(connection: sqlite3.Connection, folder: Path, failure: Failure) -> None:
    """Records that a document could not be read, and removes its row."""
    with transaction(connection, folder / CATALOGUE):
        _delete(connection, failure.id)
        _enter(connection, failure.id, None, failure.origin, to_bytes(failure.reason), ())


def put_beside(connection: sqlite3.Connection, folder: Path, document_id: str, failure: Failure | None) -> None:
    """Records that the file of a document cannot be read, and keeps the document. None removes that record.

    Raises:
        Damaged: the document is missing.
        InputError: the disk is full.
    """
    key = to_bytes(document_id)
    with transaction(connection, folder / CATALOGUE):
        known = read_document(connection, folder, document_id)
        if known is None or known.row is None:
            raise Damaged(f"{folder}: document {document_id}: changed since it was written; {advice(folder)}")
        error = b"" if failure is None else _join(failure)
        connection.execute("DELETE FROM ledger WHERE id = ?", (key,))
        _enter(connection, document_id, known.number, known.origin, error, astuple(known.row))


def remove(connection: sqlite3.Connection, folder: Path, document_id: str) -> None:
    """Removes everything stored for a document."""
    with transaction(connection, folder / CATALOGUE):
        _delete(connection, document_id)


def copy(connection: sqlite3.Connection, folder: Path, known: Known, source: sqlite3.Connection) -> None:
    """Writes the rows of a document in another catalogue unchanged."""
    if known.number is None:
        put_failure(connection, folder, Failure(known.id, known.error, known.origin))
        return
    more = {"tokens": read_tokens(source, folder, known.number), "keys": read_keys(source, known.number)}
    entry = replace(entry_of(known, folder), **more)
    put(connection, folder, entry)
    if known.tried is not None:
        put_beside(connection, folder, known.id, Failure(known.id, known.error, known.tried))


def entry_of(known: Known, folder: Path) -> Entry:
    """The entry of a document that could be read."""
    assert known.row is not None
    try:
        return unpack(known.id, known.row, known.origin)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{folder}: document {known.id}: its row is damaged ({error}); {advice(folder)}") from error


def _delete(connection: sqlite3.Connection, document_id: str) -> None:
    key = (to_bytes(document_id),)
    delete_notes_of(connection, document_id)
    delete_tokens(connection, *key)
    numbers = connection.execute("SELECT number FROM ledger WHERE id = ? AND number IS NOT NULL", key).fetchall()
    for (number,) in numbers:
        forget_mentions_of(connection, number)
        delete_keys(connection, number)
        connection.execute("DELETE FROM documents WHERE number = ?", (number,))
    connection.execute("DELETE FROM ledger WHERE id = ?", key)


def _has_all_tokens(connection: sqlite3.Connection, folder: Path, known: Known) -> bool:
    """True if all leaves of a document have undamaged token vectors, or the index keeps none."""
    if known.number is None or known.row is None or not has_tokens(connection):
        return True
    num_nodes = len(unpack_nodes(known.id, known.row)[0])
    leaves = set(range(num_nodes)) - set(np.flatnonzero(parents_in(known.row, num_nodes)).tolist())
    try:
        return read_tokens(connection, folder, known.number).keys() == leaves
    except Damaged:
        return False


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


def _read_checked(connection: sqlite3.Connection, folder: Path, key: bytes) -> Known | None:
    """As `read_document`; the tokens are checked too.

    Raises:
        Damaged: it was changed.
    """
    known = read_document(connection, folder, to_text(key))
    if known is not None and not _has_all_tokens(connection, folder, known):
        raise Damaged(f"{folder}: document {known.id}: changed since it was written; {advice(folder)}")
    return known


def _line(values: tuple) -> Known:
    """The document of a line of the ledger."""
    key, number, *made_of, error, _ = values
    origin, reason = Origin(*(value.decode() for value in made_of)), to_text(error)
    tried = None if number is not None else origin
    if number is not None and reason:
        reason, tried = split_error(reason)
    return Known(to_text(key), number, origin, reason, None, tried)


def _checked(values: tuple) -> tuple[Known | None, str]:
    """The document of a joined row, or None if it is damaged; and its name."""
    key, number, *made_of, error, sha256, row_key = values[:7]
    row = values[7:] if number is not None else ()
    if not all(type(value) is bytes for value in (key, *made_of, error, sha256, *row)):
        return None, _name(row_key if type(row_key) is bytes else key)
    if parts_sha256(key, *made_of, error, *row) != sha256 or (row and row_key != key):
        # If only the name in the ledger has changed, the row has the right one.
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
    """The column `error` of a document that stays. Neither hash nor reader contains a space or a newline."""
    return to_bytes(f"{failure.origin.bytes_sha256} {failure.origin.reader}\n{failure.reason}")


def split_error(error: str) -> tuple[str, Origin]:
    """(reason, what was tried) of a document that stays."""
    tried, _, reason = error.partition("\n")
    bytes_sha256, _, reader = tried.partition(" ")
    return reason, Origin(bytes_sha256, reader)


def _name(key: object) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else repr(key)


def _ledger(connection: sqlite3.Connection, folder: Path) -> tuple[list[tuple], str]:
    """(id, number) of each line of the ledger, and any damage. Reads from both ends, as far as possible."""
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
    """Names of documents that the ledger does not list, and any damage of their table."""
    found: set[str] = set()
    try:
        for number, key in connection.execute("SELECT number, id FROM documents ORDER BY number"):
            if number not in numbers:
                found.add(_name(key))
    except SQLITE_ERRORS as error:
        return found, str(error)
    return found, ""


def _structure(connection: sqlite3.Connection) -> str:
    """Damage that SQLite finds in its file; empty if there is none."""
    try:
        said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except SQLITE_ERRORS as error:
        return str(error)
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return "" if text == "ok" else " ".join(text.split())


LOST_REASON = "its row in the index was damaged; add its file again"


def mend(folder: Path) -> Survey:
    """Checks every row of a catalogue; if it is damaged, first rewrites it with the undamaged rows.

    A damaged document is recorded as a failure until its file is read again. The caller holds the lock of the folder.

    Raises:
        Damaged: nothing can be read.
        InputError: the disk is full.
    """
    with looked_through(folder):
        with reading_from(folder) as connection:
            found = survey(connection, folder)
        if found.is_whole:
            return found
        with writing_to(folder):
            pass  # merges a log left by a killed writer into the file, because the log is removed below
        # Into a new file: writing to a file with a wrong structure may damage good rows.
        with new_file(folder) as beside, reading_from(folder) as connection:
            for known in found.known.values():
                row = None if known.number is None else read_row(connection, known.number)
                copy(beside, folder, replace(known, row=row), connection)
            for name in found.damaged:
                put_failure(beside, folder, Failure(name, LOST_REASON, LOST))
            with transaction(beside, folder / CATALOGUE):
                for pair in found.pairs:  # without the mark of completeness, so missing notes are made again
                    notes = read_note_row(connection, pair)
                    if notes is not None and all(name in found.known for name in pair):
                        put_note_row(beside, notes)
        with reading_from(folder) as connection:
            return replace(
                survey(connection, folder), damaged=found.damaged, fault=found.fault, damaged_notes=found.damaged_notes
            )
