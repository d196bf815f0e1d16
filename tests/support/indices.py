"""Folders of notes with their indices: plain ones, and with notes of chunks."""

import hashlib
import os
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from qrag_jax.annotate.mentions import MentionsConfig, mention_notes
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.documents.read import find_files, read_files
from qrag_jax.index.folder import one_writer
from qrag_jax.index.prepare import Maker
from qrag_jax.index.remove import outside
from qrag_jax.index.settings import IndexSettings, NotesSetting
from qrag_jax.index.shards import merge_shards
from qrag_jax.index.update import Plan, update_index
from qrag_jax.search.corpus import build_corpus
from qrag_jax.types import UsageError
from support.passages import split_lines
from support.study import Counts

SETTINGS = IndexSettings(ChunkConfig(max_tokens=20), "hashes")
WINDOW = 6  # words that the encoder reads
POISON = "poison"  # a text that ends the process that reads it


class HashEncoder:
    """Vectors of 8 bytes of a hash of the first words; notes every text in a log, if it has one."""

    def __init__(self, fingerprint="hashes", log=None, pause=0.0):
        self.fingerprint, self._log, self._pause = fingerprint, log, pause
        self.counts = Counts(0, 0, 0)

    def __call__(self, texts, progress=None):
        cut = sum(len(text.split()) > WINDOW for text in texts)
        before = self.counts
        self.counts = Counts(before.num_texts + len(texts), before.num_tokens, before.num_texts_cut + cut)
        if self._log is not None:
            lines = "".join(f"{text!r}\n" for text in texts)
            with open(self._log, "a") as file:
                file.write(lines)
        time.sleep(self._pause * len(texts))
        known = [hashlib.sha256(" ".join(text.split()[:WINDOW]).encode()).digest() for text in texts]
        return np.array([np.frombuffer(digest, np.uint8)[:8] / 255 for digest in known], np.float32).reshape(-1, 8)


def chunk_lines(document):
    """A chunk a line; a poisonous text kills the process."""
    if POISON in document.text:
        os.kill(os.getpid(), signal.SIGKILL)
    return split_lines(document)


def count_words(text):
    return len(text.split())


def load_maker(fingerprint="hashes", log=None, pause=0.0):
    return Maker(chunk_lines, HashEncoder(fingerprint, log, pause), count_words)


def load_once_killed(folder):
    """A maker whose first process is killed while it loads."""
    try:
        Path(folder, "was here").touch(exist_ok=False)
    except FileExistsError:
        return load_maker()
    os.kill(os.getpid(), signal.SIGKILL)


def load_never():
    os.kill(os.getpid(), signal.SIGKILL)


def load_refused():
    raise UsageError("no such encoder; name another")


def maker(fingerprint="hashes", log=None, pause=0.0):
    """A `MakeMaker`."""
    return partial(load_maker, fingerprint, log, pause)


def write_notes(folder, **texts):
    """Files of a folder by the name without its ending; None removes one."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = Path(folder, f"{name}.md")
        path.unlink() if text is None else path.write_text(text)
    return str(folder)


def update(folder, *paths, make=None, settings=SETTINGS, **plan):
    """`update_index` of paths, as `build` does it."""
    paths = [str(path) for path in paths]
    found, _ = outside(find_files(paths), paths, Path(folder))
    return update_index(Path(folder), paths, found, settings, make or maker(), Plan(**{"mirror": True, **plan}))


def fresh_corpus(*paths):
    """The corpus of the same files, in the order of their ids, without an index."""
    made = load_maker()
    documents = sorted(read_files(paths), key=lambda document: document.id)
    return build_corpus(documents, made.chunk, made.embed, chunking=SETTINGS.chunking, encoder="hashes")


def check_equal(corpus, other):
    """Documents, chunks and what made them are equal, vectors to the last digits."""
    assert corpus.documents == other.documents
    assert corpus.nodes == other.nodes
    assert corpus.made_by == other.made_by
    assert corpus.num_beyond_window == other.num_beyond_window
    np.testing.assert_allclose(corpus.vectors, other.vectors, rtol=0, atol=1e-6)


def log_lines(path):
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def hold(folder):
    """Holds an index as a writer does: says so by a file `held`, and leaves when there is one `free`."""
    with one_writer(Path(folder), "qrag index"):
        Path("held").touch()
        while not Path("free").exists():
            time.sleep(0.01)


def build_and_die(folder, notes):
    """Brings an index up to date, and is killed before its log is emptied."""

    def die(done, of):
        os.kill(os.getpid(), signal.SIGKILL)

    update(folder, notes, progress=die)


def merge_and_die(folder):
    """Merges, and is killed when one shard is removed and another is not."""

    def die(shards):
        remove(next(path for path in Path(shards).iterdir() if path.name.startswith("0")))
        os.kill(os.getpid(), signal.SIGKILL)

    remove, shutil.rmtree = shutil.rmtree, die
    merge_shards(Path(folder))


NOTED = replace(SETTINGS, notes=NotesSetting("mentions"))
FILM, LEE, RAIN = (
    "Up Down is a film by Ann Lee.",
    "She was born in Graz.\nRain fell there.",
    "It rained.\nAnn Lee is here.",
)
FEW = MentionsConfig(max_notes=1, max_owners=2, max_naming=2)  # so few that other documents decide on notes


def read_few(documents, chunks):
    return mention_notes(documents, chunks, FEW)


def note_rows(folder):
    """All that an index keeps of notes, byte for byte."""
    with closing(sqlite3.connect(Path(folder, "catalogue.sqlite"))) as connection:
        return [connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in ("notes", "noted")]


def change_notes(statement, *values, folder="i"):
    with closing(sqlite3.connect(Path(folder, "catalogue.sqlite"))) as connection, connection:
        assert connection.execute(statement, values).rowcount


def note(folder, *paths, **plan):
    """`update` of an index whose chunks get notes."""
    return update(folder, *paths, **{"settings": NOTED, **plan})


def killed_reader(documents, chunks):
    """Notes are asked for when all documents are written."""
    os.kill(os.getpid(), signal.SIGKILL)


def add_and_die_before_notes(folder, notes):
    note(folder, notes, read_notes=killed_reader)


def note_slowly(folder, notes, pause, log=None):
    """Brings an index with notes up to date, with a pause for each text that is embedded."""
    note(folder, notes, make=maker(log=log, pause=pause), mirror=False)


def write_people(folder, number):
    """A page of ten chunks a person, each of which names another one."""
    Path(folder).mkdir(exist_ok=True)
    for one in range(number):
        lines = [
            f"Person{(one + line + 1) % number:04} knows what person {one} said on day {line}." for line in range(10)
        ]
        Path(folder, f"person{one:04}.md").write_text("\n".join(lines) + "\n")
    return str(folder)
