import json
import sys
from types import SimpleNamespace

import pytest
from tensorboardX.proto.event_pb2 import Event

from qrag_jax.train import run_folder
from qrag_jax.train.log import RunLog, read_lines
from qrag_jax.train.run_folder import check_room
from qrag_jax.types import InputError, UsageError

HUGE = '{"step": 1, "seconds": 1%s}' % ("0" * 400)  # no float


def fill(log, *steps):
    for step in steps:
        log.write(step, {"loss": 1 / step, "return": float(step)})


def test_a_fresh_log_replaces_an_older_one(tmp_path):
    fill(RunLog(tmp_path, {"num_texts": 3}, 0, False), 1, 2)
    fill(RunLog(tmp_path, {"num_texts": 4}, 0, False), 5)
    assert read_lines(tmp_path / "metrics.jsonl") == [
        {"data": {"num_texts": 4}},
        {"step": 5, "loss": 0.2, "return": 5.0},
    ]
    assert [line["step"] for line in read_lines(tmp_path / "times.jsonl")] == [5]


def test_a_resumed_log_is_cut_back_and_time_runs_on(tmp_path):
    fill(RunLog(tmp_path, {"num_texts": 3}, 0, False), 2, 4, 6)
    (tmp_path / "times.jsonl").write_text("".join(f'{{"step": {s}, "seconds": {100.0 * s}}}\n' for s in (2, 4, 6)))
    fill(RunLog(tmp_path, {"num_texts": 3}, 4, False), 6)
    whole = tmp_path / "whole"
    fill(RunLog(whole, {"num_texts": 3}, 0, False), 2, 4, 6)
    assert (tmp_path / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    times = read_lines(tmp_path / "times.jsonl")
    assert [line["step"] for line in times] == [2, 4, 6] and 400 <= times[-1]["seconds"] < 460


@pytest.mark.parametrize("tail", ["", '{"step": 6, "lo', '{"step": 6}'])
def test_a_line_without_its_end_is_no_line(tmp_path, tail):
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 2}\n{"step": 4}\n' + tail)
    assert read_lines(path) == [{"step": 2}, {"step": 4}]
    assert read_lines(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", "x.jsonl:1: not JSON"),
        ("[" * 9_999, "x.jsonl:1: not JSON"),
        ("1" * 9_999, "x.jsonl:1: not JSON"),
        ("[1]", "x.jsonl:1: expected an object"),
        ('{"step": "1"}', "x.jsonl:1: expected an object"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, message):
    (tmp_path / "x.jsonl").write_text(line + '\n{"step": 2}\n')
    with pytest.raises(InputError, match=message):
        read_lines(tmp_path / "x.jsonl")


@pytest.mark.parametrize("line", ['{"data": {}}', '{"step": 1}', '{"step": 1, "seconds": "x"}', HUGE])
def test_a_time_without_its_numbers_is_named(tmp_path, line):
    (tmp_path / "times.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="times.jsonl:1: expected an object"):
        read_lines(tmp_path / "times.jsonl")


def test_numbers_that_json_has_not_are_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        RunLog(tmp_path, {}, 0, False).write(1, {"loss": float("nan")})


def events(folder):
    """(step, name, value) of every scalar; a record is its length (8 bytes), a checksum (4), data, a checksum (4)."""
    found = []
    for path in sorted(folder.glob("events*")):
        data, start = path.read_bytes(), 0
        while start < len(data):
            size = int.from_bytes(data[start : start + 8], "little")
            event = Event.FromString(data[start + 12 : start + 12 + size])
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            start += size + 16
    return found


def test_absent_tensorboard_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UsageError, match=r"tensorboardX, .* pip install 'qrag_jax\[train\]', or set tensorboard=false"):
        RunLog(tmp_path, {}, 0, tensorboard=True)


def test_tensorboard_has_the_same_scalars(tmp_path):
    log = RunLog(tmp_path, {}, 0, True)
    fill(log, 1, 2)
    log.close()
    found = events(tmp_path / "tensorboard")
    assert sorted(found) == [(1, "loss", 1.0), (1, "return", 1.0), (2, "loss", 0.5), (2, "return", 2.0)]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()[1:]]
    assert [line["loss"] for line in lines] == [1.0, 0.5]


def test_a_line_of_facts_may_have_a_step_that_is_null(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"data": {}, "step": null}\n{"step": 2}\n')
    RunLog(tmp_path, {"num_texts": 3}, 2, False)
    assert read_lines(tmp_path / "metrics.jsonl") == [{"data": {"num_texts": 3}}, {"step": 2}]


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
