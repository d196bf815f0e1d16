import errno
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.indices import build_and_die, check_equal, fresh_corpus, log_lines, maker, update, write_notes
from support.processes import ended, start

from qrag_jax.index import settings
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_index
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.stores.sqlite.document_rows import LOST
from qrag_jax.types import InputError, UsageError

CANARY = "canary-7f3a"


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notes = write_notes("notes", a="Mary has the key.", b="John went home.", c="The garden is closed.")
    update("i", notes)
    return notes


def change(statement, *values):
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection, connection:
        connection.execute(statement, values)


CHANGES = {
    "text": ("UPDATE documents SET text = ? WHERE id = ?", b"Mary has no key!.", b"notes/a.md"),
    "metadata": ("UPDATE documents SET metadata = ? WHERE id = ?", b"{}", b"notes/a.md"),
    "vectors": ("UPDATE documents SET vectors = zeroblob(32) WHERE id = ?", b"notes/a.md"),
    "a type": ("UPDATE documents SET text = 3 WHERE id = ?", b"notes/a.md"),
    "id of the row": ("UPDATE documents SET id = ? WHERE id = ?", b"notes/q.md", b"notes/a.md"),
    "id in the ledger": ("UPDATE ledger SET id = ? WHERE id = ?", b"notes/q.md", b"notes/a.md"),
    "hash of the bytes": ("UPDATE ledger SET bytes_sha256 = ? WHERE id = ?", b"00", b"notes/a.md"),
    "hash of the row": ("UPDATE ledger SET sha256 = ? WHERE id = ?", b"00", b"notes/a.md"),
    "number": ("UPDATE ledger SET number = 77 WHERE id = ?", b"notes/a.md"),
    "another's number": ("UPDATE ledger SET number = 2 WHERE id = ?", b"notes/a.md"),
    "lost in the ledger": ("DELETE FROM ledger WHERE id = ?", b"notes/a.md"),
    "lost row": ("DELETE FROM documents WHERE id = ?", b"notes/a.md"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_is_named_and_mended_alone(notes, name):
    change(*CHANGES[name])
    info = index_info("i", verify=True)
    assert info.damaged == ("notes/a.md",) and not info.is_whole
    assert [one.id for one in info.documents] == ["notes/b.md", "notes/c.md"] and info.dim == 8
    said = (
        "1 documents are not listed" if name == "lost in the ledger" else r"document notes/.\.md: changed since it was"
    )
    with pytest.raises(InputError, match=f"i: {said}.*; name the damage with `qrag index info i --verify`"):
        load_index("i")
    changes = update("i", notes, make=maker(log="log"))
    assert changes.mended == ("notes/a.md",) and changes.num_same == 2
    assert log_lines("log") == ["'Mary has the key.'"]
    assert index_info("i", verify=True).is_whole
    check_equal(load_index("i"), fresh_corpus(notes))


def test_what_is_damaged_and_not_added_again_stays_known_as_lost(notes):
    change(*CHANGES["text"])
    changes = update("i", "notes/b.md", mirror=False)
    assert (changes.mended, changes.failed) == ((), ())  # an update checks the documents that it may replace
    assert index_info("i", verify=True).damaged == ("notes/a.md",)
    shutil.copytree("i", "other")
    assert [one.id for one in update("other", "notes/b.md", mirror=False, verify=True).failed] == ["notes/a.md"]
    change("UPDATE documents SET text = ? WHERE id = ?", b"The garden is open.", b"notes/c.md")
    changes = update("i", "notes/c.md", mirror=False)  # damage makes it check all
    assert changes.mended == ("notes/c.md",) and [one.id for one in changes.failed] == ["notes/a.md"]
    info = index_info("i", verify=True)
    assert [one.id for one in info.documents] == ["notes/b.md", "notes/c.md"]
    assert [(one.id, one.reason) for one in info.failed] == [
        ("notes/a.md", "its row in the index was damaged; add its file again")
    ]
    assert LOST.bytes_sha256 == "" and update("i", notes).num_read == 1


def test_a_torn_page_costs_what_stands_on_it(notes):
    texts = {f"n{number}": f"Text {number}. " + "x" * 3000 for number in range(8)}
    update("i", write_notes(notes, **texts))
    path = Path("i/catalogue.sqlite")
    content = bytearray(path.read_bytes())
    place = content.index(b"Text 3. ") // 4096 * 4096
    content[place : place + 8] = b"\xff" * 8
    path.write_bytes(content)
    damaged = index_info("i", verify=True).damaged
    assert "notes/n3.md" in damaged and len(damaged) < 11
    changes = update("i", notes)
    assert changes.mended == damaged and changes.num_same == 11 - len(damaged)
    check_equal(load_index("i"), fresh_corpus(notes))
    assert index_info("i", verify=True).is_whole


def test_what_a_killed_writer_left_in_the_log_is_not_lost_in_mending(notes):
    update("i", write_notes(notes, long=f"{'x' * 20_000} end"))  # has pages of its own, which the log will not have
    write_notes(notes, d="A fourth text.")
    process = start(build_and_die, "i", notes)
    assert ended(process) == -9 and Path("i/catalogue.sqlite-wal").stat().st_size > 0
    content = bytearray(Path("i/catalogue.sqlite").read_bytes())
    content[content.index(b"xxx end")] ^= 1
    Path("i/catalogue.sqlite").write_bytes(content)
    changes = update("i", notes, make=maker(log="log"))
    assert changes.mended == ("notes/long.md",) and len(log_lines("log")) == 1
    check_equal(load_index("i"), fresh_corpus(notes))


def test_a_catalogue_that_is_replaced_while_it_is_read_is_read_again(notes, monkeypatch):
    found = iter([1, 2, 2, 2])
    monkeypatch.setattr("qrag_jax.index.load.identity", lambda folder: next(found))
    assert len(load_index("i").documents) == 3
    monkeypatch.setattr("qrag_jax.index.load.identity", lambda folder: object())
    with pytest.raises(InputError, match="i: was rewritten 3 times during the read"):
        load_index("i")


@pytest.mark.parametrize("what", ["remove", "change", "mirror"])
def test_nothing_is_left_of_what_was_removed(notes, what):
    write_notes(notes, secret=f"The word is {CANARY}. " + "y" * 9000)
    update("i", notes)
    assert any(CANARY.encode() in path.read_bytes() for path in Path("i").rglob("*.*"))
    if what == "remove":
        remove_documents(Path("i"), ["notes/secret.md"])
    else:
        write_notes(notes, secret=None if what == "mirror" else "Nothing here.")
        update("i", notes)
    assert [path.name for path in Path("i").rglob("*.*") if CANARY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("new", [b"CREATE T\xffBLE", b"CREATF TABLE"])
def test_a_damaged_schema_is_said(notes, new):
    path = Path("i/catalogue.sqlite")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", new))
    with pytest.raises(InputError, match="i/catalogue.sqlite: damaged .*; if neither works, remove the folder"):
        load_index("i")
    check_that_it_is_beyond_mending(notes)


@pytest.mark.parametrize("size", [0, 100, 5000, -5000])
def test_of_a_catalogue_that_was_cut_off_nobody_is_sent_around_in_circles(notes, size):
    os.truncate("i/catalogue.sqlite", size % Path("i/catalogue.sqlite").stat().st_size)
    check_that_it_is_beyond_mending(notes)


def check_that_it_is_beyond_mending(notes):
    """What the advice of others leads to says so, and leads nowhere but out."""
    for look in (lambda: index_info("i", verify=True), lambda: update("i", notes)):
        with pytest.raises(InputError, match="i/catalogue.sqlite: damaged, or not written.*; remove the f") as said:
            look()
        assert "qrag index" not in str(said.value)


def test_another_name_of_a_column_costs_every_vector_and_no_more(notes):
    path = Path("i/catalogue.sqlite")
    path.write_bytes(path.read_bytes().replace(b"metadata", b"metadatb"))
    with pytest.raises(InputError, match="i/catalogue.sqlite: damaged"):
        load_index("i")
    assert update("i", notes).num_read == len(index_info("i", verify=True).documents) == 3


def test_what_is_no_index_is_said(notes, tmp_path):
    with pytest.raises(UsageError, match=r"notes: not an index \(no index.json in it\); build one with `qrag index"):
        load_index("notes")
    with pytest.raises(UsageError, match=r"none: not an index \(no such folder\)"):
        index_info("none")
    Path("i/catalogue.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5000))
    with pytest.raises(InputError, match="i/catalogue.sqlite: damaged"):
        load_index("i")
    Path("i/catalogue.sqlite").unlink()
    with pytest.raises(InputError, match="i/catalogue.sqlite: no such file; copy the index again"):
        load_index("i")


def test_a_newer_format_is_said(notes):
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(
        InputError, match="catalogue.sqlite: has format 9, this version of qrag_jax reads 1 and 2 and 3; update"
    ):
        load_index("i")
    about = json.loads(Path("i/index.json").read_text())
    Path("i/index.json").write_text(json.dumps(about | {"format": 7}))
    with pytest.raises(
        InputError, match="index.json: format 7, this version of qrag_jax reads 1 and 2 and 3 and 4 and 5 and 6; update"
    ):
        load_index("i")


def test_altered_settings_are_said(notes):
    text = Path("i/index.json").read_text()
    Path("i/index.json").write_text(text.replace('"max_tokens": 20', '"max_tokens": 21'))
    with pytest.raises(InputError, match=r"i/index.json: changed since it was written \(its sha256 differs\)"):
        load_index("i")


def test_the_index_json_of_something_else_is_left_alone(notes):
    Path("site").mkdir()
    Path("site/index.json").write_text('{"pages": ["a.html"]}')
    with pytest.raises(UsageError, match="site: not an index; its index.json belongs to another program"):
        update("site", notes)
    assert [path.name for path in Path("site").iterdir()] == ["index.json"]


def test_settings_that_may_not_be_read_are_said(notes, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(settings, "read_json", refuse)
    with pytest.raises(InputError, match=r"i/index.json: cannot be read \(Permission denied\); change its permissions"):
        load_index("i")


def test_an_index_without_a_document_is_said(notes):
    remove_documents(Path("i"), ["notes"])
    with pytest.raises(InputError, match="i: has no documents; add some with `qrag index add i PATHS...`"):
        load_index("i")
    assert update("i", notes).num_embedded == 3


def test_the_store_of_earlier_formats_is_the_catalogue(notes):
    about = json.loads(Path("i/index.json").read_text())
    known = {name: value for name, value in about["settings"].items() if name not in ("uri", "collection")}
    earlier = settings.with_sha256({**known, "store": "memory"}) | {"format": 5}
    Path("i/index.json").write_text(json.dumps(earlier))
    assert settings.read_settings("i").store == "sqlite" and load_index("i").stored is None
