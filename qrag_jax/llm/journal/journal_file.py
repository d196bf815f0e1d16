"""A journal of finished calls of a language model.

One SQLite file that several processes share. It holds answers under the hash of what was asked; questions, documents
and keys of servers are not in it. A call that one process has in flight is claimed, so that no other one makes it; the
claims of a process that was killed are free again. SQLite's shared memory and the locks need
a disk of this machine, not one of the network.
"""

import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path

from qrag_jax.files.sqlite import MAKING, Kind, identity, remove
from qrag_jax.types import Generation, InputError, UsageError

_SCHEMA = """
CREATE TABLE answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL);
"""
_STORED = tuple(field.name for field in fields(Generation) if field.name not in ("error", "from_journal"))
_AGAIN = "move it away to start a new one; its answers are then asked and paid for again"
_FORMAT = 2  # as the first, and each answer says its own version
_KIND = Kind("journal of calls", 0x71726A6C, (1, _FORMAT), _SCHEMA, lambda path: _AGAIN)  # "qrjl"
_NAME = re.compile(r"[0-9a-f]{32}")  # of an owner
_BEGUN = re.compile(r"\w{8}")  # what tempfile ends a name with


class Journal:
    """Finished calls in one file, `PATH` (readable by its owner only), with `PATH-wal` and `PATH-shm` while it is open.

    A commit is on the disk when an answer is reported (`synchronous=FULL`): an answer costs more than waiting for that,
    and so not even a power cut loses one.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Opens a journal, and makes it where there is none, with the folders above it.

        Links are followed: by whatever name it is reached, it is one journal, with one set of locks beside it.

        Raises:
            UsageError: the path is a folder, no file can be made there, or the file has a second name (a hard link).
            InputError: what is there is damaged, no journal, or one of another format; or there is only the rest of one
                that was removed. It is left as it is.
        """
        self.path = _real_path(path)
        if self.path.is_dir():
            raise UsageError(f"{self.path}: is a folder; give the path of a journal")
        if not self.path.exists():
            _create(self.path)
        _check_one_name(self.path)
        with self._connection() as connection, _KIND.named(self.path):
            _KIND.check(connection, self.path)
            connection.execute("SELECT 1 FROM answers, claims LIMIT 1").fetchone()

    def num_answers(self) -> int:
        """Finished calls that it holds.

        Raises:
            InputError: it is damaged or cannot be opened.
        """
        with self._connection() as connection, _KIND.named(self.path):
            return connection.execute("SELECT count(*) FROM answers").fetchone()[0]

    @contextmanager
    def session(self) -> Iterator["Session"]:
        """The journal for the time of one batch; what it still claims at the end is free again.

        Raises:
            InputError: the journal is damaged or cannot be opened, or its folder cannot be written.
        """
        with self._connection() as connection:
            try:
                owner = Owner(self.path)
            except OSError as error:
                raise InputError(
                    f"{self.path}: nothing can be written beside it ({error.strerror}): make room, or give another path"
                ) from error
            try:
                remove_dead(self.path)
                yield Session(self.path, connection, owner)
            finally:
                owner.leave()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own for every use, so that threads and forked processes share none."""
        with closing(_KIND.connect(self.path)) as connection:
            with _KIND.named(self.path):
                connection.execute("PRAGMA synchronous = FULL")
            yield connection


class Session:
    """What one batch does with a journal; made by `Journal.session`. Every method may raise `InputError`: the journal
    is damaged, or the disk is full.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, owner: "Owner") -> None:
        self.path, self._connection, self._owner = path, connection, owner
        self._file = identity(path)

    def claim(self, keys: Sequence[str], most: int) -> tuple[dict[str, Generation], list[str]]:
        """Looks calls up, in order, and claims those that are neither finished nor in flight elsewhere.

        Args:
            most: to claim; it ends there, and says nothing of the keys behind.

        Returns:
            The finished ones by key, and the claimed ones.
        """
        known: dict[str, Generation] = {}
        claimed: list[str] = []
        with self._transaction():
            self._free_dead()
            taken = {key for (key,) in self._connection.execute("SELECT key FROM claims")}
            for key in keys:
                answer = self._read(key)
                if answer is not None:
                    known[key] = answer
                elif key not in taken:
                    claimed.append(key)
                if len(claimed) == most:
                    break
            claims = [(key, self._owner.name) for key in claimed]
            self._connection.executemany("INSERT INTO claims VALUES (?, ?)", claims)
        return known, claimed

    def keep(self, key: str, generation: Generation) -> None:
        """Stores the answer of a claimed call."""
        answer = _to_json(generation)
        with self._transaction():
            row = (key, answer, _row_sha256(key, answer))
            self._connection.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", row)
            if self._connection.execute("PRAGMA user_version").fetchone()[0] != _FORMAT:
                self._connection.execute(f"PRAGMA user_version = {_FORMAT}")  # older versions cannot read this row
            self._connection.execute("DELETE FROM claims WHERE key = ?", (key,))

    def release(self, key: str) -> None:
        """Gives back a claimed call that has failed."""
        with self._transaction():
            self._connection.execute("DELETE FROM claims WHERE key = ?", (key,))

    def _free_dead(self) -> None:
        owners = [str(name) for (name,) in self._connection.execute("SELECT DISTINCT owner FROM claims")]
        for name in owners:
            if name != self._owner.name and not is_alive(self.path, name):
                self._connection.execute("DELETE FROM claims WHERE owner = ?", (name,))

    def _read(self, key: str) -> Generation | None:
        row = self._connection.execute("SELECT answer, sha256 FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        if row[1] != _row_sha256(key, str(row[0])):
            raise InputError(f"{self.path}: damaged (the sha256 of answer {key} differs): {_AGAIN}")
        try:
            return _from_json(row[0])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{self.path}: answer {key} is none of ours ({error!r:.200}): {_AGAIN}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _KIND.transaction(self._connection, self.path):
            yield
        if identity(self.path) != self._file:  # SQLite would write on into a file that has no name
            raise InputError(
                f"{self.path}: was removed or replaced while it was in use: put it back, or remove "
                f"{self.path.name}-wal too and start again; what was answered since is then asked and paid for again"
            )


def _real_path(path: str | os.PathLike) -> Path:
    """The file itself: SQLite follows links, and so must the locks, or two names of it would pay for a call twice."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:  # a zero byte
        raise UsageError(f"journal {os.fspath(path)!r}: {error}; give another path") from error


def _check_one_name(path: Path) -> None:
    """Refuses a file with hard links: SQLite and the locks go by the name, and two names would not see each other."""
    if _num_names(path) > 1:
        with _lock_of_makers(path):  # a maker that was killed has left a second name
            pass
        if _num_names(path) > 1:
            raise UsageError(
                f"{path}: has other names (hard links), by which calls would be paid "
                "twice: remove them (find -samefile names them), or copy it"
            )


def _num_names(path: Path) -> int:
    try:
        return path.stat().st_nlink
    except OSError as error:  # a loop of links, or a file that was removed meanwhile
        raise UsageError(f"{path}: cannot be opened ({error.strerror}); give another path") from error


@contextmanager
def _lock_of_makers(path: Path) -> Iterator[None]:
    """One process at a time makes files here, so what others have begun to make was left by the dead and is removed."""
    handle = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for left in path.parent.glob(f"{glob.escape(MAKING.format(path.name))}*"):
            left.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)


def _create(path: Path) -> None:
    """Makes an empty journal whole or not at all; one that another process makes at the same time is as good."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_of_makers(path):
            if not path.exists():
                _check_no_rest(path)
                _make(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be made ({error.strerror}); give another path") from error


def _check_no_rest(path: Path) -> None:
    """Refuses to make a journal beside the last answers of another one, which SQLite would mix into it."""
    rest = path.with_name(f"{path.name}-wal")
    if rest.exists() and rest.stat().st_size:
        raise InputError(
            f"{rest}: holds the last answers of a journal that was moved or removed: move it with that (under its new "
            f"name and -wal), or remove it, with {path.name}-shm"
        )
    for left in (rest, path.with_name(f"{path.name}-shm")):
        left.unlink(missing_ok=True)


def _make(path: Path) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=MAKING.format(path.name))  # readable by its owner only
    os.close(handle)
    beside = Path(name)
    try:
        with _KIND.new(beside, path):
            pass
        os.link(beside, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"{path}: cannot be made ({error.strerror}); give a path on another disk") from error
    finally:
        remove(beside)


def _to_json(generation: Generation) -> str:
    values = {name: getattr(generation, name) for name in _STORED} | {"version": _FORMAT}
    try:
        return json.dumps(values, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise InputError(f"generator: an answer with a number that is not finite ({error}): mend it") from error


def _from_json(answer: str) -> Generation:
    values = json.loads(answer)
    if not isinstance(values, dict):
        raise TypeError("no object")
    version, logprobs = values.pop("version", 1), values.pop("logprobs")
    if type(version) is not int or not isinstance(logprobs, list | None):
        raise TypeError(f"version {version!r:.80}, logprobs {logprobs!r:.80}")
    generation = Generation(**values, logprobs=None if logprobs is None else tuple(logprobs), from_journal=True)
    # Its sha256 fits, which anybody can make: what is not of these types would fail where it is used.
    texts = (generation.text, generation.finish_reason, generation.answered_by or "", generation.answer_id or "")
    counts = (generation.prompt_tokens, generation.completion_tokens)
    numbers = all(type(number) in (int, float) for number in generation.logprobs or ())
    if not numbers or {*map(type, texts)} != {str} or {*map(type, counts)} != {int} or generation.error is not None:
        raise TypeError("a value of another type")
    return generation


def _row_sha256(key: str, answer: str) -> str:
    return hashlib.sha256(f"{key}\n{answer}".encode()).hexdigest()


class Owner:
    """One that is at work on `path`, from its making until `leave`, and alive as long as its lock is held.

    The lock is `flock` on a file of its own, which the system lets go of however a process ends. It belongs to the open
    file, so that two owners in one process tell each other apart. A child that was forked while an owner was at work
    holds the lock too: the owner counts as alive until both have ended.

    Attributes:
        name: 32 hexadecimal digits, never used before.
    """

    def __init__(self, path: Path) -> None:
        """Makes and locks the file `PATH.owner-NAME`."""
        self.name = secrets.token_hex(16)
        self._path = _owner_path(path, self.name)
        while not self._take(path):
            pass

    def _take(self, path: Path) -> bool:
        """Makes the file; False where another owner took its beginning for what a killed one has left."""
        self._handle, beside = tempfile.mkstemp(dir=path.parent, prefix=_begun(path))
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        try:
            os.rename(beside, self._path)  # nobody ever sees it unlocked, which would mean that its owner is dead
        except FileNotFoundError:
            os.close(self._handle)
            return False
        return True

    def leave(self) -> None:
        """Ends this owner: what it held is free."""
        _remove(self._path)
        os.close(self._handle)


def is_alive(path: Path, name: str) -> bool:
    """True while an owner of `path` is at work. Tries to remove the file of an owner that has ended."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{path}: damaged (an owner {name[:40]!r}): move it away and start again")
    return _is_held(_owner_path(path, name))


def _is_held(own: Path) -> bool:
    """True while the file of an owner is locked. Tries to remove a file that nobody holds."""
    try:
        handle = os.open(own, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:  # no file of ours: a link, a folder
        raise InputError(f"{own}: cannot be opened ({error.strerror}): remove it") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(own)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def remove_dead(path: Path) -> None:
    """Removes the files of owners that were killed."""
    prefix = _owner_path(path, "").name
    for found in path.parent.glob(f"{glob.escape(prefix)}*"):
        name = found.name.removeprefix(prefix)
        if _NAME.fullmatch(name):
            is_alive(path, name)
    for begun in path.parent.glob(f"{glob.escape(_begun(path))}*"):  # killed before its file had its name
        if _BEGUN.fullmatch(begun.name.removeprefix(_begun(path))):
            _is_held(begun)


def _remove(own: Path) -> None:
    """Removes the file of one that is at work no more; where the folder is read-only it stays, and is of the dead."""
    with suppress(OSError):
        own.unlink()


def _begun(path: Path) -> str:
    """The beginning of the name of a file that no owner holds yet."""
    return f".{path.name}.owner-"


def _owner_path(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.owner-{name}")
