"""Taggers and compressors that tests build for any encoder without training."""

import numpy as np
from tiny_headed import sentence_text

from qrag_jax.models.tagger.features import fit_basis, principal_components, with_components
from qrag_jax.models.tagger.predict import read_gaps, vectors_of
from qrag_jax.models.tagger.surface import NUM_CUES
from qrag_jax.models.tagger.tagger import NUM_CLASSES, Tagger

_SENTENCES = [f"Sentence {number} says {word}." for number, word in enumerate("one two three four five".split())]


def eager_tagger(encoder, threshold=0.5):
    """For it a section of level 1 begins with every sentence."""
    text = sentence_text(_SENTENCES)
    (vectors,) = vectors_of([text], encoder)
    centre, components = principal_components([vectors], 3)
    basis = fit_basis([with_components(read_gaps(text, vectors), vectors, centre, components)], centre, components)
    params = {
        "weights": np.zeros((len(basis.mean), NUM_CLASSES)),
        "cues": np.zeros((NUM_CUES, NUM_CLASSES)),
        "bias": np.array([0.0, 9.0, 0.0, 0.0]),
    }
    return Tagger(params, basis, threshold, encoder.fingerprint, "minilm")
