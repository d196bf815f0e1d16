"""An index whose writers are killed, starved and doubled, and whose bits are flipped: nothing is lost unseen."""

import ast
import os
import random
import re
import shutil
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.indices import (
    POISON,
    SETTINGS,
    HashEncoder,
    check_equal,
    fresh_corpus,
    log_lines,
    maker,
    note,
    note_rows,
    update,
    write_notes,
    write_people,
)
from support.processes import CONTEXT, ended, start
from support.tiers import PATIENCE, of_tier
from trust.index_writers import (
    REFUSED,
    build_slowly,
    build_small,
    build_with_deaths,
    lines_of,
    wait_for,
    write_on,
    write_version,
)

from qrag_jax.documents.read import find_files
from qrag_jax.files.sqlite import SQLITE_ERRORS, Damaged
from qrag_jax.index.folder import is_index
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_index, load_noted_index
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.shards import build_shard, merge_shards
from qrag_jax.index.update import Plan
from qrag_jax.types import InputError

TEST = 14
SEED = int(os.environ.get("TRUST_SEED", "0"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def finished():
    """Ids of the documents that the index has, each whole."""
    if not is_index("i"):
        return set()
    info = index_info("i", verify=True)
    assert info.is_whole
    return {one.id for one in info.documents}


def test_what_was_finished_survives_any_kill(figures):
    """Every third kill comes soon after the start: in making the index, looking it over, emptying its log."""
    num_kills, rng = of_tier(3, 50), random.Random(SEED)
    num_files = max(100, 10 * num_kills)  # a build takes longer than the longest wait for a kill
    notes = write_version("notes", num_files, 1)
    before = []  # what was finished at each kill, and how much had been embedded
    for number in range(num_kills):
        size = Path("log").stat().st_size if Path("log").exists() else 0
        process = start(build_slowly, "i", notes, "log", 0.001)
        if number % 3 == 2:
            time.sleep(0.3 * rng.random())
        else:
            wait_for("log", size + rng.randrange(1, 2_000), process, PATIENCE)
            time.sleep(0.03 * rng.random())
        process.kill()
        assert ended(process) == -9, "it was through before it could be killed"
        before.append((finished(), len(log_lines("log"))))
    counts = [len(done) for done, _ in before]
    assert counts == sorted(counts) and counts[-1] < num_files
    process = start(build_slowly, "i", notes, "log", 0.0)
    assert ended(process) == 0
    check_equal(load_index("i"), fresh_corpus(notes))
    names = [f"notes/n{re.search('[0-9]+$', ast.literal_eval(line))[0]}.md" for line in log_lines("log")]
    for done, place in before:
        assert done.isdisjoint(names[place:]), "a finished document was embedded again"
    again = len(names) - 4 * num_files
    told = f"0 of {num_files} documents differ from a clean build, 0 finished ones embedded twice; {again} chunks in "
    figures(TEST, "SIGKILL in a build", num_kills, f"{told}flight at a kill were embedded again")


def test_every_flipped_bit_is_named_and_mended_alone(figures):
    num_flips, rng = of_tier(4, 300), random.Random(SEED)
    notes = write_notes("notes", **{f"n{number}": lines_of(1, number) * (1 + number % 5 * 3) for number in range(30)})
    update("whole", notes)
    right, rows = load_index("whole"), raw_rows("whole")
    path = Path("whole/catalogue.sqlite")
    size, harmless, unreadable, mended = path.stat().st_size, 0, 0, 0
    for _ in range(num_flips):
        shutil.rmtree("i", ignore_errors=True)
        shutil.copytree("whole", "i")
        Path("log").unlink(missing_ok=True)
        flip(Path("i/catalogue.sqlite"), rng.randrange(8 * size))
        changed = {name for name, row in raw_rows("i").items() if rows.get(name) != row} | rows.keys() - raw_rows("i")
        try:
            info = index_info("i", verify=True)
        except InputError:  # its head: nothing can be read, and that is said
            unreadable += 1
            with pytest.raises(InputError, match="damaged|has format|no such file|cannot be read"):
                load_index("i")
            continue
        named = {name for name in info.damaged if name in rows}
        assert changed & rows.keys() <= named, "a change is not named"
        if info.is_whole:
            harmless += 1
            check_equal(load_index("i"), right)
            continue
        if named:
            with pytest.raises(InputError):
                load_index("i")
        changes = update("i", notes, make=maker(log="log"), mirror=False)
        assert changes.num_read == len(named) and changes.num_same == len(rows) - len(named)
        check_equal(load_index("i"), right)
        assert index_info("i", verify=True).is_whole
        mended += 1
    told = f"{mended} named and repaired alone, {harmless} in no document, {unreadable} in the file's head and reported"
    figures(TEST, "flipped bits", num_flips, f"0 unseen: {told}")


def test_flipped_bits_of_notes_are_named_or_harmless_and_mended(figures):
    """Of an index most of which is notes; what is not said to be damaged has the same notes."""
    num_flips, rng = of_tier(4, 300), random.Random(SEED)
    notes = write_people("notes", 12)
    note("whole", notes)
    right, rows = load_noted_index("whole"), note_rows("whole")
    path = Path("whole/catalogue.sqlite")
    size, outcomes = path.stat().st_size, Counter()
    for _ in range(num_flips):
        shutil.rmtree("i", ignore_errors=True)
        shutil.copytree("whole", "i")
        flip(Path("i/catalogue.sqlite"), rng.randrange(8 * size))
        try:
            info = index_info("i", verify=True)
        except InputError:  # its head: nothing can be read, and that is said
            outcomes["unreadable"] += 1
            continue
        outcomes["whole" if info.is_whole and info.are_notes_current else "said"] += 1
        if info.is_whole and info.are_notes_current:
            found = load_noted_index("i")
            assert found.notes == right.notes and (found.vectors == right.vectors).all()
        elif info.damaged_notes:
            with pytest.raises(InputError):
                load_noted_index("i")
        note("i", notes, mirror=False)
        assert note_rows("i") == rows and index_info("i", verify=True).is_whole
    told = f"{outcomes['said']} reported and repaired, {outcomes['whole']} in nothing that is read, "
    figures(
        TEST, "flipped bits of notes", num_flips, f"0 unseen: {told}{outcomes['unreadable']} in the head of the file"
    )


def raw_rows(folder):
    """What SQLite gives of each document, unchecked: as far as it gives anything."""
    found = {}
    try:
        with closing(sqlite3.connect(f"file:{folder}/catalogue.sqlite?mode=ro", uri=True)) as connection:
            connection.text_factory = bytes
            for (key,) in connection.execute("SELECT id FROM ledger").fetchall():
                name = key.decode(errors="replace") if isinstance(key, bytes) else repr(key)
                try:
                    query = "SELECT * FROM ledger JOIN documents USING (number) WHERE ledger.id = ?"
                    found[name] = connection.execute(query, (key,)).fetchone()
                except SQLITE_ERRORS:
                    found[name] = None
    except SQLITE_ERRORS:
        pass
    return found


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_reader_beside_two_writers_sees_whole_documents(figures):
    num_reads, num_files = of_tier(10, 1_000), 6
    for name in ("a", "b"):
        update("i", write_version(name, num_files, 0), mirror=False)
    writers = [start(write_on, "i", name, num_files, "end") for name in ("a", "b")]
    seen, embed, done = set(), HashEncoder(), 0
    try:
        while done < num_reads or not (Path("a.versions").exists() and Path("b.versions").exists()):
            assert all(writer.exitcode is None for writer in writers)
            done += 1
            corpus = load_index("i")
            assert len(corpus.documents) == 2 * num_files
            assert corpus.vectors.tobytes() == embed(corpus.texts).tobytes()
            for document in corpus.documents:
                versions = {line.split()[0] for line in document.text.split("\n")}
                assert len(versions) == 1
                seen |= {(document.id[0], *versions)}
    finally:
        Path("end").touch()
        assert [ended(writer) for writer in writers] == [0, 0]
    versions = [int(Path(f"{name}.versions").read_text()) for name in ("a", "b")]
    told = f"0 torn; the writers wrote {sum(versions)} versions of {num_files} documents, {len(seen)} were seen"
    figures(TEST, "a reader beside two writers", done, told)


def test_a_full_disk_is_said_and_costs_no_document(figures):
    num_rounds, num_files = of_tier(1, 20), 60
    notes = write_version("notes", num_files, 1)
    update("whole", notes)
    size = Path("whole/catalogue.sqlite").stat().st_size
    for number in range(num_rounds):
        process = start(build_small, "i", notes, "log", int(size * (0.3 + 0.6 * number / num_rounds)))
        assert ended(process) == REFUSED
        assert "cannot be" in Path("log.said").read_text()
        finished()
    update("i", notes)
    check_equal(load_index("i"), fresh_corpus(notes))
    figures(TEST, "writers under RLIMIT_FSIZE", num_rounds, "each reported it; 0 documents lost or torn")


def test_killed_workers_and_a_poisonous_document(figures):
    num_deaths = of_tier(1, 10)
    notes = write_version("notes", 40, 1)
    write_notes(notes, bad=f"A {POISON} text.")
    process = start_with_children(build_with_deaths, "i", notes, "deaths", num_deaths, 2)
    assert ended(process) == 0
    assert len(os.listdir("deaths")) == num_deaths
    info = index_info("i", verify=True)
    assert [one.id for one in info.failed] == ["notes/bad.md"] and len(info.documents) == 40
    write_notes(notes, bad=None)
    update("i", notes)
    check_equal(load_index("i"), fresh_corpus(notes))
    figures(TEST, "workers killed", num_deaths, "0 of 40 documents lost; a poisonous one fails alone")


def test_shards_and_workers_come_to_the_same(figures):
    num_files = of_tier(20, 200)
    notes = write_version("notes", num_files, 1)
    right = fresh_corpus(notes)
    for number in (1, 4):
        folder = Path(f"of {number}")
        for shard in range(number):
            assert build_shard(folder, [notes], find_files(notes), SETTINGS, maker(), Plan(), shard, number)
        assert merge_shards(folder) == num_files
        check_equal(load_index(folder), right)
    update("workers", notes, num_workers=2)
    check_equal(load_index("workers"), right)
    figures(TEST, "1 shard, 4 shards, 2 workers", 3, f"each equal to {num_files} files read at once")


def test_a_canary_that_is_removed_is_nowhere(figures):
    num_rounds, rng = of_tier(3, 60), random.Random(SEED)
    notes = write_version("notes", 8, 1)
    update("i", notes)
    for number in range(num_rounds):
        canary = f"canary-{rng.getrandbits(64):x}"
        lines = [f"{rng.getrandbits(64):x}" for _ in range(rng.randrange(1, 400))]
        write_notes(notes, secret="\n".join([*lines, canary, *lines[::-1]]))
        update("i", notes)
        assert any(canary.encode() in path.read_bytes() for path in Path("i").rglob("*.*"))
        if number % 3 == 0:
            remove_documents(Path("i"), ["notes/secret.md"])
        write_notes(notes, secret=None if number % 3 == 1 else "Nothing is here.")
        if number % 3:
            update("i", notes)
        assert [path.name for path in Path("i").rglob("*.*") if canary.encode() in path.read_bytes()] == []
    figures(TEST, "a document removed, changed, gone", num_rounds, "its canary is in no file of the folder")


def start_with_children(work, *args):
    """As `forked.start`, of a process that may have some of its own."""
    process = CONTEXT.Process(target=work, args=args)
    process.start()
    return process


def test_flips_of_the_settings_are_said():
    notes = write_version("notes", 2, 1)
    update("i", notes)
    path = Path("i/index.json")
    content = path.read_bytes()
    rng = random.Random(SEED)
    for _ in range(of_tier(20, 300)):
        path.write_bytes(content)
        flip(path, rng.randrange(8 * len(content)))
        try:
            corpus = load_index("i")
        except InputError as error:
            assert "index.json" in str(error) and not isinstance(error, Damaged)
        else:  # blank space alone
            assert np.isfinite(corpus.vectors).all()
