import os
import stat

import pytest

from qrag_jax.types import UsageError
from qrag_jax.whole_file import write_whole


@pytest.mark.parametrize(("content", "expected"), [("é\r\n", "é\r\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_content_is_written_as_it_is(tmp_path, content, expected):
    path = tmp_path / "new" / "file"
    write_whole(path, content)
    assert path.read_bytes() == expected
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left on device"):
        write_whole(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through" and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    os.close(reader)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is a folder; give the path of a file to write"):
        write_whole(tmp_path, "x")
