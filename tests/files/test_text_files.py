"""Text files and their errors."""

import gzip
import tracemalloc

import pytest

from qrag_jax.files.text_files import (
    begins_with,
    numbered_lines,
    plain_or_gz,
    read_json_lines,
    read_text_file,
    usual_file,
)
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
    for name in ("x" * 300, "a\0b"):  # no file can have such a name
        with pytest.raises(UsageError, match="no such file"):
            read_text_file(tmp_path / name, "a text")
        with pytest.raises(UsageError, match="neither a file nor a folder"):
            usual_file(tmp_path / name, names, "rows")
    with pytest.raises(UsageError, match="none: neither"):
        usual_file(tmp_path / "none", names, "rows")


def test_json_lines_are_not_held_whole(tmp_path):
    first, other = ('{"a": "' + text + '"}' for text in ("x" * 1000, "\u00e9" * 999))
    (tmp_path / "a.jsonl").write_bytes(f"\ufeff{first}\n\n{(other + chr(13) + chr(10)) * 5_000}".encode())
    tracemalloc.start()
    try:
        rows = [(where, len(row["a"])) for where, row in read_json_lines(tmp_path / "a.jsonl", "rows")]
        assert tracemalloc.get_traced_memory()[1] < 14_000_000  # the file has 10 MB, which as text and lines took 30
    finally:
        tracemalloc.stop()
    assert rows[:2] == [(f"{tmp_path / 'a.jsonl'}:1", 1000), (f"{tmp_path / 'a.jsonl'}:3", 999)] and len(rows) == 5_001


@pytest.mark.parametrize(("content", "begins"), [("\ufeff \n[1]", True), ("[", True), ("{}", False), ("", False)])
def test_how_a_file_begins(tmp_path, content, begins):
    (tmp_path / "a.json").write_text(content)
    assert begins_with(tmp_path / "a.json", b"[", "a list") == begins


def test_the_line_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n' * 4 + b'{"a": "\xff"}\n')
    with pytest.raises(InputError, match="a.jsonl:5: not UTF-8 text .*position 7.* of the line"):
        list(read_json_lines(tmp_path / "a.jsonl", "rows"))
