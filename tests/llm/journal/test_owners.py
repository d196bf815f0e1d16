"""Owners of a shared file: alive while their lock is held, whatever process or thread looks."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from qrag_jax.llm.journal.journal_file import Owner, is_alive, remove_dead
from qrag_jax.types import InputError

WORK = """
import sys, time
from pathlib import Path
from qrag_jax.llm.journal.journal_file import Owner
print(Owner(Path(sys.argv[1])).name, flush=True)
time.sleep(60)
"""


def files(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def test_an_owner_is_alive_until_it_leaves(tmp_path):
    path = tmp_path / "journal"
    one, other = Owner(path), Owner(path)
    assert is_alive(path, one.name) and is_alive(path, other.name) and one.name != other.name
    one.leave()
    assert not is_alive(path, one.name) and is_alive(path, other.name)
    assert files(tmp_path) == [f"journal.owner-{other.name}"]
    other.leave()
    assert files(tmp_path) == []


def test_one_that_was_killed_is_dead_and_its_file_is_removed(tmp_path):
    path = tmp_path / "journal"
    with subprocess.Popen([sys.executable, "-c", WORK, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert is_alive(path, name) and files(tmp_path) == [f"journal.owner-{name}"]
        process.send_signal(signal.SIGKILL)
    assert not is_alive(path, name) and files(tmp_path) == []


def test_files_of_the_dead_are_removed_and_no_others(tmp_path):
    path = tmp_path / "journal"
    living, dead = Owner(path), "0" * 32
    (tmp_path / f"journal.owner-{dead}").touch()
    (tmp_path / "journal.owner-notes").touch()
    (tmp_path / f"other.owner-{dead}").touch()
    remove_dead(path)
    assert files(tmp_path) == sorted([f"journal.owner-{living.name}", "journal.owner-notes", f"other.owner-{dead}"])
    living.leave()


def test_what_one_has_begun_that_was_killed_is_removed(tmp_path):
    path = tmp_path / "journal"
    for name in (".journal.owner-1un707uh", ".journal.owner-notes", ".other.owner-1un707uh"):
        (tmp_path / name).touch()
    remove_dead(path)
    assert files(tmp_path) == [".journal.owner-notes", ".other.owner-1un707uh"]


def test_one_whose_beginning_is_taken_for_that_of_a_dead_one_begins_again(tmp_path):
    path, lock = tmp_path / "journal", fcntl.flock

    def late(handle, how):
        if not seen:
            seen.append(True)
            remove_dead(path)
        lock(handle, how)

    seen = []
    with mock.patch("fcntl.flock", late):
        owner = Owner(path)
    assert is_alive(path, owner.name) and files(tmp_path) == [f"journal.owner-{owner.name}"]


def test_names_of_files_are_no_patterns(tmp_path):
    path = tmp_path / "[j]*"
    (tmp_path / f"j.owner-{'0' * 32}").touch()
    (tmp_path / f"[j]*.owner-{'1' * 32}").touch()
    remove_dead(path)
    assert files(tmp_path) == [f"j.owner-{'0' * 32}"]


@pytest.mark.parametrize("name", ["", "../" * 12 + "etc/passwd", "0" * 31, "0" * 32 + "/", "G" * 32])
def test_what_is_no_name_never_becomes_a_path(tmp_path, name):
    with pytest.raises(InputError, match="journal: damaged .* move it away"):
        is_alive(tmp_path / "journal", name)


def test_links_are_not_followed(tmp_path):
    (tmp_path / "treasure").write_text("gold")
    os.symlink(tmp_path / "treasure", tmp_path / f"journal.owner-{'0' * 32}")
    with pytest.raises(InputError, match="journal.owner-0+: cannot be opened"):
        is_alive(tmp_path / "journal", "0" * 32)
    assert (tmp_path / "treasure").read_text() == "gold"


def test_one_that_may_not_remove_its_file_is_dead_all_the_same(tmp_path, monkeypatch):
    """The folder is read-only now: what was answered must not end in an error for that."""
    path = tmp_path / "journal"
    one = Owner(path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
        one.leave()
        assert not is_alive(path, one.name)
    assert files(tmp_path) == [f"journal.owner-{one.name}"]
    remove_dead(path)
    assert files(tmp_path) == []
