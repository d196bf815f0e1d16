"""Processes that share a batch of calls and one journal, and what is done to them: killed, starved, robbed of a file.

    python journal_writers.py ATTACK FOLDER '{"num_calls": 500, ...}'        # prints an `Outcome` as JSON

A process of its own, which forks the writers: it has no threads, as the test run has, and imports the library once.
What is begun, kept and refused goes into one log, line by line, in the order in which it happened. The attacks are
functions of this module; test_journal.py says what must come of them.
"""

import ctypes
import json
import os
import random
import resource
import signal
import sqlite3
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.types import Generation, InputError, Message, Sampling, UsageError

MAX_SECONDS = 0.008  # a call, half of it on average
YOUNG_SECONDS = 0.03  # a writer that is killed so soon opens the journal, reads it or claims
NUM_WRITERS = 4
NUM_HELD = 4  # last calls, which are held back until all kills are done: nobody is through before
PATIENCE = 800.0
REFUSED = 3  # exit status of a writer that met a typed error


@dataclass(frozen=True)
class Outcome:
    """What an attack came to.

    Attributes:
        killed_at: answers that were there at each kill.
        refusals: what writers said that could not go on.
        begun: calls that were made, by all writers.
        begun_after_kept: calls that were made though their answer had been kept: paid twice.
        unexplained: calls that were made again though no writer was ended while it had them in flight.
        kept_twice: calls with two answers.
        kept_late: answers that were said to be kept after the journal was taken away.
        lost: calls whose kept answer is not in the journal, or is another one.
        num_answers: in the journal at the end.
        integrity: what SQLite says of the file.
        files: left beside the journal.
    """

    killed_at: tuple[int, ...]
    refusals: tuple[str, ...]
    begun: int
    begun_after_kept: tuple[int, ...]
    unexplained: tuple[int, ...]
    kept_twice: tuple[int, ...]
    kept_late: int
    lost: tuple[int, ...]
    num_answers: int
    integrity: str
    files: tuple[str, ...]


class Log:
    """The lines of all writers, read on as they grow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self.kept: set[int] = set()
        self._place, self._rest = 0, b""

    def say(self, *words: object) -> None:
        os.write(self.handle, f"{' '.join(map(str, words))}\n".encode())

    def num_kept(self) -> int:
        """Answers that writers have said to be kept so far."""
        with self.path.open("rb") as file:
            file.seek(self._place)
            new = file.read()
        self._place += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        self.kept |= {int(line.split()[1]) for line in lines if line.startswith(b"kept")}
        return len(self.kept)

    def lines(self) -> list[list[str]]:
        return [line.split(" ", 2) for line in self.path.read_text(errors="replace").splitlines()]


@dataclass
class Writers:
    """Those at work, by number; each has its own way to the journal's name."""

    folder: Path
    num_calls: int
    answer_size: int
    rng: random.Random

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.home = self.folder / "home"
        self.path = self.home / "journal.sqlite"
        self.log = Log(self.folder / "log")
        self.pids: dict[int, int] = {}
        self.killed_at: list[int] = []
        self.home.mkdir(exist_ok=True)
        (self.folder / "link.sqlite").symlink_to(self.path)
        (self.folder / "link").symlink_to(self.home)
        self.names = (self.path, self.folder / "link.sqlite", self.folder / "link" / "journal.sqlite")

    def start(self, number: int, prepare: Callable[[], None] = lambda: None) -> None:
        """A writer that answers all prompts, by the journal where it can; `prepare` is called in its process."""
        seed = self.rng.getrandbits(32)
        self.pids[number] = os.fork()
        if self.pids[number]:
            return
        status = 1
        try:
            prepare()
            self._work(self.names[number % len(self.names)], random.Random(seed))
            status = 0
        except (InputError, UsageError) as error:
            self.log.say("refused", os.getpid(), error)
            status = REFUSED
        except BaseException:  # noqa: BLE001 -- told to the test, which shows it
            (self.folder / f"error-{os.getpid()}").write_text(traceback.format_exc())
        finally:
            os._exit(status)

    def start_all(self, prepare: Callable[[], None] = lambda: None) -> None:
        for number in range(NUM_WRITERS):
            self.start(number, prepare)

    def _work(self, path: Path, rng: random.Random) -> None:
        me, held = os.getpid(), self.num_calls - NUM_HELD

        def script(prompt: Sequence[Message]) -> str:
            number = int(prompt[0].content)
            self.log.say("begun", number, me)
            while number >= held and not (self.folder / "go").exists():
                time.sleep(0.01)
            time.sleep(MAX_SECONDS * rng.random())
            return self.answer(number)

        def finished(place: int, generation: Generation) -> None:
            if not generation.from_journal:
                self.log.say("kept", place, me)

        generator = JournaledGenerator(ScriptedGenerator(script), Journal(path), claim_size=16)
        answers = generator.generate(self.prompts(), sampling=Sampling(), finished=finished)
        assert [answer.text for answer in answers] == [self.answer(number) for number in range(self.num_calls)]

    def answer(self, number: int) -> str:
        return f"answer {number} ".ljust(self.answer_size, "x")

    def prompts(self) -> list[list[Message]]:
        return [[Message("user", str(number))] for number in range(self.num_calls)]

    def wait_for(self, num_kept: int) -> None:
        """Until so many answers are kept; a writer that ended by itself meanwhile is an error of the test."""
        until = time.monotonic() + PATIENCE
        while self.log.num_kept() < num_kept:
            for number, pid in self.pids.items():
                if os.waitpid(pid, os.WNOHANG)[0]:
                    raise RuntimeError(f"writer {number} ended too early: {self.errors()}")
            if time.monotonic() > until:
                raise TimeoutError(f"{self.log.num_kept()} of {num_kept} answers")
            time.sleep(0.001)

    def kill(self, number: int, may_refuse: bool = False) -> None:
        """Ends a writer; one that `may_refuse` may have met a typed error before."""
        pid = self.pids.pop(number)
        self.log.say("killed", pid)
        os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == -signal.SIGKILL:
            self.killed_at.append(self.log.num_kept())
        elif not (may_refuse and status == REFUSED):
            raise RuntimeError(f"a writer had ended before it was killed: {self.errors()}")

    def kill_all(self, may_refuse: bool = False) -> None:
        for number in list(self.pids):
            self.kill(number, may_refuse)

    def wait(self, expected: int) -> None:
        """The end of all, with this exit status."""
        for number, pid in self.pids.items():
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status != expected:
                raise RuntimeError(f"writer {number} ended with {status}, not {expected}: {self.errors()}")
        self.pids = {}

    def finish(self) -> None:
        """All calls are answered, by writers whom nothing disturbs."""
        self.open_gate()
        self.start_all()
        self.wait(0)

    def open_gate(self) -> None:
        (self.folder / "go").touch()

    def errors(self) -> str:
        found = [path.read_text() for path in self.folder.glob("error-*")]
        return "\n".join([*found, *(" ".join(line) for line in self.log.lines() if line[0] == "refused")])

    def outcome(self, before: Log | None = None) -> Outcome:
        """What the log and the journal say; `before` is the log of a journal that is gone, with all that it held."""
        lines = self.log.lines()
        older = [] if before is None else before.lines()
        ended = {pid for word, pid, *_ in lines if word in ("killed", "refused")}
        kept: Counter[int] = Counter()
        in_flight: dict[int, str] = {}  # call -> the writer that has begun it last
        again, unexplained, begun = [], [], 0
        for word, number, *rest in lines:
            if word == "kept":
                kept[int(number)] += 1
            elif word == "begun":
                begun += 1
                again += [int(number)] * (int(number) in kept)
                unexplained += [int(number)] * (int(number) in in_flight and in_flight[int(number)] not in ended)
                in_flight[int(number)] = rest[0]
        words = [line[0] for line in older or lines]
        integrity, stored = self._stored()
        return Outcome(
            killed_at=tuple(self.killed_at),
            refusals=tuple(line[2] for line in older + lines if line[0] == "refused"),
            begun=begun,
            begun_after_kept=tuple(again),
            unexplained=tuple(unexplained),
            kept_twice=tuple(number for number, times in kept.items() if times > 1),
            kept_late=words[words.index("gone") :].count("kept") if "gone" in words and older else 0,
            lost=tuple(number for number in kept if stored.get(number) != self.answer(number)),
            num_answers=Journal(self.path).num_answers(),
            integrity=integrity,
            files=tuple(sorted(file.name for file in self.home.iterdir() if file != self.path)),
        )

    def _stored(self) -> tuple[str, dict[int, str]]:
        """What SQLite says of the file, and the answers in it by the number in their own words."""
        with closing(sqlite3.connect(self.path)) as connection:
            integrity = connection.execute("PRAGMA integrity_check").fetchone()[0]
            texts = [json.loads(answer)["text"] for (answer,) in connection.execute("SELECT answer FROM answers")]
        return integrity, {int(text.split()[1]): text for text in texts}


# The attacks. Each ends with writers whom nothing disturbs, so that all calls have an answer.


def kills(writers: Writers, num_kills: int) -> Outcome:
    """SIGKILL at random moments of the batch, every third one soon after its writer has begun; it is started again."""
    rng, last = writers.rng, 0
    young = [number < NUM_WRITERS or number % 3 == 0 for number in range(num_kills)]  # the first ones make the journal
    targets = iter(sorted(rng.sample(range(writers.num_calls - NUM_HELD), young.count(False))))
    writers.start_all()
    for number, is_young in enumerate(young):
        if is_young:
            time.sleep(YOUNG_SECONDS * rng.random())
        else:
            writers.wait_for(next(targets))
            time.sleep(MAX_SECONDS * rng.random())
        if not is_young or number < NUM_WRITERS:
            last = rng.randrange(NUM_WRITERS)
        writers.kill(last)
        writers.start(last)
    writers.open_gate()
    writers.wait(0)
    return writers.outcome()


def short_files(writers: Writers, num_rounds: int) -> Outcome:
    """A limit on the size of files, other for each writer, and larger in each round; a write beyond it fails."""
    for number in range(num_rounds):
        most = 100_000 + 400_000 * number // num_rounds

        def limit(most: int = most) -> None:
            own = most + os.getpid() % 7 * 4_096
            resource.setrlimit(resource.RLIMIT_FSIZE, (own, own))

        writers.start_all(limit)
        writers.wait(REFUSED)
    writers.finish()
    return writers.outcome()


def full_disk(writers: Writers, sizes: Sequence[int]) -> Outcome | None:
    """A file system of so many bytes, then of more, then of enough; None where none can be mounted without rights."""
    if not _mount(writers.home, sizes[0]):
        return None
    for size in sizes:
        _mount(writers.home, size, again=True)
        writers.start_all()
        writers.wait(REFUSED)
    _mount(writers.home, 1 << 28, again=True)
    writers.finish()
    return writers.outcome()


def read_only(writers: Writers, num_rounds: int) -> Outcome:
    """The file, its folder or both cannot be written, when the writers come or while they are at work."""
    _drop_capabilities()
    file, folder = (writers.path, 0o400), (writers.home, 0o500)
    cases = [(closed, is_early) for closed in ([file], [folder], [file, folder]) for is_early in (False, True)]
    for number in range(num_rounds):
        closed, is_early = cases[number % len(cases)]
        writers.start_all()
        writers.wait_for(writers.log.num_kept() + 10)
        if is_early:
            writers.kill_all()
        for path, mode in closed:
            path.chmod(mode)
        if is_early:
            seen = writers.log.path.stat().st_size
            writers.start_all()
            writers.wait(REFUSED)
            if b"begun" in writers.log.path.read_bytes()[seen:]:
                raise RuntimeError("a call was made whose answer could not be kept")
        else:
            time.sleep(0.03)
            writers.kill_all(may_refuse=True)  # one that was slow to open the journal
        writers.path.chmod(0o600)
        writers.home.chmod(0o700)
    writers.finish()
    return writers.outcome()


def closed_folder(writers: Writers) -> Outcome:
    """The folder can be written no more when the writers come to their end."""
    _drop_capabilities()
    writers.start_all()
    writers.wait_for(writers.num_calls // 2)
    writers.home.chmod(0o500)
    writers.open_gate()
    writers.wait(0)
    writers.home.chmod(0o700)
    writers.finish()
    return writers.outcome()


def put_back(writers: Writers) -> Outcome:
    """The journal is moved away under the writers, and put back when they have ended."""
    away = writers.home / "away.sqlite"
    writers.start_all()
    writers.wait_for(writers.num_calls // 3)
    writers.path.rename(away)
    writers.wait(REFUSED)
    away.rename(writers.path)
    writers.finish()
    return writers.outcome()


def removed(writers: Writers, is_whole: bool) -> Outcome:
    """The journal is removed under the writers, with SQLite's files beside it or without; at once others begin anew."""
    writers.start_all()
    writers.wait_for(writers.num_calls // 3)
    old, robbed = writers.log, writers.pids
    for file in (writers.path, *writers.home.glob("journal.sqlite-*" if is_whole else "no such file")):
        file.unlink()
    old.say("gone", 0)
    writers.log, writers.pids = Log(writers.folder / "new log"), {}
    writers.open_gate()
    writers.start_all()
    writers.wait(0 if is_whole else REFUSED)
    writers.log, writers.pids, new = old, robbed, writers.log
    writers.wait(REFUSED)
    writers.log = new
    for file in () if is_whole else writers.home.glob("journal.sqlite-*"):
        file.unlink()
    writers.finish()
    return writers.outcome(before=old)


def _mount(folder: Path, size: int, again: bool = False) -> bool:
    """A file system in memory that only this process and its children see; whether that may be."""
    libc, ids = ctypes.CDLL(None, use_errno=True), (os.getuid(), os.getgid())
    if not again:
        if libc.unshare(0x10020000):  # CLONE_NEWUSER | CLONE_NEWNS
            return False
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {ids[0]} 1"), ("gid_map", f"0 {ids[1]} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    remount = 32  # MS_REMOUNT
    return not libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", remount * again, b"size=%d" % size)


def _drop_capabilities() -> None:
    """The rights of files hold for root too, as they do for others."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).capset(header, none):
        raise OSError("capset")


ATTACKS = (kills, short_files, full_disk, read_only, closed_folder, put_back, removed)


def main() -> None:
    name, folder, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    of_writers = {field: options.pop(field) for field in ("num_calls", "answer_size")}
    writers = Writers(folder, rng=random.Random(options.pop("seed")), **of_writers)
    attack = {one.__name__: one for one in ATTACKS}[name]
    try:
        outcome = attack(writers, **options)
    finally:
        for pid in writers.pids.values():  # of an attack that failed
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    print(json.dumps(None if outcome is None else asdict(outcome)))


if __name__ == "__main__":
    main()
