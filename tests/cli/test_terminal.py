import json
import os
import sys
from contextlib import suppress

import pytest

from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, shown, write_json

KEPT = "10\u00a0000\u202f\u20ac \u6771\u3000\u4eac \u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f469"
# Escapes, an end of a line, other directions of writing, half of a pair.
OBEYED = "\x1b\x07\x7f\x9b\u2028\u202e\u2066\ufeff\ud800"


def test_json_goes_to_stdout_and_messages_to_stderr(capsys, tmp_path):
    write_json({"a": [1, "é"]})
    say("done")
    write_json({"b": 2}, tmp_path / "new" / "rows.json")
    write_json(3, "-")
    captured = capsys.readouterr()
    assert captured.out == '{\n  "a": [\n    1,\n    "é"\n  ]\n}\n3\n'
    assert captured.err == "done\n"
    assert json.loads((tmp_path / "new" / "rows.json").read_text()) == {"b": 2}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(float("nan"))


def test_json_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """A full disk leaves the file of an earlier run as it is."""
    path = tmp_path / "rows.json"
    write_json([1], path)

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_json(list(range(10_000)), path)
    assert json.loads(path.read_text()) == [1] and list(tmp_path.iterdir()) == [path]


def test_what_people_write_is_shown_and_what_a_terminal_obeys_is_not():
    assert shown(KEPT) == KEPT
    assert shown(f"a{OBEYED}b") == f"a{len(OBEYED) * chr(0xFFFD)}b"


def test_json_holds_the_real_texts_and_prints_nothing_that_a_terminal_obeys(capsys, tmp_path):
    value = {KEPT + OBEYED + "\U000e0001": "x"}
    write_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == {KEPT + OBEYED[:-1] + "\ufffd" + "\U000e0001": "x"}
    assert KEPT in out and not set(OBEYED) & set(out)
    write_json(value, tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == out


@pytest.mark.parametrize("kind", ["left", "full"])
def test_messages_that_nobody_can_read_end_nothing(monkeypatch, kind):
    """`qrag train 2>&1 | head -1`, a log on a full disk, a terminal that was closed: days of training ended there."""
    read, write = os.pipe()
    os.close(read)
    stream = open(write if kind == "left" else os.open("/dev/full", os.O_WRONLY), "w")
    monkeypatch.setattr("sys.stderr", stream)
    with Progress(interval=0.0) as progress:
        progress.report("train", 1, 2)
        progress.report("train", 2, 2)
    monkeypatch.setattr("sys.stderr", stream)
    say("one")
    assert sys.stderr is not stream and sys.stderr.name == os.devnull
    with suppress(OSError):  # what is in its buffer
        stream.close()
