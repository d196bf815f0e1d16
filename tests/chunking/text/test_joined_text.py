"""Texts of many pieces, and the usual file of a folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.chunking.text.spans import join_pieces
from qrag_jax.types import InputError

PIECE = st.text("ab \n\u3000\u00a0", min_size=1, max_size=6).filter(str.strip)


def test_pieces_are_stripped_and_found_where_the_spans_say():
    assert join_pieces([" One.", "Two. \n", "Three."]) == ("One. Two. Three.", ((0, 4), (5, 9), (10, 16)))
    assert join_pieces(["# T", "One.", "Two."], ["\n\n", ""]) == ("# T\n\nOne.Two.", ((0, 3), (5, 9), (9, 13)))
    assert join_pieces(["\u3000alone\u00a0"]) == ("alone", ((0, 5),))


@given(st.lists(st.tuples(PIECE, st.text("- \n", max_size=3)), min_size=1, max_size=6))
def test_spans_and_gaps_make_up_the_text(parts):
    pieces, gaps = [piece for piece, _ in parts], [gap for _, gap in parts[1:]]
    text, spans = join_pieces(pieces, gaps)
    assert [text[start:end] for start, end in spans] == [piece.strip() for piece in pieces]
    assert [text[end:start] for (_, end), (start, _) in zip(spans, spans[1:], strict=False)] == gaps
    assert (spans[0][0], spans[-1][1]) == (0, len(text))


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(InputError, match="piece 1 of 2 is blank"):
        join_pieces(["a", " \n"])
    with pytest.raises(InputError, match="0 pieces and 0 gaps"):
        join_pieces([])
    with pytest.raises(InputError, match="2 pieces and 2 gaps"):
        join_pieces(["a", "b"], [" ", " "])
