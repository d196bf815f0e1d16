"""The features of every gap of a document: vectors around it, how alike both sides are, what can be seen of the text.

Host side, NumPy. Gap g is between sentences g and g + 1, so a document of n sentences has n - 1 gaps. The features of
a document depend on that document and on the basis learned from the training documents (`Basis`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.models.tagger.surface import (
    cue_ids,
    paragraph_columns,
    place_columns,
    sentence_columns,
    shifted,
    word_columns,
)
from qrag_jax.types import InputError

NUM_COMPONENTS = 48
BLOCKS = (1, 2, 4, 8, 16)  # sentences on each side of a gap
_NEIGHBOURS = (-2, -1, 0, 1)  # sentences whose components are features, from the one behind the gap
_OPENING = 5  # sentences that open a document
_AROUND = (3, 8)
_MOST = 8.0  # standard deviations
_DEAD = 1e-6  # a standard deviation below it counts as 1
_TINY = 1e-9


class Gaps(NamedTuple):
    """The inputs of a tagger for the gaps of one document, or of several in sequence.

    Attributes:
        features: float32 [gaps, features].
        cues: int32 [gaps, cues], buckets.
    """

    features: Float[np.ndarray, "gaps features"]
    cues: Int[np.ndarray, "gaps cues"]


@dataclass(frozen=True)
class Basis:
    """Statistics of the training documents, learned without their headings.

    Attributes:
        centre: mean of the sentence vectors, [dim].
        components: their principal components, [dim, components].
        mean: of the features, [features].
        std: their standard deviation, positive.
    """

    centre: Float[np.ndarray, " dim"]
    components: Float[np.ndarray, "dim components"]
    mean: Float[np.ndarray, " features"]
    std: Float[np.ndarray, " features"]


def principal_components(
    vectors: Sequence[Float[np.ndarray, "_ dim"]], num_components: int = NUM_COMPONENTS
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim components"]]:
    """Mean and principal components of the vectors of all documents, largest variance first.

    The sign of a component is that which makes its largest entry positive. A space of fewer dimensions has as many
    components as dimensions.
    """
    number = sum(map(len, vectors))
    total = np.sum([rows.sum(axis=0, dtype=np.float64) for rows in vectors], axis=0)
    squares = sum(rows.astype(np.float64).T @ rows for rows in vectors)
    centre = total / number
    _, found = np.linalg.eigh(squares / number - np.outer(centre, centre))
    components = found[:, ::-1][:, :num_components]
    largest = components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])]
    return centre, components * np.where(largest < 0, -1, 1)


def text_gaps(
    texts: Sequence[str], starts: Bool[np.ndarray, " sentences"], vectors: Float[np.ndarray, "sentences dim"]
) -> Gaps:
    """All features of a document that need no other document: all except the components of its vectors.

    Args:
        starts: which of them begin a paragraph.
        vectors: of the sentences, of length 1.
    """
    if len(texts) < 2:
        two = text_gaps(["", ""], np.array([True, True]), np.ones((2, 1)))
        return Gaps(two.features[:0], two.cues[:0])
    columns = [cohesion_columns(vectors), word_columns(texts), sentence_columns(texts)]
    columns += [place_columns(len(texts)), paragraph_columns(starts)]
    return Gaps(np.hstack(columns)[1:].astype(np.float32), cue_ids(texts)[1:])


def with_components(
    gaps: Gaps,
    vectors: Float[np.ndarray, "sentences dim"],
    centre: Float[np.ndarray, " dim"],
    components: Float[np.ndarray, "dim components"],
) -> Gaps:
    """The same gaps with the components of the vectors around each, two sentences on either side.

    Args:
        gaps: of `text_gaps`.
        vectors: of the sentences, of length 1.
        centre, components: of `principal_components`.
    """
    parts = (vectors - centre) @ components
    around = [shifted(parts, by)[1:].astype(np.float32) for by in _NEIGHBOURS]
    return Gaps(np.hstack([*around, gaps.features]), gaps.cues)


def standardise(gaps: Gaps, basis: Basis) -> Gaps:
    """Features in standard deviations from the mean of the training documents, at most 8 either way."""
    if gaps.features.shape[1] != len(basis.mean):
        raise InputError(
            f"tagger: trained on {len(basis.mean)} features, this version has {gaps.features.shape[1]}: train it again"
        )
    scaled = np.clip((gaps.features - basis.mean) / basis.std, -_MOST, _MOST)
    return Gaps(scaled.astype(np.float32), gaps.cues)


def fit_basis(
    documents: Sequence[Gaps], centre: Float[np.ndarray, " dim"], components: Float[np.ndarray, "dim components"]
) -> Basis:
    """The basis that standardises these documents: mean 0 and standard deviation 1 over all of their gaps."""
    rows = np.concatenate([one.features for one in documents])
    std = rows.std(axis=0, dtype=np.float64)
    return Basis(centre, components, rows.mean(axis=0, dtype=np.float64), np.where(std < _DEAD, 1.0, std))


def cohesion_columns(vectors: Float[np.ndarray, "sentences dim"]) -> Float[np.ndarray, "sentences columns"]:
    """How alike the texts on both sides of the gap before each sentence are.

        cos_b(i) = cosine of  sum v[i - b .. i - 1]  and  sum v[i .. i + b - 1],   b of `BLOCKS`

    For each b the cosine, the same in standard deviations of this document, and its depth: the sum of the differences
    to the largest ones within b (at least 2) gaps on either side (Hearst 1997). Then cosines of the sentence, and
    of the one before it, with the whole document, its opening, and the sentences around.
    """
    n = len(vectors)
    sums = np.concatenate([np.zeros((1, vectors.shape[1])), np.cumsum(vectors, axis=0, dtype=np.float64)])
    i = np.arange(n)
    block = lambda first, stop: sums[np.clip(stop, 0, n)] - sums[np.clip(first, 0, n)]  # noqa: E731
    columns = []
    for size in BLOCKS:
        cosine = _cosines(block(i - size, i), block(i, i + size))
        columns += [cosine, (cosine - cosine[1:].mean()) / (cosine[1:].std() + _DEAD), _depth(cosine, max(size, 2))]
    before = shifted(vectors, -1)
    whole = _cosines(vectors, sums[n])
    columns += [whole, shifted(whole[:, None], -1)[:, 0], _cosines(vectors, sums[min(_OPENING, n)])]
    for size in _AROUND:
        after = block(i + 1, i + 1 + size)
        columns += [_cosines(vectors, block(i - size, i)), _cosines(vectors, after)]
        columns += [_cosines(before, block(i - 1 - size, i - 1)), _cosines(before, after)]
    return np.stack(columns, axis=1)


def _depth(cosine: Float[np.ndarray, " sentences"], reach: int) -> Float[np.ndarray, " sentences"]:
    n = len(cosine)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(cosine, reach, mode="edge"), reach + 1).max(axis=1)
    return windows[:n] + windows[reach : reach + n] - 2 * cosine


def _cosines(a: Float[np.ndarray, "sentences dim"], b: Float[np.ndarray, "*rows dim"]) -> np.ndarray:
    """Cosines of rows, or of rows and one vector; 0 with a zero vector."""
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.einsum("nd,nd->n", a, np.broadcast_to(b, a.shape)) / np.maximum(norms, _TINY)
