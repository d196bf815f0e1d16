import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.index.stores.sqlite.entries import parts_sha256
from qrag_jax.index.stores.sqlite.note_rows import NoteRow, pack_notes, pack_vectors, texts_of, unpack_notes
from qrag_jax.types import Note

TEXT = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates too
SPAN = st.tuples(st.integers(0, 2**40), st.integers(0, 2**40))
NOTES = st.builds(Note, *[TEXT] * 3, SPAN, SPAN, *[TEXT] * 4)
ASKED = Note("a", "b", "Who? She.", (0, 3), (4, 9), "quote", "llm", "Who?", "She.")
TOLD = replace(ASKED, text="She came.", question="", answer="")


def row_of(*notes, num_tokens=(3, 4), num_vectors=3):
    vectors = np.arange(2.0 * num_vectors).reshape(num_vectors, 2)
    content = pack_notes(list(enumerate(notes)))
    return NoteRow(("b", "a"), content, *pack_vectors(num_tokens, list(vectors)))


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 99), NOTES), max_size=4))
def test_notes_come_back_from_their_bytes(notes):
    content = pack_notes(notes)
    assert unpack_notes(content) == tuple(notes) and content.isascii()
    assert pack_notes(unpack_notes(content)) == content


def test_questions_have_vectors_behind_those_of_the_texts():
    row = row_of(TOLD, ASKED)
    assert row.texts == ("She came.", "Who? She.", "Who?") == texts_of([TOLD, ASKED])
    num_tokens, vectors = row.unpack_vectors()
    assert num_tokens.tolist() == [3, 4] and vectors.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("change", [{"num_tokens": (3,)}, {"num_vectors": 4}, {"num_vectors": 0}])
def test_a_row_of_other_sizes_is_refused(change):
    with pytest.raises(ValueError, match="reshape|notes with"):
        row_of(TOLD, ASKED, **change).unpack_vectors()


def test_a_vector_that_is_not_finite_is_refused():
    row = row_of(TOLD, ASKED)
    bad = np.frombuffer(row.vectors, "<f4").copy()
    bad[3] = np.nan
    with pytest.raises(ValueError, match="2 notes with 2 counts"):
        replace(row, vectors=bad.tobytes()).unpack_vectors()


@pytest.mark.parametrize("change", [{"text": 7}, {"source": ["a", 2]}, {"place": 1.5}, {"evidence": [1]}])
def test_fields_of_other_kinds_are_refused(change):
    (fields,) = json.loads(pack_notes([(0, TOLD)]))
    with pytest.raises((ValueError, TypeError)):
        unpack_notes(json.dumps([fields | change]).encode())


def test_no_part_lends_a_byte_to_the_next():
    assert parts_sha256(b"ab", b"c") != parts_sha256(b"a", b"bc") != parts_sha256(b"abc")
