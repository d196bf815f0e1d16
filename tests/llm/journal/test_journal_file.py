"""The journal's file: private, shared, and never silently emptied or believed when it is damaged."""

import hashlib
import json
import os
import sqlite3
import stat
import time
from contextlib import closing

import pytest

from qrag_jax.llm.journal.journal import JournaledGenerator
from qrag_jax.llm.journal.journal_file import Journal
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.types import Generation, InputError, Message, Sampling, UsageError

TEXTS = [f"{number} " * 40 for number in range(40)]


def model():
    return ScriptedGenerator(lambda prompt: prompt[-1].content.upper())


def generate(path, texts=TEXTS, generator=None):
    prompts = [[Message("user", text)] for text in texts]
    return JournaledGenerator(generator or model(), Journal(path)).generate(prompts, sampling=Sampling())


@pytest.fixture
def path(tmp_path):
    generate(tmp_path / "journal.sqlite")
    return tmp_path / "journal.sqlite"


def change(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def rows(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


# --- what it is


def test_a_journal_is_made_with_its_folders_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "one" / "two" / "journal.sqlite"
    journal = Journal(path)
    assert journal.path == path and journal.num_answers() == 0
    with journal.session() as session:
        assert session.claim(["k"], 1) == ({}, ["k"])
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert len(modes) == 4 and set(modes.values()) == {0o600}  # -wal, -shm and the owner's file too
    assert [file.name for file in path.parent.iterdir()] == ["journal.sqlite"]


def test_any_name_will_do(tmp_path):
    for name in ("jour?nal #1%41 'x'.sqlite", "[ab]*", "\u65e5\u8a18"):
        generate(tmp_path / name, TEXTS[:2])
        assert Journal(tmp_path / name).num_answers() == 2
    assert len(list(tmp_path.iterdir())) == 3


def test_what_was_asked_is_not_in_it(path):
    generate(path, ["SECRET question"], ScriptedGenerator(lambda prompt: "a public answer"))
    content = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"a public answer" in content and b"SECRET" not in content and b"secret" not in content


def test_claims_by_hand(path):
    journal = Journal(path)
    with journal.session() as one, journal.session() as other:
        assert one.claim(["a", "b", "c"], 2) == ({}, ["a", "b"])
        assert one.claim(["a", "b"], 2) == ({}, [])  # its own are in flight too
        assert other.claim(["a", "b", "c", "d"], 4) == ({}, ["c", "d"])
        one.keep("a", Generation("A", "stop"))
        one.release("b")
        assert other.claim(["a", "b"], 4) == ({"a": Generation("A", "stop", from_journal=True)}, ["b"])
        assert rows(path, "SELECT key FROM claims ORDER BY key") == [("b",), ("c",), ("d",)]
    with journal.session() as third:  # what was claimed when a session ended is free
        assert third.claim(["b", "c", "d"], 4) == ({}, ["b", "c", "d"])


def test_claims_of_the_dead_are_free(path):
    change(path, f"INSERT INTO claims VALUES ('a', '{'0' * 32}'), ('b', '{'1' * 32}')")
    for digit in "12":  # one with claims, one without
        (path.parent / f"journal.sqlite.owner-{digit * 32}").touch()
    with Journal(path).session() as session:
        assert session.claim(["a", "b"], 2) == ({}, ["a", "b"])
    assert [file.name for file in path.parent.iterdir()] == ["journal.sqlite"]


@pytest.mark.parametrize("stamp", [0, 4_000_000_000])
def test_no_clock_decides_whose_claims_live(path, monkeypatch, stamp):
    """Neither the time of day nor that of a file: a clock that jumps pays for nothing twice, and blocks nothing."""

    def no_clock(*_):
        raise AssertionError("a clock was asked")

    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, no_clock)
    journal = Journal(path)
    with journal.session() as one, journal.session() as other:
        assert one.claim(["a", "b"], 2) == ({}, ["a", "b"])
        for file in path.parent.iterdir():
            os.utime(file, (stamp, stamp))
        assert other.claim(["a", "b"], 2) == ({}, [])  # alive, however long ago it began
        one.keep("a", Generation("yes", "stop"))
        assert list(other.claim(["a", "b"], 2)[0]) == ["a"]
    with journal.session() as third:
        known, claimed = third.claim(["a", "b"], 2)
        assert (list(known), claimed) == (["a"], ["b"])  # the dead keep none, however short ago they ended


def test_a_journal_has_one_set_of_locks_by_whatever_link_it_is_reached(tmp_path, path):
    (tmp_path / "other").mkdir()
    link = tmp_path / "other" / "link.sqlite"
    link.symlink_to(path)
    (tmp_path / "folder").symlink_to(tmp_path)
    with Journal(path).session() as one, Journal(link).session() as other:
        assert one.claim(["a"], 1) == ({}, ["a"])
        assert other.claim(["a", "b"], 2) == ({}, ["b"])  # the claim of a living process, which is not made again
    with Journal(tmp_path / "folder" / "journal.sqlite").session() as one, Journal(link).session() as other:
        assert one.claim(["a"], 1) == ({}, ["a"]) and other.claim(["a"], 1) == ({}, [])
    assert [file.name for file in link.parent.iterdir()] == ["link.sqlite"]


def test_a_link_to_a_journal_that_is_not_there_yet_makes_it_at_its_end(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "journal.sqlite")
    generate(tmp_path / "link", TEXTS[:2])
    assert Journal(tmp_path / "folder" / "journal.sqlite").num_answers() == 2


def test_a_loop_of_links_is_no_journal(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UsageError, match="give another path"):
        Journal(tmp_path / "a")


def test_a_journal_with_two_names_is_refused(tmp_path, path):
    os.link(path, tmp_path / "other.sqlite")
    for name in (path, tmp_path / "other.sqlite"):
        with pytest.raises(UsageError, match="has other names .hard links.*remove them"):
            Journal(name)
    (tmp_path / "other.sqlite").unlink()
    assert Journal(path).num_answers() == 40


def test_what_makers_that_were_killed_have_left_is_removed(tmp_path, path):
    left = [tmp_path / f".journal.sqlite.new-abc{end}" for end in ("", "-wal", "-journal")]
    os.link(path, left[0])  # killed when the journal was in its place
    for file in left[1:]:
        file.touch()
    Journal(path)
    assert not any(file.exists() for file in left)
    path.unlink()
    left[0].touch()  # killed before
    Journal(path)
    assert not left[0].exists()


def test_a_journal_that_is_removed_or_replaced_while_it_is_in_use_is_said(path):
    with Journal(path).session() as session:
        assert session.claim(["a"], 1) == ({}, ["a"])
        path.rename(path.with_name("away.sqlite"))
        with pytest.raises(InputError, match="journal.sqlite: was removed or replaced while in use"):
            session.keep("a", Generation("A", "stop"))
        Journal(path.with_name("other.sqlite")).path.rename(path)
        with pytest.raises(InputError, match="was removed or replaced"):
            session.claim(["b"], 1)


def test_the_rest_of_a_removed_journal_is_refused_and_not_mixed_into_a_new_one(path):
    rest = path.with_name("journal.sqlite-wal")
    with Journal(path).session() as session:
        session.claim(["a"], 1)
        session.keep("a", Generation("A", "stop"))
        kept = rest.read_bytes()
    path.unlink()
    rest.write_bytes(kept)  # as it is where the last process was killed
    with pytest.raises(InputError, match="journal.sqlite-wal: contains the last answers of a journal that was moved"):
        generate(path)
    assert rest.read_bytes() == kept and not path.exists()
    rest.unlink()
    assert [one.text for one in generate(path)] == [text.upper() for text in TEXTS]


# --- what it refuses


def test_other_paths_are_refused(tmp_path):
    with pytest.raises(UsageError, match="is a folder; give the path of a journal"):
        Journal(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="journal.sqlite: cannot be created"):
        Journal(tmp_path / "file" / "journal.sqlite")
    with pytest.raises(UsageError, match="null (byte|character.*); give another path"):
        Journal("a\0b")


@pytest.mark.parametrize("content", [b"", b"notes\n", b"SQLite format 3\0" + b"\xff" * 4096, b"\0" * 8192])
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "journal.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match="journal.sqlite: .*damaged.* move it away to start a new one"):
        Journal(path)
    assert path.read_bytes() == content


def test_other_databases_and_formats_are_refused(tmp_path, path):
    change(tmp_path / "other.sqlite", "CREATE TABLE answers (key, answer, sha256)")
    with pytest.raises(InputError, match="other.sqlite: is damaged, or not a journal of calls"):
        Journal(tmp_path / "other.sqlite")
    change(path, "PRAGMA user_version = 4")
    with pytest.raises(InputError, match="has format 4, this version of qrag_jax reads 1 and 2 and 3"):
        Journal(path)
    change(path, "PRAGMA user_version = 1", "DROP TABLE claims")
    with pytest.raises(InputError, match="damaged .no such table: claims.[:;] move it away"):
        Journal(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE answers SET answer = replace(answer, '7', '8')",
        "UPDATE answers SET sha256 = ''",
        "UPDATE answers SET answer = CAST(answer AS BLOB)",
        "UPDATE answers SET answer = CAST(x'ff' AS TEXT)",
        "INSERT INTO claims VALUES ('a', '../../x')",
        "INSERT INTO claims VALUES ('a', x'00')",
    ],
)
def test_a_changed_row_is_found(path, statement):
    change(path, statement)
    generator = model()
    with pytest.raises(InputError, match="journal.sqlite: damaged"):
        generate(path, generator=generator)
    assert not generator.asked


def test_a_file_that_was_cut_is_refused(path):
    content = path.read_bytes()
    for size in (len(content) // 2, 5000, 60):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match="journal.sqlite: .*damaged.*move it away"):
            generate(path)
        assert path.read_bytes() == content[:size]


def test_a_damage_that_sqlite_quotes_without_it_being_text_is_named(path):
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE claims", b"CREATE T\xffBLE claims"))
    with pytest.raises(InputError, match="journal.sqlite: .*damaged.*move it away"):
        generate(path)


def test_a_journal_that_was_removed_does_not_come_back_empty(path):
    journal = Journal(path)
    path.unlink()
    with pytest.raises(InputError, match="journal.sqlite: cannot be read or written"):
        journal.num_answers()
    assert not path.exists()


def test_an_answer_that_was_reported_survives_a_power_cut(tmp_path):
    """`synchronous` is of a connection, not of the file: 2 is FULL, which waits for the disk at every commit."""
    journal = Journal(tmp_path / "journal.sqlite")
    with journal.session() as session:
        assert session._connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert session._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# --- answers of the format before


def make_old(path, most):
    """Rewrites the file as format 1, with so many answers in it."""
    change(path, f"DELETE FROM answers WHERE rowid > {most}", "PRAGMA user_version = 1")
    for key, answer in rows(path, "SELECT key, answer FROM answers"):
        values = json.loads(answer)
        for name in ("version", "answered_by", "answer_id"):
            del values[name]
        old = json.dumps(values, sort_keys=True)
        sha256 = hashlib.sha256(f"{key}\n{old}".encode()).hexdigest()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE answers SET answer = ?, sha256 = ? WHERE key = ?", (old, sha256, key))
            connection.commit()


def test_answers_of_the_format_before_are_used(path):
    make_old(path, 10)
    assert sum(answer.from_journal for answer in generate(path)) == 10
    assert rows(path, "PRAGMA user_version") == [(3,)]  # an older version cannot read the new row


def put_old(path, number, **changes):
    """Changes an answer and gives it the version before answers were separated from their thinking."""
    key, answer = rows(path, "SELECT key, answer FROM answers ORDER BY rowid")[number]
    values = json.loads(answer) | {"version": 2} | changes
    del values["thinking"], values["is_empty"]
    old = json.dumps(values, sort_keys=True)
    sha256 = hashlib.sha256(f"{key}\n{old}".encode()).hexdigest()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE answers SET answer = ?, sha256 = ? WHERE key = ?", (old, sha256, key))
        connection.commit()


def test_thinking_is_separated_from_answers_of_the_version_before(path):
    put_old(path, 0, text="<think>Not [2].</think>\n\nIn the hall [1].")
    put_old(path, 1, text="<think>Not", finish_reason="length")
    put_old(path, 2, text=" \n")
    generator = model()
    answers = generate(path, generator=generator)
    assert (answers[0].text, answers[0].thinking) == ("In the hall [1].", "Not [2].")
    assert [prompt[-1].content for prompt in generator.asked] == TEXTS[1:3]  # these had no answer
    assert [answer.text for answer in answers[1:]] == [text.upper() for text in TEXTS[1:]]
    assert all(answer.from_journal for answer in generate(path)) and Journal(path).num_answers() == 40


def test_thinking_is_stored_beside_the_answer(tmp_path):
    said = "<think>Not [2].</think>In the hall [1]."
    for _ in range(2):
        (answer,) = generate(tmp_path / "j.sqlite", ["one"], ScriptedGenerator(lambda prompt: said))
        assert (answer.text, answer.thinking) == ("In the hall [1].", "Not [2].")
    assert answer.from_journal
