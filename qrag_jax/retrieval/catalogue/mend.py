"""Damage, found before an index is written to: what is whole is kept, what is not is read again."""

from dataclasses import replace
from pathlib import Path

from qrag_jax.retrieval.catalogue.database import (
    bring_up_to_format,
    looked_through,
    new_file,
    reading_from,
    transaction,
    writing_to,
)
from qrag_jax.retrieval.catalogue.entries import Failure
from qrag_jax.retrieval.catalogue.note_rows import put_note_row, read_note_row
from qrag_jax.retrieval.catalogue.place import CATALOGUE
from qrag_jax.retrieval.catalogue.rows import LOST, Survey, copy, put_failure, read_row, survey

LOST_REASON = "its row in the index was damaged; add its file again"


def mend(folder: Path) -> Survey:
    """What a catalogue has, each row checked; a damaged catalogue is first written anew, of what is whole.

    A document that was damaged is recorded as one that could not be read, until its file is. The caller holds the
    folder.

    Raises:
        Damaged: nothing of it can be read.
        InputError: the disk is full.
    """
    with looked_through(folder):
        return _mend(folder)


def _mend(folder: Path) -> Survey:
    with reading_from(folder) as connection:
        found = survey(connection, folder)
    if found.is_whole:
        if not found.has_notes:
            bring_up_to_format(folder)
        return found
    with writing_to(folder):  # what a killed writer has left in the log goes into the file: the log is removed below
        pass
    # Not in place: in a file whose structure is wrong, each change may spoil what is whole.
    with new_file(folder) as beside, reading_from(folder) as connection:
        for known in found.known.values():
            row = None if known.number is None else read_row(connection, known.number)
            copy(beside, folder, replace(known, row=row))
        for name in found.damaged:
            put_failure(beside, folder, Failure(name, LOST_REASON, LOST))
        with transaction(beside, folder / CATALOGUE):
            for pair in found.pairs:  # without what they were made of: so they are made anew where one is missing
                if all(name in found.known for name in pair) and (notes := read_note_row(connection, pair)) is not None:
                    put_note_row(beside, notes)
    with reading_from(folder) as connection:
        return replace(
            survey(connection, folder), damaged=found.damaged, fault=found.fault, damaged_notes=found.damaged_notes
        )
