"""Neighbours joined by meaning: by hand, against a slow reading, and the sizes that every level keeps."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples
from tiny_trees import fields_of, obeys

from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.cluster_trees import cluster_labels, make_cluster_trees
from qrag_jax.chunking.tree.level_ranges import LevelRange, nodes_in
from qrag_jax.types import Document, InputError, UsageError
from qrag_jax.unit_rows import unit_rows

WORDS = ["red", "blue", "rain"]


def words(text):
    return len(text.split())


def embed(texts):
    rows = [[re.findall(r"\w+", text.lower()).count(word) for word in WORDS] for text in texts]
    return np.array(rows, np.float32).reshape(-1, len(WORDS))


def line(*sizes):
    pieces = [" ".join("x" * size) for size in sizes]
    starts = np.cumsum([0, *(len(piece) + 1 for piece in pieces)]).tolist()
    spans = [(start, start + len(piece)) for start, piece in zip(starts, pieces, strict=False)]
    return SentenceText(" ".join(pieces), tuple(spans))


def slow_labels(sizes, vectors, caps):
    """Clusters as lists of sentences; all pairs of neighbours are compared anew each time."""
    clusters, found = [[i] for i in range(len(sizes))], []
    for cap in reversed(caps):
        while True:
            best = None
            for i, (left, right) in enumerate(zip(clusters, clusters[1:], strict=False)):
                if sum(sizes[s] for s in left + right) <= cap:
                    a, b = (sum(sizes[s] * vectors[s].astype(np.float64) for s in part) for part in (left, right))
                    length = np.linalg.norm(a) * np.linalg.norm(b)
                    distance = round(1 - (float(a @ b) / length if length else 0.0), 9)
                    if best is None or distance < best[0]:
                        best = distance, i
            if best is None:
                break
            i = best[1]
            clusters[i : i + 2] = [clusters[i] + clusters[i + 1]]
        found.append([number for number, cluster in enumerate(clusters) for _ in cluster])
    return found[::-1]


def test_neighbours_by_hand():
    document = Document("d", "Red red. Red blue. Blue blue. Rain rain. Rain red. Blue rain.")
    tree = make_cluster_trees((8, 4), words, embed)(document)
    at = lambda level: [document.text[slice(*tree.span(int(n)))] for n in nodes_in(tree, LevelRange(level, level), 3)]  # noqa: E731
    # cosines of neighbours: .71, .71, 0, .71, .5; the first of equal ones is joined first
    assert at(2) == ["Red red. Red blue.", "Blue blue.", "Rain rain. Rain red.", "Blue rain."]
    # then "Rain rain. Rain red." and "Blue rain." (.67), "Red red. Red blue." and "Blue blue." (.32)
    assert at(1) == ["Red red. Red blue. Blue blue.", "Rain rain. Rain red. Blue rain."]


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=9),
    st.integers(0, 999),
    st.sampled_from([(9, 5), (6,), (12, 8, 4)]),
)
@examples(80)
def test_clusters_are_those_of_a_slow_reading(sizes, seed, caps):
    rng = np.random.default_rng(seed)
    vectors = unit_rows(rng.integers(-1, 2, (len(sizes), 2)).astype(np.float32))  # ties and zeros
    found = cluster_labels(line(*sizes), vectors, caps, words)
    assert [row.tolist() for row in found] == slow_labels(sizes, vectors, caps)


@given(st.lists(st.sampled_from(["Red. ", "Blue rain. ", "# Red\n\n", "x " * 9, "Rain.\n\n"]), min_size=1, max_size=12))
@examples(40)
def test_trees_are_whole_and_every_level_keeps_its_size(pieces):
    document = Document("d", "".join(pieces))
    tree = make_cluster_trees((12, 6, 3), words, embed)(document)
    assert obeys(fields_of(tree), document.text)
    for level, size in enumerate((12, 6, 3), start=1):
        for node in nodes_in(tree, LevelRange(level, level), 4).tolist():
            assert words(document.text[slice(*tree.span(node))]) <= size


def test_what_is_refused():
    with pytest.raises(UsageError, match=re.escape("levels.sizes [4, 4]: tokens, each fewer")):
        make_cluster_trees((4, 4), words, embed)
    with pytest.raises(InputError, match="d: empty document"):
        make_cluster_trees((4,), words, embed)(Document("d", " \n"))
    with pytest.raises(InputError, match="d: character 0: .* but max_tokens is 2"):
        make_cluster_trees((2,), lambda text: 3 * len(text), embed)(Document("d", "a"))
