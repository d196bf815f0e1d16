"""DBSCAN over distances that are computed a block of rows at a time: the labels of scikit-learn, memory O(n)."""

import numpy as np

from qrag_jax.chunking.strategies.distances import RowDistances, row_blocks


def dbscan_labels(
    distances: RowDistances, num_sentences: int, eps: float, min_samples: int, place_noise: bool = False
) -> np.ndarray:
    """Density-based clusters (Ester et al., 1996).

    A sentence is core if at least `min_samples` sentences, itself among them, are within `eps` of it. Core sentences
    within `eps` of each other are in one cluster; clusters are numbered by their first core sentence. Any other one
    within `eps` of a core sentence belongs to the lowest-numbered such cluster; what is left is noise. The labels are
    scikit-learn's, number for number. At most 1.5 n^2 distances are computed, n^2 where all sentences are core.

    Args:
        distances: from some sentences to all from one on.
        eps: radius, inclusive (compared as float32).
        min_samples: at least 1.
        place_noise: give noise to the cluster of its nearest core sentence (ties: the first).

    Returns:
        int64 [n] cluster numbers, -1 for noise; with `place_noise` -1 only where there is no cluster at all.
    """
    radius = np.float32(eps)
    degrees = _degrees(distances, num_sentences, radius)
    core = degrees >= min_samples
    labels = np.full(num_sentences, -1)
    if not core.any():
        return labels
    labels[core] = _components(distances, core, radius)
    rest = ~core if place_noise else ~core & (degrees > 1)
    for rows in row_blocks(np.flatnonzero(rest), num_sentences):
        to_core = np.where(core, distances(rows, 0), np.float32(np.inf))
        lowest = np.where(to_core <= radius, labels, num_sentences).min(axis=1)
        nearest = labels[to_core.argmin(axis=1)] if place_noise else -1
        labels[rows] = np.where(lowest < num_sentences, lowest, nearest)
    return labels


def _degrees(distances: RowDistances, num_sentences: int, radius: np.float32) -> np.ndarray:
    """int64 [n]: sentences within the radius, itself among them; each pair of blocks is computed once."""
    degrees = np.zeros(num_sentences, np.int64)
    for rows in row_blocks(np.arange(num_sentences), num_sentences):
        near = distances(rows, int(rows[0])) <= radius
        np.fill_diagonal(near, True)  # also a zero vector, whose cosine to itself is 0
        degrees[rows] += [np.count_nonzero(row) for row in near]  # far quicker than with axis=1
        degrees[rows[-1] + 1 :] += np.count_nonzero(near[:, len(rows) :], axis=0)
    return degrees


def _components(distances: RowDistances, core: np.ndarray, radius: np.float32) -> np.ndarray:
    """int64 [number of core sentences]: numbers of their connected components, ordered by their first sentence.

    Components found so far are contracted: a block only adds its pairs between different ones, and nothing is kept of
    it but the labels.
    """
    from scipy.sparse import coo_array  # here: it takes longer to import than all else that cuts documents
    from scipy.sparse.csgraph import connected_components

    num_sentences = len(core)
    component = np.arange(num_sentences)
    for rows in row_blocks(np.flatnonzero(core), num_sentences):
        first = int(rows[0])
        joins = (distances(rows, first) <= radius) & core[first:]
        joins &= component[rows][:, None] != component[first:]
        i, j = np.nonzero(joins)
        if not len(i):
            continue
        edges = component[rows[i]], component[first + j]
        graph = coo_array((np.ones(len(i), bool), edges), shape=(num_sentences, num_sentences))
        component = connected_components(graph, directed=False)[1][component]
    # SciPy numbers components by their first member today, but does not promise it.
    _, first_places, numbers = np.unique(component[core], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_places))[numbers]
