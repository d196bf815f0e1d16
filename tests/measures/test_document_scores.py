import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.measures.evidence_scores import FoundScore, document_scores, found_score, harmonic_mean


def test_distinct_documents_by_hand():
    """Chunks of a, b, a, c, b, d; relevant are a, d and x, which has no chunk among them."""
    found = ["a", "b", "a", "c", "b", "d"]
    relevant = ("a", "d", "x")
    assert document_scores(found, relevant, 1) == FoundScore(1 / 3, 1.0, 0.5)
    assert document_scores(found, relevant, 3) == FoundScore(1 / 3, 1 / 2, pytest.approx(0.4))
    assert document_scores(found, relevant, 5) == FoundScore(1 / 3, 1 / 3, pytest.approx(1 / 3))
    assert document_scores(found, relevant, 6) == FoundScore(2 / 3, 2 / 4, pytest.approx(4 / 7))
    assert document_scores(found, relevant, 60) == document_scores(found, relevant, 6)


def test_the_papers_own_example():
    """Appendix D: five chunks of the one relevant document are perfect; one of it and four others are not."""
    assert document_scores(["a"] * 5, ["a"], 5) == FoundScore(1.0, 1.0, 1.0)
    assert document_scores(["a", "b", "c", "d", "e"], ["a"], 5) == FoundScore(1.0, 0.2, pytest.approx(1 / 3))
    assert document_scores(["a", "b", "b", "b", "b"], ["a"], 5).precision == 0.5  # a wrong document counts once


def test_nothing_found_is_zero():
    assert document_scores([], ["a"], 5) == FoundScore(0.0, 0.0, 0.0)
    assert document_scores(["b"], ["a"], 5) == FoundScore(0.0, 0.0, 0.0)


ids = st.sampled_from("abcdef")


@given(st.lists(ids, max_size=12), st.sets(ids, min_size=1), st.integers(1, 12))
def test_against_counting_document_by_document(found, relevant, k):
    score = document_scores(found, relevant, k)
    distinct = [document for i, document in enumerate(found[:k]) if document not in found[:i]]
    right = [document for document in distinct if document in relevant]
    assert score.recall == len(right) / len(relevant)
    assert score.precision == (len(right) / len(distinct) if distinct else 0)
    assert score.f1 == pytest.approx(2 * len(right) / (len(distinct) + len(relevant)))


@given(st.lists(ids, min_size=1, max_size=8), st.sets(ids, min_size=1), st.randoms())
def test_order_and_repetition_within_k_do_not_count(found, relevant, rnd):
    more = found + rnd.choices(found, k=3)
    rnd.shuffle(more)
    assert document_scores(more, relevant, len(more)) == document_scores(found, relevant, len(found))


def test_shares_of_nothing():
    assert found_score(0, 0, 0) == FoundScore(0.0, 0.0, 0.0)
    assert harmonic_mean(0.0, 0.0) == 0.0
    assert harmonic_mean(0.5, 0.25) == harmonic_mean(0.25, 0.5) == pytest.approx(1 / 3)
