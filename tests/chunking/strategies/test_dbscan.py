"""DBSCAN: by hand and against a slow reading of the definition; scikit-learn's is in tests/oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from support.tiers import examples

from qrag_jax.chunking.strategies.clusters import dbscan_labels


def slow_dbscan(matrix, eps, min_samples):
    """Clusters grown one after the other from the first core point that has none; -1 is noise."""
    num_points = len(matrix)
    near = [[b for b in range(num_points) if a == b or matrix[a][b] <= eps] for a in range(num_points)]
    labels = [-1] * num_points
    cluster = 0
    for start in range(num_points):
        if labels[start] != -1 or len(near[start]) < min_samples:
            continue
        labels[start], queue = cluster, [start]
        while queue:
            point = queue.pop()
            for neighbour in near[point] if len(near[point]) >= min_samples else []:
                if labels[neighbour] == -1:
                    labels[neighbour] = cluster
                    queue.append(neighbour)
        cluster += 1
    return labels


def random_matrix(seed, num_points, num_values=None):
    rng = np.random.default_rng(seed)
    places = rng.random((num_points, 2)) if num_values is None else rng.integers(0, num_values, (num_points, 2)) / 8
    return np.abs(places[:, None] - places[None]).sum(axis=2).astype(np.float32)


def labels_of(matrix, *args):
    matrix = np.asarray(matrix, np.float32)
    return dbscan_labels(lambda rows, first: matrix[rows, first:], len(matrix), *args).tolist()


def on_a_line(*places):
    return np.abs(np.subtract.outer(places, places))


def test_by_hand():
    """Core 1, 2, 3 with the border sentences 0 and 4, one alone, and a pair that is too small a cluster."""
    matrix = on_a_line(0, 1, 1.5, 2, 3, 5, 7, 8)
    assert labels_of(matrix, 1.0, 3) == [0, 0, 0, 0, 0, -1, -1, -1]
    assert labels_of(matrix, 1.0, 2) == [0, 0, 0, 0, 0, -1, 1, 1]
    assert labels_of(matrix, 1.0, 1) == [0, 0, 0, 0, 0, 1, 2, 2]
    assert labels_of(matrix, 0.25, 2) == [-1] * 8


def test_clusters_are_numbered_by_their_first_core_sentence():
    """Sentence 0 is a border one of the cluster whose core comes last."""
    matrix = on_a_line(4, 0, 0.5, 0.9, 5, 5.5, 5.9)
    assert labels_of(matrix, 1.0, 3) == [1, 0, 0, 0, 1, 1, 1]


def test_the_numbers_do_not_depend_on_scipys(monkeypatch):
    def backwards(graph, directed):
        num_components, labels = connected_components(graph, directed=directed)
        return num_components, num_components - 1 - labels

    monkeypatch.setattr("scipy.sparse.csgraph.connected_components", backwards)
    assert labels_of(on_a_line(0, 0.5, 3, 3.5, 9, 6, 6.5), 1.0, 2) == [0, 0, 1, 1, -1, 2, 2]


def test_a_border_sentence_between_two_clusters_goes_to_the_first():
    matrix = on_a_line(0, 0.9, 1, 1.1, 1.2, -0.9, -1, -1.1, -1.2)  # sentence 0 is near two others, and not core
    assert labels_of(matrix, 0.95, 4) == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert labels_of(matrix[::-1, ::-1], 0.95, 4) == [0, 0, 0, 0, 1, 1, 1, 1, 0]


def test_the_radius_is_inclusive_and_compared_as_float32():
    assert labels_of(np.array([[0, 0.3], [0.3, 0]]), 0.3, 2) == [0, 0]
    assert labels_of(np.array([[0, 0.3], [0.3, 0]]), 0.2999, 2) == [-1, -1]


def test_a_sentence_is_near_itself_whatever_its_distance():
    assert labels_of(np.ones((2, 2)), 0.5, 1) == [0, 1]


def test_noise_is_placed_with_the_nearest_core_sentence():
    matrix = on_a_line(0, 0.5, 2, 3.5, 4, 4.4, 2.25)
    assert labels_of(matrix, 0.5, 2, False) == [0, 0, 1, 2, 2, 2, 1]
    assert labels_of(matrix, 0.5, 3, False) == [-1, -1, -1, 0, 0, 0, -1]
    assert labels_of(matrix, 0.5, 3, True) == [0] * 7
    two = on_a_line(0, 0.1, 0.2, 10, 10.1, 10.2, 6, 4, 9)
    assert labels_of(two, 0.3, 3, False) == [0, 0, 0, 1, 1, 1, -1, -1, -1]
    assert labels_of(two, 0.3, 3, True) == [0, 0, 0, 1, 1, 1, 1, 0, 1]
    assert labels_of(on_a_line(-1, -1, 0, 1, 1), 0.5, 2, True) == [0, 0, 0, 1, 1]  # equally near: the first


def test_noise_stays_where_there_is_no_cluster():
    assert labels_of(on_a_line(0, 1, 2), 0.5, 2, True) == [-1, -1, -1]
    assert labels_of(np.zeros((0, 0)), 0.5, 2, True) == []


@examples(300)
@given(
    seed=st.integers(0, 100_000),
    num_points=st.integers(1, 40),
    num_values=st.sampled_from([None, 3, 9]),
    eps=st.sampled_from([0.0625, 0.125, 0.25, 0.5]),
    min_samples=st.integers(1, 6),
    block_rows=st.sampled_from([1, 3, 100]),
)
def test_the_definition_read_slowly(seed, num_points, num_values, eps, min_samples, block_rows):
    matrix = random_matrix(seed, num_points, num_values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qrag_jax.chunking.strategies.distances._BLOCK_ENTRIES", block_rows * num_points)
        labels = labels_of(matrix, eps, min_samples)
        placed = labels_of(matrix, eps, min_samples, True)
    assert labels == slow_dbscan(matrix, eps, min_samples)
    if max(labels) >= 0:
        core = [point for point in range(num_points) if (matrix[point] <= eps).sum() >= min_samples]
        nearest = [min(core, key=lambda other: (matrix[point][other], other)) for point in range(num_points)]  # noqa: B023
        assert placed == [labels[nearest[i]] if label < 0 else label for i, label in enumerate(labels)]


def test_a_large_grid_in_many_blocks(monkeypatch):
    """Chains that cross blocks in any order end up in one cluster."""
    monkeypatch.setattr("qrag_jax.chunking.strategies.distances._BLOCK_ENTRIES", 1000)
    order = np.random.default_rng(0).permutation(600)
    places = np.where(order < 300, order, order + 10).astype(np.float32)
    matrix = np.abs(np.subtract.outer(places, places))
    sizes = []

    def rows_from(rows, first):
        sizes.append(len(rows) * (600 - first))
        return matrix[rows, first:]

    labels = dbscan_labels(rows_from, 600, 1.0, 3).tolist()
    assert max(sizes) <= 1000
    low = labels[int(np.flatnonzero(order < 300)[0])]
    assert [label == low for label in labels] == (order < 300).tolist() and set(labels) == {0, 1}
