import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.search.note_texts import fitting_notes, insert_notes, offset_in_chunk
from qrag_jax.types import UsageError

TEXT = "Mary went home. It rained.\nJohn slept."


def test_notes_by_hand():
    notes = [(0, "first"), (30, "third"), (14, "second")]
    assert insert_notes(TEXT, notes) == "Mary went home. (first second) It rained.\nJohn slept. (third)"
    assert insert_notes(TEXT, []) == TEXT


def test_a_place_between_two_sentences_belongs_to_the_next_one():
    assert insert_notes(TEXT, [(15, "x")]) == "Mary went home. It rained. (x)\nJohn slept."
    assert insert_notes("One. ", [(4, "x")]) == "One.  (x)"  # behind the last sentence


@pytest.mark.parametrize("offset", [-1, len(TEXT)])
def test_a_place_outside_of_the_text_is_refused(offset):
    with pytest.raises(UsageError, match=rf"note 'x': character {offset} is not in a text of {len(TEXT)}"):
        insert_notes(TEXT, [(offset, "x")])


def test_notes_take_room_in_their_turn():
    assert fitting_notes([5, 9, 4, 1], 10.0) == [0, 2, 3]
    assert fitting_notes([11], 10.0) == []  # a note longer than its chunk
    assert fitting_notes([], 10.0) == []
    assert fitting_notes([10], 10.0) == [0]


def test_offsets_of_a_chunk_of_several_spans():
    spans = [(10, 15), (20, 22)]
    assert [offset_in_chunk(spans, offset) for offset in (10, 14, 20, 21)] == [0, 4, 6, 7]
    with pytest.raises(UsageError, match="character 15 of the document: not in"):
        offset_in_chunk(spans, 15)


SENTENCES = st.sampled_from(["It rained.", "Mary went home!", "A (b) c.", "\n\n", "no end", " ", "\u3042\u3002"])


@examples(200)
@given(st.data())
def test_inserted_notes_stand_between_sentences_and_out_of_each_other(data):
    text = " ".join(data.draw(st.lists(SENTENCES, min_size=1, max_size=6)))
    places = data.draw(st.lists(st.integers(0, len(text) - 1), max_size=6))
    notes = [(place, f"<{number}>") for number, place in enumerate(places)]
    inserted = insert_notes(text, notes)
    assert re.sub(r" \(<\d+>(?: <\d+>)*\)", "", inserted) == text  # so none is inside of another one
    ends = {end for _, end in split_sentences(text)}
    for place, note in notes:
        before = re.sub(r" \(<\d+>(?: <\d+>)*\)", "", inserted[: inserted.index(note)])
        stands = (
            len(before.removesuffix(" (")) if before.endswith(" (") else len(re.sub(r" \((?:<\d+> )+$", "", before))
        )
        assert stands in ends | {len(text)}
        assert stands > place
