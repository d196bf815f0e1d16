import subprocess
import sys

import pytest
from support.indices import check_equal, fresh_corpus, hold, update, write_notes
from support.processes import ended, start

from qrag_jax.files.folder_lock import FolderInUse
from qrag_jax.index.load import load_index


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_notes("notes", a="Mary has the key.")


@pytest.fixture
def holder(notes, tmp_path):
    """A process that holds the folder of an index until a file `free` is there."""
    update("i", notes)
    process = start(hold, "i")
    while not (tmp_path / "held").exists():
        assert process.exitcode is None
    yield process
    (tmp_path / "free").touch()
    assert ended(process) == 0


def test_a_second_writer_waits_and_then_says_whose_it_is(holder, notes):
    said = []
    with pytest.raises(FolderInUse, match=rf"i: in use by qrag index \(process {holder.pid} on .*; wait until it has"):
        update("i", notes, patience=0.3, waits=said.append)
    assert len(said) == 1 and said[0].endswith("waiting for up to 0 seconds")
    assert len(load_index("i").documents) == 1  # readers do not wait


def test_a_second_writer_goes_on_when_the_first_has_ended(holder, notes, tmp_path):
    write_notes(notes, b="John went home.")

    def free(message):
        (tmp_path / "free").touch()

    assert update("i", notes, waits=free).num_read == 1
    check_equal(load_index("i"), fresh_corpus(notes))


def test_a_look_at_a_folder_imports_nothing_heavy():
    code = "import sys, qrag_jax.index.folder as p; assert not p.is_index('.'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"jax", "sqlite3", "pyarrow"} & set(loaded)
