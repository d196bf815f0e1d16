"""Segmentation measures against numbers worked out by hand, a slow reading of the definitions, and NLTK."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.measures.boundary_scores import (
    SegmentationScore,
    boundary_f1,
    gaps_of_segments,
    gaps_of_starts,
    pk,
    score_segmentation,
    window_diff,
    window_size,
)
from qrag_jax.types import InputError


def gaps(marks):
    return np.array([mark == "1" for mark in marks], bool)


@st.composite
def two_segmentations(draw):
    size = draw(st.integers(1, 24))
    masks = st.lists(st.booleans(), min_size=size, max_size=size)
    reference, predicted = (np.array(draw(masks), bool) for _ in range(2))
    return reference, predicted, draw(st.integers(1, size))


# --- the two ways to give a segmentation


def test_gaps_of_segments_by_hand():
    np.testing.assert_array_equal(gaps_of_segments([0, 0, 1, 1, 2]), gaps("0101"))
    np.testing.assert_array_equal(gaps_of_segments([7, 3, 7, 7]), gaps("110"))  # a cluster that comes back
    assert gaps_of_segments([5]).size == 0


def test_gaps_of_starts_by_hand():
    np.testing.assert_array_equal(gaps_of_starts({2, 4}, 5), gaps("0101"))
    np.testing.assert_array_equal(gaps_of_starts([0, 1], 3), gaps("10"))  # unit 0 begins a segment anyway
    assert gaps_of_starts([], 1).size == 0


@given(two_segmentations())
def test_both_ways_agree(drawn):
    mask = drawn[0]
    segments = np.concatenate([[0], np.cumsum(mask)])
    np.testing.assert_array_equal(gaps_of_segments(segments), mask)
    np.testing.assert_array_equal(gaps_of_starts(np.flatnonzero(mask) + 1, mask.size + 1), mask)


# --- by hand


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ("00100100", 2),  # 9 units, 3 segments: 1.5
        ("000010000", 2),  # 10 units, 2 segments: 2.5 goes to the even number
        ("0000000000000", 7),  # 14 units, 1 segment
        ("0000001000000", 4),  # 14 units, 2 segments: 3.5 goes to the even number
        ("1111", 2),  # at least 2
        ("1", 1),  # at most the gaps
        ("", 0),
    ],
)
def test_window_size_by_hand(marks, expected):
    assert window_size(gaps(marks)) == expected


def test_near_miss_by_hand():
    """8 units cut in the middle, the guess one unit late; k = 2, 6 probes, two of them see only one of both."""
    score = score_segmentation(gaps("0001000"), gaps("0000100"))
    assert score == SegmentationScore(pk=2 / 6, window_diff=2 / 6, precision=0.0, recall=0.0, f1=0.0)


def test_added_boundary_by_hand():
    """Two boundaries in a window where one belongs: Pk forgives a probe that WindowDiff does not."""
    reference, predicted = gaps("0001000"), gaps("0011000")
    # probes of 2 gaps: reference 0 0 1 1 0 0, predicted 0 1 2 1 0 0
    assert pk(reference, predicted, 2) == pytest.approx(1 / 6)
    assert window_diff(reference, predicted, 2) == pytest.approx(2 / 6)
    assert boundary_f1(reference, predicted) == (0.5, 1.0, pytest.approx(2 / 3))


def test_examples_of_nltk_docs():
    """The numbers in the documentation of NLTK's functions, their strings taken as gaps."""
    first, second, third = (gaps(marks) for marks in ("000100000010", "000010000100", "100000010000"))
    assert window_diff(first, first, 3) == 0
    assert window_diff(first, second, 3) == pytest.approx(0.3)
    assert window_diff(second, third, 3) == pytest.approx(0.8)
    assert pk(gaps("0100" * 100), gaps("1" * 400), 2) == pytest.approx(0.5, abs=5e-3)


def test_without_boundaries():
    none, one = gaps("0000"), gaps("0100")
    assert boundary_f1(none, none) == (1.0, 1.0, 1.0)
    assert boundary_f1(one, none) == boundary_f1(none, one) == (0.0, 0.0, 0.0)
    assert score_segmentation(gaps(""), gaps("")) == SegmentationScore(0.0, 0.0, 1.0, 1.0, 1.0)


def test_all_and_none_by_hand():
    """Segments of 2: every probe of 2 gaps sees one boundary, so `all` is right for Pk and wrong for WindowDiff."""
    reference = gaps("0101010")
    everywhere, nowhere = np.ones(7, bool), np.zeros(7, bool)
    assert (pk(reference, everywhere, 2), window_diff(reference, everywhere, 2)) == (0.0, 1.0)
    assert (pk(reference, nowhere, 2), window_diff(reference, nowhere, 2)) == (1.0, 1.0)
    assert boundary_f1(reference, everywhere) == (pytest.approx(3 / 7), 1.0, pytest.approx(0.6))


# --- a slow reading of the definitions


def slow_scores(reference, predicted, k):
    """Units one by one: which segment each is in, and every pair at distance k."""

    def segment_of(mask):
        ids = [0]
        for boundary in mask:
            ids.append(ids[-1] + int(boundary))
        return ids

    ref, pred = segment_of(reference), segment_of(predicted)
    starts = range(len(ref) - k)
    apart = [(ref[i] == ref[i + k]) != (pred[i] == pred[i + k]) for i in starts]
    counted = [ref[i + k] - ref[i] != pred[i + k] - pred[i] for i in starts]
    return sum(apart) / len(apart), sum(counted) / len(counted)


@given(two_segmentations())
def test_slow_reading(drawn):
    reference, predicted, k = drawn
    expected = slow_scores(reference, predicted, k)
    assert (pk(reference, predicted, k), window_diff(reference, predicted, k)) == pytest.approx(expected, abs=1e-12)
    ref, pred = set(np.flatnonzero(reference)), set(np.flatnonzero(predicted))
    if ref and pred:
        precision, recall = len(ref & pred) / len(pred), len(ref & pred) / len(ref)
        f1 = 2 * precision * recall / (precision + recall) if ref & pred else 0.0
        assert boundary_f1(reference, predicted) == pytest.approx((precision, recall, f1), abs=1e-12)


@pytest.mark.oracle
@given(two_segmentations())
def test_nltk(drawn):
    from nltk.metrics import segmentation

    reference, predicted, k = drawn
    ref, pred = ("".join("01"[int(mark)] for mark in mask) for mask in (reference, predicted))
    assert pk(reference, predicted, k) == pytest.approx(segmentation.pk(ref, pred, k), abs=1e-12)
    assert window_diff(reference, predicted, k) == pytest.approx(segmentation.windowdiff(ref, pred, k), abs=1e-12)


# --- relations


@given(two_segmentations())
def test_relations(drawn):
    reference, predicted, k = drawn
    same = score_segmentation(reference, reference, k)
    assert same == SegmentationScore(0.0, 0.0, 1.0, 1.0, 1.0)
    one, other = score_segmentation(reference, predicted, k), score_segmentation(predicted, reference, k)
    assert 0 <= one.pk <= one.window_diff <= 1 and 0 <= one.f1 <= 1
    assert (one.pk, one.window_diff, one.f1) == (other.pk, other.window_diff, other.f1)  # k given: symmetric
    assert (one.precision, one.recall) == (other.recall, other.precision)
    assert one == score_segmentation(reference[::-1], predicted[::-1], k)  # read backwards
    assert pk(reference, predicted, 1) == window_diff(reference, predicted, 1) == np.mean(reference != predicted)


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_shift_to_either_side_costs_the_same_and_grows(shift):
    reference = gaps_of_starts([20, 40], 60)
    left, right = (gaps_of_starts([20 + step, 40], 60) for step in (-shift, shift))
    scores = [score_segmentation(reference, mask) for mask in (left, right)]
    assert scores[0] == scores[1]
    assert scores[0].pk == scores[0].window_diff == pytest.approx(2 * shift / (60 - 10))


# --- refusals


def test_refusals():
    three, two = gaps("010"), gaps("01")
    for measure in (pk, window_diff, boundary_f1, score_segmentation):
        with pytest.raises(InputError, match="got 4 and 3 units"):
            measure(three, two)
    for k in (0, 4):
        with pytest.raises(InputError, match=f"k {k}: choose 1 to 3"):
            window_diff(three, three, k)
    with pytest.raises(InputError, match="segments is empty"):
        gaps_of_segments([])
    with pytest.raises(InputError, match="starts: 5 is no unit, they run from 0 to 4"):
        gaps_of_starts([5], 5)
    with pytest.raises(InputError, match="num_units 0"):
        gaps_of_starts([], 0)
