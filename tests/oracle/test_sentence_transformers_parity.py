"""MiniLM and exported folders against sentence-transformers: the same vectors to 1e-5."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from qrag_jax.models.embedder import make_embedder
from qrag_jax.models.encoder import EncoderConfig, init_encoder
from qrag_jax.models.export import export_sentence_transformer
from qrag_jax.models.sources import MINILM, find_folder
from qrag_jax.models.tokenizer import train_word_level
from qrag_jax.models.weights import LoadedEncoder, load_encoder

pytestmark = pytest.mark.oracle

TEXTS = [
    "Where is the milk?",
    "Mary went to the kitchen. John picked up the football there.",
    "",
    "Café naïve, 日本語 and \U0001f600 emoji; isn't it?",
    "a",
    "The people of the State of the Union have, as ever, much to be thankful for. " * 9,
    "one two three four five six seven eight nine ten " * 60,  # beyond 256 tokens
]


def load_reference(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


@pytest.fixture(scope="module")
def minilm():
    return load_encoder(MINILM)


def test_minilm_vectors(minilm):
    reference = load_reference(find_folder(MINILM))
    embed = make_embedder(minilm)
    np.testing.assert_allclose(embed(TEXTS), reference.encode(TEXTS), atol=1e-5)
    assert embed.window == reference.max_seq_length and embed.counts.num_texts_cut == 1


def test_minilm_token_vectors(minilm):
    reference = load_reference(find_folder(MINILM))
    embed = make_embedder(minilm)
    for text in TEXTS[:6]:
        expected = reference.encode(text, output_value="token_embeddings", convert_to_numpy=False).numpy()
        vectors, offsets = embed.tokens(text)
        assert len(vectors) == len(offsets) == len(expected) - 2
        np.testing.assert_allclose(vectors, expected[1:-1], atol=1e-5)


def scratch_encoder():
    """A small encoder as training from scratch leaves it: own words, tanh gelu, non-trivial norms."""
    tokenizer = train_word_level(TEXTS)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        intermediate_size=32,
        max_positions=64,
        activation="gelu_tanh",
    )
    shapes = jax.eval_shape(partial(init_encoder, config=config), jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0.1, 0.4, leaf.shape).astype(np.float32), shapes)
    return LoadedEncoder(config, params, tokenizer)


@pytest.mark.parametrize("source", ["minilm", "scratch"])
@pytest.mark.parametrize(
    ("pooling", "normalize", "scale"), [("mean", False, 0.1), ("cls", False, 1.0), ("mean", True, 1.0)]
)
def test_exported_tower(tmp_path, capfd, caplog, source, pooling, normalize, scale):
    loaded = load_encoder(MINILM, num_layers=2) if source == "minilm" else scratch_encoder()
    loaded = replace(loaded, config=replace(loaded.config, pooling=pooling, normalize=normalize))
    window = 64
    export_sentence_transformer(
        tmp_path, loaded.config, loaded.params, loaded.tokenizer, role="state", scale=scale, window=window,
        pooler=loaded.pooler,
    )  # fmt: skip
    reference = load_reference(tmp_path)
    assert reference.similarity_fn_name == "dot" and reference.max_seq_length == window
    vectors = reference.encode(TEXTS)
    np.testing.assert_allclose(vectors, make_embedder(loaded, window=window)(TEXTS) * scale, atol=1e-5)
    np.testing.assert_allclose(vectors, make_embedder(load_encoder(tmp_path))(TEXTS), atol=1e-5)
    np.testing.assert_allclose(reference.similarity(vectors, vectors), vectors @ vectors.T, rtol=1e-4, atol=1e-5)
    captured = capfd.readouterr()
    printed = captured.out + captured.err + caplog.text
    assert "MISSING" not in printed and "UNEXPECTED" not in printed
