"""Scores of points: by hand, beside a slow reading, and what must hold of any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.measures.boundary_scores import (
    Judged,
    count_points,
    gaps_of_starts,
    micro_f1,
    pk,
    score_points,
    window_diff,
)
from qrag_jax.types import InputError

# Two documents of 6 and 4 sentences. Right: level 1 at 2 and 4 | 2; level 2 at 3. Found: 2 at its level, 3 and the
# second document's 2 at another one, 5 and 1 where nothing is.
GOLD = ([(0, 1), (2, 1), (3, 2), (4, 1)], [(2, 1)])
FOUND = ([(2, 1), (3, 1), (5, 1)], [(0, 1), (1, 2), (2, 2)])
DOCUMENTS = [Judged(n, gold, found) for n, gold, found in zip((6, 4), GOLD, FOUND, strict=True)]


def test_scores_by_hand():
    score = score_points(DOCUMENTS)
    # any: 3 of 4 right ones found (2, 3 | 2) among 5 predicted; the points at sentence 0 are in no count
    assert count_points(DOCUMENTS).tolist() == [[2, 3, 3], [1, 1, 2]]
    assert score.f1_any.mean == pytest.approx(2 * 3 / (4 + 5)) and score.f1_any.n == 2
    # level 1: right 2; gold 2, 4 | 2, found 2, 3, 5 | none. Level 2: right none; gold 3, found 1, 2 of the second
    assert count_points(DOCUMENTS, 1).tolist() == [[1, 2, 3], [0, 1, 0]]
    assert score.f1 == {1: pytest.approx(2 * 1 / (3 + 3)), 2: 0.0}
    assert score.n_points == 4


def test_segmentation_scores_are_means_over_documents():
    score = score_points(DOCUMENTS)
    gaps = [
        (gaps_of_starts([2, 3, 4], 6), gaps_of_starts([2, 3, 5], 6)),
        (gaps_of_starts([2], 4), gaps_of_starts([1, 2], 4)),
    ]
    assert score.pk == pytest.approx(np.mean([pk(*pair) for pair in gaps]))
    assert score.window_diff == pytest.approx(np.mean([window_diff(*pair) for pair in gaps]))
    assert score.window_diff > 0


points = st.dictionaries(st.integers(0, 7), st.integers(1, 3), max_size=8).map(lambda found: sorted(found.items()))
judged = st.builds(Judged, st.just(8), points, points)


def slow_f1(documents, level):
    """Every sentence but the first of every document, one after the other."""
    right = wrong = missed = 0
    for one in documents:
        for sentence in range(1, one.num_sentences):
            wanted = any(at == sentence and level in (None, its) for at, its in one.gold)
            found = any(at == sentence and level in (None, its) for at, its in one.predicted)
            right += wanted and found
            wrong += found and not wanted
            missed += wanted and not found
    precision, recall = right / max(1, right + wrong), right / max(1, right + missed)
    return 2 * precision * recall / (precision + recall) if right else 0.0


@given(st.lists(judged, min_size=1, max_size=5), st.sampled_from([None, 1, 2]))
@examples(100)
def test_f1_is_that_of_a_slow_count(documents, level):
    assert micro_f1(count_points(documents, level)) == pytest.approx(slow_f1(documents, level))


@given(st.lists(judged, min_size=1, max_size=4))
@examples(40)
def test_what_must_hold_of_any_documents(documents):
    swapped = [Judged(one.num_sentences, one.predicted, one.gold) for one in documents]
    counts, twice = count_points(documents), count_points([*documents, *documents])
    assert micro_f1(counts) == micro_f1(count_points(swapped)) == micro_f1(twice)
    perfect = score_points([Judged(one.num_sentences, one.gold, one.gold) for one in documents])
    assert (perfect.pk, perfect.window_diff) == (0, 0)
    assert perfect.f1_any.mean == (1 if perfect.n_points else 0)
    by_level = sum(count_points(documents, level)[:, 0].sum() for level in (1, 2, 3))
    assert by_level <= counts[:, 0].sum()  # a level asks for more than the place


def test_an_interval_is_one_over_documents():
    many = [DOCUMENTS[0]] * 20 + [DOCUMENTS[1]] * 20
    wide, narrow = score_points(DOCUMENTS * 4).f1_any, score_points(many).f1_any
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    assert score_points(many, seed=1).f1_any.mean == narrow.mean


def test_nothing_found_is_not_sure_to_be_nothing():
    score = score_points([Judged(4, [(2, 1)], [])] * 20).f1_any
    assert score.mean == score.low == 0 < score.high < 0.2


def test_refusals():
    with pytest.raises(InputError, match="documents is empty"):
        score_points([])
    with pytest.raises(InputError, match="9 is no unit"):
        score_points([Judged(4, [(9, 1)], [])])
