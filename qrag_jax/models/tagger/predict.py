"""A trained tagger as a source of points: sentences embedded in batches over documents, gaps tagged in fixed shapes."""

from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Float

from qrag_jax.chunking.strategies.distances import sentence_vectors
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.boundaries import Point, PredictPoints, starts_paragraph
from qrag_jax.models.tagger.features import Gaps, standardise, text_gaps, with_components
from qrag_jax.models.tagger.tagger import NUM_CLASSES, Tagger, tag
from qrag_jax.types import Embed, Encoder, InputError

_GAPS_AT_A_TIME = 1024
_SENTENCES_AT_A_TIME = 20_000  # of whole documents: 30 MB of vectors
_tag = jax.jit(tag)


def make_tagger_points(tagger: Tagger, encoder: Encoder) -> PredictPoints:
    """The points that a tagger finds, by the encoder that it was trained with.

    Raises:
        InputError: it is another encoder.
    """
    check_encoder(tagger, encoder.fingerprint)
    return tagged_points(tagger, encoder)


def check_encoder(tagger: Tagger, fingerprint: str) -> None:
    """Refuses an encoder that a tagger was not trained with."""
    if fingerprint != tagger.fingerprint:
        raise InputError(
            f"tagger: trained on vectors of the encoder {tagger.encoder!r} (fingerprint {tagger.fingerprint[:12]}), "
            f"this one has the fingerprint {fingerprint[:12]}: give the encoder that it was trained with, or "
            "train a tagger on this one (qrag train tagger)"
        )


def tagged_points(tagger: Tagger, embed: Embed) -> PredictPoints:
    """As `make_tagger_points`, for vectors that are known to be the right encoder's."""

    def predict(texts: Sequence[SentenceText]) -> list[list[Point]]:
        found: list[list[Point]] = []
        for group in _groups(texts):
            gaps = [standardise(one, tagger.basis) for one in document_gaps(group, embed, tagger)]
            found += [points_of(rows, tagger.threshold) for rows in probabilities(tagger.params, gaps)]
        return found

    return predict


def document_gaps(texts: Sequence[SentenceText], embed: Embed, tagger: Tagger) -> list[Gaps]:
    """The features of each document for a tagger, not yet standardised; all sentences are embedded in one call."""
    basis = tagger.basis
    rows = zip(texts, vectors_of(texts, embed), strict=True)
    return [
        with_components(read_gaps(text, vectors), vectors, basis.centre, basis.components) for text, vectors in rows
    ]


def read_gaps(text: SentenceText, vectors: Float[np.ndarray, "sentences dim"]) -> Gaps:
    """The features of a document that need no other one (`models/tagger/features.py:text_gaps`)."""
    return text_gaps(text.texts(), starts_paragraph(text), vectors)


def vectors_of(texts: Sequence[SentenceText], embed: Embed) -> list[Float[np.ndarray, "_ dim"]]:
    """The vectors of the sentences of each document, of length 1, embedded in one call."""
    vectors = sentence_vectors(embed, [sentence for text in texts for sentence in text.texts()])
    return np.split(vectors, np.cumsum([len(text) for text in texts])[:-1]) if texts else []


def probabilities(
    params: Mapping[str, np.ndarray], documents: Sequence[Gaps]
) -> list[Float[np.ndarray, "gaps classes"]]:
    """Probabilities of no section and of its levels, of each document; gaps of all are tagged together."""
    lengths = [len(one.features) for one in documents]
    if not sum(lengths):
        return [np.zeros((0, NUM_CLASSES), np.float32) for _ in documents]
    features = np.concatenate([one.features for one in documents])
    cues = np.concatenate([one.cues for one in documents])
    found = np.concatenate([_tag_block(params, features, cues, at) for at in range(0, len(cues), _GAPS_AT_A_TIME)])
    return np.split(found, np.cumsum(lengths)[:-1])


def _tag_block(params: Mapping[str, np.ndarray], features: np.ndarray, cues: np.ndarray, at: int) -> np.ndarray:
    """Tags up to `_GAPS_AT_A_TIME` gaps, padded to that number: one shape for all documents."""
    own = [np.asarray(rows[at : at + _GAPS_AT_A_TIME]) for rows in (features, cues)]
    number = len(own[0])
    full = [np.concatenate([rows, np.zeros((_GAPS_AT_A_TIME - number, rows.shape[1]), rows.dtype)]) for rows in own]
    return np.exp(np.asarray(_tag(dict(params), *full)))[:number]


def points_of(rows: Float[np.ndarray, "gaps classes"], threshold: float) -> list[Point]:
    """The points of one document: where a section begins with more than the threshold, its most probable level.

    Gap g is before sentence g + 1; the first sentence begins the document in any case, and is never a point.
    """
    begins = np.flatnonzero(1 - rows[:, 0] > threshold)
    return [(int(gap) + 1, int(rows[gap, 1:].argmax()) + 1) for gap in begins]


def _groups(texts: Sequence[SentenceText]) -> Iterator[Sequence[SentenceText]]:
    """Groups of whole documents whose sentences fill batches and whose vectors take little memory."""
    first, size = 0, 0
    for number, text in enumerate(texts):
        size += len(text)
        if size >= _SENTENCES_AT_A_TIME:
            yield texts[first : number + 1]
            first, size = number + 1, 0
    if first < len(texts):
        yield texts[first:]
