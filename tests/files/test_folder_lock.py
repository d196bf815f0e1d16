"""The lock of a folder: who comes second is told who was first, and the dead lock nobody out."""

import errno
import fcntl
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.processes import held

from qrag_jax.files import folder_lock
from qrag_jax.files.folder_lock import LOCK, Holder, lock_folder, remove_dead_lock
from qrag_jax.types import UsageError


def leave_record(folder, **changes):
    """A lock file of the kind that a process leaves behind that was killed."""
    with lock_folder(folder, "qrag train"):
        record = json.loads((folder / LOCK).read_text())
    holder = replace(Holder(**record), **changes)
    (folder / LOCK).write_text(json.dumps(asdict(holder)))
    return holder


def without_flock(monkeypatch):
    def refuse(handle, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_lock_leaves_nothing_behind(tmp_path):
    with lock_folder(tmp_path, "qrag train"):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    assert list(tmp_path.iterdir()) == []
    with lock_folder(tmp_path / "a" / "b", "qrag train"):
        assert (tmp_path / "a" / "b" / LOCK).is_file()
    assert list(tmp_path.iterdir()) == []  # made for the lock, and never used
    with lock_folder(tmp_path / "a" / "b", "qrag train"):
        (tmp_path / "a" / "notes").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "notes"]


def test_the_second_is_told_who_was_first(tmp_path):
    link = tmp_path.with_name(f"{tmp_path.name}-link")
    link.symlink_to(tmp_path)
    with held(tmp_path) as first:
        check_refused(tmp_path, link, first)
        first.communicate()  # ends it as it should end
    assert list(tmp_path.iterdir()) == []
    with lock_folder(tmp_path, "qrag train"):
        pass


def check_refused(tmp_path, link, first):
    for reads in (False, True):
        with (
            pytest.raises(UsageError, match="in use by qrag train") as caught,
            lock_folder(tmp_path, "push", reads=reads),
        ):
            pass
        message = str(caught.value)
        assert message.startswith(f"{tmp_path}: in use by qrag train (process {first.pid} on ")
        assert message.endswith("); wait until it has ended, or choose another folder") and ", since 20" in message
    with pytest.raises(UsageError, match="in use"), lock_folder(link, "qrag train"):
        pass


def test_a_full_disk_is_a_refusal_that_other_processes_learn_of(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_lock.os, "pwrite", full)
    with pytest.raises(UsageError, match=r"\.qrag\.lock: cannot be locked \(No space left on device\)"):
        with folder_lock.lock_folder(tmp_path, "a test"):
            raise AssertionError("not locked")
    monkeypatch.undo()
    with folder_lock.lock_folder(tmp_path, "a test"):  # what is left locks nobody out
        pass


def test_the_killed_lock_nobody_out(tmp_path):
    with held(tmp_path) as first:
        remove_dead_lock(tmp_path)
        assert (tmp_path / LOCK).exists()  # alive
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == first.pid
    with lock_folder(tmp_path, "qrag train"):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    leave_record(tmp_path)
    remove_dead_lock(tmp_path)
    assert list(tmp_path.iterdir()) == []
    remove_dead_lock(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_the_caller_may_lock_again_and_another_thread_may_not(tmp_path):
    refusals = []

    def other():
        try:
            with lock_folder(tmp_path, "the other"):
                refusals.append("none")
        except UsageError as error:
            refusals.append(str(error))

    with lock_folder(tmp_path, "the one"):
        with lock_folder(f"{tmp_path}/../{tmp_path.name}", "a part of it"):
            pass
        assert (tmp_path / LOCK).exists()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    other()
    assert f"in use by the one (process {os.getpid()} on " in refusals[0] and refusals[1] == "none"


@pytest.mark.parametrize("content", [b"", b"not JSON", b"[1]", b'{"pid": 1}', b"\xff", b"[" * 4096])
def test_a_file_that_nobody_holds_locks_nothing_whatever_it_says(tmp_path, monkeypatch, content):
    monkeypatch.setattr(folder_lock, "_WAIT_S", 0)
    monkeypatch.setattr(folder_lock, "_is_on_local_disk", lambda folder: True)
    (tmp_path / LOCK).write_bytes(content)
    with lock_folder(tmp_path, "qrag train"):
        pass
    assert not (tmp_path / LOCK).exists()


def test_another_machine_is_not_known_to_have_ended(tmp_path, monkeypatch):
    """On a disk that several machines write to; on one of this machine, what another wrote was copied there."""
    monkeypatch.setattr(folder_lock, "_is_on_local_disk", lambda folder: False)
    holder = leave_record(tmp_path, host="other", pid=17, kernel="of the other")
    for reads in (False, True):
        with pytest.raises(UsageError) as caught, lock_folder(tmp_path, "qrag train", reads=reads):
            pass
        assert str(caught.value) == (
            f"{tmp_path}: {tmp_path / LOCK} says that qrag train (process 17 on other, since {holder.since}) is at "
            "work here, but this machine cannot check whether it still is; if it has ended, delete that file"
        )
    leave_record_of_a_name_twice = replace(holder, host=os.uname().nodename)  # containers may share their names
    (tmp_path / LOCK).write_text(json.dumps(asdict(leave_record_of_a_name_twice)))
    with pytest.raises(UsageError, match="cannot check"), lock_folder(tmp_path, "qrag train"):
        pass
    monkeypatch.setattr(folder_lock, "_is_on_local_disk", lambda folder: True)  # this one, before it was restarted
    with lock_folder(tmp_path, "qrag train"):
        pass
    monkeypatch.setattr(folder_lock, "_is_on_local_disk", lambda folder: False)
    leave_record(tmp_path)  # this kernel's locks reach itself
    with lock_folder(tmp_path, "qrag train"):
        pass


def test_without_flock_the_process_decides(tmp_path, monkeypatch):
    with held(tmp_path) as first:
        without_flock(monkeypatch)
        refused = pytest.raises(UsageError, match=rf"in use by qrag train \(process {first.pid} on ")
        with refused, lock_folder(tmp_path, "qrag train"):
            pass
        record = Holder(**json.loads((tmp_path / LOCK).read_text()))
    with lock_folder(tmp_path, "qrag train"):
        pass
    for one, outcome in (
        (replace(record, pid=os.getpid()), None),  # its number was given to a later process
        (replace(record, pids="pid:[1]", pid=1), "cannot check"),  # a container, whose numbers are its own
        (replace(record, kernel="of the other"), "cannot check"),
    ):
        (tmp_path / LOCK).write_text(json.dumps(asdict(one)))
        if outcome is None:
            with lock_folder(tmp_path, "qrag train"):
                pass
        else:
            with pytest.raises(UsageError, match=outcome), lock_folder(tmp_path, "qrag train"):
                pass


def test_what_a_file_says_is_not_shown_where_a_terminal_would_obey_it(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "_is_on_local_disk", lambda folder: False)
    leave_record(tmp_path, what="\x1b]0;owned\x07", kernel="of the other")
    with pytest.raises(UsageError, match="says that another process is at work"), lock_folder(tmp_path, "qrag train"):
        pass


def test_a_lock_that_was_deleted_and_taken_by_another_stays_theirs(tmp_path):
    with ExitStack() as begun:
        with lock_folder(tmp_path, "qrag train"):
            (tmp_path / LOCK).unlink()
            second = begun.enter_context(held(tmp_path))
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == second.pid


def test_who_waited_at_the_file_of_one_that_left_holds_nothing(tmp_path, monkeypatch):
    """The file is removed between the look at it and its lock: it is another file's turn."""
    (tmp_path / LOCK).write_text("left")
    claim, claims = folder_lock._claim, []

    def claim_late(path, handle, is_new):
        if not claims:
            path.unlink()
        claims.append(is_new)
        claim(path, handle, is_new)

    monkeypatch.setattr(folder_lock, "_is_on_local_disk", lambda folder: True)
    monkeypatch.setattr(folder_lock, "_claim", claim_late)
    with lock_folder(tmp_path, "qrag train"):
        assert claims == [False, True] and json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_a_reader_makes_nothing(tmp_path, monkeypatch):
    with lock_folder(tmp_path / "absent", "qrag push", reads=True):
        assert not (tmp_path / "absent").exists()

    def refuse(path):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(folder_lock, "_open", refuse)
    with lock_folder(tmp_path, "qrag push", reads=True):
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match=f"{LOCK}: cannot be written"), lock_folder(tmp_path, "qrag train"):
        pass


def test_a_reader_of_what_it_cannot_write_to_is_refused_all_the_same(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folder_lock, "_open", refuse)
    with held(tmp_path) as first:
        refused = pytest.raises(UsageError, match=f"in use by qrag train .process {first.pid}")
        with refused, lock_folder(tmp_path, "qrag push", reads=True):
            pass
    with lock_folder(tmp_path, "qrag push", reads=True):
        pass


def test_links_and_files_in_its_place(tmp_path):
    (tmp_path / "treasure").write_text("gold")
    (tmp_path / LOCK).symlink_to(tmp_path / "treasure")
    with pytest.raises(UsageError, match=f"{LOCK}: cannot be written"), lock_folder(tmp_path, "qrag train"):
        pass
    assert (tmp_path / "treasure").read_text() == "gold"
    with pytest.raises(UsageError, match="treasure: is a file"), lock_folder(tmp_path / "treasure", "qrag train"):
        pass


@pytest.mark.skipif(not (os.path.ismount("/proc") and os.path.ismount("/dev/shm")), reason="neither is mounted here")
def test_local_disks():
    assert folder_lock._is_on_local_disk(Path("/dev/shm")) and not folder_lock._is_on_local_disk(Path("/proc"))


@pytest.mark.parametrize("year", [1901, 1970, 2099])
def test_no_clock_decides_who_holds_a_lock(tmp_path, monkeypatch, year):
    """A clock that was set back or forward, between holders and within one; only the message shows it."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(year, 1, 1, 12, tzinfo=UTC)

    with held(tmp_path) as first:  # by the right clock
        monkeypatch.setattr(folder_lock, "datetime", Clock)
        for stamp in (0, 4e9):
            os.utime(tmp_path / LOCK, (stamp, stamp))
            with pytest.raises(UsageError, match=f"in use by qrag train .process {first.pid} "):
                with lock_folder(tmp_path, "push"):
                    pass
    with lock_folder(tmp_path, "qrag train"), ThreadPoolExecutor(1) as pool:  # the holder is dead
        monkeypatch.undo()
        refusal = pool.submit(refused, tmp_path).result()
    assert f", since {year}-" in refusal
    leave_record(tmp_path, since=f"{year}-01-01 00:00:00+00:00", pid=2**22 + 1, started="1")
    without_flock(monkeypatch)  # only what the file says is left, and it says nothing by the clock
    with lock_folder(tmp_path, "qrag train"):
        pass
    assert list(tmp_path.iterdir()) == []


def refused(folder):
    with pytest.raises(UsageError) as caught, lock_folder(folder, "push"):
        pass
    return str(caught.value)
