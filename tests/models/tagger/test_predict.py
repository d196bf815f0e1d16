import re

import numpy as np
import pytest
from support.headed_documents import DIM, hashed_vectors, headed_document, sentence_text

from qrag_jax.models.tagger import predict as tagging
from qrag_jax.models.tagger.features import fit_basis, principal_components, with_components
from qrag_jax.models.tagger.predict import (
    make_tagger_points,
    points_of,
    probabilities,
    read_gaps,
    tagged_points,
    vectors_of,
)
from qrag_jax.models.tagger.surface import NUM_CUES
from qrag_jax.models.tagger.tagger import NUM_CLASSES, Tagger
from qrag_jax.types import InputError

TEXTS = [headed_document(number).text for number in range(4)]


class Encoder:
    """Vectors of texts, and how often it was asked."""

    fingerprint = "a" * 64
    counts = None

    def __init__(self):
        self.calls = []

    def __call__(self, texts, progress=None):
        self.calls.append(len(texts))
        return hashed_vectors(texts)


@pytest.fixture(scope="module")
def tagger():
    """Random weights: what it finds means nothing, and depends on everything."""
    vectors = vectors_of(TEXTS, hashed_vectors)
    centre, components = principal_components(vectors, 3)
    read = [read_gaps(text, rows) for text, rows in zip(TEXTS, vectors, strict=True)]
    read = [with_components(one, rows, centre, components) for one, rows in zip(read, vectors, strict=True)]
    basis = fit_basis(read, centre, components)
    rng = np.random.default_rng(0)
    params = {
        "weights": rng.normal(size=(len(basis.mean), NUM_CLASSES)).astype(np.float32),
        "cues": rng.normal(size=(NUM_CUES, NUM_CLASSES)).astype(np.float32),
        "bias": np.zeros(NUM_CLASSES, np.float32),
    }
    return Tagger(params, basis, 0.7, Encoder.fingerprint, "minilm")


def test_points_by_hand():
    rows = np.array([[0.4, 0.1, 0.3, 0.2], [0.5, 0.5, 0, 0], [0.1, 0.2, 0.2, 0.5]])
    assert points_of(rows, 0.5) == [(1, 2), (3, 3)]
    assert points_of(rows, 0.55) == [(1, 2), (3, 3)]
    assert points_of(rows, 0.6) == [(3, 3)]


def test_documents_do_not_influence_each_other(tagger):
    together = tagged_points(tagger, hashed_vectors)(TEXTS)
    alone = [tagged_points(tagger, hashed_vectors)([text])[0] for text in TEXTS]
    assert together == alone
    assert any(together)
    assert tagged_points(tagger, hashed_vectors)(TEXTS[::-1]) == together[::-1]


def test_sentences_of_all_documents_are_embedded_at_once(tagger, monkeypatch):
    encoder = Encoder()
    whole = make_tagger_points(tagger, encoder)(TEXTS)
    assert encoder.calls == [sum(map(len, TEXTS))]
    monkeypatch.setattr(tagging, "_SENTENCES_AT_A_TIME", 1 + len(TEXTS[0]))
    in_parts = Encoder()
    assert make_tagger_points(tagger, in_parts)(TEXTS) == whole
    assert in_parts.calls == [len(TEXTS[0]) + len(TEXTS[1]), len(TEXTS[2]) + len(TEXTS[3])]


def test_blocks_of_gaps_give_what_one_block_gives(tagger, monkeypatch):
    gaps = tagging.document_gaps(TEXTS, hashed_vectors, tagger)
    whole = probabilities(tagger.params, gaps)
    monkeypatch.setattr(tagging, "_GAPS_AT_A_TIME", 7)
    for first, second in zip(whole, probabilities(tagger.params, gaps), strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)
        np.testing.assert_allclose(first.sum(axis=1), 1, rtol=1e-5)


def test_nothing_compiles_for_another_document(tagger):
    find = tagged_points(tagger, hashed_vectors)
    find(TEXTS[:1])
    before = tagging._tag._cache_size()
    find([headed_document(99, num_sections=9).text])
    assert tagging._tag._cache_size() == before


def test_texts_without_a_gap_have_no_point(tagger):
    nothing, one = sentence_text([]), sentence_text(["Only one."])
    assert tagged_points(tagger, hashed_vectors)([]) == []
    assert tagged_points(tagger, hashed_vectors)([nothing, one]) == [[], []]
    found = tagged_points(tagger, hashed_vectors)([nothing, TEXTS[0], one])
    assert found == [[], *tagged_points(tagger, hashed_vectors)(TEXTS[:1]), []]


def test_another_encoder_is_refused(tagger):
    other = Encoder()
    other.fingerprint = "b" * 64
    with pytest.raises(InputError, match=re.escape(f"'minilm' (fingerprint {'a' * 12}), this one has the fingerprint")):
        make_tagger_points(tagger, other)
    assert not other.calls


def test_vectors_have_length_one():
    rows = np.concatenate(vectors_of(TEXTS, hashed_vectors))
    assert rows.shape[1] == DIM
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
