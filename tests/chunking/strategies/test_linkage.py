"""Size-capped single linkage: by hand, against a slow reading of the definition, and SciPy where there is no cap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from support.tiers import examples, slow_but

from qrag_jax.chunking.strategies.linkage import link_pairs, link_sentences


def slow_linkage(matrix, cap, stop_distance):
    """The definition: all pairs by (distance, i, j), one after the other."""
    num_sentences = len(matrix)
    clusters = [{i} for i in range(num_sentences)]
    pairs = [(float(matrix[i][j]), i, j) for i in range(num_sentences) for j in range(i + 1, num_sentences)]
    for distance, i, j in sorted(pairs):
        if stop_distance is not None and distance > stop_distance:
            break
        left, right = (next(cluster for cluster in clusters if end in cluster) for end in (i, j))
        if left is not right and len(left) + len(right) <= cap:
            clusters.remove(right)
            left |= right
    return {frozenset(cluster) for cluster in clusters}


def partition(labels):
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


def condense(matrix):
    return np.asarray(matrix, np.float32)[np.triu_indices(len(matrix), 1)]


def random_matrix(seed, num_sentences, num_values=None):
    """Symmetric distances in [0, 1]; few values give many ties."""
    rng = np.random.default_rng(seed)
    square = (num_sentences, num_sentences)
    values = rng.random(square) if num_values is None else rng.integers(0, num_values, square) / num_values
    upper = np.triu(values, 1).astype(np.float32)
    return upper + upper.T


def test_by_hand():
    """(1, 2) joins; with a cap of 2 (0, 1) does not, but (0, 3); with a cap of 3 (0, 1) does, and 3 stays alone."""
    condensed = np.array([0.2, 0.9, 0.4, 0.1, 0.8, 0.7], np.float32)
    assert partition(link_pairs(condensed, 4, 2, None)) == {frozenset({1, 2}), frozenset({0, 3})}
    assert partition(link_pairs(condensed, 4, 3, None)) == {frozenset({0, 1, 2}), frozenset({3})}
    assert partition(link_pairs(condensed, 4, 4, None)) == {frozenset({0, 1, 2, 3})}
    assert partition(link_pairs(condensed, 4, 2, 0.3)) == {frozenset({1, 2}), frozenset({0}), frozenset({3})}


def test_the_stop_distance_itself_still_joins():
    condensed = np.array([0.3], np.float32)
    assert len(partition(link_pairs(condensed, 2, 2, 0.3))) == 1
    assert len(partition(link_pairs(condensed, 2, 2, 0.29))) == 2


def test_a_spanning_tree_is_not_enough():
    """Of 0 - 1 - 2 - 3 the chain is the spanning tree. After (1, 2) is full only (0, 3), no edge of it, is left."""
    condensed = np.array([0.2, 0.9, 0.5, 0.1, 0.9, 0.3], np.float32)
    assert partition(link_pairs(condensed, 4, 2, None)) == {frozenset({1, 2}), frozenset({0, 3})}


@examples(300)
@given(
    seed=st.integers(0, 100_000),
    num_sentences=st.integers(1, 24),
    num_values=st.sampled_from([None, 1, 2, 5, 16]),
    cap=st.integers(1, 25),
    stop_distance=st.sampled_from([None, 0.0, 0.25, 0.5]),
    range_pairs=st.sampled_from([1, 5, 40, 10_000]),
)
def test_the_definition_read_slowly(seed, num_sentences, num_values, cap, stop_distance, range_pairs):
    matrix = random_matrix(seed, num_sentences, num_values)
    labels = link_pairs(condense(matrix), num_sentences, cap, stop_distance, range_pairs)
    assert partition(labels) == slow_linkage(matrix, cap, stop_distance)


@pytest.mark.parametrize("num_values", [None, 3])
@pytest.mark.parametrize("stop_distance", [0.0, 0.02, 0.1, 0.5, 1.0])
def test_without_a_cap_it_is_scipys(num_values, stop_distance):
    matrix = random_matrix(7, 60, num_values)
    theirs = fcluster(linkage(condense(matrix).astype(float), "single"), stop_distance, criterion="distance")
    stop_distance = float(np.float32(stop_distance))
    assert partition(link_pairs(condense(matrix), 60, 60, stop_distance)) == partition(theirs)


@pytest.mark.parametrize("cap", slow_but([7, 300], [2, 7, 60, 300], [2]))
@pytest.mark.parametrize("num_values", slow_but([None, 4], [None, 1, 4]))
def test_ranges_do_not_change_the_clusters(cap, num_values):
    """300 sentences, 44,850 pairs: more than one batch, and ranges that begin inside a tie."""
    condensed = condense(random_matrix(cap, 300, num_values))
    at_once, in_ranges = (link_pairs(condensed, 300, cap, None, pairs) for pairs in (10**6, 1000))
    assert partition(at_once) == partition(in_ranges)
    assert partition(at_once) == slow_linkage_of_arrays(condensed, 300, cap)


def slow_linkage_of_arrays(condensed, num_sentences, cap):
    """As `slow_linkage`, quick enough for 300 sentences."""
    label = list(range(num_sentences))
    i, j = np.triu_indices(num_sentences, 1)
    for pair in np.argsort(condensed, kind="stable").tolist():
        left, right = label[i[pair]], label[j[pair]]
        if left != right and label.count(left) + label.count(right) <= cap:
            label = [left if number == right else number for number in label]
    return partition(np.array(label))


@pytest.mark.parametrize("num_sentences", [1, 2, 50])
def test_distances_by_rows_are_condensed_ones(num_sentences, monkeypatch):
    monkeypatch.setattr("qrag_jax.chunking.strategies.distances._BLOCK_ENTRIES", 7 * num_sentences)
    matrix = random_matrix(3, num_sentences)
    asked = []

    def rows_from(rows, first):
        asked.append((rows.tolist(), first))
        return matrix[rows, first:]

    labels = link_sentences(rows_from, num_sentences, 6, 0.4)
    assert partition(labels) == slow_linkage(matrix, 6, 0.4)
    assert [row for rows, _ in asked for row in rows] == list(range(num_sentences))
    assert all(len(rows) <= 7 and first == rows[0] for rows, first in asked)


def test_a_cap_of_one_asks_for_no_distances():
    labels = link_sentences(lambda rows, first: pytest.fail("asked"), 5, 1, None)
    assert len(set(labels.tolist())) == 5
