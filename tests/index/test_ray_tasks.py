"""Builds on a Ray cluster of two nodes on this machine: the index of one process, whatever is killed."""

import hashlib
import os
import random
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.indices import POISON, load_maker, load_refused, maker, update, write_notes

from qrag_jax.types import InputError, UsageError

ROOT = Path(__file__).parent.parent.parent


def content(folder):
    """A hash of all documents, chunks and vectors, whatever their order in the file."""
    rows = "SELECT ledger.id, error, documents.* FROM ledger LEFT JOIN documents USING (number) ORDER BY ledger.id"
    with closing(sqlite3.connect(Path(folder, "catalogue.sqlite"))) as connection:
        found = [(row[0], row[1], *row[3:]) for row in connection.execute(rows)]
    return hashlib.sha256(repr(found).encode()).hexdigest()


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qrag_jax.index.update._MAX_FILES", 2)
    return write_notes("notes", **{f"n{number:02}": f"Line {number}.\nThe same line." for number in range(40)})


def test_ray_that_is_not_installed_is_said(notes, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"engine ray: needs `pip install 'qrag_jax\[ray\]'`"):
        update("i", notes, engine="ray")


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    before = os.environ.copy()
    # Without the guard of the network: Ray asks for names of this machine that the guard does not know.
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray listens to this machine alone if it is told this address, which a driver would take for another one.
    patch = pytest.MonkeyPatch()
    patch.setattr("ray._private.services.node_ip_address_from_perspective", lambda address=None: "127.0.0.1")
    node = {"num_cpus": 1, "object_store_memory": 10**8, "node_ip_address": "127.0.0.1"}
    nodes = Cluster(initialize_head=True, head_node_args=node)
    nodes.add_node(**node)
    os.environ["RAY_ADDRESS"] = nodes.address
    yield nodes
    nodes.shutdown()
    patch.undo()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.oracle
def test_without_a_cluster_it_is_said(notes, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"no cluster answers at 127.0.0.1:1 \(.*refused\); start one"):
        update("i", notes, engine="ray")


@pytest.mark.oracle
def test_processes_and_two_nodes_make_the_same_index(notes, cluster):
    update("one", notes, num_workers=1)
    update("two", notes, num_workers=2)
    assert update("ray", notes, engine="ray").num_read == 40
    assert content("ray") == content("two") == content("one")
    write_notes(notes, n01="Another line.\nThe same line.")
    changes = update("ray", notes, engine="ray", num_workers=1)
    assert (changes.num_read, changes.num_same) == (1, 39)
    update("one", notes)
    assert content("ray") == content("one")


def load_and_leave_word(folder):
    """A maker whose process writes its number, and is slow."""
    Path(folder, f"{os.getpid()}").touch()
    return load_maker(pause=0.02)


@pytest.mark.oracle
def test_ten_kills_lose_nothing(notes, cluster):
    update("one", notes)
    Path("pids").mkdir()
    killed, done = [], threading.Event()

    def kill():
        while len(killed) < 10 and not done.is_set():
            time.sleep(0.15)
            there = [int(path.name) for path in Path("pids").iterdir() if int(path.name) not in killed]
            if there:
                killed.append(random.Random(len(killed)).choice(sorted(there)))
                try:
                    os.kill(killed[-1], signal.SIGKILL)
                except ProcessLookupError:
                    killed.pop()

    killer = threading.Thread(target=kill)
    killer.start()
    changes = update("ray", notes, engine="ray", make=_partial(load_and_leave_word, str(Path("pids").absolute())))
    done.set()
    killer.join()
    assert not changes.failed and len(killed) >= 5, (changes.failed, killed)
    assert content("ray") == content("one")


def _partial(function, *args):
    from functools import partial

    return partial(function, *args)


@pytest.mark.oracle
def test_a_poisonous_document_fails_alone(notes, cluster):
    write_notes(notes, n03=f"A {POISON} text.")
    changes = update("i", notes, engine="ray")
    assert [one.id for one in changes.failed] == ["notes/n03.md"] and changes.num_read == 39
    assert changes.failed[0].reason.startswith("the process that read it ended 3 times (WorkerCrashedError); leave it")
    assert update("i", notes, engine="ray").failed == changes.failed  # and is not tried again


@pytest.mark.oracle
def test_what_the_cluster_refuses_is_raised_here(notes, cluster):
    with pytest.raises(UsageError, match="no such encoder; name another"):
        update("i", notes, engine="ray", make=load_refused)
    update("i", notes)
    write_notes(notes, n01="Another line.")
    with pytest.raises(InputError, match="its vectors were made by the encoder of hashes"):
        update("i", notes, engine="ray", make=maker("others"))
