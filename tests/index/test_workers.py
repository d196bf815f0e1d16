from functools import partial

import pytest
from support.indices import (
    POISON,
    check_equal,
    fresh_corpus,
    load_never,
    load_once_killed,
    load_refused,
    maker,
    update,
    write_notes,
)

from qrag_jax.index.load import load_index
from qrag_jax.types import InputError, UsageError


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qrag_jax.index.update._MAX_FILES", 2)
    return write_notes("notes", **{f"n{number}": f"Line {number}.\nThe same line." for number in range(7)})


def test_workers_make_the_same_index_and_reuse_vectors(notes):
    changes = update("i", notes, num_workers=2)
    assert changes.num_read == 7
    check_equal(load_index("i"), fresh_corpus(notes))
    write_notes(notes, n1="Another line.\nThe same line.")
    changes = update("i", notes, num_workers=1)
    assert (changes.num_read, changes.num_embedded, changes.num_reused) == (1, 1, 1)
    check_equal(load_index("i"), fresh_corpus(notes))


@pytest.mark.slow  # tests/trust/test_index.py has such a document too
def test_a_poisonous_document_fails_alone_and_is_not_tried_again(notes):
    write_notes(notes, n3=f"A {POISON} text.")
    changes = update("i", notes, num_workers=2)
    assert [one.id for one in changes.failed] == ["notes/n3.md"] and changes.num_read == 6
    assert changes.failed[0].reason.startswith("the process that read it ended 3 times (exit code -9); leave it out")
    again = update("i", notes, num_workers=2, make=load_never)
    assert (again.failed, again.num_same) == (changes.failed, 6)


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_loads_is_replaced(notes):
    assert update("i", notes, num_workers=1, make=partial(load_once_killed, ".")).num_read == 7


@pytest.mark.slow
def test_processes_that_cannot_load_are_said(notes):
    with pytest.raises(InputError, match=r"worker processes crash while they load the encoder \(exit code -9\)"):
        update("i", notes, num_workers=1, make=load_never)
    with pytest.raises(UsageError, match="no such encoder; name another"):
        update("i", notes, num_workers=2, make=load_refused)


@pytest.mark.slow
def test_another_encoder_is_refused_before_a_file_is_written(notes):
    update("i", notes)
    write_notes(notes, n1="Another line.")
    with pytest.raises(InputError, match="its vectors were made by the encoder of hashes"):
        update("i", notes, num_workers=1, make=maker("others"))
    assert load_index("i").documents[1].text.startswith("Line 1.")
