import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.chunking.text.spans import cut_text, is_blank, join_spans, readable, strip_span

PIECES = st.lists(st.sampled_from(["a", "bc", " ", "\n\n", "\u3000", "\t"]), max_size=12).map("".join)


def test_lone_surrogates_are_replaced_one_for_one():
    assert readable("a\ud800b\udfff\U0001f600") == "a\ufffdb\ufffd\U0001f600"


@pytest.mark.parametrize(
    ("start", "end", "blank"), [(0, 0, True), (0, 1, False), (1, 3, True), (1, 4, False), (3, 9, False)]
)
def test_blank_by_hand(start, end, blank):
    assert is_blank("a \nb", start, end) == blank


@given(PIECES, st.data())
def test_stripping_is_pythons(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    span = strip_span(text, start, end)
    assert ("" if span is None else text[slice(*span)]) == text[start:end].strip()
    assert span is None or start <= span[0] < span[1] <= end
    assert is_blank(text, start, end) == (span is None)


def test_pieces_between_cuts():
    assert cut_text(" ab  c\n", [0, 3, 4, 7]) == [(1, 3), (5, 6)]
    assert cut_text("ab", [0]) == []


def test_spans_with_blank_space_between_are_one():
    text = "one. two.\n\nthree, four"
    assert join_spans(text, [(0, 4), (5, 9), (11, 16), (18, 22)]) == ((0, 16), (18, 22))
    assert join_spans(text, []) == ()
