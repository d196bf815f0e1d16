"""RAPTOR (Sarthi et al. 2024), as a rival of levels: clusters of chunks that need not be neighbours, summed up, again.

    1. the vectors of a layer are reduced to 10 components and clustered by a mixture of Gaussians
    2. a chunk belongs to every cluster whose probability is above 0.1; a cluster is summed up, the summary embedded
    3. the summaries are the next layer, until there is one cluster or there are five layers

All layers together are searched ("collapsed tree"). Departures: principal components in the place of UMAP; one
clustering in place of a global and a local one; as many clusters as leave 6.7 members to each, the paper's mean, in
place of those by BIC, which over principal components finds one; a tree a document. Summaries are what is handed in:
`extractive` takes the chunks' sentences that are nearest to the cluster's mean, as many as 131 tokens hold, the paper's
mean, in their order. Needs scikit-learn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from sklearn.mixture import GaussianMixture

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.types import CountTokens
from qrag_jax.unit_rows import unit_rows

DIMENSIONS, MEMBERS, LEAST_PROBABILITY, MOST_LAYERS, SUMMARY_TOKENS = 10, 6.7, 0.1, 5, 131
Embed = Callable[[Sequence[str]], np.ndarray]
# (texts of a cluster, mean of their vectors) -> its summary.
SumUp = Callable[[Sequence[str], np.ndarray], str]


@dataclass(frozen=True)
class Layers:
    """All nodes of one document: its chunks, then the summaries.

    Attributes:
        texts: of the nodes.
        vectors: float32 [nodes, dim], of length 1 or 0.
        layer: of each, 0 of chunks.
    """

    texts: tuple[str, ...]
    vectors: np.ndarray
    layer: tuple[int, ...]


def build(texts: Sequence[str], vectors: Float[np.ndarray, "n dim"], embed: Embed, sum_up: SumUp, seed: int) -> Layers:
    """The layers over the chunks of one document."""
    found, kept, layer = list(texts), [vectors], [0] * len(texts)
    below, below_vectors = list(texts), vectors
    for depth in range(1, MOST_LAYERS + 1):
        if len(below) < 3:
            break
        clusters = cluster(below_vectors, seed)
        summaries = [sum_up([below[i] for i in one], below_vectors[one].mean(axis=0)) for one in clusters]
        below, below_vectors = summaries, unit_rows(np.asarray(embed(summaries), np.float32))
        found += below
        kept.append(below_vectors)
        layer += [depth] * len(below)
        if len(clusters) == 1:
            break
    return Layers(tuple(found), np.concatenate(kept), tuple(layer))


def cluster(vectors: Float[np.ndarray, "n dim"], seed: int) -> list[np.ndarray]:
    """Members of each cluster; fewer clusters than vectors, and a vector may be in several."""
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    reduced = centred @ directions[: min(DIMENSIONS, len(vectors) - 1)].T
    number = max(1, round(len(vectors) / MEMBERS))
    mixture = GaussianMixture(number, covariance_type="diag", random_state=seed, reg_covar=1e-4)
    shares = mixture.fit(reduced).predict_proba(reduced)
    groups = [np.flatnonzero(column > LEAST_PROBABILITY) for column in shares.T]
    return [group for group in groups if len(group)]


def extractive(embed: Embed, count: CountTokens) -> SumUp:
    """Summaries that are sentences of the chunks."""

    def sum_up(texts: Sequence[str], mean: np.ndarray) -> str:
        sentences = [text[start:end] for text in texts for start, end in split_sentences(text)]
        nearness = np.asarray(embed(sentences)) @ mean
        taken, left = [], SUMMARY_TOKENS
        for place in np.argsort(-nearness, kind="stable").tolist():
            size = count(sentences[place])
            if size <= left or not taken:
                taken.append(place)
                left -= size
        return " ".join(sentences[place] for place in sorted(taken))

    return sum_up
