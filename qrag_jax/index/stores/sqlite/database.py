"""The SQLite file of an index (the catalogue): tables, connections, transactions and errors.

    ledger      one row for each document: id, hash of its bytes, reader, why it could not be read, hash of all this
    documents   one row for each document that could be read: text, metadata, chunks, vectors, tree
    notes       one row for each pair of documents of which one has notes from the other (`note_rows`)
    noted       at most one row: which documents the notes were made from
    texts       one row for each document: keys of the texts of its chunks (`text_rows`)
    names, mentions, read, silent, changed, stale, chunk_counts, read_by
                what documents name, so that notes by names cost in proportion to what changed (`mention_rows`)
    tokens      one row for each chunk, if the index keeps the vectors of tokens (`token_rows`)

Like the journal, it is in WAL mode with `synchronous=FULL`: a reported change is on the disk. `secure_delete`
overwrites what was removed. Values are bytes, so a flipped bit gives a wrong value, which the hash detects, and no
decoding error.
"""

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from qrag_jax.files.manifest import sync_folder
from qrag_jax.files.sqlite import MAKING, SQLITE_ERRORS, Damaged, Kind, remove, remove_beside
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.types import InputError, UsageError

_NOTES_SCHEMA = """
CREATE TABLE notes (
    answering BLOB NOT NULL, asking BLOB NOT NULL, notes BLOB NOT NULL, num_tokens BLOB NOT NULL, vectors BLOB NOT NULL,
    sha256 BLOB NOT NULL, PRIMARY KEY (answering, asking)
);
CREATE INDEX notes_by_asking ON notes (asking);
CREATE TABLE noted (documents BLOB NOT NULL, setting BLOB NOT NULL, result BLOB NOT NULL, sha256 BLOB NOT NULL);
"""
# Keys of names are hashes of 8 bytes; `crc` detects a changed row.
_GROWTH_SCHEMA = """
CREATE TABLE texts (number INTEGER PRIMARY KEY, keys BLOB NOT NULL);
CREATE TABLE names (
    key INTEGER NOT NULL, number INTEGER NOT NULL, node INTEGER NOT NULL, is_term INTEGER NOT NULL,
    begin INTEGER NOT NULL, name BLOB NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (key, number, node)
) WITHOUT ROWID;
CREATE INDEX names_by_begin ON names (begin);
CREATE INDEX names_by_number ON names (number, node);
CREATE TABLE mentions (
    key INTEGER NOT NULL, number INTEGER NOT NULL, num_chunks INTEGER NOT NULL, places BLOB NOT NULL,
    crc INTEGER NOT NULL, PRIMARY KEY (key, number)
) WITHOUT ROWID;
CREATE INDEX mentions_by_number ON mentions (number);
CREATE TABLE read (number INTEGER PRIMARY KEY, pairs BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE silent (key INTEGER PRIMARY KEY, reason INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE changed (key INTEGER PRIMARY KEY, is_owned INTEGER NOT NULL, is_term INTEGER NOT NULL);
CREATE TABLE stale (number INTEGER NOT NULL, node INTEGER NOT NULL, PRIMARY KEY (number, node)) WITHOUT ROWID;
CREATE TABLE chunk_counts (
    number INTEGER NOT NULL, node INTEGER NOT NULL, num_notes INTEGER NOT NULL, too_long INTEGER NOT NULL,
    beyond INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (number, node)
) WITHOUT ROWID;
CREATE TABLE read_by (setting BLOB NOT NULL);
"""
_SCHEMA = f"""
CREATE TABLE ledger (
    id BLOB PRIMARY KEY, number INTEGER, bytes_sha256 BLOB NOT NULL, reader BLOB NOT NULL, error BLOB NOT NULL,
    sha256 BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL, text BLOB NOT NULL, metadata BLOB NOT NULL,
    ids BLOB NOT NULL, nodes BLOB NOT NULL, vectors BLOB NOT NULL, tree BLOB NOT NULL
);
{_NOTES_SCHEMA}
{_GROWTH_SCHEMA}
"""


def advice(folder: Path) -> str:
    """The advice for a damaged index."""
    return (
        f"name the damage with `qrag index info {folder} --verify`, then repair it with `qrag index add {folder} "
        "PATHS... --verify`; if neither works, remove the folder and build the index again"
    )


# "qrix". The first format had no notes, the second no keys of texts and names; a writer adds the tables.
_KIND = Kind("catalogue of an index", 0x71726978, (1, 2, 3), _SCHEMA, lambda path: advice(path.parent))
named, transaction, FORMAT = _KIND.named, _KIND.transaction, _KIND.formats[-1]


@contextmanager
def looked_through(folder: Path) -> Iterator[None]:
    """Replaces `advice` in errors of the check that `advice` recommends: nothing can be read, so build again.

    Raises:
        Damaged: nothing can be read.
    """
    try:
        yield
    except Damaged as error:
        why = error.__cause__ or "it is not a catalogue of an index"
        raise Damaged(
            f"{folder / CATALOGUE}: damaged, or not written by qrag; nothing can be read ({why}); remove the "
            f"folder {folder} and build the index again, or copy it again from the source"
        ) from error


@contextmanager
def reading_from(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees the current state of the catalogue, whatever is written in the meantime."""
    with closing(_open_to_read(folder / CATALOGUE)) as connection:
        yield connection


def follow(folder: Path) -> sqlite3.Connection:
    """A connection that sees the newest state at each query, also of a catalogue that is removed later."""
    connection = _open_to_read(folder / CATALOGUE)
    connection.execute("COMMIT")
    return connection


@contextmanager
def writing_to(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes; the caller holds the lock of the folder (`folder.one_writer`).

    At the end the write-ahead log is merged into the file and emptied, so neither contains removed text.
    """
    path = folder / CATALOGUE
    for left in folder.glob(f"{MAKING.format(CATALOGUE)}*"):  # left by a writer that was killed
        left.unlink(missing_ok=True)
    with closing(_connect(path, "mode=rw")) as connection:
        with named(path):
            _KIND.check(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
        yield connection
        with named(path):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def create(folder: Path) -> None:
    """Makes an empty catalogue, complete or not at all. An existing one stays."""
    if (folder / CATALOGUE).exists():
        return
    with new_file(folder):
        pass


@contextmanager
def new_file(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection to an empty catalogue in a temporary file, which replaces the catalogue when all is on the disk."""
    path = folder / CATALOGUE
    beside = folder / f"{MAKING.format(CATALOGUE)}{secrets.token_hex(4)}"
    try:
        beside.touch(exist_ok=False)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror}); give another folder") from error
    try:
        with _KIND.new(beside, path) as connection:
            yield connection
        remove_beside(path)  # those of the old file: SQLite would mix them into the new one
        os.replace(beside, path)
        sync_folder(folder)
    finally:
        remove(beside)


def format_of(connection: sqlite3.Connection) -> int:
    """The format of a catalogue."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def add_tables(connection: sqlite3.Connection) -> None:
    """Adds the tables that an older format lacks; older versions then refuse the file.

    The caller has opened a transaction.
    """
    schema = (_NOTES_SCHEMA if format_of(connection) == 1 else "") + _GROWTH_SCHEMA
    for statement in filter(str.strip, schema.split(";")):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if not path.is_file():
        raise InputError(f"{path}: no such file; copy the index again, or remove its folder and build it again")
    connection = _KIND.connect(path, mode)
    connection.text_factory = bytes
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    connection = _connect(path, "mode=ro")
    try:
        try:
            _begin(connection, path)
        except sqlite3.OperationalError:
            # A read-only folder has no place for the shared memory of readers, and no writer.
            if os.access(path.parent, os.W_OK) or path.with_name(f"{path.name}-wal").exists():
                raise
            connection.close()
            connection = _connect(path, "mode=ro&immutable=1")
            _begin(connection, path)
    except (*SQLITE_ERRORS, InputError):
        connection.close()
        with named(path):
            raise
    return connection


def _begin(connection: sqlite3.Connection, path: Path) -> None:
    """Starts a read transaction: the connection keeps seeing this state of the file."""
    _KIND.check(connection, path)
    connection.execute("BEGIN")
    connection.execute("SELECT 1 FROM ledger LIMIT 1").fetchone()
