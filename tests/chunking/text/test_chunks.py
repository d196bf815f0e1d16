"""Spans, texts and ids of chunks."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.chunking.text.chunks import (
    Group,
    SentenceText,
    chunk_id,
    chunk_text,
    count_spans,
    groups_of,
    is_blank,
    join_spans,
    make_chunk,
)
from qrag_jax.types import Document

TEXT = "One. Two.\n\nThree.\u3000Four."
SPANS = ((0, 4), (5, 9), (11, 17), (18, 23))


def test_spans_with_only_blank_space_between_them_are_one():
    assert join_spans(TEXT, SPANS) == ((0, 23),)
    assert join_spans(TEXT, [SPANS[0], SPANS[2], SPANS[3]]) == ((0, 4), (11, 23))
    assert join_spans("ab", [(0, 1), (1, 2)]) == ((0, 2),)
    assert join_spans(TEXT, []) == ()


@given(st.text(alphabet="a \n\u3000\x85\x1c\u2028\0", max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_blank_is_what_strip_removes(text, start, end):
    assert is_blank(text, start, end) == (not text[start:end].strip())


@pytest.mark.parametrize("size", [62, 63, 64, 65, 1000])
@pytest.mark.parametrize("space", " \n\u3000\x85\x1c\u2028")
def test_blank_gaps_of_any_length(size, space):
    text = "a" + space * size + "b"
    assert is_blank(text, 1, 1 + size)
    assert not is_blank(text, 1, 2 + size)
    assert not is_blank(text, 0, 1 + size)
    assert is_blank(space * size, 0, 5 * size)


def test_the_text_of_several_spans_is_joined_by_a_line_break():
    assert chunk_text(TEXT, [(0, 4), (18, 23)]) == "One.\nFour."
    assert count_spans(TEXT, [SPANS[0], SPANS[3]], len) == 10
    assert count_spans(TEXT, SPANS[:2], len) == 9  # the space between them, as it stands in the text


def test_a_chunk_says_where_it_is_and_how_large():
    chunk = make_chunk(Document("d", TEXT), [SPANS[0], SPANS[1], SPANS[3]], 2, lambda text: len(text.split()))
    assert chunk.spans == ((0, 9), (18, 23))
    assert (chunk.document_id, chunk.level, chunk.num_tokens) == ("d", 2, 3)
    assert chunk.id == chunk_id("d", [(0, 9), (18, 23)], 2)


def test_ids_are_a_hash_of_document_level_and_spans():
    expected = hashlib.sha256(b"d\x001\x000-4\x005-9").hexdigest()[:16]
    assert chunk_id("d", [(0, 4), (5, 9)], 1) == expected
    others = [
        chunk_id("e", [(0, 4), (5, 9)], 1),
        chunk_id("d", [(0, 4), (5, 9)], 2),
        chunk_id("d", [(0, 4)], 1),
        chunk_id("d", [(0, 9)], 1),
        chunk_id("d\x001", [(0, 4), (5, 9)], 1),
        chunk_id("\ud800", [(0, 4)], 1),  # a file name that is not UTF-8
    ]
    assert len({expected, *others}) == 7


def test_groups_of_sentence_numbers_leave_out_empty_ones():
    text = SentenceText(TEXT, SPANS)
    assert len(text) == 4
    assert text.texts() == ["One.", "Two.", "Three.", "Four."]
    assert groups_of(text, [[0, 3], [], range(1, 3)], level=2) == [
        Group((SPANS[0], SPANS[3]), 2),
        Group((SPANS[1], SPANS[2]), 2),
    ]
