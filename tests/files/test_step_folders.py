"""Steps by their names."""

from qrag_jax.files.step_folders import checkpoint_steps, clear_leftovers, delete_old


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
