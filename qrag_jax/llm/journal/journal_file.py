"""The file of a journal: an SQLite file that several processes share.

It stores answers under the hash of the call. Questions, documents and server keys are not in it. A process claims a
call while it makes it, so no other process makes the same call. Claims of a killed process are released. SQLite's
shared memory and the locks need a local disk, not a network disk.
"""

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

from qrag_jax.files.file_lock import is_running, lock_file
from qrag_jax.files.sqlite import MAKING, Kind, identity, remove
from qrag_jax.llm.thinking import answer_of
from qrag_jax.types import Generation, InputError, UsageError

_SCHEMA = """
CREATE TABLE answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL);
"""
_STORED = tuple(field.name for field in fields(Generation) if field.name not in ("error", "from_journal"))
_AGAIN = "move it away to start a new one; you then pay for its answers again"
_FORMAT = 3  # as format 2 with the thinking of each answer; in format 1 answers have no version
_SEPARATED = 3  # the first version whose answers have no thinking in their text
_KIND = Kind("journal of calls", 0x71726A6C, (1, 2, _FORMAT), _SCHEMA, lambda path: _AGAIN)  # "qrjl"
_NAME = re.compile(r"[0-9a-f]{32}")  # of an owner
_BEGUN = re.compile(r"\w{8}")  # the end of a tempfile name


class Journal:
    """Finished calls in one file, `PATH` (readable only by its owner), with `PATH-wal` and `PATH-shm` while it is open.

    An answer is on disk before it is reported (`synchronous=FULL`), so not even a power cut loses one. The wait costs
    less than an answer.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Opens a journal, or creates it with its folders.

        Links are followed, so all names of a journal share one set of locks next to the file.

        Raises:
            UsageError: the path is a folder, the file cannot be created, or it has a second name (a hard link).
            InputError: the file is damaged, not a journal, or has another format; or only the rest of a removed journal
                exists. The file stays unchanged.
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
        """The number of finished calls.

        Raises:
            InputError: it is damaged or cannot be opened.
        """
        with self._connection() as connection, _KIND.named(self.path):
            return connection.execute("SELECT count(*) FROM answers").fetchone()[0]

    @contextmanager
    def session(self) -> Iterator["Session"]:
        """Opens the journal for one batch. Remaining claims are released at the end.

        Raises:
            InputError: the journal is damaged or cannot be opened, or its folder cannot be written.
        """
        with self._connection() as connection:
            try:
                owner = Owner(self.path)
            except OSError as error:
                raise InputError(
                    f"{self.path}: cannot write next to it ({error.strerror}); free some space, or give another path"
                ) from error
            try:
                remove_dead(self.path)
                yield Session(self.path, connection, owner)
            finally:
                owner.leave()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A separate connection for every use, so threads and forked processes share none."""
        with closing(_KIND.connect(self.path)) as connection:
            with _KIND.named(self.path):
                connection.execute("PRAGMA synchronous = FULL")
            yield connection


class Session:
    """The access of one batch to a journal, made by `Journal.session`.

    Every method raises `InputError` if the journal is damaged or the disk is full.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, owner: "Owner") -> None:
        self.path, self._connection, self._owner = path, connection, owner
        self._file = identity(path)

    def claim(self, keys: Sequence[str], most: int) -> tuple[dict[str, Generation], list[str]]:
        """Looks up calls, in order, and claims those that are neither finished nor claimed by others.

        Args:
            keys: of the calls.
            most: calls to claim; the look-up ends there and ignores later keys.

        Returns:
            The finished calls by key, and the claimed keys.
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
        """Releases a claimed call that failed."""
        with self._transaction():
            self._connection.execute("DELETE FROM claims WHERE key = ?", (key,))

    def _free_dead(self) -> None:
        owners = [str(name) for (name,) in self._connection.execute("SELECT DISTINCT owner FROM claims")]
        for name in owners:
            if name != self._owner.name and not is_alive(self.path, name):
                self._connection.execute("DELETE FROM claims WHERE owner = ?", (name,))

    def _read(self, key: str) -> Generation | None:
        """A finished call; an answer of an earlier version that has no text is removed, so it is asked again."""
        row = self._connection.execute("SELECT answer, sha256 FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        if row[1] != _row_sha256(key, str(row[0])):
            raise InputError(f"{self.path}: damaged (the SHA-256 of answer {key} differs); {_AGAIN}")
        try:
            generation = _from_json(row[0])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{self.path}: answer {key} was not written by qrag ({error!r:.200}); {_AGAIN}") from error
        if generation.error is None:
            return generation
        self._connection.execute("DELETE FROM answers WHERE key = ?", (key,))
        return None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _KIND.transaction(self._connection, self.path):
            yield
        if identity(self.path) != self._file:  # SQLite would continue to write into the removed file
            raise InputError(
                f"{self.path}: was removed or replaced while in use; put it back, or also remove {self.path.name}-wal "
                "and start again (you then pay for later answers again)"
            )


def _real_path(path: str | os.PathLike) -> Path:
    """The file itself without links. SQLite follows links, so the locks must too; else two names repeat a paid call."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:  # a zero byte
        raise UsageError(f"journal {os.fspath(path)!r}: {error}; give another path") from error


def _check_one_name(path: Path) -> None:
    """Refuses a file with hard links: SQLite and the locks use the name, so two names would not see each other."""
    if _num_names(path) > 1:
        with _lock_of_makers(path):  # a killed maker may have left a second name
            pass
        if _num_names(path) > 1:
            raise UsageError(
                f"{path}: has other names (hard links), and calls under them would be paid for again; remove them "
                "(find -samefile lists them), or copy the file"
            )


def _num_names(path: Path) -> int:
    try:
        return path.stat().st_nlink
    except OSError as error:  # a loop of links, or a file that was removed meanwhile
        raise UsageError(f"{path}: cannot be opened ({error.strerror}); give another path") from error


@contextmanager
def _lock_of_makers(path: Path) -> Iterator[None]:
    """Lets one process at a time create files here, and removes unfinished files of killed processes."""
    handle = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if lock_file(handle, wait=True):
            for left in path.parent.glob(f"{glob.escape(MAKING.format(path.name))}*"):
                left.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)


def _create(path: Path) -> None:
    """Creates an empty journal completely or not at all; accepts one that another process creates meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_of_makers(path):
            if not path.exists():
                _check_no_rest(path)
                _make(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be created ({error.strerror}); give another path") from error


def _check_no_rest(path: Path) -> None:
    """Refuses to create a journal next to the last answers of another one, which SQLite would mix in."""
    rest = path.with_name(f"{path.name}-wal")
    if rest.exists() and rest.stat().st_size:
        raise InputError(
            f"{rest}: contains the last answers of a journal that was moved or removed; move it next "
            f"to that journal and name it as the journal with -wal, or remove both it and {path.name}-shm"
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
        raise UsageError(f"{path}: cannot be created ({error.strerror}); give a path on another disk") from error
    finally:
        remove(beside)


def _to_json(generation: Generation) -> str:
    values = {name: getattr(generation, name) for name in _STORED} | {"version": _FORMAT}
    try:
        return json.dumps(values, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise InputError(
            f"generator: an answer has a number that is not finite ({error}); fix the generator"
        ) from error


def _from_json(answer: str) -> Generation:
    """A stored answer. Answers of earlier versions are separated from their thinking, and may have nothing else."""
    values = json.loads(answer)
    if not isinstance(values, dict):
        raise TypeError("no object")
    version, logprobs = values.pop("version", 1), values.pop("logprobs")
    if type(version) is not int or not isinstance(logprobs, list | None):
        raise TypeError(f"version {version!r:.80}, logprobs {logprobs!r:.80}")
    generation = Generation(**values, logprobs=None if logprobs is None else tuple(logprobs), from_journal=True)
    # Anybody can make a matching SHA-256, and other types would fail where they are used.
    names = (generation.answered_by, generation.answer_id, generation.thinking)
    texts = (generation.text, generation.finish_reason, *(name or "" for name in names))
    counts = (generation.prompt_tokens, generation.completion_tokens)
    numbers = all(type(number) in (int, float) for number in generation.logprobs or ())
    if not numbers or {*map(type, texts)} != {str} or {*map(type, counts)} != {int} or generation.error is not None:
        raise TypeError("a value of another type")
    return generation if version >= _SEPARATED else answer_of(generation)


def _row_sha256(key: str, answer: str) -> str:
    return hashlib.sha256(f"{key}\n{answer}".encode()).hexdigest()


class Owner:
    """A user of the journal at `path`, from its creation until `leave`. It is alive while its lock is held.

    The lock is `flock` on its own file, which the system releases however a process ends. The lock belongs to the open
    file, so two owners in one process stay distinct. A child that is forked meanwhile also holds the lock; the owner
    then counts as alive until both have ended.

    Attributes:
        name: 32 random hexadecimal digits.
    """

    def __init__(self, path: Path) -> None:
        """Creates and locks the file `PATH.owner-NAME`."""
        self.name = secrets.token_hex(16)
        self._path = _owner_path(path, self.name)
        while not self._take(path):
            pass

    def _take(self, path: Path) -> bool:
        """Creates the file; False if another owner removed it as the unfinished file of a killed process."""
        self._handle, beside = tempfile.mkstemp(dir=path.parent, prefix=_begun(path))
        if not lock_file(self._handle, wait=True):
            os.write(self._handle, str(os.getpid()).encode())
        try:
            os.rename(beside, self._path)  # locked first: an unlocked file means that its owner is dead
        except FileNotFoundError:
            os.close(self._handle)
            return False
        return True

    def leave(self) -> None:
        """Ends this owner and releases its claims."""
        _remove(self._path)
        os.close(self._handle)


def is_alive(path: Path, name: str) -> bool:
    """True if an owner of `path` is alive. Tries to remove the file of an owner that has ended.

    Raises:
        InputError: the name is not one of an owner, or its file cannot be opened.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{path}: damaged (an owner {name[:40]!r}); move it away and start again")
    return _is_held(_owner_path(path, name))


def _is_held(own: Path) -> bool:
    """True if the file of an owner is locked. Tries to remove an unlocked file."""
    try:
        handle = os.open(own, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:  # a link or a folder
        raise InputError(f"{own}: cannot be opened ({error.strerror}); remove it") from error
    try:
        if not lock_file(handle) and _names_a_process(handle):
            return True
        _remove(own)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _names_a_process(handle: int) -> bool:
    """True if a file holds the number of a process that runs, as owners write it where the system has no locks."""
    content = os.pread(handle, 32, 0)
    return content.isdigit() and is_running(int(content))


def remove_dead(path: Path) -> None:
    """Removes the files of killed owners."""
    prefix = _owner_path(path, "").name
    for found in path.parent.glob(f"{glob.escape(prefix)}*"):
        name = found.name.removeprefix(prefix)
        if _NAME.fullmatch(name):
            is_alive(path, name)
    for begun in path.parent.glob(f"{glob.escape(_begun(path))}*"):  # killed before its file had its name
        if _BEGUN.fullmatch(begun.name.removeprefix(_begun(path))):
            _is_held(begun)


def _remove(own: Path) -> None:
    """Removes the file of an ended owner. In a read-only folder it stays, and counts as ended."""
    with suppress(OSError):
        own.unlink()


def _begun(path: Path) -> str:
    """The beginning of the name of an owner's file before it is locked."""
    return f".{path.name}.owner-"


def _owner_path(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.owner-{name}")
