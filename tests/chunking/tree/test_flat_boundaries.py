"""Flat strategies and equal lengths as sources of points."""

import pytest

from qrag_jax.chunking.text.chunks import Group, SentenceText
from qrag_jax.chunking.tree.boundaries import equal_points, strategy_points
from qrag_jax.types import UsageError

SPANS = tuple((2 * i, 2 * i + 1) for i in range(6))
TEXT = SentenceText("a b c d e f", SPANS)


def grouped(*members):
    return strategy_points(lambda text: [Group(tuple(text.sentences[i] for i in group)) for group in members])


def test_borders_of_groups_are_points():
    assert grouped([0, 1], [2, 3, 4], [5])([TEXT]) == [[(2, 1), (5, 1)]]
    assert grouped(range(6))([TEXT, TEXT]) == [[], []]


def test_clusters_that_come_back_have_a_point_at_each_change():
    assert grouped([0, 2], [1, 3, 4, 5])([TEXT]) == [[(1, 1), (2, 1), (3, 1)]]


@pytest.mark.parametrize("length, points", [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (3, [3]), (6, []), (99, [])])
def test_equal_lengths(length, points):
    assert equal_points(length)([TEXT, SentenceText("a", ((0, 1),))]) == [[(i, 1) for i in points], []]


def test_a_part_of_no_sentence_is_refused():
    with pytest.raises(UsageError, match="num_sentences 0: a part has at least 1 sentence"):
        equal_points(0)
