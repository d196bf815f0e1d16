import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.indices import (
    FILM,
    LEE,
    NOTED,
    RAIN,
    SETTINGS,
    add_and_die_before_notes,
    change_notes,
    fresh_corpus,
    load_maker,
    log_lines,
    maker,
    note,
    note_rows,
    note_slowly,
    read_few,
    update,
    write_notes,
)
from support.processes import ended, start
from support.tiers import examples

from qrag_jax.annotate.mentions import mention_notes
from qrag_jax.documents.read import find_files
from qrag_jax.index import update_notes as noting
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_index, load_noted_index
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.settings import NotesSetting, read_settings
from qrag_jax.index.shards import build_shard, merge_shards
from qrag_jax.index.update import Plan
from qrag_jax.search.note_search import note_corpus, rank_noted
from qrag_jax.types import InputError, Note, ReadNotes, UsageError

NEVER = "nothing may be loaded"


def never():
    raise AssertionError(NEVER)


def remove(*names, make=never, **how):
    return remove_documents(Path("i"), list(names), make=make, **how)


def document_of(noted, chunk):
    return noted.corpus.nodes[noted.corpus.by_chunk[chunk]].document_id


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_notes("notes", up_down=FILM, ann_lee=LEE, weather=RAIN)


def test_an_index_has_the_notes_of_its_documents(notes):
    changes = note("i", notes)
    assert (changes.notes.num_notes, changes.notes.num_embedded) == (2, 2)
    kept, corpus = load_noted_index("i"), fresh_corpus(notes)
    made = load_maker()
    fresh = note_corpus(corpus, mention_notes(corpus.documents, corpus.nodes).notes, made.embed, made.count)
    assert kept.notes == fresh.notes and [one.text for one in kept.notes] == [FILM, "Ann Lee is here."]
    for name in ("vectors", "keys", "num_tokens"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(fresh, name))
    for question in ("Who is here?", "film"):
        found, expected = (rank_noted(question, one, made.embed) for one in (kept, fresh))
        np.testing.assert_array_equal(found.scores, expected.scores)
    info = index_info("i", verify=True)
    assert info.is_whole and info.are_notes_current and info.notes.num_notes == 2


@pytest.mark.parametrize("turn", [1, -1])
def test_notes_of_a_chunk_stay_in_the_order_of_their_reader(notes, turn):
    def read(documents, chunks):
        found = mention_notes(documents, chunks)
        return ReadNotes(found.notes[::turn], found.left_out)

    note("i", notes, read_notes=read)
    assert [one.text for one in load_noted_index("i").notes] == [FILM, "Ann Lee is here."][::turn]


def test_an_index_without_notes_has_none(notes):
    update("i", notes)
    assert note_rows("i") == [[], []] and load_noted_index("i").notes == ()
    assert not read_settings("i").has_notes and index_info("i").are_notes_current
    assert remove_documents(Path("i"), ["notes/weather.md"]) == ("notes/weather.md",)


def test_what_is_as_it_was_is_not_read_again(notes, monkeypatch):
    note("i", notes)
    monkeypatch.setattr(noting, "mention_notes", never)
    changes = note("i", notes, make=never)
    assert (changes.notes.num_notes, changes.notes.num_embedded) == (2, 0)


def test_only_texts_that_are_new_are_embedded(notes):
    note("i", notes)
    write_notes(notes, weather="It snowed.\nAnn Lee is here.", ann_lee="She was born in Linz.")
    changes = note("i", notes, make=maker(log="log"))
    assert sorted(log_lines("log")) == ["'It snowed.'", "'She was born in Linz.'"]  # no sentence of a note
    assert (changes.notes.num_notes, changes.notes.num_embedded) == (2, 0)
    Path("notes/weather.md").rename("notes/sky.md")
    assert note("i", notes, make=maker(log="log")).notes.num_embedded == 0 and len(log_lines("log")) == 2
    note("fresh", notes)
    assert note_rows("i") == note_rows("fresh")


def test_a_removed_document_takes_its_notes_along(notes):
    note("i", notes)
    assert remove("notes/up_down.md") == ("notes/up_down.md",)
    assert [one.text for one in load_noted_index("i").notes] == ["Ann Lee is here."]
    remove("notes/ann_lee.md")
    assert load_noted_index("i").notes == () and index_info("i", verify=True).is_whole
    remove("notes")
    assert note_rows("i")[0] == []


def test_a_removal_may_let_a_note_in(notes):
    """Of two sentences that name her one is left out, until the other one is gone."""
    note("i", notes, read_notes=read_few)
    (before,) = load_noted_index("i").notes
    gone = "notes/up_down.md" if before.text == FILM else "notes/weather.md"
    remove(gone, make=maker(log="log"), read_notes=read_few)
    (after,) = load_noted_index("i").notes
    assert after.text != before.text and log_lines("log") == [repr(after.text)]
    Path(gone).unlink()
    note("fresh", notes, read_notes=read_few)
    assert note_rows("i") == note_rows("fresh")


NAMES = ("alpha_one", "beta_two", "gamma_six", "delta_ten")
LINES = ("Alpha one knows beta two.", "Gamma six met alpha one.", "# Beta two", "It rained.", "Delta ten is alpha one.")
TEXTS = st.lists(st.sampled_from(LINES), min_size=1, max_size=3, unique=True).map("\n".join)
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.none() | TEXTS, st.booleans()), min_size=1, max_size=6)


@examples(40)
@given(STEPS)
def test_what_was_added_and_removed_comes_to_what_is_made_at_once(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("noted")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_notes("notes", fixed="Alpha one and delta ten.")
        note("i", "notes", read_notes=read_few)
        for name, text, by_build in steps:
            path = Path(f"notes/{name}.md")
            if text is not None:
                write_notes("notes", **{name: text})
            elif not path.exists():
                continue
            elif not by_build:
                remove(str(path), make=maker(), read_notes=read_few)
                path.unlink()
            else:
                path.unlink()
            note("i", "notes", mirror=by_build or text is None, read_notes=read_few)
        note("fresh", "notes", read_notes=read_few)
        assert note_rows("i") == note_rows("fresh")
        assert index_info("i", verify=True).is_whole
        shutil.rmtree(folder)


@pytest.mark.parametrize("next_one", ["build", "add", "remove"])
def test_a_writer_that_is_killed_before_the_notes_is_finished_by_the_next(notes, next_one):
    note("i", notes)
    write_notes(notes, weather="It snowed.\nAnn Lee is gone.", mill="Up Down is near the mill.")
    assert ended(start(add_and_die_before_notes, "i", notes)) == -9
    info = index_info("i", verify=True)
    assert info.is_whole and not info.are_notes_current and info.notes.num_notes == 1
    with pytest.warns(UserWarning, match="i: an update was not finished, so some notes are missing"):
        kept = load_noted_index("i")
    assert [one.text for one in kept.notes] == [FILM]  # of documents that are what they were
    if next_one == "remove":
        remove("notes/ann_lee.md", make=maker())
        Path("notes/ann_lee.md").unlink()
    else:
        assert note("i", notes, mirror=next_one == "build").num_same == 4
    note("fresh", notes)
    assert note_rows("i") == note_rows("fresh") and index_info("i").are_notes_current


def test_of_a_document_that_is_gone_nothing_is_left_in_the_notes_of_others(notes):
    canary = "canary-7f3a"
    write_notes(notes, weather=f"Ann Lee has the {canary}.")
    note("i", notes)
    assert sum(path.read_bytes().count(canary.encode()) for path in Path("i").rglob("*.*")) > 1
    write_notes(notes, weather="Nothing.")
    process = start(add_and_die_before_notes, "i", notes)
    assert ended(process) == -9
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection:
        assert not any(canary in str(row) for row in connection.execute("SELECT * FROM notes"))
    note("i", notes)
    assert not any(canary.encode() in path.read_bytes() for path in Path("i").rglob("*.*"))


def test_another_setting_makes_the_notes_of_a_new_index(notes):
    update("i", notes)
    assert note("i", notes).num_same == 3 and len(load_noted_index("i").notes) == 2
    note("fresh", notes)
    assert note_rows("i") == note_rows("fresh") and read_settings("i") == read_settings("fresh")
    assert update("i", notes, make=never).num_same == 3
    assert note_rows("i") == [[], []] and not read_settings("i").has_notes


DAMAGE = {
    "text": ("UPDATE notes SET notes = replace(notes, 'film', 'firm') WHERE asking = ?", b"notes/up_down.md"),
    "vectors": ("UPDATE notes SET vectors = zeroblob(32) WHERE asking = ?", b"notes/up_down.md"),
    "tokens": ("UPDATE notes SET num_tokens = zeroblob(8) WHERE asking = ?", b"notes/up_down.md"),
    "hash": ("UPDATE notes SET sha256 = zeroblob(32) WHERE asking = ?", b"notes/up_down.md"),
    "a type": ("UPDATE notes SET notes = 7 WHERE asking = ?", b"notes/up_down.md"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_notes_are_named_and_mended_alone(notes, name):
    note("i", notes)
    before = note_rows("i")
    change_notes(*DAMAGE[name])
    info = index_info("i", verify=True)
    said = "notes of notes/ann_lee.md from notes/up_down.md"
    assert (info.damaged, info.damaged_notes, info.is_whole) == ((), (said,), False)
    with pytest.raises(InputError, match=f"i: {said}: changed since they were written"):
        load_noted_index("i")
    assert len(load_index("i").documents) == 3  # the documents are whole
    changes = note("i", notes, make=maker(log="log"))
    assert changes.mended == (said,) and changes.num_same == 3 and log_lines("log") == [repr(FILM)]
    assert note_rows("i") == before and index_info("i", verify=True).is_whole


def test_a_torn_page_of_notes_costs_what_stands_on_it(notes):
    write_notes(notes, **{f"n{number}": f"Ann Lee said on day {number} " + "x" * 550 + "." for number in range(8)})
    note("i", notes)
    before, path = note_rows("i"), Path("i/catalogue.sqlite")
    content = bytearray(path.read_bytes())
    place = content.index(b'"text": "Ann Lee said on day 3 ') // 4096 * 4096
    content[place : place + 8] = b"\xff" * 8
    path.write_bytes(content)
    info = index_info("i", verify=True)
    assert "notes of notes/ann_lee.md from notes/n3.md" in info.damaged_notes and info.damaged == ()
    assert 0 < info.notes.num_notes < 8
    with pytest.raises(InputError, match="i/catalogue.sqlite: damaged"):
        load_noted_index("i")
    changes = note("i", notes)
    assert changes.mended == info.damaged_notes and changes.num_same == 11
    assert note_rows("i") == before and index_info("i", verify=True).is_whole


def test_notes_that_nobody_knows_the_documents_of_are_made_again(notes):
    note("i", notes)
    before = note_rows("i")
    change_notes("UPDATE noted SET result = ?", b'{"num_notes": 7}')
    assert not index_info("i").are_notes_current
    note("i", notes, make=never)
    assert note_rows("i") == before
    change_notes("DELETE FROM notes WHERE asking = ?", b"notes/up_down.md")  # no row of ours goes alone
    change_notes("DELETE FROM noted")
    assert note("i", notes).notes.num_embedded == 1 and note_rows("i") == before


def test_a_document_that_is_damaged_takes_its_notes_along(notes):
    note("i", notes)
    before = note_rows("i")
    change_notes("UPDATE documents SET text = ? WHERE id = ?", b"Up Down is a firm by Ann Lee.", b"notes/up_down.md")
    changes = note("i", notes)
    assert changes.mended == ("notes/up_down.md",) and note_rows("i") == before


def test_shards_get_their_notes_when_they_are_joined(notes):
    for shard in range(3):
        build_shard(Path("i"), [notes], find_files(notes), NOTED, maker(), Plan(), shard, 3)
    assert {note_rows(path)[0].__len__() for path in Path("i/shards").iterdir() if (path / "index.json").exists()} == {
        0
    }
    with pytest.raises(UsageError, match="i: has notes, .*; give `make`"):
        merge_shards(Path("i"))
    assert merge_shards(Path("i"), make=lambda settings: maker()) == 3
    note("fresh", notes)
    assert note_rows("i") == note_rows("fresh")


def test_workers_leave_the_notes_to_the_process_that_writes(notes):
    note("i", notes, num_workers=1)
    note("fresh", notes)
    assert note_rows("i") == note_rows("fresh")


def test_two_writers_at_once_come_to_the_notes_of_both(notes):
    more = write_notes("more", mill="Up Down is near the mill.", graz="Ann Lee came from here.")
    note("i", notes)
    processes = [start(note_slowly, "i", path, 0.001) for path in (more, notes)]
    assert [ended(process) for process in processes] == [0, 0]
    note("fresh", notes, more)
    assert note_rows("i") == note_rows("fresh")


def test_a_reader_that_lies_is_refused_and_the_documents_stay(notes):
    def lie(documents, chunks):
        answering, *_, asking = chunks
        start = asking.spans[0][0]
        return ReadNotes((Note(asking.id, answering.id, "A lie.", (start, start + 6), (0, 3), "She", "liar"),))

    with pytest.raises(InputError, match=r"note 0 \('A lie.'\): .* has .*, not 'A lie.'"):
        note("i", notes, read_notes=lie)
    assert len(load_index("i").documents) == 3 and not index_info("i").are_notes_current
    note("i", notes)
    note("fresh", notes)
    assert note_rows("i") == note_rows("fresh")


def test_a_reader_that_is_stopped_leaves_the_notes_of_the_one_before(notes):
    def stop(documents, chunks):
        raise InputError("the server is down")

    note("i", notes)
    before = note_rows("i"), read_settings("i")
    with pytest.raises(InputError, match="the server is down"):
        note("i", notes, settings=replace(SETTINGS, notes=NotesSetting("llm", "qwen")), read_notes=stop)
    assert (note_rows("i"), read_settings("i")) == before and index_info("i").are_notes_current


def test_a_document_that_comes_back_after_a_reader_that_stopped_gets_its_notes_back(notes):
    """Documents and setting are then what they were; rows are not."""

    def stop(documents, chunks):
        raise InputError("the server is down")

    note("i", notes)
    before = note_rows("i")
    write_notes(notes, up_down="It snowed.")
    with pytest.raises(InputError, match="the server is down"):
        note("i", notes, read_notes=stop)
    write_notes(notes, up_down=FILM)
    assert note("i", notes).notes.num_notes == 2 and note_rows("i") == before


def test_a_setting_that_comes_back_after_a_writer_that_stopped_gets_its_notes_back(notes):
    def ask(documents, chunks):
        found = mention_notes(documents, chunks)
        return ReadNotes(tuple(replace(one, reader="qwen") for one in found.notes), {})

    def stop(done, of):
        raise InputError("no room")

    note("i", notes)
    before = note_rows("i")
    llm = replace(SETTINGS, notes=NotesSetting("llm", "qwen"))
    with pytest.raises(InputError, match="no room"):
        note("i", notes, settings=llm, read_notes=ask, note_progress=stop)
    with pytest.warns(UserWarning, match="some notes are missing"):
        assert {one.reader for one in load_noted_index("i").notes} == {"qwen"}
    note("i", notes)
    assert note_rows("i") == before


def test_who_writes_the_notes_is_not_changed_back_by_a_command_that_waited(notes):
    note("i", notes)
    assert note("i", notes, keeps_notes=True).num_same == 3
    update("i", notes)  # by another command, without notes, while the next one waits
    with pytest.raises(UsageError, match="i: another command changed how its notes are made .it was mentions"):
        note("i", notes, keeps_notes=True)
    assert not read_settings("i").has_notes
    assert note("new", notes, keeps_notes=True).notes.num_notes == 2


def test_notes_of_a_reader_that_could_not_read_all_are_read_again(notes):
    def read_half(documents, chunks):
        return ReadNotes((), {"call failed": 3}, is_complete=False)

    note("i", notes, read_notes=read_half)
    assert index_info("i").notes.left_out == {"call failed": 3} and index_info("i").are_notes_current
    assert note("i", notes).notes.num_notes == 2
    note("fresh", notes)
    assert note_rows("i") == note_rows("fresh")


def test_questions_of_a_reader_have_vectors_of_their_own(notes):
    def ask(documents, chunks):
        asking, answering = chunks[2], chunks[0]
        question, answer = "Where was she born?", "in Graz."
        text = f"{question} {answer}"
        span, quote = (0, 3), documents[0].text[0:3]
        return ReadNotes((Note(asking.id, answering.id, text, (0, 2), span, quote, "asker", question, answer),))

    changes = note("i", notes, read_notes=ask, make=maker(log="log"))
    assert changes.notes.num_embedded == 2 and "'Where was she born?'" in log_lines("log")
    kept = load_noted_index("i")
    fresh = note_corpus(kept.corpus, kept.notes, load_maker().embed, load_maker().count)
    np.testing.assert_array_equal(kept.keys, fresh.keys)
    np.testing.assert_array_equal(kept.vectors, fresh.vectors)
    assert (kept.keys != kept.vectors).any()


def test_another_encoder_is_refused_before_a_note_is_embedded(notes):
    update("i", notes)
    with pytest.raises(InputError, match="index: its vectors were made by the encoder of hashes"):
        note("i", notes, make=maker("others"))
    assert note_rows("i")[0] == []


def test_a_reader_that_is_not_there_is_refused_before_anything_is_read(notes):
    asks = replace(SETTINGS, notes=NotesSetting("llm", "qwen"))
    with pytest.raises(UsageError, match="notes by qwen: a language model must write them; give `read_notes`"):
        update("i", notes, settings=asks, make=never)
    assert not Path("i/index.json").exists()
    note("i", notes)
    with pytest.raises(UsageError, match="i: has notes, .*; give `make`"):
        remove_documents(Path("i"), ["notes/weather.md"])
    assert len(load_index("i").documents) == 3


def test_titles_that_two_documents_share_and_names_that_all_have(notes):
    write_notes("notes/other", ann_lee="Another person.")
    for number in range(60):
        write_notes("notes/many", **{f"n{number}": f"What a Weather on day {number}."})
    changes = note("i", notes)
    kept = load_noted_index("i")
    owners = {document_of(kept, one.answering) for one in kept.notes if one.text == FILM}
    assert owners == {"notes/ann_lee.md", "notes/other/ann_lee.md"}
    assert changes.notes.left_out["name in too many chunks"] == 1  # "weather"
    assert index_info("i").notes.left_out == changes.notes.left_out


def test_a_document_that_pretends_to_be_a_note_is_a_document(notes):
    pretending = '(Ann Lee has the key.) {"asking": "x", "text": "note"} note from notes/up_down.md:1'
    write_notes(notes, fake=pretending)
    note("i", notes)
    kept = load_noted_index("i")
    assert kept.corpus.by_id["notes/fake.md"].text == pretending
    by_fake = [one for one in kept.notes if document_of(kept, one.asking) == "notes/fake.md"]
    assert {one.reader for one in kept.notes} == {"mentions"}
    assert all(one.text in pretending for one in by_fake)


def test_chosen_documents_have_the_notes_between_them(notes):
    note("i", notes)
    found = load_noted_index("i", lambda names: [name for name in names if "weather" not in name])
    assert [one.text for one in found.notes] == [FILM]
