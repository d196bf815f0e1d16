"""Folders of notes that name one another, and an index of them whose chunks get notes of their own."""

import os
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tiny_index import SETTINGS, maker, update

from qrag_jax.annotate.mentions import MentionsConfig, mention_notes
from qrag_jax.index.settings import NotesSetting

NOTED = replace(SETTINGS, notes=NotesSetting("mentions"))
FILM, LEE, RAIN = (
    "Up Down is a film by Ann Lee.",
    "She was born in Graz.\nRain fell there.",
    "It rained.\nAnn Lee is here.",
)
FEW = MentionsConfig(most_notes=1, most_owners=2, most_naming=2)  # so few that other documents decide on notes


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
