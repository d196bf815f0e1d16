"""A system without /proc, as macOS, and one without `fcntl` and `resource` too: all works, and what is weaker is said.

`tests/elsewhere` hides them from the processes that these tests start.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.tiers import PATIENCE, slow_but

from qrag_jax.documents.kinds import is_installed
from qrag_jax.models.encoder.sources import is_installed as has_minilm

HERE = Path(__file__).parent
NO_LOCKS = "this system has no file locks"
NO_LIMITS = "this system cannot limit the "
COMMAND = "import sys; from qrag_jax.cli.main import main; sys.exit(main())"
IMPORTS = """
import importlib.util, os, pkgutil
import qrag_jax
for module in pkgutil.walk_packages(qrag_jax.__path__, "qrag_jax."):
    if module.name != "qrag_jax.serve.mcp":  # the package mcp wants fcntl everywhere but on Windows
        importlib.import_module(module.name)
print([name for name in ("fcntl", "resource") if importlib.util.find_spec(name) is None])
print(os.path.exists("/proc/self/stat"), hasattr(os, "sched_getaffinity"))
"""
HOLD = """
import sys
from qrag_jax.files.folder_lock import lock_folder
with lock_folder(sys.argv[1], "qrag train"):
    print("held", flush=True)
    sys.stdin.read()
"""
OWN = """
import sys
from pathlib import Path
from qrag_jax.llm.journal.journal_file import Owner, is_alive
if len(sys.argv) > 2:
    print(is_alive(Path(sys.argv[1]), sys.argv[2]))
else:
    owner, other = (Owner(Path(sys.argv[1])) for _ in range(2))
    other.leave()
    print(owner.name, is_alive(Path(sys.argv[1]), other.name), flush=True)
    sys.stdin.read()
"""


SYSTEMS = pytest.mark.parametrize("system", ["macos", "neither"], indirect=True)


@pytest.fixture(autouse=True)
def system(request, monkeypatch) -> str:
    """The folder of the system that started processes believe to be on."""
    name = getattr(request, "param", "neither")
    paths = [HERE / "elsewhere" / name, HERE / "elsewhere", HERE / "guarded", HERE.parent]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [*paths, os.environ.get("PYTHONPATH", "")])))
    return name


def python(code: str, *args: object, folder: Path) -> subprocess.CompletedProcess:
    """What a program does there."""
    words = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


@contextmanager
def at_work(code: str, *args: object):
    """A process there that has said its first line, and is killed at the end."""
    words = [sys.executable, "-c", code, *map(str, args)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, text=True, **pipes) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.fixture
def desk(tmp_path):
    (tmp_path / "facts.txt").write_text("Mary went to the kitchen. She took the milk.\n\nJohn was in the garden.\n")
    for name in ("one.html", "two.html"):
        (tmp_path / name).write_text("<p>Mary took the milk.</p>")
    return tmp_path


def check(done: subprocess.CompletedProcess, found: str) -> None:
    assert done.returncode == 0, done.stderr
    assert found in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize("system", slow_but([], ["macos", "neither"], ["neither"]), indirect=True)
def test_everything_is_imported(tmp_path, system):
    absent = {"macos": [], "neither": ["fcntl", "resource"]}[system]
    check(python(IMPORTS, folder=tmp_path), f"{absent}\nFalse False\n")


@pytest.mark.skipif(not has_minilm(), reason="embedded MiniLM is not installed")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        (["chunk", "facts.txt", "--max_tokens", "12", "--json"], '"spans": [[46, 69]]'),
        pytest.param(
            ["find", "facts.txt", "Who took the milk?", "--json"], "She took the milk.", marks=pytest.mark.slow
        ),
        (["find", "facts.txt", "Who took the milk?", "--retriever", "bm25", "--json"], "She took the milk."),
    ],
)
def test_files_are_cut_and_searched(desk, line, found):
    done = python(COMMAND, *line, folder=desk)
    check(done, found)
    assert NO_LOCKS not in done.stderr and NO_LIMITS not in done.stderr


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(not has_minilm(), reason="embedded MiniLM is not installed")
def test_a_question_is_answered_and_kept_in_a_journal(desk):
    flags = ["--llm_model", "smollm2", "--max_answer_tokens", "4", "--journal", "journal.sqlite", "--json"]
    for _ in range(2):
        done = python(COMMAND, "ask", "facts.txt", "Who took the milk?", *flags, folder=desk)
        check(done, "She took the milk.")
        assert done.stderr.count(NO_LOCKS) == 1
    assert [path.name for path in desk.glob("*journal*")] == ["journal.sqlite"]


@pytest.mark.skipif(not is_installed(), reason="the extra `documents` is not installed")
@SYSTEMS
def test_a_document_of_a_stranger_is_read_with_a_warning(desk, system):
    done = python(COMMAND, "chunk", "one.html", "two.html", "--strategy", "recursive", "--json", folder=desk)
    check(done, '"file": "two.html", "spans": [[0, 19]]')
    what = {"macos": "memory", "neither": "memory and CPU time"}[system]
    said = f"{NO_LIMITS}{what} of the process that converts a file"
    assert done.stderr.count(said) == done.stderr.count(NO_LIMITS) == 1


@SYSTEMS
def test_a_folder_has_one_holder_and_a_killed_one_locks_nobody_out(tmp_path, system):
    with at_work(HOLD, tmp_path) as (first, said):
        assert said == "held"
        second = python(HOLD, tmp_path, folder=tmp_path)
        assert f"in use by qrag train (process {first.pid} on " in second.stderr and second.stdout == ""
        assert second.stderr.count(NO_LOCKS) == (system == "neither")
    assert json.loads((tmp_path / ".qrag.lock").read_text())["started"] == ""
    check(python(HOLD.replace("sys.stdin.read()", ""), tmp_path, folder=tmp_path), "held")
    assert list(tmp_path.iterdir()) == []


def test_an_owner_of_a_journal_is_alive_until_it_leaves_or_is_killed(tmp_path):
    path = tmp_path / "journal"
    with at_work(OWN, path) as (_, said):
        name, _, other_is_alive = said.partition(" ")
        assert other_is_alive == "False"
        check(python(OWN, path, name, folder=tmp_path), "True")
    check(python(OWN, path, name, folder=tmp_path), "False")
    assert list(tmp_path.iterdir()) == []
