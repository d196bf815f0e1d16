"""An index that is searched on disk finds what the same index in memory finds, whatever was added, changed, removed."""

import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.indices import FILM, LEE, NOTED, RAIN, HashEncoder, load_maker, note, update, write_notes
from support.tiers import slow_but

from qrag_jax.files.array_file import ArrayFile
from qrag_jax.files.sqlite import Damaged
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_index, load_noted_index
from qrag_jax.index.parts import make, near, part
from qrag_jax.index.parts.make import Moved, damaged_files
from qrag_jax.index.parts.part import StoredPart
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.settings import read_settings
from qrag_jax.index.stored_corpus import open_corpus, open_notes
from qrag_jax.search.hybrid import rank_dense, rank_hybrid
from qrag_jax.search.note_search import NotedCorpus, NoteSearch, rank_noted

NO_VECTORS = np.zeros((0, 8), np.float32), np.zeros((0, 8), np.float32), np.zeros(0, np.int64)
I = Path("i")  # noqa: E741
QUESTIONS = ("Who directed Up Down?", "red wine rain", "Ann Lee", "nothing")
TEXTS = [FILM, LEE, RAIN, "# Red Wine\nIt is made of grapes.\n", "Ann Lee likes Red Wine.\nRain falls on Ann Lee.\n"]


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_notes("notes", up_down=FILM, ann_lee=LEE, weather=RAIN)


def opened(choose=None):
    settings = read_settings(I)
    corpus = open_corpus(I, settings, choose)
    return corpus, open_notes(corpus) if settings.has_notes else NotedCorpus(corpus, (), *NO_VECTORS)


def check(corpus, noted, oracle):
    """All that a search reads is equal to what is in memory."""
    assert corpus.documents == oracle.corpus.documents and corpus.nodes == oracle.corpus.nodes
    assert corpus.full_texts == oracle.corpus.full_texts and dict(corpus.by_id) == oracle.corpus.by_id
    assert dict(corpus.by_chunk) == oracle.corpus.by_chunk and corpus.made_by == oracle.corpus.made_by
    assert corpus.num_beyond_window == oracle.corpus.num_beyond_window
    keys = [[one.copy_key(node) for node in range(len(one.nodes))] for one in (corpus, oracle.corpus)]
    assert keys[0] == keys[1]
    for name in ("leaves", "num_tokens", "vectors"):
        assert np.array_equal(getattr(corpus, name), getattr(oracle.corpus, name)), name
    assert np.array_equal(corpus.unit_vectors[:], oracle.corpus.unit_vectors)
    assert noted.notes == oracle.notes and np.array_equal(noted.vectors[:], oracle.vectors)
    for name in ("answering", "asking", "num_tokens", "keys", "groups"):
        assert np.array_equal(getattr(noted, name), getattr(oracle, name)), name
    embed = HashEncoder()
    for question in QUESTIONS:
        for mine, theirs in ((corpus.words, oracle.corpus.words), (noted.words, oracle.words)):
            assert np.array_equal(mine.shares(question), theirs.shares(question))
        for top_k in (1, 3, None):
            both = [rank_hybrid(question, one, embed, top_k) for one in (corpus, oracle.corpus)]
            both += [rank_noted(question, one, embed, NoteSearch(words_weight=0.5), top_k) for one in (noted, oracle)]
            for mine, theirs in (both[:2], both[2:]):
                assert np.array_equal(mine.ids, theirs.ids) and np.array_equal(mine.scores, theirs.scores)


@pytest.mark.parametrize("seed", slow_but([0], range(3), [1]))
def test_after_any_changes_it_is_as_in_memory(notes, seed, monkeypatch):
    monkeypatch.setattr(make, "_MOST_BYTES", 200)  # many parts
    rng = random.Random(seed)
    for _ in range(5):
        name = f"n{rng.randrange(5)}"
        there = Path(notes, f"{name}.md").exists()
        if there and rng.random() < 0.4:
            write_notes(notes, **{name: None})
        else:
            write_notes(notes, **{name: rng.choice(TEXTS)})
        note("i", notes)
        check(*opened(), load_noted_index("i"))
    assert damaged_files(I) == [] and index_info("i", verify=True).is_whole
    chosen = {"notes/up_down.md", "notes/ann_lee.md"}
    few = load_noted_index("i", lambda names: [name for name in names if name in chosen])
    check(*opened(lambda names: [name for name in names if name in chosen]), few)
    whole = opened()[1].only(chosen)
    check(whole.corpus, whole, few)


def test_without_files_it_is_read_from_the_catalogue(notes):
    note("i", notes)
    shutil.rmtree("i/search")
    check(*opened(), load_noted_index("i"))
    write_notes(notes, more=TEXTS[3])
    note("i", notes)
    assert len(list(Path("i/search").iterdir())) == 2  # of documents and of notes, with all of them
    check(*opened(), load_noted_index("i"))


def test_a_note_follows_the_document_that_it_comes_from(notes):
    note("i", notes)
    with_more = f"{FILM}\n\nOne more line.\n"
    before = [(one.asking, one.text) for one in load_noted_index("i").notes]
    write_notes(notes, up_down=with_more)
    note("i", notes)
    assert before[0] in [(one.asking, one.text) for one in load_noted_index("i").notes]  # the same, from a new row
    check(*opened(), load_noted_index("i"))


@pytest.mark.filterwarnings("ignore:notes. chunks with inserted notes exceed")
@pytest.mark.parametrize("mode", ["insert", "all", "random", "walk"])
def test_notes_are_used_in_each_way(notes, mode):
    note("i", notes)
    noted, oracle, embed = opened()[1], load_noted_index("i"), HashEncoder()
    for question in QUESTIONS:
        mine, theirs = (rank_noted(question, one, embed, NoteSearch(mode), 3) for one in (noted, oracle))
        assert np.array_equal(mine.ids, theirs.ids) and np.array_equal(mine.scores, theirs.scores)


def test_files_of_another_index_are_not_used(notes):
    note("i", notes)
    shutil.copytree("i/search", "kept")
    write_notes(notes, up_down=TEXTS[3])
    note("i", notes)
    shutil.rmtree("i/search")
    shutil.copytree("kept", "i/search")
    check(*opened(), load_noted_index("i"))


def test_files_of_another_version_are_not_used_and_made_again(notes, monkeypatch):
    with monkeypatch.context() as then:
        then.setattr(part, "_VERSION", [1, 0])
        note("i", notes)
    old = set(Path("i/search").iterdir())
    assert damaged_files(I) == []
    check(*opened(), load_noted_index("i"))
    note("i", notes)
    assert len(old) == 2 and not old & set(Path("i/search").iterdir())
    check(*opened(), load_noted_index("i"))


def test_small_files_are_merged_and_large_ones_are_left(notes):
    write_notes(notes, long="\n".join(f"Line {number}." for number in range(40)) + "\n")
    update("i", notes)
    (first,) = Path("i/search").iterdir()
    for number in range(4):
        write_notes(notes, **{f"n{number}": "One more.\n"})
        update("i", notes)
    names = {path.name for path in Path("i/search").iterdir()}
    assert first.name in names and len(names) == 2
    write_notes(notes, long=None)
    update("i", notes)
    assert not first.exists()  # most of its rows were gone
    check(*opened(), load_noted_index("i"))


@pytest.mark.parametrize("kind", ["int8", "float16"])
def test_codes_are_compared_first_and_the_best_exactly(notes, kind):
    write_notes(notes, long="\n".join(f"Line {number}." for number in range(40)) + "\n")
    note("i", notes)
    note("i", notes, settings=replace(NOTED, vectors=kind))
    assert read_settings(I).vectors == kind
    corpus, noted = opened()
    assert corpus.unit_vectors.error > 0
    check(corpus, noted, load_noted_index("i"))
    remove_documents(I, ["notes/weather.md"], make=load_maker)
    check(*opened(), load_noted_index("i"))
    path = corpus.parts.placed[0].part.path
    content = bytearray(path.read_bytes())
    content[StoredPart(path)._file.offset("codes") + 5] ^= 1
    path.write_bytes(content)
    assert damaged_files(I) == [path]
    with pytest.raises(Damaged, match="codes of document .* have changed"):
        rank_noted(QUESTIONS[0], opened()[1], HashEncoder(), top_k=1)
    note("i", notes)
    assert read_settings(I).vectors == "float32" and damaged_files(I) == []


def test_vectors_of_a_removed_document_are_overwritten(notes):
    write_notes(notes, long="\n".join(f"Line {number}." for number in range(40)) + "\n")
    update("i", notes)
    corpus, _ = opened()
    gone = corpus.unit_vectors[np.flatnonzero(corpus.numbers_of(corpus.leaves) == 0)]
    content = Path(corpus.parts.placed[0].part.path).read_bytes()
    assert len(gone) and gone.tobytes() in content
    remove_documents(I, ["notes/ann_lee.md"])
    (path,) = Path("i/search").iterdir()
    assert gone.tobytes() not in path.read_bytes() and damaged_files(I) == []
    check(*opened(), load_noted_index("i"))


@pytest.mark.parametrize("kind", [".documents", ".notes"])
def test_a_changed_vector_is_found_before_it_is_compared(notes, kind):
    note("i", notes)
    (path,) = Path("i/search").glob(f"*{kind}")
    content = bytearray(path.read_bytes())
    content[StoredPart(path)._file.offset("vectors") + 5] ^= 1
    path.write_bytes(content)
    corpus, noted = opened()
    with pytest.raises(Damaged, match=f"i/search/.*{kind}: damaged .vectors of document .*; remove this file"):
        rank_noted(QUESTIONS[0], noted, HashEncoder(), top_k=1)
    assert index_info("i", verify=True).damaged_files == (f"search/{path.name}",)
    path.unlink()
    check(*opened(), load_noted_index("i"))


def test_a_file_that_was_cut_off_is_named_and_made_again(notes):
    note("i", notes)
    for path in Path("i/search").iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Damaged, match="remove this file, and the next `qrag index add` makes it again"):
        opened()
    said = []
    note("i", notes, says=said.append)
    assert len(said) == 2 and all("was damaged; it is made again from the catalogue" in one for one in said)
    check(*opened(), load_noted_index("i"))


def test_a_document_that_has_changed_meanwhile_is_said_and_one_that_was_read_stays(notes):
    note("i", notes)
    corpus, noted = opened()
    first = corpus.documents[0]
    write_notes(notes, ann_lee="Other words.\n", weather=None)
    note("i", notes)
    assert corpus.documents[0] is first
    with pytest.raises(Moved, match="document notes/weather.md has changed since the search began"):
        _ = corpus.documents[2]
    with pytest.raises(Moved):
        _ = list(noted.notes)


def test_a_row_that_was_changed_is_refused_when_it_is_read(notes):
    note("i", notes)
    with closing(sqlite3.connect(I / CATALOGUE)) as connection, connection:
        connection.execute("UPDATE documents SET text = x'41' WHERE id = ?", (b"notes/weather.md",))
    corpus, _ = opened()
    assert corpus.documents[0].id == "notes/ann_lee.md"
    with pytest.raises(Damaged, match="document notes/weather.md: changed since it was written"):
        _ = corpus.documents[2]


def test_sequences_are_read_like_tuples(notes):
    update("i", notes, settings=NOTED)
    corpus, _ = opened()
    nodes = tuple(corpus.nodes)
    assert corpus.nodes[-1] == nodes[-1] and corpus.nodes[1:3] == nodes[1:3] and len(corpus.nodes) == len(nodes)
    with pytest.raises(IndexError):
        _ = corpus.nodes[len(nodes)]
    assert corpus.trees == () and not corpus.trees


def test_every_flipped_bit_of_a_search_file_is_found_or_is_in_a_gap(notes, monkeypatch):
    monkeypatch.setattr(part, "LEAST_SIGNS", 1)
    monkeypatch.setattr(near, "RECALL_AT", 2)
    note("i", notes, settings=replace(NOTED, vectors="int8"))
    rng = random.Random(0)
    for path in sorted(Path("i/search").iterdir()):
        content = path.read_bytes()
        file = ArrayFile(path)
        used = np.zeros(len(content), bool)
        for name, one in file._arrays.items():
            used[one["offset"] : one["offset"] + len(file._raw(name))] = True
        used[:14] = True  # what says that it is such a file
        used[np.flatnonzero(used)[-1] + 1 :] = True  # the header stands at the end
        for at in [0, 13, *rng.sample(range(len(content)), 60), *rng.sample(np.flatnonzero(used).tolist(), 60)]:
            changed = bytearray(content)
            changed[at] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            assert damaged_files(I) == ([path] if used[at] else []), at
        path.write_bytes(content)


class TestSigns:
    """With signs in every file, however small."""

    @pytest.fixture(autouse=True)
    def signs(self, notes, monkeypatch):
        write_notes(notes, long="\n".join(f"Line {number}." for number in range(20)) + "\n")
        monkeypatch.setattr(part, "LEAST_SIGNS", 15)
        monkeypatch.setattr(near, "_MOST_TRIED", 1.0)

    def test_what_signs_find_is_compared_exactly(self, notes):
        said = []
        note("i", notes, says=said.append)
        assert said[-1].endswith("their signs find 1.0000 of the 10 nearest of 1,000 sentences, so searches use them")
        corpus, noted = opened()
        assert corpus.finds_near and len(list(Path("i/search").glob("*.near"))) == 1
        check(corpus, noted, load_noted_index("i"))
        few = opened(lambda names: names[:1])[0]
        assert not few.finds_near  # the recall of all says nothing of one document

    def test_documents_that_are_left_out_are_not_found(self, notes, monkeypatch):
        monkeypatch.setattr("qrag_jax.index.stored_corpus._LEAST_KEPT", 0.1)
        note("i", notes)
        most, oracle, embed = opened(lambda names: names[1:])[0], load_index("i"), HashEncoder()
        oracle = oracle.only({document.id for document in oracle.documents[1:]})
        assert most.finds_near and len(most.documents) == len(oracle.documents)
        for question in QUESTIONS:
            mine, theirs = (rank_dense(question, one, embed, 5) for one in (most, oracle))
            assert np.array_equal(mine.ids, theirs.ids) and np.array_equal(mine.scores, theirs.scores)

    def test_a_vector_is_checked_before_it_is_compared(self, notes):
        note("i", notes)
        (path,) = Path("i/search").glob("*.documents")
        stored, content = StoredPart(path), bytearray(path.read_bytes())
        content[stored._file.offset("vectors") + stored.vectors.nbytes - 1] ^= 1  # of the last document
        path.write_bytes(content)
        corpus = opened()[0]
        assert corpus.finds_near and np.array_equal(corpus.unit_vectors[np.arange(1)], stored.vectors[:1])
        with pytest.raises(Damaged, match=f"vectors of document {len(stored.sizes) - 1}"):
            rank_dense("red wine rain", corpus, HashEncoder(), 5)

    def test_what_was_measured_leaves_with_a_damaged_file(self, notes):
        note("i", notes)
        (path,) = Path("i/search").glob("*.documents")
        path.write_bytes(path.read_bytes()[:-3])
        note("i", notes)
        assert (
            [one.stem for one in Path("i/search").glob("*.near")]
            == [one.stem for one in Path("i/search").glob("*.documents")]
            != [path.stem]
        )

    def test_signs_that_find_too_little_are_not_used_and_not_tried_again(self, notes, monkeypatch):
        said = []
        monkeypatch.setattr(near, "_MOST_TRIED", 0.0)
        note("i", notes, says=said.append)
        assert said[-1].endswith("less than 0.99, so all are compared") and not opened()[0].finds_near
        check(*opened(), load_noted_index("i"))
        note("i", notes, says=said.append)
        assert len(said) == 2

    def test_what_was_measured_leaves_with_its_file_and_a_damaged_one_is_named(self, notes):
        note("i", notes)
        (path,) = Path("i/search").glob("*.near")
        path.write_bytes(path.read_bytes()[:-3])
        assert damaged_files(I) == [path]
        with pytest.raises(Damaged, match="near: damaged"):
            _ = opened()[0].finds_near
        write_notes(notes, more="\n".join(f"More {number}." for number in range(10)))
        note("i", notes)
        assert not path.exists() and damaged_files(I) == []
        check(*opened(), load_noted_index("i"))

    def test_changed_signs_are_named_and_those_of_removed_documents_are_gone(self, notes):
        note("i", notes)
        (path,) = Path("i/search").glob("*.documents")
        stored = StoredPart(path)
        content, offset = path.read_bytes(), stored._file.offset("signs")
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        assert damaged_files(I) == [path]
        with pytest.raises(Damaged, match="signs of document 0"):
            _ = opened()[0].finds_near
        path.write_bytes(content)
        assert stored.signs().any(axis=1).all()
        Path(notes, "weather.md").unlink()
        note("i", notes)
        stored = StoredPart(path)
        gone = ~stored.vectors.any(axis=1)
        assert gone.any() and not stored.signs()[gone].any() and stored.signs()[~gone].any()
        assert damaged_files(I) == []
        check(*opened(), load_noted_index("i"))


def test_signs_find_the_nearest_among_many(notes, monkeypatch):
    monkeypatch.setattr(part, "LEAST_SIGNS", 500)
    monkeypatch.setattr(near, "_MOST_TRIED", 0.7)
    write_notes(notes, long="\n".join(f"Line {number}." for number in range(600)) + "\n")
    said = []
    update("i", notes, says=said.append)
    assert "so searches use them" in said[-1]
    corpus, embed = opened()[0], HashEncoder()
    oracle = load_index("i")
    assert corpus.finds_near
    same = 0  # signs may miss one passage of a hundred; a passage that they find has its exact score
    for number in range(20):
        mine, theirs = (rank_dense(f"Line {number}?", one, embed, 5) for one in (corpus, oracle))
        exact = dict(zip(theirs.ids.tolist(), theirs.scores.tolist(), strict=True))
        same += sum(
            exact.get(leaf) == score for leaf, score in zip(mine.ids.tolist(), mine.scores.tolist(), strict=True)
        )
    assert same >= 95
