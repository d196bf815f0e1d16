from types import SimpleNamespace

import pytest

from qrag_jax.train import run_folder
from qrag_jax.train.run_folder import check_room
from qrag_jax.types import UsageError

STEP = 1000


@pytest.fixture
def free(monkeypatch):
    """Sets what the disk has left."""

    def left(num_bytes):
        monkeypatch.setattr(run_folder.shutil, "disk_usage", lambda path: SimpleNamespace(free=num_bytes))

    return left


def steps(folder, *numbers):
    for number in numbers:
        (folder / f"step_{number}").mkdir(parents=True)
        (folder / f"step_{number}" / "manifest.json").touch()
    return folder


@pytest.mark.parametrize(
    ("there", "num_saves", "keep", "needed"),
    [
        ((), 10, 3, 4),  # three that are kept, and the one that is being written
        ((), 2, 3, 2),
        ((), 1, 1, 1),
        ((1, 2), 8, 3, 2),
        ((1, 2, 3), 7, 3, 1),
        ((1, 2, 3, 4, 5), 7, 3, 1),  # keep was larger
        ((1, 2, 3), 0, 3, 0),
    ],
)
def test_a_run_takes_what_it_keeps_and_one_more(tmp_path, free, there, num_saves, keep, needed):
    steps(tmp_path, *there)
    free(needed * STEP)
    check_room([tmp_path, None], STEP, num_saves, keep)
    if needed:
        free(needed * STEP - 1)
        with pytest.raises(
            UsageError, match=f"{tmp_path}: the checkpoints of this run take up to 0.0 MB .*smaller keep"
        ):
            check_room([tmp_path], STEP, num_saves, keep)


def test_runs_on_one_disk_share_its_room(tmp_path, free):
    outs = [steps(tmp_path / name, 1) for name in ("seed_0", "seed_1")]
    free(5 * STEP)
    check_room(outs[:1], STEP, 8, 3)
    with pytest.raises(UsageError, match="seed_1: the checkpoints"):
        check_room(outs, STEP, 8, 3)
