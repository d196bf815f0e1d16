"""SQLite files of this package: made complete, recognised by two marks, with errors that name the file."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.types import InputError, UsageError

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter if a message quotes damaged bytes
MAKING = ".{}.new-"  # prefix of files that are not in their place yet
_BUSY_SECONDS = 60.0
_BESIDE = ("-wal", "-shm", "-journal")  # files that SQLite adds next to a database
_DISK_ERRORS = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")


class Damaged(InputError):
    """The contents of a file differ from what was written."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: for messages.
        application_id: marks its databases.
        formats: that can be read; the last one is written.
        schema: SQL that makes the tables.
        advice: path -> what to do about a damaged file.
    """

    name: str
    application_id: int
    formats: tuple[int, ...]
    schema: str
    advice: Callable[[Path], str]

    def connect(self, path: Path, mode: str = "mode=rw") -> sqlite3.Connection:
        """A connection to an existing file; it never creates one."""
        with self.named(path):
            uri = f"{path.absolute().as_uri()}?{mode}"
            return sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Refuses another kind of database, and an unknown format."""
        marks = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if marks[0] != self.application_id:
            raise Damaged(f"{path}: is damaged, or not a {self.name}; give another path, or {self.advice(path)}")
        if marks[1] not in self.formats:
            formats = " and ".join(map(str, self.formats))
            raise InputError(
                f"{path}: has format {marks[1]}, this version of qrag_jax reads {formats}; update qrag_jax, or make "
                "the file again elsewhere"
            )

    @contextmanager
    def transaction(self, connection: sqlite3.Connection, path: Path) -> Iterator[None]:
        """Executes all statements of its body, or none."""
        with self.named(path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def new(self, beside: Path, path: Path) -> Iterator[sqlite3.Connection]:
        """A connection to a new file of this kind; at the end all of it is on the disk.

        Args:
            beside: the file, still empty.
            path: its final place.
        """
        with self.named(path), closing(sqlite3.connect(beside, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            marks = f"PRAGMA application_id = {self.application_id}; PRAGMA user_version = {self.formats[-1]};"
            connection.executescript(f"{self.schema}{marks}")
            yield connection
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise UsageError(f"{path}: this disk cannot share a database; give a path on a local disk")

    @contextmanager
    def named(self, path: Path) -> Iterator[None]:
        """Turns errors of SQLite into errors that name the file and say what to do.

        Raises:
            Damaged: the file is damaged.
            InputError: it cannot be read or written, or is in use.
        """
        try:
            yield
        except SQLITE_ERRORS as error:
            name = getattr(error, "sqlite_errorname", "")  # missing for text that is not UTF-8
            if name.startswith(_DISK_ERRORS):
                raise InputError(
                    f"{path}: cannot be read or written ({error}); free some space, check the permissions, "
                    "then start again; finished work is kept"
                ) from error
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                what = f"another process has held it for {_BUSY_SECONDS:.0f} seconds"
                raise InputError(f"{path}: {what}; start again when that process has ended") from error
            raise Damaged(f"{path}: damaged ({error}); {self.advice(path)}") from error


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file, which change if another file replaces it; None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def remove_beside(path: Path) -> None:
    """Removes the files that SQLite added next to a file."""
    for end in _BESIDE:
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Removes a file and those that SQLite added next to it."""
    path.unlink(missing_ok=True)
    remove_beside(path)
