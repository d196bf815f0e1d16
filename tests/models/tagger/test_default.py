"""The tagger that comes with the package."""

from importlib import resources

import numpy as np

from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.models.tagger.features import NUM_COMPONENTS, text_gaps
from qrag_jax.models.tagger.tagger import load_tagger

FOLDER = resources.files("qrag_jax.models.tagger") / "default"


def test_it_is_small_and_its_sources_are_named_beside_it():
    assert len((FOLDER / "tagger.npz").read_bytes()) < 100_000
    licences = (FOLDER / "LICENSES.md").read_text(encoding="utf-8")
    assert "CC BY 4.0" in licences and "CC BY-SA 3.0" in licences


def test_it_reads_the_features_of_this_version_from_vectors_of_minilm():
    tagger, embedder = load_tagger(), make_embedder(load_encoder("minilm"))
    assert (tagger.encoder, tagger.fingerprint) == ("minilm", embedder.fingerprint)
    gaps = text_gaps(["One.", "Two."], np.array([True, False]), np.eye(2, embedder.dim, dtype=np.float32))
    assert tagger.basis.components.shape == (embedder.dim, NUM_COMPONENTS)
    assert len(tagger.basis.mean) == gaps.features.shape[1] + 4 * NUM_COMPONENTS


def test_it_was_trained_on_many_documents():
    facts = load_tagger().trained_on
    assert facts["num_documents"] == 390 and len(facts["data_sha256"]) == 64
    assert "342 papers" in (FOLDER / "LICENSES.md").read_text(encoding="utf-8")
