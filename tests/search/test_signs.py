"""Distances between questions and the signs of vectors."""

import numpy as np
import pytest

from qrag_jax.search import signs
from qrag_jax.search.signs import Signs, signs_of


def naive(question, vectors):
    """The distances by the definition, with one bit at a time."""
    step = 0.3352 * np.sqrt(np.mean(question.astype(np.float64) ** 2))
    found = []
    for vector in vectors:
        distance = 0
        for asked, number in zip(question, vector, strict=True):
            level = min(15, max(0, int(np.floor(asked / step)) + 8))
            distance += sum(2**bit * ((level >> bit & 1) != (number > 0)) for bit in range(4))
        found.append(distance)
    return found


def test_distances_by_hand():
    # The root of the mean square is 1, so the levels of 1, -1, 0.1 and the last one are 8 + 2, 8 - 3, 8 and 8 - 5.
    question = np.array([1, -1, 0.1, -np.sqrt(1.99)], np.float32)
    vectors = np.array([[1, -1, 1, -1], [-1, 1, -1, 1], [1, 1, 1, 1], [0, 0, 0, 0]], np.float32)
    # A level u is 15 - u away from the sign 1 and u from the sign -1; 0 counts as -1.
    made = Signs(signs_of(vectors))
    for _ in range(2):
        assert made.distances(question).tolist() == [5 + 5 + 7 + 3, 10 + 10 + 8 + 12, 34, 26]


@pytest.mark.parametrize("dim", [1, 5, 32, 33, 384])
def test_distances_are_those_of_the_definition_and_order_by_the_product_with_levels(dim):
    rng = np.random.default_rng(dim)
    vectors = rng.standard_normal((40, dim)).astype(np.float32)
    question = rng.standard_normal(dim).astype(np.float32)
    made = Signs(signs_of(vectors))
    first, found = made.distances(question), made.distances(question)  # by NumPy, then by JAX
    assert found.tolist() == first.tolist() == naive(question, vectors)
    step = 0.3352 * np.sqrt(np.mean(question.astype(np.float64) ** 2))
    levels = np.clip(np.floor(question / step) + 8, 0, 15)
    products = (levels - 7.5) @ np.where(vectors > 0, 1, -1).T
    assert np.array_equal(products, 15 * dim / 2 - found)


def test_a_question_of_zeros_has_distances():
    assert Signs(signs_of(np.eye(3, dtype=np.float32))).distances(np.zeros(3, np.float32)).tolist() == [23] * 3


class TestFirst:
    @pytest.fixture
    def many(self):
        return np.random.default_rng(0).standard_normal((3000, 64)).astype(np.float32)

    def test_all_rows_within_the_bound(self, many, monkeypatch):
        monkeypatch.setattr(signs, "_SAMPLE", 3000)  # so all of them are the sample
        made, question = Signs(signs_of(many)), many[7] + many[11]
        found = made.first(question, 50)
        distances = made.distances(question)
        outside = np.setdiff1d(np.arange(3000), found)
        assert 50 <= len(found) <= 100 and {7, 11} <= set(found.tolist()) and (np.diff(found) > 0).all()
        assert distances[found].max() < distances[outside].min()

    def test_a_sample_gives_about_as_many(self, many, monkeypatch):
        monkeypatch.setattr(signs, "_SAMPLE", 400)
        made = Signs(signs_of(many))
        sizes = [len(made.first(question, 300)) for question in many[:20]]
        assert 200 < min(sizes) and max(sizes) < 450 and len(set(sizes)) > 1

    def test_more_than_there_are(self, many):
        assert np.array_equal(Signs(signs_of(many)).first(many[0], 3000), np.arange(3000))

    def test_of_many_equal_vectors_the_first_are_taken_after_nearer_ones(self, many):
        far = many[1] * np.where(np.arange(64) < 3, -1, 1)
        same = np.concatenate([many[:1], np.repeat(far[None], 500, axis=0), many[2:100], many[1:2]])
        found = Signs(signs_of(same)).first(many[1], 20)
        assert np.array_equal(found, [*range(1, 40), len(same) - 1])

    def test_a_few_rows_are_bounded_by_all_distances(self, many, monkeypatch):
        monkeypatch.setattr(signs, "_SAMPLE", 30)
        made = Signs(signs_of(many))
        assert all(len(made.first(question, 31)) >= 31 for question in many[:50])

    def test_rows_that_are_gone_are_found_only_if_others_are_fewer(self, many):
        gone = np.arange(1, 3000, 2)
        without, alone = Signs(signs_of(many), gone), Signs(signs_of(many[::2]))
        assert np.array_equal(without.first(many[7], 50), 2 * alone.first(many[7], 50))
        assert np.array_equal(without.first(many[7], 1500), np.arange(3000))
