"""Builds on a Ray cluster of two nodes on this machine: the index of one process, whatever is killed."""

import hashlib
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
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
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"ray is not installed; run: pip install 'qrag_jax\[ray\]'"):
        update("i", notes, engine="ray")


@contextmanager
def started(num_nodes, **settings):
    """A cluster of nodes of one CPU on this machine; gives it as `ray` does, and is found by RAY_ADDRESS."""
    from ray.cluster_utils import Cluster

    before = os.environ.copy()
    # Without the guard of the network: Ray asks for names of this machine that the guard does not know.
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", **settings}
    # Ray listens to this machine alone if it is told this address, which a driver would take for another one.
    patch = pytest.MonkeyPatch()
    patch.setattr("ray._private.services.node_ip_address_from_perspective", lambda address=None: "127.0.0.1")
    node = {"num_cpus": 1, "object_store_memory": 10**8, "node_ip_address": "127.0.0.1"}
    nodes = Cluster(initialize_head=True, head_node_args=node)
    for _ in range(num_nodes - 1):
        nodes.add_node(**node)
    os.environ["RAY_ADDRESS"] = nodes.address
    yield
    nodes.shutdown()
    patch.undo()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    with started(num_nodes=2):
        yield


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
    return load_maker(pause=0.1)


@pytest.mark.full
@pytest.mark.oracle
def test_ten_kills_lose_nothing(notes, cluster):
    write_notes(notes, **{f"m{number:03}": f"More {number}.\nAnother line {number}." for number in range(80)})
    update("one", notes)
    Path("pids").mkdir()
    killed, done = [], threading.Event()

    def kill():
        rng = random.Random(0)
        while len(killed) < 10 and not done.is_set():
            time.sleep(rng.uniform(0.1, 0.5))
            old = [path for path in Path("pids").iterdir() if path.stat().st_mtime < time.time() - 1.5]
            there = sorted({int(path.name) for path in old} - set(killed))
            if there:  # of those that have done a part of the work
                killed.append(rng.choice(there))
                os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    changes = update("ray", notes, engine="ray", make=partial(load_and_leave_word, str(Path("pids").absolute())))
    done.set()
    killer.join()
    assert not changes.failed and len(killed) == 10, (changes.failed, killed)
    assert content("ray") == content("one")


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


@pytest.mark.oracle
def test_another_version_on_the_cluster_is_refused(notes, cluster, monkeypatch):
    monkeypatch.setattr("qrag_jax.index.ray_tasks.__version__", "0.0")
    with pytest.raises(
        InputError, match=r"a machine of the cluster has qrag_jax \S+, this one has 0.0; install the same"
    ):
        update("i", notes, engine="ray")


def fail_to_load():
    raise RuntimeError("no module of this name")


@pytest.mark.oracle
def test_other_failures_of_a_task_are_said(notes, cluster):
    with pytest.raises(
        InputError, match=r"engine ray: a task failed on the cluster \(.*no module of this name\); install"
    ):
        update("i", notes, engine="ray", make=fail_to_load)


@pytest.mark.full
@pytest.mark.oracle
def test_a_machine_without_memory_is_said(notes):  # the last one: it has a cluster of its own
    pytest.importorskip("ray")
    with started(1, RAY_memory_usage_threshold="0.02", RAY_memory_monitor_refresh_ms="100"):
        with pytest.raises(InputError, match=r"num_workers 1: a machine of the Ray cluster ran out of memory 3 times"):
            update("i", notes, engine="ray", make=partial(load_maker, pause=0.5))
