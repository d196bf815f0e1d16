"""Approximate search of a large search file: a graph of its vectors, by usearch (extra `near`).

A graph is used only after it has shown that it finds what an exact comparison finds. It stands beside its file of
documents, in a file of its own that can be removed: searches then compare all vectors.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.files.array_file import ArrayFile, write_arrays
from qrag_jax.index.parts.part import StoredPart

if TYPE_CHECKING:
    from usearch.index import Index

GRAPH = ".near"
LEAST_ROWS = 200_000  # of a file that gets a graph; fewer are compared as fast
LEAST_RECALL = 0.99
RECALL_AT = 10
_LINKS, _TRIED_WHEN_MADE = 32, 128  # of a vector in the graph; vectors that are looked at for them
_TRIED = (64, 128, 256, 512, 1024, 2048)  # vectors that a search looks at; the first that reaches the recall is taken
_AT_ONCE = 32  # questions that are compared with all vectors
_SLACK = 1e-6  # of scores that are equal
_FOUND_FOR_EACH = 8  # that are compared exactly, for each one wanted: the graph has int8


class Graph:
    """The graph of a file, mapped.

    Attributes:
        is_used: its recall was at least .99 when it was made; otherwise the file has no graph.
        most: rows of any search.
    """

    most = 1000  # a search for more takes as long as a comparison of all

    def __init__(self, path: Path) -> None:
        """Maps a graph, and compares it with its hashes.

        Raises:
            Damaged: the file was changed or cut off.
            ImportError: usearch is missing.
        """
        from usearch.index import Index

        file = ArrayFile(path)
        self.is_used = file.about["recall"] >= LEAST_RECALL
        if self.is_used:
            self._graph = file.read("graph")  # usearch reads it, and does not keep it
            index: Any = Index.restore(self._graph.data, view=True)
            index.expansion_search = file.about["tried"]
            self._index = index

    def find(self, question: Float[np.ndarray, " dim"], k: int) -> Int[np.ndarray, " _"]:
        """About `k` rows that are nearest to a vector, and more, in their order."""
        return _find(self._index, question, k)


def open_graph(part: StoredPart) -> Graph | None:
    """The graph of a file; None if it has none, or usearch is missing.

    Raises:
        Damaged: the graph was changed or cut off.
    """
    path = part.path.with_suffix(GRAPH)
    try:
        graph = Graph(path) if path.exists() else None
    except ImportError:
        return None
    return graph if graph is not None and graph.is_used else None


def make_graph(part: StoredPart, questions: Float[np.ndarray, "q dim"]) -> float:
    """Makes the graph of a file, and keeps it if its recall is at least .99, else only the recall.

    Args:
        part: the file.
        questions: vectors of length 1 that are not among those of the file.

    Returns:
        The recall@10 of the questions against an exact comparison.

    Raises:
        ImportError: usearch is missing.
    """
    from usearch.index import Index

    vectors = part.vectors
    index = Index(
        ndim=vectors.shape[1],
        metric="ip",
        dtype="i8",
        connectivity=_LINKS,
        expansion_add=_TRIED_WHEN_MADE,
    )
    index.add(np.arange(len(vectors)), vectors, threads=os.cpu_count() or 1)
    worst: list[float] = []  # score of the last of the nearest
    for start in range(0, len(questions), _AT_ONCE):
        products = questions[start : start + _AT_ONCE] @ vectors.T
        worst += np.partition(products, -RECALL_AT, axis=1)[:, -RECALL_AT].tolist()
    recall, tried = 0.0, 0
    for tried in _TRIED:
        index.expansion_search = tried
        recall = _recall(index, vectors, questions, worst)
        if recall >= LEAST_RECALL:
            break
    graph: Any = index.save() if recall >= LEAST_RECALL else b""
    about = {"recall": recall, "tried": tried}
    write_arrays(part.path.with_suffix(GRAPH), about, {"graph": [np.frombuffer(graph, np.uint8)]})
    return recall


def _recall(index: "Index", vectors: np.ndarray, questions: np.ndarray, worst: Sequence[float]) -> float:
    """The share of the nearest that are found, of which the worst score is known; equal vectors count alike."""
    found = 0
    for question, least in zip(questions, worst, strict=True):
        scores = vectors[_find(index, question, RECALL_AT)] @ question
        found += min(RECALL_AT, int((scores >= least - _SLACK).sum()))
    return found / (RECALL_AT * len(questions))


def _find(index: "Index", question: Float[np.ndarray, " dim"], k: int) -> Int[np.ndarray, " _"]:
    found: Any = index.search(question, _FOUND_FOR_EACH * k)
    return np.sort(found.keys.astype(np.int64))
