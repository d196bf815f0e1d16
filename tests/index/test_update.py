import hashlib
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.indices import SETTINGS, check_equal, fresh_corpus, log_lines, maker, update, write_notes

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.documents.read import Skipped, find_files, read_bytes
from qrag_jax.files.reading import read_with
from qrag_jax.index.folder import is_index
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_index
from qrag_jax.index.remove import lies_in, remove_documents
from qrag_jax.index.settings import IndexSettings
from qrag_jax.index.shards import merge_shards
from qrag_jax.index.update import Plan, update_index
from qrag_jax.search.hybrid import make_single_step
from qrag_jax.types import Document, EncoderOptions, InputError, UsageError

NEVER = "nothing may be loaded"


def never():
    raise AssertionError(NEVER)


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_notes(
        "notes",
        a="Mary has the key.\nIt rained all day long in the whole valley.",
        b="John went home.\nMary has the key.",
        c="The garden is closed.",
    )


def test_an_index_is_the_corpus_of_its_files(notes):
    changes = update("i", notes)
    assert (changes.num_read, changes.num_embedded, changes.num_reused) == (3, 4, 1)  # one line stands in two files
    assert is_index("i") and not is_index(notes)
    check_equal(load_index("i"), fresh_corpus(notes))
    assert load_index("i").num_beyond_window == 1


def test_picks_are_those_of_the_files(notes):
    update("i", notes)
    embed = maker()().embed
    for name in ("hybrid", "bm25", "single_step"):
        retrieve = make_single_step(name, embed)
        for question in ("Who has the key?", "garden", "John went home."):
            kept, fresh = (retrieve(question, corpus, 3) for corpus in (load_index("i"), fresh_corpus(notes)))
            assert kept.ids.tolist() == fresh.ids.tolist()


def test_what_is_as_it_was_is_not_read(notes):
    update("i", notes)
    os.utime("notes/a.md", (1, 1))
    changes = update("i", notes, make=never)
    assert (changes.num_read, changes.num_same, changes.num_embedded) == (0, 3, 0)


def test_only_the_chunks_that_changed_are_embedded(notes, tmp_path):
    update("i", notes)
    before = Path("notes/a.md").stat()
    write_notes(notes, a="Mary has the key.\nIt rained all day long in the whole valleY.")  # no byte more
    os.utime("notes/a.md", ns=(before.st_atime_ns, before.st_mtime_ns))
    changes = update("i", notes, make=maker(log="log"))
    assert (changes.num_read, changes.num_same, changes.num_embedded, changes.num_reused) == (1, 2, 1, 1)
    assert log_lines("log") == ["'It rained all day long in the whole valleY.'"]
    check_equal(load_index("i"), fresh_corpus(notes))


def test_a_renamed_file_is_read_and_not_embedded(notes):
    update("i", notes)
    Path("notes/c.md").rename("notes/z.md")
    changes = update("i", notes)
    assert (changes.num_read, changes.num_embedded, changes.removed) == (1, 0, ("notes/c.md",))
    check_equal(load_index("i"), fresh_corpus(notes))


def test_chunks_that_know_their_surroundings_are_embedded_again(notes):
    settings = IndexSettings(ChunkConfig("late"), "hashes")
    update("i", notes, settings=settings)
    write_notes(notes, a="Mary has the key.\nIt rained.")
    changes = update("i", notes, settings=settings)
    assert (changes.num_embedded, changes.num_reused) == (2, 0)


def test_build_mirrors_and_add_never_removes(notes):
    update("i", notes)
    write_notes(notes, a=None, d="A new one.")
    assert update("i", notes, mirror=False).removed == ()
    assert [document.id for document in load_index("i").documents] == [f"notes/{name}.md" for name in "abcd"]
    assert update("i", "notes/b.md").removed == ("notes/a.md", "notes/c.md", "notes/d.md")


def test_a_file_of_the_index_that_is_added_by_another_path_is_the_same_document(notes, tmp_path):
    update("i", notes)
    Path("link.md").symlink_to("notes/b.md")
    write_notes(notes, d="A new one.")
    for path in (tmp_path / "notes", "notes/../notes/a.md", "link.md", "./notes"):
        assert update("i", str(path), mirror=False).removed == ()
    known = {*(f"notes/{name}.md" for name in "abc"), str(tmp_path / "notes/d.md")}
    assert {document.id for document in load_index("i").documents} == known


def test_an_empty_folder_removes_nothing(notes):
    more = write_notes("more", x="Another text.")
    update("i", notes, more)
    Path("more/x.md").unlink()
    changes = update("i", notes, more)
    assert (changes.removed, changes.kept) == ((), ("more/x.md",))
    shutil.rmtree(notes)
    Path(notes).mkdir()
    with pytest.raises(UsageError, match="found no file to read, so nothing was changed"):
        update("i", notes, more)
    assert len(load_index("i").documents) == 4


@pytest.mark.parametrize("how", ["emptied", "a link now", "a dangling link"])
def test_a_folder_in_a_folder_that_is_not_there_today_removes_nothing(notes, how):
    """A disk below the path that was named, which is not mounted, and links that are not followed this time."""
    write_notes("notes/disk/deep", x="Another text.")
    update("i", notes)
    Path("notes/disk").rename("away")
    if how == "emptied":
        Path("notes/disk").mkdir()
    else:
        Path("notes/disk").symlink_to("../away" if how == "a link now" else "../nowhere")
    with read_with(follow_links=how == "a dangling link"):
        changes = update("i", notes)
    assert (changes.removed, changes.kept) == ((), ("notes/disk/deep/x.md",))
    Path("notes/disk").rmdir() if how == "emptied" else Path("notes/disk").unlink()
    assert update("i", notes).removed == ("notes/disk/deep/x.md",)


def test_what_the_user_excludes_is_removed_also_if_it_is_all_of_a_path(notes):
    more = write_notes("more", x="Another text.")
    write_notes("notes/drafts", y="A draft.")
    update("i", notes, more)
    with read_with(exclude=["drafts/"]):
        assert update("i", notes, more).removed == ("notes/drafts/y.md",)
    with read_with(exclude=["more/*", "drafts"]):
        changes = update("i", notes, more)
    assert (changes.removed, changes.kept) == (("more/x.md",), ())
    assert update("i", notes, more).num_read == 2  # excludes are given each time, like the paths


def test_records_of_the_index_are_read_with_their_fields_though_none_are_named_now(notes):
    record = Path(notes, "r.json")
    record.write_text('{"title": "One", "body": "Two"}')
    with read_with(fields=("body",)):
        update("i", notes)
    record.write_text('{"title": "One", "body": "Three"}')
    Path(notes, "new.json").write_text('{"body": "Four"}')
    for mirror in (True, False):
        changes = update("i", notes, mirror=mirror)
        assert (changes.num_read, changes.kept, changes.removed) == (int(mirror), (), ())
    assert "Three" in {document.text for document in load_index("i").documents}
    record.unlink()
    assert update("i", notes).removed == ("notes/r.json",)


def test_an_unreadable_folder_removes_nothing(notes):
    write_notes("notes/deep", x="Another text.")
    update("i", notes)
    shutil.rmtree("notes/deep")
    found = replace(find_files(notes), skipped=(Skipped("notes/deep", "cannot be read"),))  # root would read it
    changes = update_index(Path("i"), [notes], found, SETTINGS, never, Plan(mirror=True))
    assert (changes.removed, changes.kept) == ((), ("notes/deep/x.md",))


def test_a_failure_is_recorded_and_tried_again_when_the_bytes_change(notes):
    Path("notes/bad.md").write_bytes(b"\xff\xff")
    first = update("i", notes)
    assert [one.id for one in first.failed] == ["notes/bad.md"] and "not UTF-8 at byte 0" in first.failed[0].reason
    again = update("i", notes, make=never)
    assert again.failed == first.failed and again.num_same == 3
    Path("notes/bad.md").write_text("Mended.")
    assert (update("i", notes).failed, len(load_index("i").documents)) == ((), 4)


NO_RIGHTS = "cannot be read (Permission denied)"  # root, who runs tests in places, may read everything


def spoil(path, how, monkeypatch=None):
    """Makes a file one that cannot be read any more; gives what is said of it."""
    if how == "no rights":

        def refuse(file, encoding):
            if file.path == path:
                raise InputError(f"{file.id}: {NO_RIGHTS}")
            return read_bytes(file, encoding)

        monkeypatch.setattr("qrag_jax.index.update.read_bytes", refuse)
        return NO_RIGHTS
    path.write_bytes({"empty": b"", "blank": b" \n", "binary": b"Mary\0", "latin": b"Mary \xff"}[how])
    return {"binary": "zero byte", "latin": "not UTF-8"}.get(how, "empty document")


@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("how", ["empty", "blank", "binary", "latin", "no rights"])
def test_a_file_that_cannot_be_read_any_more_takes_no_document_away(notes, how, mirror, monkeypatch):
    update("i", notes)
    before, good = load_index("i"), Path("notes/a.md").read_bytes()
    said = spoil(Path("notes/a.md"), how, monkeypatch)
    for make in (maker(), never):  # the second time it is known
        changes = update("i", *([notes] if mirror else ["notes/a.md"]), mirror=mirror, make=make)
        assert (changes.kept, changes.removed, changes.num_read) == (("notes/a.md",), (), 0)
        assert [one.id for one in changes.failed] == ["notes/a.md"] and said in changes.failed[0].reason
        check_equal(load_index("i"), before)
        info = index_info("i", verify=True)
        assert info.is_whole and info.kept == ("notes/a.md",) and info.failed == changes.failed
        assert [one.origin.bytes_sha256 for one in info.documents][0] == hashlib.sha256(good).hexdigest()
    monkeypatch.setattr("qrag_jax.index.update.read_bytes", read_bytes)
    Path("notes/a.md").write_bytes(good)
    assert update("i", notes, make=never).num_same == 3 and index_info("i").failed == ()
    check_equal(load_index("i"), before)


def test_a_document_that_was_kept_is_read_when_its_file_can_be_again(notes):
    update("i", notes)
    spoil(Path("notes/a.md"), "empty")
    update("i", notes)
    write_notes(notes, a="Mary lost it.")
    changes = update("i", notes)
    assert (changes.num_read, changes.kept, changes.failed) == (1, (), ()) and index_info("i").failed == ()
    check_equal(load_index("i"), fresh_corpus(notes))


def test_a_document_that_was_kept_goes_with_its_file(notes):
    update("i", notes)
    spoil(Path("notes/a.md"), "empty")
    update("i", notes)
    Path("notes/a.md").unlink()
    assert update("i", notes).removed == ("notes/a.md",)
    assert [one.id for one in index_info("i").documents] == ["notes/b.md", "notes/c.md"]
    spoil(Path("notes/b.md"), "empty")
    update("i", notes)
    assert remove_documents(Path("i"), ["notes/b.md"]) == ("notes/b.md",) and index_info("i").failed == ()


def test_strict_refuses_a_file_that_cannot_be_read_and_removes_nothing(notes):
    update("i", notes)
    spoil(Path("notes/b.md"), "empty")
    Path("notes/c.md").unlink()
    for _ in range(2):
        with pytest.raises(InputError, match="notes/b.md: empty document"):
            update("i", notes, strict=True)
    assert len(load_index("i").documents) == 3 and index_info("i").failed == ()
    update("i", notes)
    with pytest.raises(InputError, match="notes/b.md: empty document"):  # known from before
        update("i", notes, strict=True)
    found = replace(find_files(notes), skipped=(Skipped("notes/deep", "cannot be read"),))
    with pytest.raises(InputError, match="notes/deep: cannot be read"):
        update_index(Path("i"), [notes], found, SETTINGS, never, Plan(mirror=True, strict=True))


def test_what_was_kept_is_kept_by_those_who_mend_and_merge(notes):
    update("i", notes)
    spoil(Path("notes/a.md"), "empty")
    update("i", notes)
    info = index_info("i")
    path = Path("i/catalogue.sqlite")
    path.write_bytes(path.read_bytes().replace(b"The garden is closed.", b"The garden is Closed."))
    assert update("i", notes).mended == ("notes/c.md",)
    assert index_info("i", verify=True).failed == info.failed and index_info("i").kept == info.kept
    Path("j/shards").mkdir(parents=True)
    Path("i").rename("j/shards/0-of-1")
    assert merge_shards(Path("j")) == 3
    assert index_info("j", verify=True).failed == info.failed and index_info("j").kept == info.kept


def test_the_encoding_of_a_document_is_remembered(notes):
    """Where none is named: for the same bytes, for others, under another name, in any spelling."""
    text = "Das Caf\u00e9."
    Path("notes/d.md").write_bytes(text.encode("latin-1"))
    update("i", "notes/d.md", encoding="latin-1")
    assert update("i", notes).num_same == 1 and update("i", notes, make=never, encoding=None).num_same == 4
    assert update("i", "notes/d.md", mirror=False, make=never, encoding="LATIN1").num_same == 1
    Path("notes/d.md").rename("notes/e.md")
    assert update("i", notes).removed == ("notes/d.md",)
    assert load_index("i").by_id["notes/e.md"].text == text
    Path("notes/e.md").write_bytes((text + " Zu.").encode("latin-1"))
    assert update("i", notes).num_read == 1 and load_index("i").by_id["notes/e.md"].text == text + " Zu."
    changes = update("i", notes, encoding="utf-8")  # which is wrong, and costs nothing
    assert changes.kept == ("notes/e.md",) and "not UTF-8 at byte 7" in changes.failed[0].reason
    assert load_index("i").by_id["notes/e.md"].text == text + " Zu."
    assert update("i", notes, make=never).num_same == 4 and index_info("i").failed == ()


@pytest.mark.parametrize(
    ("encoding", "later"), [("latin-1", "Das Caf\u00e9."), ("utf-16", "A pot of tea"), ("cp500", "Tea")]
)
def test_a_text_that_is_saved_as_utf8_is_read_as_utf8(notes, encoding, later):
    """In its earlier encoding it would be other letters, and no error."""
    Path("notes/d.md").write_bytes("Das Caf\u00e9.".encode(encoding))
    update("i", "notes/d.md", encoding=encoding)
    Path("notes/d.md").write_text(later)
    assert update("i", notes).failed == () and load_index("i").by_id["notes/d.md"].text == later
    Path("notes/d.md").write_bytes("Das Caf\u00e9 zu.".encode(encoding))
    assert update("i", notes).failed == () and load_index("i").by_id["notes/d.md"].text == "Das Caf\u00e9 zu."


def test_an_encoding_that_python_does_not_know_is_refused():
    with pytest.raises(UsageError, match="encoding 'nope': Python knows no text encoding of that name"):
        Plan(encoding="nope")


def test_removing_takes_folders_and_files(notes):
    write_notes("notes/deep", x="Another text.")
    update("i", notes)
    assert remove_documents(Path("i"), ["notes/deep", "notes/b.md"]) == ("notes/deep/x.md", "notes/b.md")
    assert [document.id for document in load_index("i").documents] == ["notes/a.md", "notes/c.md"]
    with pytest.raises(UsageError, match="note: not in the index i"):
        remove_documents(Path("i"), ["note"])


def test_the_index_is_no_part_of_what_it_holds(notes):
    update("notes/i", notes)
    Path("notes/i/readme.md").write_text("Not a note.")
    assert update("notes/i", notes).num_same == 3


def test_a_place_with_something_else_is_refused(notes):
    write_notes("other", x="A text.")
    with pytest.raises(UsageError, match=r"other: contains other files \(x.md\)"):
        update("other", notes)
    with pytest.raises(UsageError, match="is the current folder"):
        update(".", notes)
    with pytest.raises(UsageError, match="notes/a.md: is not a folder"):
        update("notes/a.md", notes)
    assert Path("other/x.md").read_text() == "A text."


def test_other_settings_and_another_encoder_are_refused(notes):
    update("i", notes)
    with pytest.raises(
        UsageError, match="was made with strategy='fixed' max_tokens=20, not with the sentences of a run"
    ):
        update("i", notes, settings=replace(SETTINGS, chunking=None))
    message = (
        "was made with the prompts and the size that the encoder's files name, not with query_prompt='query: ' dim=8"
    )
    with pytest.raises(UsageError, match=message):
        update("i", notes, settings=replace(SETTINGS, reads=EncoderOptions("query: ", dim=8)))
    write_notes(notes, a="New words.")
    with pytest.raises(InputError, match=r"index: its vectors were made by the encoder of hashes \(hashes\)"):
        update("i", notes, make=maker("others"))
    assert load_index("i").documents[0].text.startswith("Mary")


def test_another_encoder_is_refused_where_nothing_has_changed(notes):
    update("i", notes)
    with pytest.raises(InputError, match=r"encoder of hashes \(hashes\), but that of elsewhere differs \(others\)"):
        update("i", notes, make=maker("others"), settings=replace(SETTINGS, model="elsewhere"))
    assert (
        update("i", notes, settings=replace(SETTINGS, model="elsewhere")).num_same == 3
    )  # the same one by its vectors


def test_another_reader_reads_all_again(notes):
    update("i", notes)
    changes = update("i", notes, encoding="latin-1")
    assert (changes.num_read, changes.num_embedded) == (3, 0)


def test_rows_of_tables_that_an_older_version_embedded_without_their_head_are_embedded_again(notes, monkeypatch):
    Path(notes, "t.md").write_text("# Fees\n\n| berth | fee |\n|---|---|\n| red | one |\n")
    with monkeypatch.context() as older:
        older.setattr("qrag_jax.index.prepare.context_of", lambda text, spans: "")
        older.setattr("qrag_jax.index.update.READER", 1)
        update("i", notes)
    assert make_single_step("bm25")("fee", load_index("i"), 1).ids.tolist()  # it is searched as it is
    changes = update("i", notes)
    assert (changes.num_read, changes.num_embedded) == (4, 3)  # lines of the table; vectors of other texts are known
    check_equal(load_index("i"), fresh_corpus(notes))
    assert update("i", notes).num_read == 0


def test_what_is_read_in_part_is_told(notes, monkeypatch):
    missing = {"equations": 2, "pictures": 1}

    def read(file, raw, options):
        return Document(file.id, raw.decode(), {"path": file.id, "left_out": missing})

    monkeypatch.setattr("qrag_jax.index.prepare.read_document", read)
    changes = update("i", "notes/c.md")
    assert [(one.id, one.reason) for one in changes.lossy] == [("notes/c.md", "left out: equations: 2, pictures: 1")]
    assert load_index("i").documents[0].metadata["left_out"] == missing
    info = index_info("i")
    assert info.left_out == missing and info.documents[0].left_out == missing
    Path("notes/c.md").write_text("The garden is open.")
    with pytest.raises(InputError, match=r"notes/c.md: read in part \(left out: equations: 2\); leave out "):
        update("i", "notes/c.md", strict=True)
    assert load_index("i").documents[0].text == "The garden is closed."


def test_a_kind_that_is_refused_is_tried_again_when_it_is_not(notes, monkeypatch):
    Path("notes/page.md").write_bytes(b"%PDF-1.4")
    first = update("i", notes)
    assert [one.id for one in first.failed] == ["notes/page.md"] and "PDF" in first.failed[0].reason
    assert update("i", notes, make=never).failed == first.failed
    monkeypatch.setattr("qrag_jax.index.update.reader_of", lambda file, raw, encoding: "pdf 1, utf-8")
    with pytest.raises(AssertionError, match=NEVER):
        update("i", notes, make=never)


def test_an_index_that_cannot_be_made_leaves_nothing(notes):
    def refuse():
        raise UsageError("no such encoder; name another")

    with pytest.raises(UsageError, match="no such encoder"):
        update("deep/i", notes, make=refuse)
    assert not Path("deep").exists()
    update("i", notes)
    write_notes(notes, a="Another text.")
    with pytest.raises(UsageError, match="no such encoder"):
        update("i", notes, make=refuse)
    assert len(load_index("i").documents) == 3


def test_where_a_document_lies():
    assert lies_in("notes/a.md", "notes/") and lies_in("notes/a.md", "notes/a.md") and lies_in("a.md", ".")
    assert not lies_in("notes2/a.md", "notes") and not lies_in("/notes/a.md", ".") and not lies_in("a.md", "a")


def test_names_and_texts_of_any_kind_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("n").mkdir()
    for name, text in ((b"\xff.md", "Text \U0001f600."), ("é.md".encode(), "Ünï\r\ncode."), (b"Z.md", "Z.")):
        with open(os.path.join(b"n", name), "wb") as file:
            file.write(text.encode())
    update("i", "n")
    check_equal(load_index("i"), fresh_corpus("n"))
    assert np.isfinite(load_index("i").vectors).all()


def test_a_vector_of_a_damaged_document_is_not_taken_over(notes):
    update("i", notes)
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection, connection:
        connection.execute("UPDATE documents SET vectors = zeroblob(32) WHERE id = ?", (b"notes/c.md",))
    write_notes(notes, d="The garden is closed.")
    changes = update("i", "notes/d.md", mirror=False)
    assert (changes.num_embedded, [one.id for one in changes.failed]) == (1, ["notes/c.md"])
    assert update("i", notes).num_reused == 1
    check_equal(load_index("i"), fresh_corpus(notes))


def test_a_text_with_the_key_of_another_is_embedded(notes, monkeypatch):
    update("i", notes)
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection, connection:
        key = hashlib.sha256(b"A new one.").digest()[:8]
        assert connection.execute("UPDATE texts SET keys = ? || substr(keys, 9)", (key,)).rowcount == 3
    write_notes(notes, d="A new one.")
    assert update("i", "notes/d.md", mirror=False).num_embedded == 1
    check_equal(load_index("i"), fresh_corpus(notes))
