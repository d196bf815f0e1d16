"""Chunkers against LangChain's SemanticChunker and scikit-learn's DBSCAN."""

import warnings

import numpy as np
import pytest

from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig, find_breaks, make_breakpoint
from qrag_jax.chunking.strategies.clusters import dbscan_labels
from qrag_jax.chunking.strategies.distances import joint_distances, neighbour_distances, sentence_vectors
from qrag_jax.chunking.text.chunks import SentenceText

pytestmark = pytest.mark.oracle

VALUES = {
    "percentile": [None, 10.0, 50.0, 70.0, 90.0],
    "standard_deviation": [None, 0.5, 1.0, 2.0],
    "interquartile": [None, 0.5, 0.75, 1.25],
    "gradient": [None, 10.0, 50.0, 70.0, 90.0],
}
CASES = [(threshold, value) for threshold, values in VALUES.items() for value in values]
DEFAULTS = {"percentile": 95.0, "standard_deviation": 3.0, "interquartile": 1.5, "gradient": 95.0}


def semantic_chunker(embed, threshold, value, window=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package says that it is no longer maintained
        from langchain_core.embeddings import Embeddings
        from langchain_experimental.text_splitter import SemanticChunker

    class Given(Embeddings):
        def embed_documents(self, texts):
            return embed(texts).tolist()

        def embed_query(self, text):
            return self.embed_documents([text])[0]

    return SemanticChunker(
        Given(), buffer_size=window, breakpoint_threshold_type=threshold, breakpoint_threshold_amount=value
    )


def embed_by_text(texts):
    """Any vector, the same for the same text."""
    return np.stack([np.random.default_rng(list(text.encode())).normal(size=8) + 0.3 for text in texts])


@pytest.mark.parametrize(("threshold", "value"), CASES)
@pytest.mark.parametrize("num_values", [None, 4])
def test_breaks_of_the_same_distances(threshold, value, num_values):
    """Also of distances with many ties, which are often the threshold itself."""
    chunker = semantic_chunker(embed_by_text, threshold, value)
    rng = np.random.default_rng(0)
    for size in [2, 3, 4, 9, 30, 101]:
        distances = rng.random(size) if num_values is None else rng.integers(0, num_values, size) / num_values
        limit, compared = chunker._calculate_breakpoint_threshold(distances.tolist())
        theirs = [i for i, x in enumerate(compared) if x > limit]
        ours = find_breaks(distances, threshold, DEFAULTS[threshold] if value is None else value)
        assert ours.tolist() == theirs


@pytest.mark.parametrize(("threshold", "value"), CASES)
@pytest.mark.parametrize("window", [0, 1, 2])
def test_the_same_chunks_of_a_text(threshold, value, window):
    sentences = tuple(f"This is number {i}." for i in range(40))
    starts = np.cumsum([0, *(len(sentence) + 1 for sentence in sentences)]).tolist()
    text = SentenceText(" ".join(sentences), tuple((a, b - 1) for a, b in zip(starts, starts[1:], strict=False)))
    groups = make_breakpoint(BreakpointConfig(threshold, value, window), embed_by_text)(text)
    ours = [text.text[group.spans[0][0] : group.spans[-1][1]] for group in groups]
    assert ours == semantic_chunker(embed_by_text, threshold, value, window).split_text(text.text)


def test_cosine_distances():
    texts = [f"text {i}" for i in range(20)]
    chunker = semantic_chunker(embed_by_text, "percentile", None)
    theirs, _ = chunker._calculate_sentence_distances(texts)
    np.testing.assert_allclose(neighbour_distances(sentence_vectors(embed_by_text, texts)), theirs, atol=1e-6)


@pytest.mark.parametrize("lambda_", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("min_samples", [1, 2, 3, 5])
@pytest.mark.parametrize("eps", [0.05, 0.1, 0.2, 0.3, 0.5])
def test_dbscan_labels(lambda_, min_samples, eps):
    """Number for number, on the dense matrix of the same distances; 200 sentences about 12 topics."""
    from sklearn.cluster import DBSCAN

    rng = np.random.default_rng(0)
    topics = rng.normal(size=(12, 16))
    vectors = topics[rng.integers(0, 12, 200)] + 0.6 * rng.normal(size=(200, 16))
    units = sentence_vectors(lambda texts: vectors, ["x"] * 200)
    distances = joint_distances(units, lambda_, 200)
    dense = distances(np.arange(200), 0)
    dense = np.triu(dense, 1) + np.triu(dense, 1).T
    theirs = DBSCAN(eps=float(np.float32(eps)), min_samples=min_samples, metric="precomputed").fit(dense).labels_
    assert dbscan_labels(distances, 200, eps, min_samples).tolist() == theirs.tolist()


@pytest.mark.parametrize("num_values", [3, 6])
@pytest.mark.parametrize("block_rows", [1, 7, 500])
def test_dbscan_labels_of_tied_distances(num_values, block_rows, monkeypatch):
    from sklearn.cluster import DBSCAN

    monkeypatch.setattr("qrag_jax.chunking.strategies.distances._BLOCK_ENTRIES", block_rows * 60)
    for seed in range(20):
        places = np.random.default_rng(seed).integers(0, 4 * num_values, (60, 2)) / 8
        dense = np.abs(places[:, None] - places[None]).sum(axis=2).astype(np.float32)
        for min_samples in [1, 2, 3, 4]:
            theirs = DBSCAN(eps=0.25, min_samples=min_samples, metric="precomputed").fit(dense).labels_
            ours = dbscan_labels(lambda rows, first, dense=dense: dense[rows, first:], 60, 0.25, min_samples)
            assert ours.tolist() == theirs.tolist()
