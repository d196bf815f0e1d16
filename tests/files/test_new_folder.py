import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.files.new_folder import new_folder
from qrag_jax.files.step_folders import checkpoint_steps, clear_leftovers, delete_old
from qrag_jax.types import UsageError


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(out, content="whole"):
    with new_folder(out, "export") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text(content)
        assert not out.exists() or not any(out.iterdir())


@pytest.mark.parametrize("name", ["new", "deep/er/new", "empty"])
def test_a_folder_is_there_when_it_is_whole(tmp_path, name):
    (tmp_path / "empty").mkdir()
    write(tmp_path / name)
    assert (tmp_path / name / "deep" / "file").read_text() == "whole"
    assert not [path for path in tmp_path.rglob(".*")]


def test_what_ends_early_leaves_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    for out in ("empty", "a/b"):
        with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / out, "export") as folder:
            (folder / "file").write_text("half")
            raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["empty"] and not any((tmp_path / "empty").iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    code = (
        "import os, pathlib; from qrag_jax.files.new_folder import new_folder\n"
        "with new_folder(pathlib.Path('out'), 'export') as folder:\n"
        "    (folder / 'half').write_text('half'); os.kill(os.getpid(), 9)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -9
    assert (tmp_path / ".export-out" / "new" / "half").exists() and not (tmp_path / "out").exists()
    write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["deep"]


def test_who_comes_second_is_told_who_is_first(tmp_path):
    with lock_folder(tmp_path / ".export-out", "qrag export to out"), ThreadPoolExecutor(1) as pool:
        with pytest.raises(UsageError, match="in use by qrag export to out .process "):
            pool.submit(write, tmp_path / "out").result()
    assert list(tmp_path.iterdir()) == []


def test_places_that_no_folder_can_take(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / ".export-new").symlink_to("full")
    refusals = {
        "full": "full: is not empty; give a folder",
        "full/mine": "mine: is a file",
        "link": "link: is a link; give its target",
        "new": r"\.export-new: is a link, but its name is needed; remove it",
        "full/mine/new": "cannot be made|is a file|Not a directory",
    }
    if os.path.ismount("/proc"):  # a container may have an empty folder there
        refusals["/proc"] = "/proc: is "
    for name, message in refusals.items():
        with pytest.raises(UsageError, match=message):
            write(tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]


def test_the_current_folder_cannot_be_replaced(tmp_path):
    with pytest.raises(UsageError, match="is the current folder or a mounted disk; give a new folder in it"):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_was_taken_meanwhile_is_left_alone(tmp_path):
    said = "out: cannot be put there .*not empty.*; give a new folder"
    with pytest.raises(UsageError, match=said), new_folder(tmp_path / "out", "export") as folder:
        (folder / "ours").touch()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]


def test_a_step_that_is_a_link_is_deleted_as_one(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run = tmp_path / "run"
    for name in ("step_1", ".old-step_2", ".tmp-step_3-1-0"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).symlink_to(tmp_path / "elsewhere")
    (run / "step_2").mkdir()
    clear_leftovers(run)
    delete_old(run, 2, 1, "us")
    assert [path.name for path in run.iterdir()] == ["step_2"] and (tmp_path / "elsewhere").is_dir()


def test_a_file_that_is_named_like_a_step_is_none(tmp_path):
    (tmp_path / "step_1").write_text("notes")
    for step in (2, 3):
        (tmp_path / f"step_{step}").mkdir()
    delete_old(tmp_path, 3, 1, "us")
    assert checkpoint_steps(tmp_path) == [3] and (tmp_path / "step_1").read_text() == "notes"
