"""Trees in Parquet, Arrow and JSON: exact round trips, whole files, and every wrong cell refused by its row."""

import json
import re

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.tiers import examples
from support.trees import ARRAYS, cases, int64, make_case

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.chunking.tree.tree_files import from_json, load_trees, save_trees, to_json
from qrag_jax.types import InputError, UsageError

KINDS = (".parquet", ".arrow")
CASES = [
    make_case(["a", ["b", "c"], "d"], 1, "first"),
    make_case("a", 2, "second"),
    make_case([["a", "b"], ["c", "d"]], 3, "\u4eca third\x00"),
]
TREES = [tree for _, tree in CASES]
DOCUMENTS = {document.id: document for document, _ in CASES}


def rewrite(path, change) -> None:
    """The columns of a saved file, changed."""
    columns = pq.read_table(path).to_pydict()
    change(columns)
    types = {"document_id": pa.string(), "leaf": pa.bool_()}
    pq.write_table(pa.table({k: pa.array(v, types.get(k, pa.int64())) for k, v in columns.items()}), path)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_is_exact(tmp_path, kind):
    path = tmp_path / "new" / f"trees{kind}"
    save_trees(TREES, path)
    assert load_trees(path) == TREES
    assert load_trees(str(path), DOCUMENTS) == TREES
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", KINDS)
@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(cases(), max_size=4))
def test_random_trees_come_back(tmp_path, kind, given_cases):
    """Also several of one document, and none at all."""
    path = tmp_path / f"trees{kind}"
    trees = [tree for _, tree in given_cases]
    save_trees(trees, path)
    back = load_trees(path)
    assert back == trees
    assert all(from_json(to_json(tree)) == tree for tree in trees)


@pytest.mark.parametrize("kind", KINDS)
def test_datasets_reads_it(tmp_path, kind):
    path = tmp_path / f"trees{kind}"
    save_trees(TREES, path)
    if kind == ".parquet":
        read = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    else:
        read = datasets.Dataset.from_file(str(path))
    assert isinstance(read, datasets.Dataset)
    assert {name: value.dtype for name, value in read.features.items()} == {
        "tree": "int64",
        "document_id": "string",
        "start": "int64",
        "end": "int64",
        "level": "int64",
        "parent": "int64",
        "leaf": "bool",
    }
    assert len(read) == sum(len(tree) for tree in TREES)
    assert read["start"][:] == np.concatenate([tree.start for tree in TREES]).tolist()


def test_every_wrong_cell_is_refused_by_its_file_and_a_row(tmp_path):
    path = tmp_path / "trees.parquet"
    save_trees(TREES, path)
    good = path.read_bytes()
    columns = pq.read_table(path).to_pydict()
    others = {
        "document_id": lambda _: ["other", *DOCUMENTS],
        "leaf": lambda value: [not value],
    }
    for name, values in columns.items():
        for row, value in enumerate(values):
            for other in others.get(name, lambda value: [value - 1, value + 1, -1, 0, 3])(value):
                if other != value:
                    path.write_bytes(good)
                    rewrite(path, lambda c, name=name, row=row, other=other: c[name].__setitem__(row, other))
                    with pytest.raises(InputError, match=re.escape(f"{path}: row ") + r"\d+: "):
                        load_trees(path, DOCUMENTS)


@pytest.mark.parametrize(
    ("name", "row", "value", "message"),
    [
        ("tree", 0, 1, "row 0: tree 1: trees are numbered from 0, one after the other"),
        ("tree", 7, 5, "row 7: tree 5: trees are numbered from 0, one after the other"),
        ("tree", 7, None, "row 7: tree is missing"),
        ("document_id", 2, "other", "row 2: document_id 'other': tree 0 has 'first'"),
        ("document_id", 6, "other", "row 6: document_id 'other': not among the documents given"),
        ("parent", 6, 0, "row 6: second: node 0: parent 0: must be -1 for the root"),
        ("level", 7, 9, "row 7: \u4eca third\x00: node 0: level 9: must be 0 for the root"),
        ("end", 13, 10**9, "row 7: \u4eca third\x00: node 0: end is"),
        ("leaf", 3, False, "row 3: first: node 3: leaves [1] is 4: expected 3, the next node without children"),
    ],
)
def test_errors_name_file_row_and_field(tmp_path, name, row, value, message):
    path = tmp_path / "trees.parquet"
    save_trees(TREES, path)
    rewrite(path, lambda columns: columns[name].__setitem__(row, value))
    with pytest.raises(InputError, match=re.escape(f"{path}: {message}")):
        load_trees(path, DOCUMENTS)


def test_columns_that_are_missing_or_of_another_type(tmp_path):
    path = tmp_path / "trees.parquet"
    save_trees(TREES, path)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["level"]), path)
    with pytest.raises(InputError, match=re.escape(f"{path}: column level is missing; it has ['tree', 'document_id'")):
        load_trees(path)
    pq.write_table(table.set_column(2, "start", table["start"].cast(pa.float64())), path)
    with pytest.raises(InputError, match=re.escape(f"{path}: column start is double: expected int64")):
        load_trees(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file(tmp_path, kind):
    path = tmp_path / f"trees{kind}"
    save_trees(TREES, path)
    whole = path.read_bytes()
    for part in (b"", whole[: len(whole) // 2], b"PAR1" + whole[4:100]):
        path.write_bytes(part)
        with pytest.raises(InputError, match=re.escape(f"{path}: cannot be read as {kind}")):
            load_trees(path)


def test_places_that_cannot_be(tmp_path):
    with pytest.raises(UsageError, match=r"trees.csv: unknown kind of file for trees; give .parquet or .arrow"):
        save_trees(TREES, tmp_path / "trees.csv")
    with pytest.raises(UsageError, match=r"trees.csv: unknown kind of file"):
        load_trees(tmp_path / "trees.csv")
    with pytest.raises(UsageError, match=r"no.parquet: no such file"):
        load_trees(tmp_path / "no.parquet")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"trees.parquet: cannot be written \(.*\); give another path"):
        save_trees(TREES, tmp_path / "file" / "trees.parquet")
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(UsageError, match=r"folder.parquet: cannot be written \(.*\); give another path"):
        save_trees(TREES, tmp_path / "folder.parquet")


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "trees.parquet"
    save_trees(TREES[:1], path)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UsageError, match="No space left on device"):
        save_trees(TREES, path)
    assert load_trees(path) == TREES[:1]
    assert list(tmp_path.iterdir()) == [path]


def test_an_id_that_is_no_unicode_text(tmp_path):
    tree = ChunkTree("bad\ud800", int64(0), int64(1), int64(0), int64(-1), int64(0))
    with pytest.raises(InputError, match=r"document id 'bad\\ud800': cannot be written \(surrogates not allowed\)"):
        save_trees([TREES[0], tree], tmp_path / "trees.parquet")
    assert from_json(to_json(tree)) == tree


def test_json_is_one_line_of_the_fields():
    text = to_json(TREES[1])
    assert "\n" not in text
    assert list(json.loads(text)) == ["document_id", *ARRAYS]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("start", "0", "start '0': expected a list of whole numbers"),
        ("start", [0.0], r"start\[0\] 0.0: expected a whole number of 64 bits"),
        ("leaves", [True], r"leaves\[0\] True: expected a whole number"),
        ("end", [2**63], r"end\[0\] 9223372036854775808: expected a whole number of 64 bits"),
        ("document_id", 3, "document_id 3: expected a string"),
        ("level", [1], "doc: node 0: level 1: must be 0 for the root"),
        ("other", 1, "expected an object of document_id, start, end, level, parent, leaves, not"),
    ],
)
def test_json_that_is_no_tree(name, value, message):
    good = {"document_id": "doc", "start": [0], "end": [1], "level": [0], "parent": [-1], "leaves": [0]}
    from_json(json.dumps(good))
    with pytest.raises(InputError, match=message):
        from_json(json.dumps({**good, name: value}))


@pytest.mark.parametrize("text", ["", "{", "[" * 10**5, "\ud800"])
def test_what_is_no_json(text):
    with pytest.raises(InputError, match="chunk tree: not JSON"):
        from_json(text)


def test_json_of_another_kind():
    with pytest.raises(InputError, match="chunk tree: expected an object of .* not list"):
        from_json("[]")
