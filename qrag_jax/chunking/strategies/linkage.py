"""Exact size-capped single linkage: pairs by ascending distance, joined if the joined cluster is not too large.

With a cap the order of all pairs matters (joining along a minimum spanning tree gives other clusters). But not all of
them must be tried one by one. Clusters only grow, so a pair that is rejected once, because both ends are in one cluster
or their clusters are too large together, is rejected for ever. Pairs are taken in ranges of distance, and only the open
pairs of a range are sorted.
"""

from collections.abc import Iterator

import numpy as np

from qrag_jax.chunking.strategies.distances import RowDistances, row_blocks

_RANGE_PAIRS = 2**21  # about this many pairs are sorted at a time
_SLICE_PAIRS = 2**20  # this many are compared with the borders of a range at a time
_SAMPLES_PER_RANGE = 64
_BATCH_PAIRS = 4096  # this many are looked up at a time ...
_LOOP_PAIRS = 256  # ... and this many open ones are tried one by one before the rest is looked up again


def link_sentences(distances: RowDistances, num_sentences: int, cap: int, stop_distance: float | None) -> np.ndarray:
    """Clusters of `link_pairs` for distances that are computed on request.

    Args:
        distances: from some sentences to all from a given one on, not negative.
        num_sentences: n; memory is 2 * n^2 bytes and a block.
        cap: most sentences of a cluster.
        stop_distance: pairs that are further apart are not joined; None joins any.

    Returns:
        int64 [n]: sentences with equal numbers are a cluster.
    """
    if cap == 1:
        return np.arange(num_sentences)
    return link_pairs(_condensed(distances, num_sentences), num_sentences, cap, stop_distance)


def _condensed(distances: RowDistances, num_sentences: int) -> np.ndarray:
    """float32 [n (n - 1) / 2]: (0, 1), (0, 2), ..., (n - 2, n - 1), as in SciPy."""
    condensed = np.empty(num_sentences * (num_sentences - 1) // 2, np.float32)
    filled = 0
    for rows in row_blocks(np.arange(num_sentences), num_sentences):
        for row, values in enumerate(distances(rows, int(rows[0]))):
            later = values[row + 1 :]
            condensed[filled : filled + len(later)] = later
            filled += len(later)
    return condensed


def link_pairs(
    condensed: np.ndarray, num_sentences: int, cap: int, stop_distance: float | None, range_pairs: int = _RANGE_PAIRS
) -> np.ndarray:
    """Joins the clusters of pairs (i, j), i < j, in ascending order of (distance, i, j), if they fit together.

    Args:
        condensed: float32 [n (n - 1) / 2], not negative, in the order of `_condensed`.
        cap: most sentences of a cluster.
        stop_distance: a larger distance ends the joining (compared as float32); None never does.
        range_pairs: about this many pairs are sorted at a time; the result does not depend on it.

    Returns:
        int64 [n]: sentences with equal numbers are a cluster.
    """
    clusters = _Clusters(num_sentences, cap)
    row_starts = np.cumsum(np.arange(num_sentences, 0, -1)) - num_sentences  # index of the pair (i, i + 1)
    for low, high in _ranges(condensed, stop_distance, range_pairs):
        keys = _open_keys(condensed, row_starts, clusters, low, high)
        keys.sort()
        clusters.join(*_ends(row_starts, (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)))
        if clusters.finished():
            break
    return clusters.label


class _Clusters:
    """Disjoint sets of sentences, none above a cap; `label` is flat, so many pairs can be looked up at once."""

    def __init__(self, num_sentences: int, cap: int):
        self.label = np.arange(num_sentences)
        self._size = np.ones(num_sentences, np.int64)  # of the cluster with this label; 0 if there is none
        self._members = [[i] for i in range(num_sentences)]
        self._cap = cap

    def open(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """bool: the two ends are in different clusters that fit together."""
        left, right = self.label[i], self.label[j]
        return (left != right) & (self._size[left] + self._size[right] <= self._cap)

    def join(self, i: np.ndarray, j: np.ndarray) -> None:
        """Joins pairs in the given order. All look-ups of a batch but the last end in a join, so few are needed."""
        for start in range(0, len(i), _BATCH_PAIRS):
            left, right = i[start : start + _BATCH_PAIRS], j[start : start + _BATCH_PAIRS]
            while len(left):
                is_open = self.open(left, right)
                left, right = left[is_open], right[is_open]
                for a, b in zip(left[:_LOOP_PAIRS].tolist(), right[:_LOOP_PAIRS].tolist(), strict=True):
                    self._join_one(int(self.label[a]), int(self.label[b]))
                left, right = left[_LOOP_PAIRS:], right[_LOOP_PAIRS:]

    def _join_one(self, kept: int, dropped: int) -> None:
        if kept == dropped or self._size[kept] + self._size[dropped] > self._cap:
            return
        if self._size[kept] < self._size[dropped]:
            kept, dropped = dropped, kept
        self.label[self._members[dropped]] = kept
        self._members[kept] += self._members[dropped]
        self._members[dropped] = []
        self._size[kept] += self._size[dropped]
        self._size[dropped] = 0

    def finished(self) -> bool:
        """True if no two clusters fit together."""
        sizes = self._size[self._size > 0]
        return len(sizes) < 2 or int(np.partition(sizes, 1)[:2].sum()) > self._cap


def _keys(condensed: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """uint64 that sort by (distance, i, j): the bits of a float32 that is not negative sort like its value."""
    return condensed.view(np.uint32)[indices].astype(np.uint64) << np.uint64(32) | indices.astype(np.uint64)


def _ranges(condensed: np.ndarray, stop_distance: float | None, range_pairs: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of keys in ascending order, each of about `range_pairs` pairs, up to the stop distance.

    The borders come from a regular sample of pairs. They are keys, because any number of pairs may be equally far.
    """
    last_bits = 0xFFFFFFFF if stop_distance is None else int(np.float32(stop_distance).view(np.uint32))
    end = (last_bits + 1) << 32
    num_ranges = -(-len(condensed) // range_pairs)
    step = max(len(condensed) // max(num_ranges * _SAMPLES_PER_RANGE, 1), 1)
    sample = np.sort(_keys(condensed, np.arange(0, len(condensed), step)))
    inner = [int(sample[len(sample) * k // num_ranges]) for k in range(1, num_ranges)]
    borders = sorted({0, *(border for border in inner if border < end), end})
    yield from zip(borders, borders[1:], strict=False)


def _open_keys(condensed: np.ndarray, row_starts: np.ndarray, clusters: _Clusters, low: int, high: int) -> np.ndarray:
    """Keys in [low, high) of the pairs that are not rejected yet (all before `low` are), a slice at a time."""
    bits = condensed.view(np.uint32)
    low_bits, high_bits = np.uint32(low >> 32), np.uint32((high - 1) >> 32)
    found = [np.zeros(0, np.uint64)]
    for start in range(0, len(condensed), _SLICE_PAIRS):
        part = bits[start : start + _SLICE_PAIRS]
        indices = start + np.flatnonzero((part >= low_bits) & (part <= high_bits))
        indices = indices[clusters.open(*_ends(row_starts, indices))]
        keys = _keys(condensed, indices)
        found.append(keys[keys <= np.uint64(high - 1)])
    return np.concatenate(found)


def _ends(row_starts: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sentences i < j of pairs given by their positions in the condensed order."""
    i = np.searchsorted(row_starts, indices, side="right") - 1
    return i, indices - row_starts[i] + i + 1
