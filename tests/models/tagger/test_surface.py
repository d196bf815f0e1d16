import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.models.tagger.surface import (
    _OF_SENTENCE,
    CUES_PER_SENTENCE,
    NUM_CUES,
    cue_ids,
    paragraph_columns,
    place_columns,
    sentence_columns,
    shifted,
    word_columns,
)

TEXTS = ["In 1999 he saw it.", "2.1 Data", "We use (see Table 1):"]
NAMES = list(_OF_SENTENCE)


def column(name, texts=TEXTS):
    return sentence_columns(texts)[:, NAMES.index(name)].tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("log characters", np.log([19, 9, 22]).tolist()),
        ("log words", np.log([6, 3, 6]).tolist()),
        ("few words", [1, 1, 1]),
        ("few characters", [1, 1, 1]),
        ("opens with a capital", [1, 0, 1]),
        ("opens with a digit", [0, 1, 0]),
        ("numbered", [0, 1, 0]),
        ("closing mark", [1, 0, 0]),
        ("colon", [0, 0, 1]),
        ("no mark", [0, 1, 0]),
        ("capitals", [1 / 18, 1 / 8, 2 / 21]),
        ("capital words", [1 / 5, 1 / 2, 2 / 5]),
        ("digits", [4 / 18, 2 / 8, 1 / 21]),
        ("marks", [1 / 18, 1 / 8, 3 / 21]),
        ("year", [1, 0, 0]),
        ("opening bracket", [0, 0, 1]),
        ("joins", [1, 0, 0]),
        ("points back", [0, 0, 0]),
        ("first person", [0, 0, 1]),
        ("table or figure", [0, 0, 1]),
        ("date", [1, 0, 0]),
        ("letters a word", [9 / 4, 4 / 1, 13 / 4]),
    ],
)
def test_columns_of_a_tiny_text_by_hand(name, expected):
    assert column(name) == pytest.approx(expected)


def test_beside_each_sentence_stand_the_one_before_and_the_beginning_of_the_one_after():
    rows, width = sentence_columns(TEXTS), len(NAMES)
    own, before, after = rows[:, :width], rows[:, width : 2 * width], rows[:, 2 * width :]
    np.testing.assert_array_equal(before, np.vstack([np.zeros(width), own[:2]]))
    np.testing.assert_array_equal(after, np.vstack([own[1:, :20], np.zeros(20)]))


def test_shifted_by_hand():
    rows = np.array([[1.0], [2.0], [3.0]])
    assert shifted(rows, 1).ravel().tolist() == [2, 3, 0]
    assert shifted(rows, -2).ravel().tolist() == [0, 0, 1]
    assert shifted(rows, 9).ravel().tolist() == [0, 0, 0]


def test_words_that_are_new_or_come_back_by_hand():
    """Words: {red, fish}, {red, boat}, {}, {fish}."""
    rows = word_columns(["Red fish.", "The red boat!", "It is.", "Fish"])
    assert rows[:, 0] == pytest.approx([2 / 3, 1 / 3, 0, 0])  # new
    assert rows[:, 2] == pytest.approx([0, 1 / 3, 0, 1 / 2])  # within three sentences
    assert rows[:, 3] == pytest.approx([2 / 3, 0, 0, 0])  # come back within five
    assert rows[:, 4] == pytest.approx([0, 1 / 3, 1 / 2, 0])  # two on each side: red, then fish, then nothing


def test_words_on_both_sides_are_those_of_a_slow_count():
    texts = [
        f"{a} {b} word{i % 3}"
        for i, (a, b) in enumerate(zip("cat dog cow hen".split() * 3, "xyz abc" * 6, strict=False))
    ]
    rows = word_columns(texts)
    words = [{w for w in text.lower().split() if len(w.rstrip("0123456789")) > 2} for text in texts]
    words = [{w.rstrip("0123456789") for w in own} for own in words]
    for column, size in ((4, 2), (5, 5), (6, 10)):
        for i in range(1, len(texts)):
            a, b = set().union(*words[max(0, i - size) : i]), set().union(*words[i : i + size])
            assert rows[i, column] == pytest.approx(len(a & b) / (1 + min(len(a), len(b))))


def test_places_by_hand():
    rows = place_columns(4)
    assert rows[:, 0].tolist() == [0, 0.25, 0.5, 0.75]
    assert rows[:, 2] == pytest.approx(np.log([1, 2, 3, 4]))
    assert rows[:, 3] == pytest.approx(np.log([4, 3, 2, 1]))
    assert rows[:, 7:18].argmax(axis=1).tolist()[1:] == [0, 1, 2]  # number from the beginning, 1 on


def test_paragraphs_by_hand():
    rows = paragraph_columns(np.array([True, False, True, False, False]))
    assert rows[:, 0].tolist() == [1, 0, 1, 0, 0]
    assert rows[2, 2] == pytest.approx(np.log1p(2))  # the paragraph that ends has two sentences
    assert rows[2, 3] == pytest.approx(np.log1p(3))
    assert rows[:, 4].tolist() == [0, 1, 0, 1, 1]
    assert rows[0, 7] == pytest.approx(0.4)


def test_a_document_of_one_paragraph_has_none():
    assert not paragraph_columns(np.array([True, False, False])).any()


def test_cues_are_hashes_of_the_opening_words():
    ids = cue_ids(["In 1999 we", "The end."])
    assert ids.shape == (2, CUES_PER_SENTENCE) and ids.dtype == np.int32
    assert ids[0, 0] == zlib.crc32(b"1|in") % NUM_CUES
    assert ids[0, 2] == zlib.crc32(b"3|in 0000 we") % NUM_CUES
    assert ids[1, 7] == zlib.crc32(b"p|in") % NUM_CUES  # the word before it
    assert (cue_ids(["In 2024 we"])[0, :7] == ids[0, :7]).all()  # digits are alike
    assert (cue_ids(["Out 1999 we"])[0, 0] != ids[0, 0]).all()


@given(st.lists(st.text(max_size=30), min_size=1, max_size=6))
def test_any_text_has_finite_columns(texts):
    columns = [sentence_columns(texts), word_columns(texts), place_columns(len(texts))]
    assert all(np.isfinite(rows).all() and len(rows) == len(texts) for rows in columns)
    ids = cue_ids(texts)
    assert ((ids >= 0) & (ids < NUM_CUES)).all()
