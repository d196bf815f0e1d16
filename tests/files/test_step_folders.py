"""Steps by their names."""

from qrag_jax.files.step_folders import checkpoint_steps, delete_old


def test_a_file_that_is_named_like_a_step_is_none(tmp_path):
    (tmp_path / "step_1").write_text("notes")
    for step in (2, 3):
        (tmp_path / f"step_{step}").mkdir()
    delete_old(tmp_path, 3, 1, "us")
    assert checkpoint_steps(tmp_path) == [3] and (tmp_path / "step_1").read_text() == "notes"
