"""The SQLite file of an index: its tables, connections, transactions, and errors as ours.

    ledger      a row a document: id, hash of its bytes, what read it, why it could not be read, hash of all of its row
    documents   a row a document that could be read: text, metadata, chunks, vectors, tree
    notes       a row two documents of which one has notes from the other (`note_rows`)
    noted       at most one row: which documents the notes were made of

As the journal of calls it is in WAL mode with `synchronous=FULL`: what is told is on the disk. `secure_delete` leaves
nothing of what was removed. Values are bytes: a flipped bit then makes a wrong value and no error of decoding.
"""

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from qrag_jax.files.manifest import sync_folder
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.types import InputError, UsageError

_APPLICATION_ID = 0x71726978  # "qrix", tells our files from other databases
_FORMAT = 2
_FORMATS = (1, 2)  # the first had no notes; a writer adds their tables
_NOTES_SCHEMA = """
CREATE TABLE notes (
    answering BLOB NOT NULL, asking BLOB NOT NULL, notes BLOB NOT NULL, num_tokens BLOB NOT NULL, vectors BLOB NOT NULL,
    sha256 BLOB NOT NULL, PRIMARY KEY (answering, asking)
);
CREATE INDEX notes_by_asking ON notes (asking);
CREATE TABLE noted (documents BLOB NOT NULL, setting BLOB NOT NULL, result BLOB NOT NULL, sha256 BLOB NOT NULL);
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
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT};
"""
_BUSY_SECONDS = 60.0
_MAKING = ".{}.new-"  # opens the names of what is not yet a catalogue
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter where a message would quote damaged bytes
_DISK_ERRORS = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")


class Damaged(InputError):
    """Something in the file cannot be what was written."""


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors of SQLite as ours, which name the file and say what to do.

    Raises:
        Damaged: the file is.
        InputError: it cannot be read or written, or is in use.
    """
    try:
        yield
    except SQLITE_ERRORS as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(_DISK_ERRORS):
            raise InputError(
                f"{path}: cannot be read or written ({error}): make room on the disk and look at its permissions, then "
                "start again; finished documents are kept"
            ) from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise InputError(
                f"{path}: another process has held it for {_BUSY_SECONDS:.0f} seconds: start again when it has ended"
            ) from error
        raise Damaged(f"{path}: damaged ({error}); {advice(path.parent)}") from error


def advice(folder: Path) -> str:
    """What to do about a damaged index."""
    return (
        f"`qrag index info {folder} --verify` names what is damaged, `qrag index add {folder} PATHS...` reads that "
        "again; if neither can, remove the folder and build it again"
    )


@contextmanager
def looked_through(folder: Path) -> Iterator[None]:
    """Damage that ends a look for what is whole is beyond `advice`, which would lead back here: so the message says.

    Raises:
        Damaged: nothing can be read.
    """
    try:
        yield
    except Damaged as error:
        why = error.__cause__ or "it is no catalogue of an index"
        raise Damaged(
            f"{folder / CATALOGUE}: damaged, cut off or not ours, and nothing of it can be read ({why}): remove the "
            f"folder {folder} and build the index again, or copy it again from where it came"
        ) from error


@contextmanager
def reading_from(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees the catalogue as it is now, whatever is written meanwhile."""
    with closing(_open_to_read(folder / CATALOGUE)) as connection:
        yield connection


@contextmanager
def writing_to(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes; the caller holds the folder (`folder.one_writer`).

    At the end the log of changes is taken into the file and emptied: what was removed is in neither.
    """
    path = folder / CATALOGUE
    for left in folder.glob(f"{_MAKING.format(CATALOGUE)}*"):  # of a writer that was killed
        left.unlink(missing_ok=True)
    with closing(_connect(path, "mode=rw")) as connection:
        with named(path):
            _check_kind(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
        yield connection
        with named(path):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """All of its statements, or none."""
    with named(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def create(folder: Path) -> None:
    """Makes an empty catalogue, whole or not at all; one that a killed writer left empty is as good."""
    if (folder / CATALOGUE).exists():
        return
    with new_file(folder) as connection:
        connection.execute("SELECT 1 FROM ledger").fetchone()


@contextmanager
def new_file(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection to an empty catalogue beside the place of the real one, which it takes when all is on the disk."""
    path = folder / CATALOGUE
    beside = folder / f"{_MAKING.format(CATALOGUE)}{secrets.token_hex(4)}"
    try:
        beside.touch(exist_ok=False)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror}); give another folder") from error
    try:
        with named(path), closing(sqlite3.connect(beside, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.executescript(_SCHEMA)
            yield connection
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise UsageError(f"{path}: this disk cannot share a database; give a folder on a disk of this machine")
        for end in ("-wal", "-shm"):  # of the one whose place is taken: SQLite would mix them into the new one
            path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
        os.replace(beside, path)
        sync_folder(folder)
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            beside.with_name(f"{beside.name}{end}").unlink(missing_ok=True)


def bring_up_to_format(folder: Path) -> None:
    """Adds what an older format had not, at once; from then on older versions refuse the file."""
    with writing_to(folder) as connection, named(folder / CATALOGUE):
        if connection.execute("PRAGMA user_version").fetchone()[0] != _FORMAT:
            connection.executescript(f"BEGIN IMMEDIATE; {_NOTES_SCHEMA} PRAGMA user_version = {_FORMAT}; COMMIT;")


def remove_catalogue(folder: Path) -> None:
    """Removes a catalogue with all that SQLite has put beside it."""
    for end in ("", "-wal", "-shm", "-journal"):
        (folder / f"{CATALOGUE}{end}").unlink(missing_ok=True)


def identity(folder: Path) -> tuple[int, int] | None:
    """What tells a catalogue from one that has taken its place; None where there is none."""
    try:
        status = (folder / CATALOGUE).stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if not path.is_file():
        raise InputError(f"{path}: no such file: copy the index again, or remove its folder and build it again")
    with named(path):
        uri = f"{path.absolute().as_uri()}?{mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    connection.text_factory = bytes
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    connection = _connect(path, "mode=ro")
    try:
        try:
            _begin(connection, path)
        except sqlite3.OperationalError:
            # A folder that may not be written has no place for the shared memory of readers; nobody writes there.
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
    """From here on the connection sees the file as it is now."""
    _check_kind(connection, path)
    connection.execute("BEGIN")
    connection.execute("SELECT 1 FROM ledger LIMIT 1").fetchone()


def _check_kind(connection: sqlite3.Connection, path: Path) -> None:
    marks = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    if marks[0] != _APPLICATION_ID:
        raise Damaged(f"{path}: damaged, or no catalogue of an index; {advice(path.parent)}")
    if marks[1] not in _FORMATS:
        raise InputError(
            f"{path}: has format {marks[1]}, this version of qrag_jax reads {' and '.join(map(str, _FORMATS))}: update "
            "qrag_jax, or build the index again into another folder"
        )
