"""Clustering chunkers: a chunk is a set of sentences that are near in meaning and position, and need not be adjacent.

Both use the joint distance of "Is Semantic Chunking Worth the Computational Cost?"
(`chunking/strategies/distances.py`). Chunks are ordered by their first sentence.

DBSCAN computes distances for a block of rows at a time: the same labels as scikit-learn, with memory O(n).
"""

import warnings
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.strategies.distances import RowDistances, joint_distances, row_blocks, sentence_vectors
from qrag_jax.chunking.strategies.kind import ChunkerKind
from qrag_jax.chunking.strategies.linkage import link_sentences
from qrag_jax.chunking.text.chunks import Group, SentenceText, Strategy, groups_of
from qrag_jax.names import NOISES, Noise
from qrag_jax.types import Embed, UsageError, check_fields


def dbscan_labels(
    distances: RowDistances, num_sentences: int, eps: float, min_samples: int, place_noise: bool = False
) -> np.ndarray:
    """Density-based clusters (Ester et al., 1996).

    A sentence is core if at least `min_samples` sentences, including itself, are within `eps` of it. Core sentences
    within `eps` of each other share a cluster; clusters are numbered by their first core sentence. Any other sentence
    within `eps` of a core sentence belongs to the lowest-numbered such cluster; the rest is noise. The labels equal
    those of scikit-learn. At most 1.5 n^2 distances are computed, n^2 if all sentences are core.

    Args:
        distances: from some sentences to all from a given one on.
        eps: radius, inclusive (compared as float32).
        min_samples: at least 1.
        place_noise: assign noise to the cluster of its nearest core sentence (ties: the first).

    Returns:
        int64 [n] cluster numbers, -1 for noise; with `place_noise` -1 only if there is no cluster.
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
    """int64 [n]: number of sentences within the radius, including itself; each pair of blocks is computed once."""
    degrees = np.zeros(num_sentences, np.int64)
    for rows in row_blocks(np.arange(num_sentences), num_sentences):
        near = distances(rows, int(rows[0])) <= radius
        np.fill_diagonal(near, True)  # also for a zero vector, whose cosine to itself is 0
        degrees[rows] += [np.count_nonzero(row) for row in near]  # far quicker than with axis=1
        degrees[rows[-1] + 1 :] += np.count_nonzero(near[:, len(rows) :], axis=0)
    return degrees


def _components(distances: RowDistances, core: np.ndarray, radius: np.float32) -> np.ndarray:
    """int64 [number of core sentences]: their connected components, numbered by first sentence.

    Components found so far are merged: a block adds only pairs between different ones, and only the labels are kept.
    """
    from scipy.sparse import coo_array  # here, because this import takes longer than the rest of chunking
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


EXACT_SENTENCES = 10_000  # the most that are linked as a whole: 50 million distances take 200 MB
_DEFAULT_MAX_SENTENCES = 10


@dataclass(frozen=True)
class LinkageConfig:
    """Size-capped single linkage (appendix A of the paper). Give at most one of the two sizes.

    Attributes:
        num_clusters: k: a chunk has at most max(n // k, 1) of the n sentences, which gives about k chunks or more; 1 is
            no cap, which tends to give one large chunk and a few single sentences.
        max_sentences: most sentences of a chunk. Without either size it is 10, some 200 words of prose.
        lambda_: weight of the position in [0, 1]; 0 uses only meaning, 1 gives consecutive runs of the largest size.
        stop_distance: chunks are not joined by pairs that are further apart; None never stops.
    """

    num_clusters: int | None = None
    max_sentences: int | None = None
    lambda_: float = 0.5
    stop_distance: float | None = 0.5


@dataclass(frozen=True)
class DbscanConfig:
    """DBSCAN on the joint distance.

    The right `eps` depends on the embedder and the text. The default suits all-MiniLM-L6-v2, for which consecutive
    sentences are further apart than the paper's grids (to 0.5, without positions) assume.

    Attributes:
        eps: radius of the neighbourhood, inclusive.
        min_samples: number of sentences within `eps`, including itself, that make a sentence core.
        lambda_: weight of the position in [0, 1]; 0 uses only meaning.
        noise: sentences in no cluster: `single` makes each a chunk, `chunk` makes one of all of them, `nearest` puts
            each into the cluster of its nearest core sentence (the first of equals; if there is no cluster, `single`).
    """

    eps: float = 0.25
    min_samples: int = 2
    lambda_: float = 0.5
    noise: Noise = "nearest"


def make_linkage(config: LinkageConfig, embed: Embed) -> Strategy:
    """Chunks by size-capped single linkage, exact up to 10,000 sentences.

    A longer document is cut into windows of about equal length, at most 10,000 sentences each, with a warning. No chunk
    crosses their borders. Distances and sizes are those of the whole document.
    """
    _check_linkage(config)
    lambda_ = float(config.lambda_)
    stop_distance = None if config.stop_distance is None else float(config.stop_distance)

    def strategy(text: SentenceText) -> list[Group]:
        vectors = sentence_vectors(embed, text.texts())
        members = []
        for start, end in _windows(len(text)):
            distances = joint_distances(vectors[start:end], lambda_, len(text))
            labels = link_sentences(distances, end - start, _size_cap(config, len(text)), stop_distance)
            members += [start + group for group in group_labels(labels)]
        return groups_of(text, members)

    return strategy


def make_dbscan(config: DbscanConfig, embed: Embed) -> Strategy:
    """Chunks by DBSCAN; memory grows with the number of sentences, time with its square."""
    _check_dbscan(config)
    lambda_, eps, place_noise = float(config.lambda_), float(config.eps), config.noise == "nearest"

    def strategy(text: SentenceText) -> list[Group]:
        distances = joint_distances(sentence_vectors(embed, text.texts()), lambda_, len(text))
        labels = dbscan_labels(distances, len(text), eps, config.min_samples, place_noise)
        if config.noise != "chunk":
            noise = np.flatnonzero(labels < 0)
            labels[noise] = len(text) + noise
        return groups_of(text, group_labels(labels))

    return strategy


def _size_cap(config: LinkageConfig, num_sentences: int) -> int:
    """Most sentences of a chunk, see `LinkageConfig`."""
    if config.num_clusters is not None:
        return max(num_sentences // config.num_clusters, 1)
    return _DEFAULT_MAX_SENTENCES if config.max_sentences is None else config.max_sentences


def group_labels(labels: np.ndarray) -> list[np.ndarray]:
    """Members of equal labels, ascending; groups are ordered by their first member."""
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return sorted((group for group in groups if len(group)), key=lambda group: group[0])


def _windows(num_sentences: int) -> list[tuple[int, int]]:
    num_windows = -(-num_sentences // EXACT_SENTENCES)
    if num_windows > 1:
        warnings.warn(
            f"linkage: {num_sentences} sentences are linked in {num_windows} windows of at most {EXACT_SENTENCES}; "
            "no chunk crosses their borders",
            stacklevel=2,
        )
    borders = [num_sentences * window // max(num_windows, 1) for window in range(num_windows + 1)]
    return list(zip(borders, borders[1:], strict=False))


def _check_linkage(config: LinkageConfig) -> None:
    if config.num_clusters is not None and config.max_sentences is not None:
        raise UsageError(
            f"linkage.num_clusters {config.num_clusters} and linkage.max_sentences {config.max_sentences}: "
            "both limit the size of a chunk; give only one"
        )
    check_fields(config, "linkage", positive=("num_clusters", "max_sentences"), shares=("lambda_", "stop_distance"))


def _check_dbscan(config: DbscanConfig) -> None:
    check_fields(config, "dbscan", positive=("min_samples",), shares=("lambda_",), within={"eps": "(0, 1]"})
    if config.noise not in NOISES:
        raise UsageError(f"dbscan.noise {config.noise!r}: choose one of {', '.join(NOISES)}")


LINKAGE = ChunkerKind(LinkageConfig, lambda config, tools: make_linkage(config, tools.embed))
DBSCAN = ChunkerKind(DbscanConfig, lambda config, tools: make_dbscan(config, tools.embed))
