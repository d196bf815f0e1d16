"""Text files and their errors."""

import gzip

import pytest

from qrag_jax.data.files.textfile import numbered_lines, plain_or_gz, read_json_lines, read_text_file, usual_file
from qrag_jax.types import InputError, UsageError


def test_plain_and_packed_text_without_a_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffcaf\u00e9".encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("caf\u00e9".encode()))
    assert read_text_file(tmp_path / "a.txt", "text") == read_text_file(tmp_path / "a.txt.gz", "text") == "caf\u00e9"


def test_lines_are_those_of_an_editor():
    assert list(numbered_lines("a\u2028b\r\n\n \nc\x0cd")) == [(1, "a\u2028b"), (4, "c\x0cd")]


def test_refusals(tmp_path):
    with pytest.raises(UsageError, match="none.txt: no such file; expected a poem"):
        read_text_file(tmp_path / "none.txt", "a poem")
    (tmp_path / "a.gz").write_bytes(b"plain")
    with pytest.raises(InputError, match="a.gz: cannot be read"):
        read_text_file(tmp_path / "a.gz", "text")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="a.txt: not UTF-8"):
        read_text_file(tmp_path / "a.txt", "text")
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    with pytest.raises(InputError, match="deep.jsonl:1: not JSON"):
        list(read_json_lines(tmp_path / "deep.jsonl", "objects"))


def test_the_compressed_file_only_where_there_is_no_plain_one(tmp_path):
    path = tmp_path / "a.jsonl"
    assert plain_or_gz(path) == path
    (tmp_path / "a.jsonl.gz").touch()
    assert plain_or_gz(path) == tmp_path / "a.jsonl.gz"
    path.touch()
    assert plain_or_gz(path) == path


def test_the_usual_file_of_a_folder(tmp_path):
    names = ("rows.jsonl", "rows.json")
    with pytest.raises(UsageError, match=r"with rows.jsonl or rows.json \(or .gz of it\); expected rows"):
        usual_file(tmp_path, names, "rows")
    (tmp_path / "rows.json").write_text("[]")
    assert usual_file(tmp_path, names, "rows") == tmp_path / "rows.json"
    (tmp_path / "rows.jsonl.gz").write_bytes(b"")
    assert usual_file(tmp_path, names, "rows") == tmp_path / "rows.jsonl.gz"
    (tmp_path / "other").write_text("{}")
    assert usual_file(tmp_path / "other", names, "rows") == tmp_path / "other"
    with pytest.raises(UsageError, match="none: neither"):
        usual_file(tmp_path / "none", names, "rows")
