"""SQLite files of ours: made whole beside their place, told from others by two marks, their errors named as ours."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.types import InputError, UsageError

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter where a message would quote damaged bytes
MAKING = ".{}.new-"  # opens the names of what is not yet in its place
_BUSY_SECONDS = 60.0
_BESIDE = ("-wal", "-shm", "-journal")  # what SQLite puts beside a file
_DISK_ERRORS = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")


class Damaged(InputError):
    """Something in the file cannot be what was written."""


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Attributes:
        name: for messages.
        application_id: tells them from other databases.
        formats: that are read; the last one is written.
        schema: SQL that makes the tables.
        advice: path -> what to do about a damaged file.
    """

    name: str
    application_id: int
    formats: tuple[int, ...]
    schema: str
    advice: Callable[[Path], str]

    def connect(self, path: Path, mode: str = "mode=rw") -> sqlite3.Connection:
        """A connection that makes no file: one that was removed does not come back empty."""
        with self.named(path):
            uri = f"{path.absolute().as_uri()}?{mode}"
            return sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Refuses another database, and another format."""
        marks = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if marks[0] != self.application_id:
            raise Damaged(f"{path}: is damaged, or no {self.name}: give another path, or {self.advice(path)}")
        if marks[1] not in self.formats:
            formats = " and ".join(map(str, self.formats))
            raise InputError(
                f"{path}: has format {marks[1]}, this version of qrag_jax reads {formats}: update qrag_jax, or make it "
                "again elsewhere"
            )

    @contextmanager
    def transaction(self, connection: sqlite3.Connection, path: Path) -> Iterator[None]:
        """All of its statements, or none."""
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
        """A connection to an empty file of this kind, all of which is on the disk at the end.

        Args:
            beside: the file, of no bytes as yet.
            path: where it is to be put then.
        """
        with self.named(path), closing(sqlite3.connect(beside, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            marks = f"PRAGMA application_id = {self.application_id}; PRAGMA user_version = {self.formats[-1]};"
            connection.executescript(f"{self.schema}{marks}")
            yield connection
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise UsageError(f"{path}: this disk cannot share a database; give a path on a disk of this machine")

    @contextmanager
    def named(self, path: Path) -> Iterator[None]:
        """Errors of SQLite as ours, which name the file and say what to do.

        Raises:
            Damaged: the file is.
            InputError: it cannot be read or written, or is in use.
        """
        try:
            yield
        except SQLITE_ERRORS as error:
            name = getattr(error, "sqlite_errorname", "")  # there is none where a text is not UTF-8
            if name.startswith(_DISK_ERRORS):
                raise InputError(
                    f"{path}: cannot be read or written ({error}): make room on the disk and look at its permissions, "
                    "then start again; what was finished is kept"
                ) from error
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                what = f"another process has held it for {_BUSY_SECONDS:.0f} seconds"
                raise InputError(f"{path}: {what}: start again when that has ended") from error
            raise Damaged(f"{path}: damaged ({error}): {self.advice(path)}") from error


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file, which change when another file takes its place; None where there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def remove_beside(path: Path) -> None:
    """Removes the files that SQLite has put beside a file."""
    for end in _BESIDE:
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Removes a file and those that SQLite has put beside it."""
    path.unlink(missing_ok=True)
    remove_beside(path)
