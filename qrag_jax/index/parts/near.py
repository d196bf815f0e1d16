"""Approximate search of a large search file: a graph of its vectors, by usearch (extra `near`).

A graph is used only after it has shown that it finds what an exact comparison finds. It stands beside its file of
documents, in a file of its own that can be removed: searches then compare all vectors. Equal vectors share one vertex.
Otherwise copies would link only to each other, and a search would not get from them to the rest.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.files.array_file import ArrayFile, digests_of, write_arrays
from qrag_jax.index.parts.part import StoredPart, starts_of

GRAPH = ".near"
LEAST_ROWS = 200_000  # of a file that gets a graph; fewer are compared as fast
LEAST_RECALL = 0.99
RECALL_AT = 10
_LINKS, _TRIED_WHEN_MADE = 32, 128  # of a vector in the graph; vectors that are looked at for them
_TRIED = (64, 128, 256, 512, 1024, 2048)  # vectors that a search looks at; the first that reaches the recall is taken
_ADDED = 100_000  # vectors copied at a time
_AT_ONCE = 32  # questions that are compared with all vectors
_SLACK = 1e-6  # of scores that are equal
_FOUND_FOR_EACH = 4  # rows compared exactly for each one wanted, because the graph has int8
_COPIES_FOR_EACH = 4  # rows of one vertex for each one wanted; some may be of removed documents


@dataclass(frozen=True, eq=False)
class Graph:
    """An index of usearch over the distinct vectors of a file.

    Attributes:
        index: its keys are numbers of vertices.
        rows: of all vertices, one after the other.
        starts: the first of the rows of each vertex, then their number.
        mapped: the bytes of the index, which usearch reads and does not keep; None for an index in memory.
        most: rows of any search; one for more takes as long as a comparison of all.
    """

    index: Any
    rows: Int[np.ndarray, " rows"]
    starts: Int[np.ndarray, " starts"]
    mapped: np.ndarray | None = None
    most: ClassVar[int] = 1000

    def find(self, question: Float[np.ndarray, " dim"], k: int) -> Int[np.ndarray, " _"]:
        """About `k` rows that are nearest to a vector, and more, in their order."""
        found = self.index.search(question, _FOUND_FOR_EACH * k).keys.astype(np.int64).tolist()
        most = _COPIES_FOR_EACH * k
        return np.sort(np.concatenate([self.rows[self.starts[one] : self.starts[one + 1]][:most] for one in found]))


def open_graph(part: StoredPart) -> Graph | None:
    """The graph of a file, mapped; None if it has none, its recall is below .99, or usearch is missing.

    Raises:
        Damaged: the graph was changed or cut off.
    """
    path = part.path.with_suffix(GRAPH)
    if not path.exists():
        return None
    try:
        from usearch.index import Index
    except ImportError:
        return None
    file = ArrayFile(path)
    if file.about["recall"] < LEAST_RECALL:
        return None
    mapped = file.read("graph")
    index: Any = Index.restore(mapped.data, view=True)
    index.expansion_search = file.about["tried"]
    return Graph(index, file.read("rows"), file.read("starts"), mapped)


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
    _, first, vertices = np.unique(
        digests_of(vectors, np.ones(len(vectors), int)), return_index=True, return_inverse=True
    )
    rows, starts = np.argsort(vertices, kind="stable"), starts_of(np.bincount(vertices))
    index = Index(
        ndim=vectors.shape[1],
        metric="ip",
        dtype="i8",
        connectivity=_LINKS,
        expansion_add=_TRIED_WHEN_MADE,
    )
    for start in range(0, len(first), _ADDED):
        some = np.arange(start, min(start + _ADDED, len(first)))
        index.add(some, vectors[first[some]], threads=os.cpu_count() or 1)
    made = Graph(index, rows, starts)
    worst: list[float] = []  # score of the last of the nearest
    for start in range(0, len(questions), _AT_ONCE):
        products = questions[start : start + _AT_ONCE] @ vectors.T
        worst += np.partition(products, -RECALL_AT, axis=1)[:, -RECALL_AT].tolist()
    recall, tried = 0.0, 0
    for tried in _TRIED:
        index.expansion_search = tried
        recall = _recall(made, vectors, questions, worst)
        if recall >= LEAST_RECALL:
            break
    graph: Any = index.save() if recall >= LEAST_RECALL else b""
    about = {"recall": recall, "tried": tried}
    kept = slice(None if graph else 0)
    arrays = {"graph": np.frombuffer(graph, np.uint8), "rows": rows[kept], "starts": starts[kept]}
    write_arrays(part.path.with_suffix(GRAPH), about, {name: [array] for name, array in arrays.items()})
    return recall


def _recall(made: Graph, vectors: np.ndarray, questions: np.ndarray, worst: Sequence[float]) -> float:
    """The share of the nearest that are found, of which the worst score is known; equal vectors count alike."""
    found = 0
    for question, least in zip(questions, worst, strict=True):
        scores = vectors[made.find(question, RECALL_AT)] @ question
        found += min(RECALL_AT, int((scores >= least - _SLACK).sum()))
    return found / (RECALL_AT * len(questions))
