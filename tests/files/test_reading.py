"""Inputs within a limit: refused by name before more is held than that."""

import io
import os

import pytest

from qrag_jax.config import load_config
from qrag_jax.files.reading import (
    InputTooLarge,
    check_size,
    pieces,
    read_limited,
    read_text_limited,
    read_with,
    reading,
)
from qrag_jax.files.strict_yaml import parse_yaml
from qrag_jax.files.text_files import read_json_lines
from qrag_jax.files.whole_file import read_json
from qrag_jax.types import InputError, UsageError


def sparse(path, size):
    """A file of so many zeros, which takes no block of the disk."""
    path.write_bytes(b"")
    os.truncate(path, size)
    return path


def test_settings_hold_inside_and_nest():
    with read_with(max_bytes=7), read_with(follow_links=True) as inner:
        assert (inner.max_bytes, inner.follow_links) == (7, True) == (reading().max_bytes, reading().follow_links)
    with pytest.raises(ZeroDivisionError), read_with(max_bytes=1):
        raise ZeroDivisionError
    assert (reading().max_bytes, reading().follow_links) == (4 * 2**30, False)


def test_the_limit_itself_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\nb")
    with read_with(max_bytes=7):
        assert read_limited(tmp_path / "a") == b"\xef\xbb\xbfa\r\nb"
        assert read_text_limited(tmp_path / "a", encoding="utf-8-sig") == "a\nb"
    with read_with(max_bytes=6), pytest.raises(InputTooLarge, match="more than 6 bytes") as error:
        read_limited(tmp_path / "a")
    assert error.value.file == str(tmp_path / "a")
    with pytest.raises(InputTooLarge, match="a: has more than 6 bytes, too many for such a file; it is damaged"):
        read_limited(tmp_path / "a", most=6)
    with read_with(max_bytes=6), pytest.raises(InputTooLarge, match="raise the limit"):  # the lower of both
        check_size(7, "a", most=100)


class Endless(io.RawIOBase):
    """A file without a size that goes on for ever; it counts what was asked for."""

    given = 0

    def read(self, size=-1):
        self.given += size
        return bytes(size)


def test_what_has_no_size_is_read_up_to_the_limit():
    file = Endless()
    with read_with(max_bytes=10_000_000), pytest.raises(InputTooLarge, match="x: has more than 10,000,000 bytes"):
        list(pieces(file, "x"))
    assert file.given < 15_000_000


def test_files_of_a_fixed_kind_have_limits_of_their_own(tmp_path):
    with pytest.raises(InputError, match="config.json: has more than 134,217,728 bytes, too many for such a file"):
        read_json(sparse(tmp_path / "config.json", 2**40))
    with pytest.raises(InputError, match="run.yaml: has more than 1,048,576 bytes, too many for such a file"):
        load_config(dict, sparse(tmp_path / "run.yaml", 2**40), [])
    with pytest.raises(UsageError, match="x: has more than 1,048,576 characters, too many for a config"):
        parse_yaml("a: 1\n" * 300_000, "x")


class Typed(io.RawIOBase):
    """A terminal, which ends a read at every Ctrl-D, and does not remember it."""

    typed = [b"a line\n", b"", b"what another program should get\n", b""]

    def __init__(self):
        self.left = list(self.typed)

    def readable(self):
        return True

    def readinto(self, place):
        line = self.left.pop(0)
        place[: len(line)] = line
        return len(line)


def test_one_end_of_input_ends_what_is_typed():
    assert list(pieces(io.BufferedReader(Typed()), "-")) == [b"a line\n"]


def test_json_is_refused_by_what_it_would_take(tmp_path):
    """Small objects take twenty times their bytes; long texts do not."""
    (tmp_path / "a.json").write_bytes(b'{"a": [' + b"[]," * 30_000 + b"[]]}")
    (tmp_path / "b.json").write_bytes(b'{"a": "' + b"x" * 90_000 + b'"}')
    (tmp_path / "a.jsonl").write_bytes(b'{"a": [' + b"0," * 45_000 + b"0]}")
    with read_with(max_bytes=1_000_000):
        assert len(read_json(tmp_path / "b.json")["a"]) == 90_000
        with pytest.raises(InputTooLarge, match="a.json: its JSON takes about 2,.* more than 1,000,000; .*max_b"):
            read_json(tmp_path / "a.json")
        with pytest.raises(InputTooLarge, match="a.jsonl:1: its JSON takes about 1,440,"):
            list(read_json_lines(tmp_path / "a.jsonl", "rows"))
    assert len(read_json(tmp_path / "a.json")["a"]) == 30_001
