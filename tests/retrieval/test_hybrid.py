import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from qrag_jax.retrieval.bm25 import Bm25Index
from qrag_jax.retrieval.hybrid import RETRIEVERS, Ranked, fuse, rank, rank_bm25, rank_dense
from qrag_jax.types import InputError, UsageError

TEXTS = ["the red door", "a blue key", "the key of the red door", "nothing here", "a blue key"]
WORDS = ["red", "door", "blue", "key", "nothing"]


def embed(texts):
    """One component a word."""
    return np.array([[text.split().count(word) for word in WORDS] for text in texts], np.float32).reshape(-1, 5)


def ranked(ids, scores=None):
    scores = -np.arange(len(ids)) if scores is None else scores
    return Ranked(np.array(ids, np.int64), np.array(scores, np.float64))


def test_dense_by_hand():
    found = rank_dense("key", TEXTS, embed)
    assert found.ids.tolist() == [1, 4, 2, 0, 3]
    np.testing.assert_allclose(found.scores, [2**-0.5, 2**-0.5, 3**-0.5, 0, 0], atol=1e-9)


def test_bm25_is_the_index_without_what_matches_no_word():
    found = rank_bm25("red key", TEXTS)
    assert found.ids.tolist() == [2, 0, 1, 4]
    np.testing.assert_allclose(found.scores, Bm25Index(TEXTS).scores("red key")[found.ids], atol=1e-9)
    assert len(rank_bm25("green", TEXTS)) == 0


def test_fusion_by_hand():
    """The third ranking does not know chunk 2, and ties 0 with 1 on its first rank."""
    found = fuse([ranked([0, 1, 2]), ranked([2, 0, 1]), ranked([1, 0], [5.0, 5.0])])
    assert found.ids.tolist() == [0, 1, 2]
    by_hand = [1 / 61 + 1 / 62 + 1 / 61, 1 / 62 + 1 / 63 + 1 / 61, 1 / 63 + 1 / 61]
    np.testing.assert_allclose(found.scores, by_hand, atol=1e-12)


def test_a_constant_of_zero_is_the_sum_of_reciprocal_ranks():
    assert fuse([ranked([3, 1])], 0.0).scores.tolist() == [1.0, 0.5]


def test_nothing_fused_is_nothing():
    assert len(fuse([])) == len(fuse([ranked([]), ranked([])])) == 0


@examples(50)
@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4), st.permutations(range(6)))
def test_fusion_is_a_loop_and_does_not_depend_on_the_numbering(scores, order):
    """Scores with many ties; renumbered chunks get the same fused scores."""

    def rankings(columns):
        orders = [np.argsort(-np.array(row), kind="stable") for row in columns]
        return [ranked(order.tolist(), np.array(row, float)[order]) for order, row in zip(orders, columns, strict=True)]

    slow = {c: sum(1 / (60 + 1 + sum(other > row[c] for other in row)) for row in scores) for c in range(6)}
    found = fuse(rankings(scores))
    np.testing.assert_allclose(found.scores, [slow[c] for c in found.ids.tolist()], atol=1e-12)
    assert (np.diff(found.scores) <= 0).all() and sorted(found.ids.tolist()) == list(range(6))
    moved = fuse(rankings([[row[c] for c in order] for row in scores]))
    back = dict(zip([order[c] for c in moved.ids.tolist()], moved.scores.tolist(), strict=True))
    assert back == dict(zip(found.ids.tolist(), found.scores.tolist(), strict=True))


def test_by_name():
    question = "blue door"
    dense, words = rank_dense(question, TEXTS, embed), rank_bm25(question, TEXTS)
    wanted = {"single_step": dense, "bm25": words, "hybrid": fuse([dense, words])}
    for name in RETRIEVERS:
        found = rank(name, question, TEXTS, embed)
        assert found.ids.tolist() == wanted[name].ids.tolist()
        np.testing.assert_array_equal(found.scores, wanted[name].scores)
    assert rank("bm25", question, TEXTS).ids.tolist() == words.ids.tolist()


def test_hybrid_also_finds_what_only_one_of_both_finds():
    """No word in common with chunk 3, whose vector is the question's."""
    near_three = lambda texts: np.array([[1, 0]] + [[float(i == 3), 1] for i in range(len(texts) - 1)])  # noqa: E731
    assert set(rank("hybrid", "green key", TEXTS, near_three).ids.tolist()[:2]) <= {1, 2, 3, 4}
    assert 3 in rank("hybrid", "green key", TEXTS, near_three).ids.tolist()


def test_texts_without_direction_and_lone_surrogates():
    assert rank_dense("key", ["", "key \ud800"], embed).ids.tolist() == [1, 0]
    assert rank_bm25("key \ud800", ["", "key \ud800"]).ids.tolist() == [1]


def test_refusals():
    for name in RETRIEVERS:
        with pytest.raises(InputError, match="no chunk to search in: give at least one"):
            rank(name, "q", [], embed)
    with pytest.raises(UsageError, match="retriever hybrid: needs an embedder"):
        rank("hybrid", "q", TEXTS)
    with pytest.raises(InputError, match=r"embedder: gave \(2, 3\) for 6 texts"):
        rank_dense("q", TEXTS, lambda texts: np.zeros((2, 3), np.float32))
    with pytest.raises(InputError, match="of finite numbers, is needed"):
        rank_dense("q", TEXTS, lambda texts: np.full((6, 3), np.nan, np.float32))
    for constant in (-1.0, np.inf, np.nan):
        with pytest.raises(UsageError, match="constant .*: a finite number, 0 or more"):
            fuse([ranked([0])], constant)
