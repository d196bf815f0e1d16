import os
import re
import stat
import subprocess
import sys

import pytest

from qrag_jax.files.whole_file import json_object, read_json, read_json_value, write_json, write_whole
from qrag_jax.types import InputError, UsageError


@pytest.mark.parametrize(("content", "expected"), [("é\r\n", "é\r\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_content_is_written_as_it_is(tmp_path, content, expected):
    path = tmp_path / "new" / "file"
    write_whole(path, content)
    assert path.read_bytes() == expected
    assert os.listdir(path.parent) == ["file"]


@pytest.fixture
def umask():
    """Sets the umask of the process for one test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_permissions_that_the_process_gives(tmp_path, umask, mask, mode):
    umask(mask)
    write_whole(tmp_path / "file", "secret")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_a_file_keeps_its_permissions_and_is_never_more_open(tmp_path, umask, monkeypatch, mode):
    path, seen = tmp_path / "file", []
    path.write_text("old")
    path.chmod(mode)
    sync = os.fsync

    def look(handle):  # just before the file is moved to its place
        (beside,) = (one for one in tmp_path.iterdir() if one != path)
        seen.append(stat.S_IMODE(beside.stat().st_mode))
        sync(handle)

    monkeypatch.setattr(os, "fsync", look)
    write_whole(path, "new")
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == mode and seen == [mode]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"No space left on device: .{re.escape(str(path))}"):
        write_whole(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through" and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    os.close(reader)


def test_a_redirected_standard_output_is_written_to(tmp_path):
    """`/dev/stdout` is a link to the file: neither is replaced."""
    code = "from qrag_jax.files.whole_file import write_whole; write_whole('/dev/stdout', 'rows')"
    with open(tmp_path / "out", "wb") as out:
        inode = os.fstat(out.fileno()).st_ino
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "rows" and (tmp_path / "out").stat().st_ino == inode
    assert os.path.islink("/dev/stdout")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is a folder; give the path of a file to write"):
        write_whole(tmp_path, "x")


def test_json_is_strict_and_ascii(tmp_path):
    path = tmp_path / "new" / "x.json"
    write_json(path, {"é": [1, 0.1, None]})
    assert path.read_bytes() == b'{\n  "\\u00e9": [\n    1,\n    0.1,\n    null\n  ]\n}\n'
    assert read_json(path) == read_json_value(path) == {"é": [1, 0.1, None]}
    write_json(path, [1], indent=None)
    assert path.read_bytes() == b"[1]\n" and read_json_value(path) == [1]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert read_json_value(path) == [1]  # as it was


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 200_000])
def test_what_is_no_json_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    for read in (read_json, read_json_value, lambda path: json_object(content, path)):
        with pytest.raises(InputError, match=r"x\.json: not valid JSON"):
            read(path)


def test_an_object_and_a_file_are_needed(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(InputError, match=r"x\.json: expected a JSON object"):
        read_json(tmp_path / "x.json")
    for read in (read_json, read_json_value):
        with pytest.raises(InputError, match=r"y\.json: no such file"):
            read(tmp_path / "y.json")
