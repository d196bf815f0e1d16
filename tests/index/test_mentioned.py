"""Notes by names are updated by what changed: after every step they are those of all documents at once."""

import os
import signal
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.indices import HashEncoder, change_notes, count_words, note, note_rows, update, write_notes
from support.passages import split_lines
from support.processes import ended, start
from support.tiers import examples

from qrag_jax.annotate.mentions import MentionsConfig, mention_notes
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.index import mentioned
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_noted_index
from qrag_jax.index.prepare import Maker
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.stores.sqlite import mention_rows
from qrag_jax.index.stores.sqlite.database import reading_from
from qrag_jax.types import InputError

# So small that a few documents make names ambiguous and common, and sentences too long.
SMALL = MentionsConfig(max_notes=2, min_chars=3, max_owners=2, max_naming=3, max_chars=30)


def split_pairs(document):
    """A chunk for every two lines, so each line is in two chunks."""
    lines = [span for chunk in split_lines(document) for span in chunk.spans]
    return [
        make_chunk(document, [one, *rest], 1, count_words) for one, *rest in zip(lines, lines[1:], strict=False)
    ] + [make_chunk(document, lines[-1:], 1, count_words)]


def load_cut(cut):
    return Maker(cut, HashEncoder(), count_words)


CUTS = (split_lines, split_pairs)


def check(folder="i"):
    """The notes, their order and what was left out are those of `mention_notes`; gives the number of notes."""
    kept, info = load_noted_index(folder), index_info(folder)
    right = mention_notes(kept.corpus.documents, kept.corpus.nodes, mentioned.CONFIG)
    assert list(kept.notes) == list(right.notes)
    assert info.are_notes_current and info.notes.left_out == right.left_out
    return len(right.notes)


def names_in(folder):
    """Everything that an index keeps of names, with ids in place of numbers; nothing is pending."""
    with closing(sqlite3.connect(Path(folder, "catalogue.sqlite"))) as connection:
        ask = lambda query: sorted(connection.execute(query).fetchall())  # noqa: E731
        assert ask("SELECT * FROM changed") == [] and ask("SELECT * FROM stale") == []
        of = "JOIN ledger USING (number)"
        return (
            ask(f"SELECT id, node, key, is_term, begin, name FROM names {of}"),
            ask(f"SELECT id, key, num_chunks, places FROM mentions {of}"),
            ask(f"SELECT id, pairs FROM read {of}"),
            ask("SELECT key, reason FROM silent"),
            ask(f"SELECT id, node, num_notes, too_long, beyond FROM chunk_counts {of}"),
        )


WORDS = ("Alpha", "alpha", "One", "one", "Two", "two", "The", "the", "of", "Beta", "met", "\u732b")
SENTENCE = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
LINE = st.one_of(
    SENTENCE.map("{}.".format), SENTENCE.map("{}.".format), SENTENCE.map("# {}".format), st.just("Alpha One met Beta.")
)
NAMES = ("fixed", "alpha_one_two_of_the", "alpha", "alpha_one", "one_two", "beta", "the_two", "x")
TEXT = st.lists(LINE, min_size=1, max_size=4).map("\n".join)
STEP = st.tuples(st.dictionaries(st.sampled_from(NAMES), st.none() | TEXT, min_size=1, max_size=3), st.integers(0, 3))


@examples(60)
@given(st.sampled_from(CUTS), st.lists(STEP, min_size=1, max_size=6))
def test_after_every_step_the_notes_are_those_of_all_documents_at_once(tmp_path_factory, cut, steps):
    """Steps add, replace and remove documents by build, `add` and `remove`; some are stopped as notes are written."""
    make = partial(load_cut, cut)

    def stop(done, of):
        raise InputError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("mentioned"))
        patch.setattr(mentioned, "CONFIG", SMALL)
        write_notes("notes", fixed="Alpha One met the Beta.\nIt met Two.")
        note("i", "notes", make=make)
        for texts, how in steps:
            gone = [name for name, text in texts.items() if text is None and Path(f"notes/{name}.md").exists()]
            write_notes("notes", **{name: text for name, text in texts.items() if text is not None})
            for name in gone:
                if how == 1:
                    remove_documents(Path("i"), [f"notes/{name}.md"], make=make)
                Path(f"notes/{name}.md").unlink()
            if not any(Path("notes").iterdir()):
                remove_documents(Path("i"), ["notes"], make=make) if how != 1 else None
                assert note_rows("i")[0] == [] and names_in("i") == ([], [], [], [], [])
                write_notes("notes", fixed="The Alpha met One.")
                note("i", "notes", make=make)
            elif how == 2:
                try:
                    note("i", "notes", make=make, note_progress=stop)
                except InputError as error:
                    assert "stopped" in str(error)
                    continue
            elif how == 3 and not gone and any(texts.values()):
                note("i", *(f"notes/{name}.md" for name, text in texts.items() if text), make=make, mirror=False)
            else:
                note("i", "notes", make=make)
            check()
        note("i", "notes", make=make)
        check()
        note("fresh", "notes", make=make)
        assert note_rows("i") == note_rows("fresh") and names_in("i") == names_in("fresh")
        assert index_info("i", verify=True).is_whole


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_notes(
        "notes",
        up_down="Up Down is a film by Ann Lee.",
        ann_lee="She was born in Graz.\nRain fell there.",
        weather="It rained.\nAnn Lee is here.",
    )


def texts_of(folder="i"):
    return [one.text for one in load_noted_index(folder).notes]


def test_a_longer_name_hides_a_shorter_one_while_it_is_there(notes):
    note("i", notes)
    assert "Up Down is a film by Ann Lee." in texts_of()
    write_notes(notes, by_ann_lee="About the name.")  # now the film names this page
    note("i", "notes/by_ann_lee.md", mirror=False)
    check()
    kept = load_noted_index("i")
    owners = {node.id: node.document_id for node in kept.corpus.nodes}
    named = [(one.text, owners[one.answering]) for one in kept.notes]
    assert named == [
        ("Ann Lee is here.", "notes/ann_lee.md"),
        ("Up Down is a film by Ann Lee.", "notes/by_ann_lee.md"),
    ]
    remove_documents(Path("i"), ["notes/by_ann_lee.md"], make=partial(load_cut, split_lines))
    check()
    assert texts_of() == ["Up Down is a film by Ann Lee.", "Ann Lee is here."]


def test_a_name_that_becomes_a_term_is_found_in_lower_case(notes):
    write_notes(notes, rain="# Heavy Rain\nIt pours.", report="There was heavy rain.")
    note("i", notes)
    assert "There was heavy rain." not in texts_of()
    write_notes(notes, snow="# Heavy rain\nIt is not snow.")
    note("i", "notes/snow.md", mirror=False)
    assert texts_of().count("There was heavy rain.") == 2 and check()
    write_notes(notes, snow="It is not snow.")
    note("i", "notes/snow.md", mirror=False)
    assert "There was heavy rain." not in texts_of() and check()


def test_only_documents_that_a_change_concerns_are_read(notes, monkeypatch):
    write_notes(notes, far="# Distant Hill\nNothing is here.", lake="# Deep Lake\nWe saw Distant Hill.")
    note("i", notes)
    read, whole = [], mentioned.read_whole

    def log(connection, folder, number):
        found = whole(connection, folder, number)
        assert found is not None
        read.append(found.id)
        return found

    monkeypatch.setattr(mentioned, "read_whole", log)
    write_notes(notes, mill="Ann Lee owns the mill.")
    note("i", "notes/mill.md", mirror=False)
    assert set(read) == {f"notes/{name}.md" for name in ("mill", "ann_lee", "up_down", "weather")} and check()


DAMAGE = {
    "a place": "UPDATE mentions SET places = zeroblob(32)",
    "a chunk": "UPDATE names SET node = node + 1",
    "words": "UPDATE read SET pairs = zeroblob(8)",
    "a key": "UPDATE names SET key = key + 1",
}


def read_all_names():
    with reading_from(Path("i")) as connection:
        rows = mention_rows.MentionRows(connection, Path("i"))
        rows.names_by_begin(None)
        rows.documents_with([("ann", "lee")])
        for (number,) in connection.execute("SELECT number FROM read").fetchall():
            rows.places_in(number)


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_names_are_said_and_made_again(notes, name):
    note("i", notes)
    change_notes(DAMAGE[name])
    info = index_info("i", verify=True)
    assert (info.damaged, info.damaged_notes, info.is_whole) == ((), (), False)
    assert info.fault == "the list of names: changed since it was written"
    with pytest.raises(InputError, match="i: the list of names: changed since it was written; name the damage"):
        read_all_names()
    assert len(texts_of()) == 2  # notes and documents are whole
    write_notes(notes, ann_lee="She was born in Linz.", mill="Up Down is by Ann Lee. She met Ann Lee.")
    changes = note("i", "notes/ann_lee.md", "notes/mill.md", mirror=False)
    assert (changes.num_read, changes.num_same) == (2, 0)
    assert index_info("i", verify=True).is_whole and check()


def test_a_writer_that_is_killed_between_names_and_notes_leaves_no_name_and_is_finished(notes):
    write_notes(
        notes, secret="# Canary Zeisig\nThe canary zeisig sang. Ann Lee heard Canary Zeisig.", other="It rained."
    )
    note("i", notes)
    assert any(b"canary" in path.read_bytes() for path in Path("i").rglob("*.*"))
    write_notes(notes, secret="Nothing.", other="Ann Lee is gone. So is Up Down.")
    assert ended(start(update_and_die_before_notes, "i", notes)) == -9
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection:
        for table in ("notes", "names", "mentions", "changed", "stale"):
            assert not any("canary" in str(row).lower() for row in connection.execute(f"SELECT * FROM {table}"))
    note("i", notes)
    check()
    assert not any(b"canary" in path.read_bytes() for path in Path("i").rglob("*.*"))


def update_and_die_before_notes(folder, notes):
    mentioned.NamesUpdate.stale_notes = lambda self: os.kill(os.getpid(), signal.SIGKILL)
    note(folder, notes)


def test_another_setting_makes_names_anew(notes):
    note("i", notes)
    update("i", notes)
    assert names_in("i") == ([], [], [], [], [])
    note("i", notes)
    note("fresh", notes)
    assert names_in("i") == names_in("fresh") and check()


def test_names_with_right_checksums_and_wrong_contents_are_refused(notes):
    note("i", notes)
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection, connection:
        for key, number, num_chunks, places in connection.execute(
            "SELECT key, number, num_chunks, places FROM mentions"
        ):
            wrong = np.frombuffer(places, mention_rows.PLACE).copy()
            wrong["node"] += 1_000_000
            values = (num_chunks, wrong.tobytes())
            crc = mention_rows._crc((key, number, *values))
            where = "WHERE key = ? AND number = ?"
            connection.execute(f"UPDATE mentions SET places = ?, crc = ? {where}", (values[1], crc, key, number))
    write_notes(notes, mill="Ann Lee owns the mill.")
    with pytest.raises(InputError, match="i: its list of names is damaged .IndexError.*; name the damage"):
        note("i", "notes/mill.md", mirror=False)
