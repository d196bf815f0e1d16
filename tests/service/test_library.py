"""Indexes that are searched while their folders change."""

import shutil
import threading
from dataclasses import replace

import pytest
from support.indices import SETTINGS, write_notes
from support.indices import update as write_index
from support.serving import wait_for

from qrag_jax.index.options import AskOptions, SearchOptions
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.service import library as module
from qrag_jax.service.library import Library, Query
from qrag_jax.types import InputError, InputWarning, UsageError

TOKENS = replace(SETTINGS, model="minilm")  # its tokenizer counts; no vector is compared
WORDS = SearchOptions(retriever="bm25")


def update(folder, *paths):
    return write_index(folder, *paths, settings=TOKENS)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.02)


@pytest.fixture
def notes(tmp_path):
    folder = write_notes(tmp_path / "notes", key="Mary has the key.\nIt rained.", rain="Rain fell in Graz.")
    update(tmp_path / "notes.index", folder)
    return tmp_path / "notes.index"


def texts(library, question="Who has the key?", **more):
    return [one.hit.text for one in library.search(Query(question, **more))]


def test_an_index_is_searched_and_its_documents_are_read_by_id(notes):
    with Library.open([str(notes)], WORDS) as library:
        (one,) = library.search(Query("Who has the key?"))
        assert (one.index, one.hit.text) == ("notes", "Mary has the key.")
        index, document = library.document(one.hit.place.document)
        assert index == "notes" and document.text == "Mary has the key.\nIt rained."
        assert library.sizes() == {"notes": (2, 3)}
        for wrong in ("/etc/hostname", "../notes/key.md", str(notes / "index.json"), ""):
            with pytest.raises(UsageError, match="no such document"):
                library.document(wrong)


def test_several_indexes_take_turns_and_one_can_be_named(notes, tmp_path):
    update(tmp_path / "b.index", write_notes(tmp_path / "b", b="The key of the key.\nA key."))
    with Library.open([str(notes), str(tmp_path / "b.index")], WORDS) as library:
        found = library.search(Query("key", top_k=2))
        assert [(one.index, one.hit.rank) for one in found] == [("notes", 1), ("b", 1)]
        assert [one.index for one in library.search(Query("key", index="b"))] == ["b", "b"]
        with pytest.raises(UsageError, match="no such index; there are notes, b"):
            library.search(Query("key", index="c"))
        with pytest.raises(UsageError, match="name one of notes, b"):
            library.ask(Query("key"))
        assert library.ask(Query("Who has the key?", index="notes")).text == '"Mary has the key." [1]'


def test_quotas_limit_what_an_index_gives(notes, tmp_path):
    lines = "".join(f"Key number {number}.\n" for number in range(9))
    for name in ("b", "c"):
        update(tmp_path / f"{name}.index", write_notes(tmp_path / name, **{name: lines}))
    with Library.open([str(notes), str(tmp_path / "b.index"), str(tmp_path / "c.index")], WORDS) as library:

        def named(**more):
            return [one.index for one in library.search(Query("key", **more))]

        assert named(quotas={"b": 2, "c": 0}) == ["notes", "b", "b"]
        assert named(quotas={"b": 7, "c": 1}) == ["notes", "b", "c", *["b"] * 6]
        assert named(quotas={"b": 1}) == ["notes", "b", "c", *["c"] * 4]
        assert named(quotas={"b": 1}, top_k=4) == ["notes", "b", "c", "c"]
        assert named(quotas={"notes": 0, "b": 0, "c": 0}) == []
        assert named(quotas={"b": 1, "c": 0}, index="b") == ["b"]
        assert {name: len(one.hits) for name, one in library.find(Query("key", 3, quotas={"c": 2})).items()} == {
            "notes": 1,
            "b": 3,
            "c": 2,
        }
        for quotas, told in (
            ({"b": 1, "d": 1}, "quotas 'd': no such index; there are notes, b, c"),
            ({"b": -1}, "quotas 'b: -1': give 0 or more"),
        ):
            with pytest.raises(UsageError, match=told) as error:
                library.search(Query("key", quotas=quotas))
            assert error.value.field == "quotas"


def test_two_indexes_of_one_name_and_a_run_of_a_client_are_refused(notes, tmp_path):
    shutil.copytree(notes, tmp_path / "old" / "notes")
    with pytest.raises(UsageError, match="two indexes are called notes"):
        Library.open([str(notes), str(tmp_path / "old" / "notes")])
    with Library.open([str(notes)], WORDS) as library, pytest.raises(UsageError, match="hybrid, dense"):
        library.search(Query("key", retriever=str(tmp_path)))


def test_a_change_is_seen_and_a_search_that_runs_keeps_its_state(notes, tmp_path):
    with Library.open([str(notes)], WORDS) as library:
        before = library.find(Query("key"))["notes"]
        update(notes, write_notes(tmp_path / "notes", key="Bob has the key.", more="A key."))
        wait_for(lambda: texts(library) == ["Bob has the key.", "A key."])
        assert [hit.text for hit in before.hits] == ["Mary has the key."]


def test_an_index_that_is_removed_or_damaged_is_searched_as_it_was_until_it_is_back(notes, tmp_path):
    with Library.open([str(notes)], WORDS) as library, pytest.warns(InputWarning, match="searching its last state"):
        shutil.rmtree(notes)
        wait_for(lambda: library.faults)
        assert texts(library) == ["Mary has the key."] and "no such folder" in library.faults["notes"]
        update(notes, write_notes(tmp_path / "notes", key="Bob has the key."))
        wait_for(lambda: not library.faults)
        assert texts(library) == ["Bob has the key."]
        (notes / "catalogue.sqlite").write_bytes(b"no database")
        wait_for(lambda: library.faults)
        assert texts(library) == ["Bob has the key."] and "damaged" in library.faults["notes"]


def test_a_selection_of_an_index_that_is_gone_shows_its_last_state_too(notes):
    with Library.open([str(notes)], WORDS) as library, pytest.warns(InputWarning, match="searching its last state"):
        shutil.rmtree(notes)
        wait_for(lambda: library.faults)
        assert texts(library, "key rain", only=("*rain*",)) == ["Rain fell in Graz."]
        assert library.warnings() == ["notes: its last state is searched, because it cannot be read now"]


def test_files_that_change_without_a_change_of_the_index_are_not_read_again(notes, monkeypatch):
    looked = []
    with Library.open([str(notes)], WORDS) as library:
        kept = library._shelves["notes"].index
        monkeypatch.setattr(module, "state_of", lambda folder: looked.append(folder) or real(folder))
        (notes / "index.json").touch()
        wait_for(lambda: looked)
        assert library._shelves["notes"].index is kept


real = module.state_of


def test_threads_search_while_a_model_writes(notes):
    asked, free = threading.Event(), threading.Event()

    def write(prompt):
        asked.set()
        assert free.wait(60)
        return "Mary [1]."

    library = Library.open([str(notes)], WORDS, AskOptions(), ScriptedGenerator(write))
    given, answers = [], []
    with library:
        asking = threading.Thread(target=lambda: answers.append(library.ask(Query("Who has the key?"), given.append)))
        asking.start()
        assert asked.wait(60)
        assert [one.text for one in given[0].given] == ["Mary has the key."] and given[0].text is None
        found = []
        others = [threading.Thread(target=lambda: found.append(texts(library))) for _ in range(8)]
        for thread in others:
            thread.start()
        for thread in others:
            thread.join(60)
        assert found == [["Mary has the key."]] * 8 and not answers
        free.set()
        asking.join(60)
    assert answers[0].text == "Mary [1]." and [one.number for one in answers[0].cited.citations] == [1]


def test_an_index_that_cannot_be_searched_is_refused_at_the_start(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        Library.open([str(tmp_path / "nowhere")])


def test_patterns_leave_out_the_indexes_that_they_do_not_match(notes, tmp_path):
    update(tmp_path / "b.index", write_notes(tmp_path / "b", b="The key of the key."))
    with Library.open([str(notes), str(tmp_path / "b.index")], WORDS) as library:
        assert [one.index for one in library.search(Query("key", only=("*/b/*",)))] == ["b"]
        with pytest.raises(UsageError, match="matches none"):
            library.search(Query("key", only=("*/c/*",)))


def test_sizes_wait_for_no_search_and_patterns_do_not_push_the_whole_index_out(notes, tmp_path):
    library = Library.open([str(notes)], WORDS)
    assert library.sizes() == {"notes": (0, 0)}  # not read yet
    with library:
        for pattern in ("*key*", "*rain*", "*y.md", "*n.md", "*.md"):
            library.search(Query("key", only=(pattern,)))
        shutil.rmtree(notes)
        assert texts(library) == ["Mary has the key."]
        assert library.sizes() == {"notes": (2, 3)}
