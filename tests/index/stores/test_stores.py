"""One suite for all stores of vectors: what a search finds in them, and what writers leave there."""

import hashlib
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.catalogue_store import CatalogueStore
from support.indices import NOTED, SETTINGS, chunk_lines, count_words, update, write_notes, write_people
from support.milvus import running_server
from support.study import Counts
from support.tiers import PATIENCE

from qrag_jax.documents.read import find_files
from qrag_jax.errors import InputError, InputWarning, UsageError
from qrag_jax.index.load import load_index, load_noted_index
from qrag_jax.index.prepare import Maker
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.settings import read_settings
from qrag_jax.index.shards import build_shard, merge_shards
from qrag_jax.index.stores.sqlite.database import reading_from
from qrag_jax.index.update import Plan
from qrag_jax.names import STORES
from qrag_jax.search.hybrid import make_single_step
from qrag_jax.search.note_search import make_noted_retrieve
from qrag_jax.search.store import StoredVectors, StorePlace, documents_of, keys_of

ROOT = Path(__file__).parents[3]
DIM = 16


class RandomEncoder:
    """A random vector for each text, of length 1."""

    fingerprint, counts = "random", Counts(0, 0, 0)

    def __call__(self, texts, progress=None):
        seeds = [list(hashlib.sha256(text.encode()).digest()) for text in texts]
        rows = np.array([np.random.default_rng(seed).normal(size=DIM) for seed in seeds], np.float32).reshape(-1, DIM)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def load_random():
    return Maker(chunk_lines, RandomEncoder(), count_words)


def build(folder, *paths, **more):
    return update(folder, *paths, make=load_random, **more)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("pymilvus")
    with running_server(tmp_path_factory.mktemp("milvus")) as uri:
        yield uri


@pytest.fixture(params=["sqlite", pytest.param("milvus", marks=pytest.mark.oracle)])
def settings(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uri = request.getfixturevalue("server") if request.param == "milvus" else ""
    return replace(SETTINGS, store=request.param, uri=uri)


@pytest.fixture
def milvus(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return replace(SETTINGS, store="milvus", uri=server)


def opened(folder):
    settings = read_settings(folder)
    place = StorePlace(Path(folder), settings.uri, settings.collection)
    return STORES.load(settings.store)(place) or CatalogueStore(place.folder)


def check_store(folder):
    """The store has the vectors of all leaves of the catalogue, and nothing else."""
    corpus, store, catalogue = load_index(folder), opened(folder), CatalogueStore(Path(folder))
    query = RandomEncoder()(["a question"])[0]
    (keys, scores), (wanted, exact) = (one.search(query, 10_000) for one in (store, catalogue))
    assert keys.tolist() == wanted.tolist() and len(keys) == len(corpus.leaves)
    np.testing.assert_allclose(scores, exact, atol=1e-6)
    np.testing.assert_array_equal(store.read(keys[::-1]), catalogue.read(keys[::-1]))
    return store, documents_of(keys)


def found_by(noted, store):
    """The corpus as searched with the help of a store, also of the catalogue."""
    if noted.corpus.stored is not None:
        return noted
    with reading_from(Path("i")) as connection:
        numbers = {key.decode(): number for key, number in connection.execute("SELECT id, number FROM ledger")}
    stored = StoredVectors(store, StorePlace(Path("i")), numbers)
    stored.store = CatalogueStore(Path("i"))
    return replace(noted, corpus=replace(noted.corpus, stored=stored))


def questions(number, num_people):
    rng = np.random.default_rng(1)
    for _ in range(number):
        one, other, day = rng.integers(num_people), rng.integers(num_people), rng.integers(10)
        yield f"What does Person{one:04} know about person {other}, of day {day}?"


def test_the_first_ten_of_a_thousand_are_those_of_the_catalogue(settings):
    num_people, number = (100, 200) if settings.store == "milvus" else (30, 10)
    build("i", write_people("notes", num_people), settings=replace(settings, notes=NOTED.notes))
    noted = found_by(load_noted_index("i"), settings.store)
    plain = replace(noted, corpus=replace(noted.corpus, stored=None))
    assert len(noted.corpus.leaves) == 10 * num_people and len(noted.notes) >= 8 * num_people
    encoder = RandomEncoder()
    for name in ("dense", "hybrid", "bm25"):
        alone = make_single_step(name, encoder)
        ways = [(alone, alone), tuple(make_noted_retrieve(name, one, encoder, "best_of") for one in (plain, noted))]
        for question in questions(number, num_people):
            for known, asked in ways:
                wanted, found = known(question, plain.corpus, 10), asked(question, noted.corpus, 10)
                assert found.ids.tolist() == wanted.ids.tolist()
                assert found.scores.tolist() == wanted.scores.tolist()


class HalfKnown(RandomEncoder):
    """Knows no word with a letter beyond ASCII."""

    def unknown_shares(self, texts):
        return np.array([float(not text.isascii()) for text in texts])


def test_leaves_in_unknown_words_have_the_lowest_score_there_is(settings):
    files = {f"n{file:02}": "\n".join(f"{file} ash {n}." for n in range(20)) for file in range(20)}
    build("i", write_notes("notes", x="дуб и ясень растут\nash дуб", **files), settings=settings)
    noted = load_noted_index("i")
    near, search = found_by(noted, settings.store).corpus, make_single_step("hybrid", HalfKnown())
    alone = replace(noted.corpus, stored=None)
    for question in ("ash", "7 ash", "x", "дуб"):
        wanted, found = search(question, alone, 10), search(question, near, 10)
        assert found.ids.tolist() == wanted.ids.tolist() and found.scores.tolist() == wanted.scores.tolist()
    assert near.unknown_leaves(HalfKnown()).any()


def test_lists_that_are_too_short_are_made_longer(settings, monkeypatch):
    monkeypatch.setattr("qrag_jax.search.hybrid._LEAST_NEAR", 1)
    monkeypatch.setattr("qrag_jax.search.hybrid._MORE_NEAR", 1)
    build("i", write_people("notes", 20), settings=settings)
    noted = load_noted_index("i")
    near, alone = found_by(noted, settings.store).corpus, replace(noted.corpus, stored=None)
    for name in ("dense", "hybrid"):
        search = make_single_step(name, RandomEncoder())
        for question in questions(5, 20):
            wanted, found = search(question, alone, 3), search(question, near, 3)
            assert found.ids.tolist() == wanted.ids.tolist() and found.scores.tolist() == wanted.scores.tolist()


def test_a_search_is_masked_before_the_nearest_are_chosen(settings):
    build("i", write_people("notes", 20), settings=settings)
    store, documents = check_store("i")
    query, some = RandomEncoder()(["x"])[0], {3, 7, 15}
    for only, exclude, allowed in (
        (some, (), some), (None, some, set(documents) - some), (some, {7}, {3, 15}), ({999}, (), set()),
    ):  # fmt: skip
        keys, scores = store.search(query, 25, only, exclude)
        assert set(documents_of(keys)) <= allowed and len(keys) == min(25, 10 * len(allowed))
        assert (np.diff(scores) <= 0).all()
    corpus = load_index("i").only({"notes/person0003.md", "notes/person0005.md"})
    ranked = make_single_step("dense", RandomEncoder())("x", corpus, 10)
    whole = make_single_step("dense", RandomEncoder())("x", replace(corpus, stored=None), 10)
    assert ranked.ids.tolist() == whole.ids.tolist()


def test_writers_keep_it_equal_to_the_index(settings):
    notes = write_notes("notes", a="One.\nTwo.", b="Three.\nTwo.", c="Four.")
    build("i", notes, settings=settings)
    check_store("i")
    write_notes(notes, a="One.\nTwo.\nFive.", b=None, d="Six.")
    build("i", notes, settings=settings)
    store, documents = check_store("i")
    assert len(set(documents)) == 3
    remove_documents(Path("i"), ["notes/c.md"], make=load_random)
    _, fewer = check_store("i")
    assert set(fewer) < set(documents)
    with pytest.raises((InputError, KeyError, IndexError)):
        store.read(keys_of(999, np.arange(1)))


@pytest.mark.oracle
def test_an_index_may_change_its_store(milvus):
    notes = write_notes("notes", a="One.\nTwo.", b="Three.")
    build("i", notes)
    assert build("i", notes, settings=milvus).num_same == 2
    check_store("i")
    name = read_settings("i").collection
    build("i", notes, settings=SETTINGS)
    write_notes(notes, a="Another one.")
    build("i", notes, settings=SETTINGS)
    assert load_index("i").stored is None
    build("i", notes, settings=milvus)
    check_store("i")
    assert read_settings("i").collection == name


@pytest.mark.oracle
def test_shards_come_in_with_the_merge(milvus):
    notes = write_notes("notes", **{f"n{number}": f"Line {number}.\nMore {number}." for number in range(6)})
    for shard in range(2):
        assert build_shard(Path("i"), [notes], find_files([notes]), milvus, load_random, Plan(), shard, 2)
    assert merge_shards(Path("i")) == 6
    check_store("i")


DYING = """
import os, sys
import qrag_jax.index.stores.milvus as milvus
from test_stores import build, replace, SETTINGS
real = getattr(milvus.MilvusStore, {method!r})
def die(self, *args):
    real(self, *args) if {method!r} == "put" else None
    os._exit(9)
milvus.MilvusStore.{method} = die
build("i", "notes", settings=replace(SETTINGS, store="milvus", uri={uri!r}))
"""


@pytest.mark.oracle
@pytest.mark.parametrize("method", ["put", "remove"])
def test_a_writer_that_is_killed_between_vectors_and_commit_loses_nothing(milvus, method):
    notes = write_notes("notes", a="One.\nTwo.", b="Three.")
    build("i", notes, settings=milvus)
    write_notes(notes, a="Seven.\nEight.\nNine.")
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", Path(__file__).parent)))
    code = DYING.format(method=method, uri=milvus.uri)
    died = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=PATIENCE
    )
    assert died.returncode == 9, died.stderr.decode()
    stamps, corpus = opened("i").stamps(), load_index("i")
    assert len(stamps) == 3  # the old or the new vectors of a document, which the ledger lacks
    assert corpus.by_id["notes/a.md"].text.startswith("One" if method == "put" else "Seven")
    ranked = make_single_step("dense", RandomEncoder())("x", corpus, 10)
    assert sorted(ranked.ids.tolist()) == list(range(len(corpus)))
    changes = build("i", notes, settings=milvus)
    assert (changes.num_read, changes.num_same) == ((1, 1) if method == "put" else (0, 2))
    check_store("i")
    assert len(opened("i").stamps()) == 2


@pytest.mark.oracle
def test_what_the_store_has_lost_is_put_again(milvus):
    notes = write_notes("notes", a="One.\nTwo.", b="Three.")
    build("i", notes, settings=milvus)
    client, name = opened("i")._client, read_settings("i").collection
    client.delete(name, filter="document == 1")
    with pytest.warns(
        InputWarning, match="the store milvus has not all vectors of i, so hits are missing; search again"
    ):
        assert len(make_single_step("dense", RandomEncoder())("x", load_index("i"), 5)) == 1
    assert build("i", notes, settings=milvus).num_same == 2
    check_store("i")
    client.delete(name, filter="key == 16777217")  # a part of one
    build("i", notes, settings=milvus)
    check_store("i")
    client.drop_collection(name)
    build("i", notes, settings=milvus)
    check_store("i")


@pytest.mark.oracle
def test_rows_that_a_repair_numbers_anew_are_put_again(milvus):
    notes = write_notes("notes", a="One.", b="Two.", c="Three.")
    build("i", notes, settings=milvus)
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection, connection:
        connection.execute("UPDATE documents SET text = x'00' WHERE number = 1")
    build("i", notes, settings=milvus)
    check_store("i")


@pytest.mark.oracle
def test_a_store_that_is_lost_in_mid_search_is_said(milvus):
    build("i", write_notes("notes", a="One.\nTwo."), settings=milvus)
    corpus, search = load_index("i"), make_single_step("hybrid", RandomEncoder())
    assert len(search("x", corpus, 2)) == 2
    opened("i")._client.drop_collection(read_settings("i").collection)
    with pytest.raises(InputError, match=r"has no collection qrag_\w+ with the vectors of i; `qrag index add i PATHS"):
        search("x", corpus, 2)
    with pytest.raises(InputError, match=r"has no collection qrag_\w+"):
        search("x", load_index("i"), 2)
    assert len(search("x", load_index("i"), None)) == 2  # compares all vectors here


@pytest.mark.oracle
def test_a_collection_of_another_index_is_refused(milvus):
    notes = write_notes("notes", a="One.\nTwo.")
    build("i", notes, settings=milvus)
    client, name = opened("i")._client, read_settings("i").collection
    client.alter_collection_properties(name, {"qrag.index": "qrag_other"})
    with pytest.raises(InputError, match=r"belongs to the index qrag_other, not to i; give another server"):
        build("i", notes, settings=milvus)
    client.drop_collection(name)
    client.create_collection(name, dimension=4)
    with pytest.raises(InputError, match="belongs to another program, not to i"):
        make_single_step("dense", RandomEncoder())("x", load_index("i"), 2)


@pytest.mark.oracle
def test_a_collection_of_another_dimension_is_refused(milvus):
    notes = write_notes("notes", a="One.\nTwo.")
    build("i", notes, settings=milvus)
    store, name = opened("i"), read_settings("i").collection
    store._client.drop_collection(name)
    store._dim = 0
    store._make(DIM + 1)
    for fails in (lambda: build("i", notes, settings=milvus), lambda: opened("i").search(np.ones(DIM), 1)):
        with pytest.raises(InputError, match="has vectors of 17 numbers, those of i have 16; drop that collection"):
            fails()


@pytest.mark.oracle
def test_a_server_that_is_gone_is_said(tmp_path, monkeypatch):
    pytest.importorskip("pymilvus")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qrag_jax.index.stores.milvus._SECONDS", 3.0)
    notes = write_notes("notes", a="One.\nTwo.")
    with running_server(tmp_path / "milvus") as uri:
        settings = replace(SETTINGS, store="milvus", uri=uri)
        build("i", notes, settings=settings)
        corpus = load_index("i")
        corpus.stored.store.stamps()
    search = make_single_step("dense", RandomEncoder())
    for fails in (
        lambda: search("x", corpus, 2),
        lambda: search("x", load_index("i"), 2),
        lambda: build("i", notes, settings=settings),
        lambda: build("j", notes, settings=settings),
    ):
        with pytest.raises(InputError, match=rf"the Milvus server at {uri} does not answer .*start it or check"):
            fails()
    assert not Path("j/index.json").exists()
    assert build("i", notes, settings=SETTINGS).num_same == 1  # the way out


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("localhost:19530", "is no address of a Milvus server; give http:// or https://"),
        ("milvus.db", "is no address of a Milvus server"),
        ("http://ada:secret@host:1", r"'http://\.\.\.@host': has a user and password.*MILVUS_TOKEN"),
        ("http://localhost:1", r"pymilvus is not installed; run: pip install 'qrag_jax\[milvus\]'"),
    ],
)
def test_bad_addresses_and_a_missing_package_are_said(tmp_path, monkeypatch, uri, reason):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(UsageError, match=reason) as error:
        build("i", write_notes("notes", a="One."), settings=replace(SETTINGS, store="milvus", uri=uri))
    assert "secret" not in str(error.value) and not Path("i/index.json").exists()


def test_a_server_belongs_to_a_store_that_has_one():
    with pytest.raises(UsageError, match=r"store 'milvus': needs the address of its server; give it \(uri\)"):
        replace(SETTINGS, store="milvus")
    with pytest.raises(UsageError, match="store 'sqlite': has no server; leave uri out"):
        replace(SETTINGS, uri="http://localhost:19530")
