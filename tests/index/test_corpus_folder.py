import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.passages import count, documents, lines_corpus, split_lines
from support.word_corpora import TEXTS, WordEncoder, make_tree

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.files.manifest import write_manifest
from qrag_jax.files.reading import InputTooLarge, read_with
from qrag_jax.index import corpus_folder as corpus_store
from qrag_jax.index.corpus_folder import load_corpus, save_corpus
from qrag_jax.search.corpus import build_corpus, embed_corpus, tree_corpus
from qrag_jax.search.hybrid import make_single_step
from qrag_jax.types import Chunk, Cost, Document, InputError, UsageError


def embedded():
    return build_corpus(
        documents(*TEXTS), split_lines, WordEncoder(), chunking=ChunkConfig("linkage", max_tokens=9), encoder="w"
    )


def odd():
    """Lone surrogates, NUL, line ends, several spans, metadata, a document without a node."""
    texts = (
        Document("\ud800.txt", "x \udfff\r\n\x00y", {"path": "\ud800", "page": 3, "of": ((0, 1), [()])}),
        Document("", "\u4eca\u5929"),
        Document("none", ""),
    )
    nodes = (Chunk("i\0", texts[0].id, ((0, 1), (2, 3)), 1, 2), Chunk("", "", ((0, 2),), 2, 0))
    return replace(lines_corpus("a"), documents=texts, nodes=nodes)


def trees():
    return embed_corpus(tree_corpus(documents(TEXTS[0]), [make_tree()], count), WordEncoder())


@pytest.mark.parametrize("make", [embedded, lambda: lines_corpus(*TEXTS), odd, trees])
def test_what_is_saved_is_what_is_loaded(tmp_path, make):
    corpus = make()
    save_corpus(corpus, tmp_path / "deep" / "corpus")
    loaded = load_corpus(str(tmp_path / "deep" / "corpus"))
    for name in ("documents", "nodes", "made_by", "cost", "num_beyond_window", "trees"):
        assert getattr(loaded, name) == getattr(corpus, name), name
    assert (loaded.vectors is None) == (corpus.vectors is None)
    if corpus.vectors is not None:
        assert loaded.vectors.dtype == np.float32 and loaded.vectors.tobytes() == corpus.vectors.tobytes()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["corpus"]


def test_a_loaded_corpus_is_asked_like_the_one_that_was_built(tmp_path):
    corpus = embedded()
    save_corpus(corpus, tmp_path / "c")
    loaded, encoder = load_corpus(tmp_path / "c"), WordEncoder()
    retrieve = make_single_step("hybrid", encoder)
    for question in ("six", "two three"):
        one, other = retrieve(question, corpus, None), retrieve(question, loaded, None)
        assert one.ids.tolist() == other.ids.tolist() and one.scores.tolist() == other.scores.tolist()
    assert all(len(call) == 1 for call in encoder.calls)  # no document was read again


FILES = ("corpus.json", "documents.parquet", "nodes.parquet", "trees.parquet", "vectors.npy", "manifest.json")


@pytest.mark.parametrize("name", FILES)
def test_damage_names_the_file(tmp_path, name):
    save_corpus(trees(), tmp_path / "c")
    path = tmp_path / "c" / name
    whole = path.read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(InputError, match=f"{name}: "):
            load_corpus(tmp_path / "c")
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=f"{name}: "):
        load_corpus(tmp_path / "c")
    path.unlink()
    with pytest.raises(InputError, match=f"{name}.*build the corpus again"):
        load_corpus(tmp_path / "c")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, r"corpus.json: format 3, this version reads \(1, 2\)"),
        ({"made_by": {"chunking": {"strategy": "magic"}}}, "the corpus is damaged.*strategy"),
        ({"cost": {"euros": 3}}, "the corpus is damaged.*euros"),
        ({"made_by": 3, "cost": None}, "corpus.json: made_by and cost must be a JSON object"),
        ({"has_vectors": True}, "vectors.npy: no such file"),
    ],
)
def test_what_a_newer_or_foreign_version_wrote_is_refused(tmp_path, changes, message):
    """The manifest fits, the values do not."""
    save_corpus(lines_corpus(*TEXTS), tmp_path / "c")
    path = tmp_path / "c" / "corpus.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    write_manifest(tmp_path / "c")
    with pytest.raises(InputError, match=message):
        load_corpus(tmp_path / "c")


def test_another_table_under_a_known_name(tmp_path):
    save_corpus(lines_corpus(*TEXTS), tmp_path / "c")
    (tmp_path / "c" / "documents.parquet").write_bytes((tmp_path / "c" / "nodes.parquet").read_bytes())
    write_manifest(tmp_path / "c")
    with pytest.raises(InputError, match=r"documents.parquet: columns .*: expected"):
        load_corpus(tmp_path / "c")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_beyond_window": "many"}, "num_beyond_window 'many': must be a count of the 4 nodes"),
        ({"num_beyond_window": 5}, "num_beyond_window 5: must be a count of the 4 nodes"),
        ({"num_beyond_window": -1}, "num_beyond_window -1: must be a count of the 4 nodes"),
        ({"num_beyond_window": True}, "num_beyond_window True"),
        ({"cost": {"seconds": []}}, "cost.seconds []: must be a JSON object"),
        ({"cost": {"seconds": {"embed": "1"}}}, "cost: embed '1': not a possible cost"),
        ({"cost": {"flops": float("nan")}}, "cost: flops nan: not a possible cost"),
        ({"cost": {"embedder_tokens": 0.5}}, "cost: embedder_tokens 0.5: not a possible cost"),
        ({"cost": {"dollars": -1}}, "cost: dollars -1: not a possible cost"),
    ],
)
def test_odd_counts_that_are_signed_are_refused(tmp_path, changes, message):
    save_corpus(embedded(), tmp_path / "c")
    about = json.loads((tmp_path / "c" / "corpus.json").read_text())
    (tmp_path / "c" / "corpus.json").write_text(json.dumps(about | changes))
    write_manifest(tmp_path / "c")
    with pytest.raises(InputError, match=re.escape(message) + ".*; build the corpus again"):
        load_corpus(tmp_path / "c")


@pytest.mark.parametrize("name", ["level", "num_tokens"])
def test_nodes_below_nothing_are_refused(tmp_path, name):
    save_corpus(embedded(), tmp_path / "c")
    path = tmp_path / "c" / "nodes.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index(name)
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array([-1] * len(table), pa.int64())), path)
    write_manifest(tmp_path / "c")
    with pytest.raises(InputError, match=rf"nodes\.parquet: row 0: .*{name} -1.*: below 0"):
        load_corpus(tmp_path / "c")


def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path):
    save = "import os, sys; from qrag_jax.index import corpus_folder as store; from test_corpus_folder import embedded"
    kill = "store.write_manifest = lambda folder: os.kill(os.getpid(), 9); store.save_corpus(embedded(), sys.argv[1])"
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    killed = subprocess.run(
        [sys.executable, "-c", f"{save}; {kill}", tmp_path / "c"], env=os.environ | {"PYTHONPATH": paths}, check=False
    )
    assert killed.returncode == -9
    assert [path.name for path in tmp_path.iterdir()] == [".save-c"]
    assert any((tmp_path / ".save-c" / "new").iterdir())
    save_corpus(lines_corpus(*TEXTS), tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert load_corpus(tmp_path / "c").nodes == lines_corpus(*TEXTS).nodes


def test_a_corpus_that_is_being_saved_is_told_by_whom(tmp_path):
    with lock_folder(tmp_path / ".save-c", "save_corpus"), ThreadPoolExecutor(1) as pool:
        with pytest.raises(UsageError, match=f"in use by save_corpus .process {os.getpid()} "):
            pool.submit(save_corpus, embedded(), tmp_path / "c").result()
    assert list(tmp_path.iterdir()) == []
    save_corpus(embedded(), tmp_path / "c")


def test_a_link_beside_is_not_followed(tmp_path):
    (tmp_path / "mine" / "new").mkdir(parents=True)
    (tmp_path / ".save-c").symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match=".save-c: is a link, but its name is needed"):
        save_corpus(embedded(), tmp_path / "c")
    assert (tmp_path / "mine" / "new").is_dir()


def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus_store, "write_manifest", full)
    with pytest.raises(OSError, match="No space"):
        save_corpus(embedded(), tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_refusals(tmp_path):
    for name in (".", "absent"):
        with pytest.raises(UsageError, match="no corpus here"):
            load_corpus(tmp_path / name)
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("")
    for name, message in (("file", "is a file"), ("full", "is not empty")):
        with pytest.raises(UsageError, match=f"{name}: {message}; give a folder that is empty or does not exist"):
            save_corpus(lines_corpus("a"), tmp_path / name)
    with pytest.raises(UsageError, match="cannot be made"):
        save_corpus(lines_corpus("a"), tmp_path / "file" / "below")
    unknown = embed_corpus(lines_corpus("a"), lambda texts: np.ones((1, 2), np.float32))
    with pytest.raises(InputError, match="its vectors have no fingerprint"):
        save_corpus(unknown, tmp_path / "c")
    strange = replace(lines_corpus("a"), documents=(Document("a.txt", "a", {"made": object()}),))
    with pytest.raises(InputError, match=r"document 'a.txt': metadata\['made'\] cannot be stored exactly as JSON"):
        save_corpus(strange, tmp_path / "c")
    assert not (tmp_path / "c").exists()


class _Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {1: "one"}}, r"metadata\['a'\].*key 1"),
        ({1: "one"}, "metadata .*key 1"),
        ({"a": [0, np.float64(1.5)]}, r"metadata\['a'\]\[1\].*numpy.float64"),
        ({"a": np.int64(1)}, r"metadata\['a'\].*numpy.int64"),
        ({"a": (float("nan"),)}, r"metadata\['a'\]\[0\].*nan is not finite"),
        ({"a": _Text("b")}, r"metadata\['a'\].*_Text"),
        ({"a": {"$tuple": [1]}}, r"metadata\['a'\].*key '\$tuple'"),
    ],
)
def test_metadata_that_would_come_back_as_others_are_refused(tmp_path, value, place):
    corpus = replace(lines_corpus("a"), documents=(Document("a.txt", "a", value),))
    with pytest.raises(InputError, match=f"document 'a.txt': {place}"):
        save_corpus(corpus, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
    endless: dict = {}
    endless["a"] = [endless]
    with pytest.raises(InputError, match="metadata contain themselves"):
        save_corpus(replace(corpus, documents=(Document("a.txt", "a", endless),)), tmp_path / "c")


def test_what_format_1_wrote_is_read_as_it_stands(tmp_path):
    """It knew no tuples, so nothing in it stands for one."""
    save_corpus(odd(), tmp_path / "c")
    path = tmp_path / "c" / "corpus.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    write_manifest(tmp_path / "c")
    found = load_corpus(tmp_path / "c").documents[0].metadata["of"]
    assert found == {"$tuple": [{"$tuple": [0, 1]}, [{"$tuple": []}]]}


@pytest.mark.parametrize("metadata", ["{", "[1]", "9" * 5_000, '{"of": {"$tuple": 3}}'])
def test_metadata_that_are_no_object_are_refused(tmp_path, metadata):
    """The manifest fits, the values do not."""
    save_corpus(odd(), tmp_path / "c")
    path = tmp_path / "c" / "documents.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("metadata")
    column = pa.array([metadata] * len(table), table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), path)
    write_manifest(tmp_path / "c")
    with pytest.raises(InputError, match="documents.parquet: metadata of "):
        load_corpus(tmp_path / "c")


def test_places_that_no_folder_can_be_moved_to_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_store, "_write", lambda *_: pytest.fail("written"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "nowhere").symlink_to("absent")
    monkeypatch.chdir(tmp_path / "empty")
    for name, message in (("../link", "is a link"), ("../nowhere", "is a link"), (".", "is the current folder")):
        with pytest.raises(UsageError, match=message):
            save_corpus(lines_corpus("a"), name)


def test_a_folder_that_cannot_be_moved_into_its_place_is_told(tmp_path, monkeypatch):
    """As where a disk is mounted, or another process was quicker."""
    write = corpus_store._write

    def write_late(corpus, folder):
        write(corpus, folder)
        (tmp_path / "c" / "other").mkdir(parents=True)

    monkeypatch.setattr(corpus_store, "_write", write_late)
    with pytest.raises(UsageError, match="c: cannot be put there .*give a new folder"):
        save_corpus(lines_corpus("a"), tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path):
    corpus = lines_corpus("a")
    cost = Cost({"chunk": np.float32(0.5)}, embedder_tokens=np.int64(3), flops=np.float64(2))
    save_corpus(replace(corpus, cost=cost, num_beyond_window=np.int64(1)), tmp_path / "c")
    loaded = load_corpus(tmp_path / "c")
    assert loaded.cost == Cost({"chunk": 0.5}, embedder_tokens=3, flops=2.0) and loaded.num_beyond_window == 1


@pytest.mark.parametrize(
    ("text", "name"), [("one two " * 20_000, "documents.parquet"), ("one two\n" * 5_000, "nodes.parquet")]
)
def test_a_corpus_above_the_limit_is_saved_with_the_way_to_load_it(tmp_path, text, name):
    corpus = lines_corpus(text)
    with read_with(max_bytes=50_000), pytest.warns(UserWarning, match=f"c: {name} has .* more than the 50,000") as told:
        save_corpus(corpus, tmp_path / "c")
    with read_with(max_bytes=50_000), pytest.raises(InputTooLarge, match=f"{name}: has more than 50,000 bytes"):
        load_corpus(tmp_path / "c")
    enough = int(re.search(r"max_bytes=(\d+)\)", str(told[0].message))[1])
    with read_with(max_bytes=enough):
        assert load_corpus(tmp_path / "c").nodes == corpus.nodes


_SHAPE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}"


@pytest.mark.parametrize("shape", [b"3, 1000000000000,", b"3, 99999999999999999999,", b"3, 5", b"3, 4,", b"3, 0,"])
def test_vectors_whose_header_promises_what_is_not_there(tmp_path, shape):
    """What somebody shares may be signed anew: it made room for terabytes, or ended in an error of NumPy's parser."""
    save_corpus(lines_corpus("a", "b", "c"), tmp_path / "c")
    header = _SHAPE % shape + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(100)
    (tmp_path / "c" / "vectors.npy").write_bytes(content)
    about = json.loads((tmp_path / "c" / "corpus.json").read_text())
    (tmp_path / "c" / "corpus.json").write_text(json.dumps({**about, "has_vectors": True}))
    (tmp_path / "c" / "manifest.json").unlink()
    write_manifest(tmp_path / "c")
    with pytest.raises(InputError, match="build the corpus again"):
        load_corpus(tmp_path / "c")


@pytest.mark.parametrize("value", ["\ud83d\ude00", {"\ud83d\ude00": 1}, 10**5_000], ids=["text", "key", "digits"])
def test_metadata_that_json_would_join_or_cannot_write(tmp_path, value):
    corpus = build_corpus([Document("d", "a b", {"page": value})], split_lines)
    with pytest.raises(InputError, match="document 'd': metadata"):
        save_corpus(corpus, tmp_path / "c")


def test_a_folder_has_the_rights_and_any_name_that_the_system_allows(tmp_path):
    before = os.umask(0o077)
    try:
        save_corpus(embedded(), tmp_path / "caf\udce9")
    finally:
        os.umask(before)
    assert load_corpus(tmp_path / "caf\udce9").texts == embedded().texts
    assert (tmp_path / "caf\udce9").stat().st_mode & 0o777 == 0o700
    with pytest.raises(UsageError, match=r"cannot be made \(.*embedded null"):
        save_corpus(embedded(), "nul\0")
