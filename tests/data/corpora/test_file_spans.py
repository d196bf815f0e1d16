"""Offsets that users wrote down: their forms, and what those mean that do not fit their text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.data.corpora.file_evidence import is_pair, item_spans, meant_spans
from qrag_jax.types import InputError

WINDOWS = "One.\r\nTwo words.\r\n\r\nThree. Three."


@pytest.mark.parametrize(
    ("item", "spans"),
    [
        ({"start": 3, "end": 9}, [(3, 9)]),
        ({"start": 3.0, "end": 9.0}, [(3, 9)]),
        ({"span": [3, 9]}, [(3, 9)]),
        ({"span": {"start": 3, "end": 9}}, [(3, 9)]),
        ({"spans": [[3, 9], {"end": 2, "start": 1.0}]}, [(3, 9), (1, 2)]),
        ({"start": 0, "end": 1, "span": [2, 3], "spans": [[4, 5]]}, [(0, 1), (2, 3), (4, 5)]),
        ({"start": None, "end": None, "span": None, "spans": None}, []),
        ({"spans": []}, []),
    ],
)
def test_forms(item, spans):
    assert list(item_spans(item, "evidence", "f:1")) == spans
    assert all(type(offset) is int for span in item_spans(item, "evidence", "f:1") for offset in span)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"start": 3}, r"got \[3, None\]"),
        ({"span": [3]}, r"got \[3\]"),
        ({"span": [3, "9"]}, r"got \[3, '9'\]"),
        ({"span": [3, 9.5]}, r"got \[3, 9.5\]"),
        ({"span": [False, True]}, r"got \[False, True\]"),
        ({"span": [float("nan"), float("inf")]}, r"got \[nan, inf\]"),
        ({"spans": [{"start": 3, "end": 9, "doc": "b.md"}]}, "got {'start': 3"),  # not dropped unseen
        ({"spans": [3, 9]}, "got 3"),
    ],
)
def test_other_forms_are_refused(item, message):
    expected = r"f:1: evidence: start and end must be whole numbers, .*; expected \[start, end\] or"
    with pytest.raises(InputError, match=expected) as error:
        list(item_spans(item, "evidence", "f:1"))
    error.match(message)
    with pytest.raises(InputError, match=r"f:1: evidence.spans must be a list of \[start, end\], got '3-9'"):
        list(item_spans({"spans": "3-9"}, "evidence", "f:1"))


def test_two_whole_numbers_are_a_pair():
    assert is_pair([3, 9]) and is_pair([3.0, 9])
    assert not any(map(is_pair, ([3], [3, 9, 12], [3, True], [3, "9"], [[3, 9], [1, 2]], "39", None)))


def test_spans_that_fit_stay():
    assert meant_spans([(0, 4)], None, "a", WINDOWS, "f:1") == [(0, 4)]
    assert meant_spans([(0, 4), (6, 9)], "One. Two", "a", WINDOWS, "f:1") == [(0, 4), (6, 9)]
    assert meant_spans([(0, 4), (6, 9)], None, "a", WINDOWS, "f:1") == [(0, 4), (6, 9)]


def test_line_ends_counted_as_one():
    read = WINDOWS.replace("\r\n", "\n")  # what Python's text mode gives
    assert meant_spans([(5, 15)], read[5:15], "a", WINDOWS, "f:1") == [(6, 16)]
    assert meant_spans([(17, 23)], "Three.", "a", WINDOWS, "f:1") == [(20, 26)]  # it is there twice
    assert meant_spans([(17, 23), (5, 8)], "Three. Two", "a", WINDOWS, "f:1") == [(20, 26), (6, 9)]
    assert meant_spans([(0, 8)], "One.\nTwo", "a", WINDOWS, "f:1") == [(0, 9)]


@given(st.text("ab\r\n", max_size=20), st.data())
def test_every_place_as_text_mode_counts_it(content, data):
    """Distinct letters make a place known by its text; the oracle looks each character up."""
    content = "".join(chr(0x4E00 + i) if letter in "ab" else letter for i, letter in enumerate(content))
    read = content.replace("\r\n", "\n")
    shown = [i for i, letter in enumerate(read) if not letter.isspace()]
    if shown:
        first, last = sorted([data.draw(st.sampled_from(shown)), data.draw(st.sampled_from(shown))])
        [(start, end)] = meant_spans([(first, last + 1)], read[first : last + 1], "a", content, "f:1")
        assert (start, end) == (content.index(read[first]), content.index(read[last]) + 1)


def test_the_only_place_of_the_text():
    assert meant_spans([(1, 11)], "Two words.", "a", WINDOWS, "f:1") == [(6, 16)]
    assert meant_spans([(900, 901)], "two WORDS", "a", WINDOWS, "f:1") == [(6, 15)]
    assert meant_spans([(4, 6)], "Two", "a", WINDOWS, "f:1") == [(6, 9)]


@pytest.mark.parametrize(
    ("span", "text", "message"),
    [
        ((0, 4), "Three.", r"at \[\(0, 4\)\] a has 'One.', not 'Three.', which does not occur exactly once"),
        ((0, 4), "Four.", ".* a has 'One.', not 'Four.'"),
        ((4, 6), None, r"\[4, 6\) of a is blank; count characters from 0"),
        ((3, 3), None, r"\[3, 3\) is not inside a, which has 33 characters"),
        ((30, 34), "Four.", r"\[30, 34\) is not inside a"),
        ((-1, 3), None, r"\[-1, 3\) is not inside a"),
    ],
)
def test_what_fits_nowhere_is_refused(span, text, message):
    with pytest.raises(InputError, match=f"f:1: {message}"):
        meant_spans([span], text, "a", WINDOWS, "f:1")
