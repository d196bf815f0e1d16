"""Rows of a data set from every kind of source."""

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.exceptions import DatasetNotFoundError

from qrag_jax.data.dataset_rows import entries, one_line, read_rows, short, text_field
from qrag_jax.types import InputError, UsageError

ROWS = [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "c", "n": 3}]
LIST = json.dumps(ROWS, indent=1).encode()
LINES = "\n".join(json.dumps(row) for row in ROWS).encode()


def fields_of(source):
    return [fields for _, _, fields in read_rows(source, "rows")]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b" \n" + LIST),
        ("a.json.gz", gzip.compress(LIST, mtime=0)),
        ("a.json", b"\xef\xbb\xbf" + LIST),
        ("lines.json", LINES),
        ("lines.json.gz", gzip.compress(LINES, mtime=0)),
        ("a.jsonl", LINES),
        ("a.jsonl.gz", gzip.compress(LINES, mtime=0)),
    ],
)
def test_json_in_every_packing(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert fields_of(tmp_path / name) == fields_of(str(tmp_path / name)) == ROWS


def test_tables_and_saved_datasets(tmp_path):
    datasets.disable_progress_bars()
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=2)
    saved = datasets.Dataset.from_list(ROWS[::-1]).select([2, 1, 0])  # an index mapping over the stored rows
    saved.save_to_disk(str(tmp_path / "saved"))
    assert fields_of(tmp_path / "a.parquet") == fields_of(tmp_path / "saved") == ROWS


def test_places_and_default_ids(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\n" + LINES)
    (tmp_path / "a.json").write_bytes(LIST)
    pq.write_table(pa.Table.from_pylist(ROWS * 1000), tmp_path / "a.parquet")  # more than one batch
    lines, rows, table = [list(read_rows(tmp_path / f"a.{kind}", "rows")) for kind in ("jsonl", "json", "parquet")]
    assert lines[0][:2] == (f"{tmp_path}/a.jsonl:2", "a.jsonl:2")
    assert rows[2][:2] == (f"{tmp_path}/a.json: row 2", "a.json:2")
    assert table[2999][:2] == (f"{tmp_path}/a.parquet: row 2999", "a.parquet:2999")


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("owner/some-set@train", ("owner/some-set", None, "train")),
        ("owner/set.2:config-x@validation[:10%]", ("owner/set.2", "config-x", "validation[:10%]")),
    ],
)
def test_hub_ids(monkeypatch, source, asked):
    calls = []

    def load_dataset(name, config=None, *, split):
        calls.append((name, config, split))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert list(read_rows(source, "rows")) == [
        (f"{source}: row {number}", f"{source}:{number}", fields) for number, fields in enumerate(ROWS)
    ]
    assert calls == [asked]


def test_a_path_that_exists_is_no_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk("mine/set@train")
    assert fields_of("mine/set@train") == ROWS


@pytest.mark.parametrize(
    "error",
    [ConnectionError("no route"), ValueError("Unknown split"), RuntimeError("scripts"), DatasetNotFoundError("gone")],
)
def test_what_the_hub_refuses(monkeypatch, error):
    def load_dataset(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UsageError, match=rf"o/n:c@s: cannot be loaded from the hub \({error}\); check .*expected tea"):
        list(read_rows("o/n:c@s", "tea"))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b"[]", "a.json: no row; expected rows"),
        ("a.json", b"[{}, 3]", "a.json: row 1: expected a JSON object, got int"),
        ("a.json", b'[{"id": ', r"a.json: not JSON \(.*; expected"),
        ("a.json", b'{"id"', "a.json:1: not JSON"),
        ("a.json.gz", gzip.compress(LIST, mtime=0)[:-12], "a.json.gz: cannot be read"),
        ("a.jsonl", b"{}\n[1]", "a.jsonl:2: expected a JSON object, got list"),
        ("a.parquet", b"PAR", "a.parquet: cannot be read as .parquet"),
        ("a.csv", b"id,n", "a.csv: unknown kind of file; expected rows as .json or .jsonl"),
    ],
)
def test_refusals_of_files(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message):
        fields_of(tmp_path / name)


@pytest.mark.parametrize("name", ["no.json", "no.jsonl.gz", "no.parquet", "no", "sub/no@x.json"])
def test_a_missing_file_is_a_usage_error(tmp_path, name):
    with pytest.raises(UsageError, match=f"{name}: no such file; expected rows"):
        fields_of(tmp_path / name)


def test_a_dataset_of_several_splits_and_an_empty_table(tmp_path):
    datasets.disable_progress_bars()
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(UsageError, match=r"splits \['train'\]; give the folder of one"):
        fields_of(tmp_path / "splits")
    pq.write_table(pa.Table.from_pylist([], pa.schema([("id", pa.string())])), tmp_path / "none.parquet")
    with pytest.raises(InputError, match="none.parquet: no row"):
        fields_of(tmp_path / "none.parquet")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder: cannot be read as a saved dataset"):
        fields_of(tmp_path / "folder")


PAIRS = [["T", ["s"]], ["U", []]]
OBJECTS = [{"title": "T", "sentences": ["s"]}, {"title": "U", "sentences": []}]
COLUMNS = {"title": ["T", "U"], "sentences": [["s"], []]}


@pytest.mark.parametrize("layout", [PAIRS, OBJECTS, COLUMNS])
def test_entries_are_the_same_in_every_layout(layout):
    names = ("title", "sentences")
    assert entries({"context": layout}, "context", names, "f:1") == OBJECTS
    assert entries({"context": json.dumps(layout)}, "context", names, "f:1") == OBJECTS


@pytest.mark.parametrize("layout", [[], {}, {"title": [], "sentences": []}, "[]"])
def test_no_entries(layout):
    assert entries({"context": layout}, "context", ("title", "sentences"), "f:1") == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "context must be a list, got None"),
        (3, "context must be a list, got 3"),
        ("[[", "context is a text but not JSON"),
        ([["T"]], r"context\[0\] must be \[title, sentences\], got \['T'\]"),
        ([["T", [], 1]], r"context\[0\] must be \[title, sentences\]"),
        ([OBJECTS[0], "T"], r"context\[1\] must be \[title, sentences\], got 'T'"),
        ({"title": "T", "sentences": ["s"]}, "context must have columns of lists of one length"),
        ({"title": ["T"], "sentences": []}, "context must have columns of lists of one length"),
    ],
)
def test_refusals_of_entries(value, message):
    with pytest.raises(InputError, match=f"f:1: {message}"):
        entries({"context": value}, "context", ("title", "sentences"), "f:1")


def test_lists_where_only_objects_are_known():
    with pytest.raises(InputError, match=r"f:1: hops\[0\] must be an object, got \['a'\]"):
        entries({"hops": [["a"]]}, "hops", (), "f:1")


def test_small_parts():
    assert one_line(" a\u00a0 b\n\tc ") == "a b c"
    assert text_field("", "title", "f:1") == ""
    with pytest.raises(InputError, match="f:1: title must be a text, got 3"):
        text_field(3, "title", "f:1")
    assert short([1]) == "[1]"
    assert short("x" * 100) == "'" + "x" * 56 + "..."


def test_values_of_a_table_that_python_has_not(tmp_path):
    table = pa.table({"day": pa.array([1, 2**31 - 1], pa.int32()).cast(pa.date32())})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="a.parquet: a value cannot be read .*; is the file whole"):
        fields_of(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_texts_of_a_table_that_are_no_unicode(tmp_path, name):
    text = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
    if name == "a.parquet":
        pq.write_table(pa.table({"a": text}), tmp_path / name)
    else:
        with pa.ipc.new_stream(tmp_path / name, pa.schema([("a", pa.string())])) as out:
            out.write_table(pa.table({"a": text}))
    with pytest.raises(InputError, match=f"{name}: cannot be read as .*UTF8"):
        fields_of(tmp_path / name)
