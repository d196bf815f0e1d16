import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.chunking.text.spans import merge_spans
from qrag_jax.measures.evidence_scores import SpanScore, measure_tokens, shared_spans, span_scores
from qrag_jax.types import InputError

TEXTS = {"d": "aa b cccc dd e ff", "e": "one two three"}  # words of d at 0, 3, 5, 10, 13, 15
SIZES = {"cccc": 4, "dd": 2}  # other words have one token


@functools.cache
def measure_of(document):
    return measure_tokens(TEXTS[document], lambda word: SIZES.get(word, 1))


def test_spans_by_hand():
    assert merge_spans([(5, 7), (0, 2), (2, 3), (6, 9), (6, 7)]) == [(0, 3), (5, 9)]
    assert merge_spans([]) == []
    assert shared_spans([(0, 5), (8, 12)], [(3, 9), (10, 11), (12, 20)]) == [(3, 5), (8, 9), (10, 11)]
    assert shared_spans([(0, 5)], [(5, 6)]) == []


def test_measures_by_hand():
    """Evidence "cccc dd" (6 tokens) of d and "two" (1) of e. Chunks: "b cccc" (5), "cccc dd e" (7), "one two" (2)."""
    evidence = [("d", [(5, 12)]), ("e", [(4, 7)])]
    retrieved = [("d", [(3, 9)]), ("d", [(5, 14)]), ("e", [(0, 7)])]
    one, two, three, more = span_scores(retrieved, evidence, [1, 2, 3, 10], measure_of)
    assert one == SpanScore(4 / 7, 4 / 5, 4 / (5 + 7 - 4))
    assert two == SpanScore(6 / 7, 6 / 12, 6 / (12 + 7 - 6))
    assert three == SpanScore(1.0, 7 / 14, 7 / 14)
    assert more == three


def test_a_word_that_is_cut_counts_in_part():
    """ "cc" of "cccc": half of 4 tokens."""
    (score,) = span_scores([("d", [(0, 7)])], [("d", [(5, 9)])], [1], measure_of)
    assert score == SpanScore(2 / 4, 2 / 4, 2 / (4 + 4 - 2))


def test_perfect_and_worthless():
    evidence = [("d", [(5, 9)]), ("d", [(13, 14)])]
    assert span_scores([("d", [(5, 9), (13, 14)])], evidence, [1], measure_of) == [SpanScore(1.0, 1.0, 1.0)]
    assert span_scores([("e", [(0, 13)])], evidence, [1], measure_of) == [SpanScore(0.0, 0.0, 0.0)]
    assert span_scores([], evidence, [1, 5], measure_of) == [SpanScore(0.0, 0.0, 0.0)] * 2
    assert span_scores([("d", [(2, 3)])], evidence, [1], measure_of) == [SpanScore(0.0, 0.0, 0.0)]  # a blank chunk


def test_evidence_that_overlaps_counts_once():
    once = span_scores([("d", [(3, 9)])], [("d", [(5, 12)])], [1], measure_of)
    twice = span_scores([("d", [(3, 9)])], [("d", [(5, 9)]), ("d", [(5, 12), (10, 12)])], [1], measure_of)
    assert once == twice


spans = st.lists(st.integers(0, 17), min_size=2, max_size=6, unique=True).map(
    lambda cuts: [(a, b) for a, b in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)]
)
places = st.tuples(st.sampled_from("dD"), spans)


@given(st.lists(places, max_size=5), st.lists(places, min_size=1, max_size=3), st.integers(1, 6))
def test_against_counting_character_by_character(retrieved, evidence, k):
    """Every character but the blanks weighs one."""
    text = TEXTS["d"]

    def positions(place):
        return {(place[0], i) for start, end in place[1] for i in range(start, end) if text[i] != " "}

    gold = set().union(*map(positions, evidence))
    measure = measure_tokens(text, len)
    if not gold:
        with pytest.raises(InputError, match="evidence is empty or blank"):
            span_scores(retrieved, evidence, [k], lambda document: measure)
        return
    (score,) = span_scores(retrieved, evidence, [k], lambda document: measure)
    found = len(gold & set().union(*map(positions, retrieved[:k])))
    read = sum(len(positions(place)) for place in retrieved[:k])
    assert score.recall == pytest.approx(found / len(gold))
    assert score.precision == pytest.approx(found / read if read else 0)
    assert score.iou == pytest.approx(found / (read + len(gold) - found))
    assert max(score.recall, score.precision, score.iou) <= 1


@given(st.lists(spans, max_size=4), spans)
def test_unions_and_intersections_against_sets(parts, other):
    flat = [span for part in parts for span in part]
    covered = {i for start, end in flat for i in range(start, end)}
    merged = merge_spans(flat)
    assert {i for start, end in merged for i in range(start, end)} == covered
    assert all(left[1] < right[0] for left, right in zip(merged, merged[1:], strict=False))
    for part in parts:  # no two of its spans touch
        assert shared_spans(merged, part) == shared_spans(part, merged) == part
    shared = {i for start, end in shared_spans(merged, other) for i in range(start, end)}
    assert shared == covered & {i for start, end in other for i in range(start, end)}


def test_refusals():
    for evidence in ([], [("d", [(2, 3)])]):
        with pytest.raises(InputError, match="evidence is empty or blank"):
            span_scores([], evidence, [1], measure_of)
