"""MiniLM and exported folders of every family against sentence-transformers: the same vectors to 1e-5, with prompts
and the first components (Matryoshka)."""

from dataclasses import replace

import numpy as np
import pytest
from support.encoders import random_encoder, unigram

from qrag_jax.models.encoder.config import FAMILIES, Prompts
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.export import export_router, export_sentence_transformer
from qrag_jax.models.encoder.sources import MINILM, find_encoder
from qrag_jax.models.encoder.weights import load_encoder

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("quick_compilation")]

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
    reference = load_reference(find_encoder(MINILM))
    embed = make_embedder(minilm)
    np.testing.assert_allclose(embed(TEXTS), reference.encode(TEXTS), atol=1e-5)
    assert embed.window == reference.max_seq_length and embed.counts.num_texts_cut == 1


def test_minilm_token_vectors(minilm):
    reference = load_reference(find_encoder(MINILM))
    embed = make_embedder(minilm)
    for text in TEXTS[:6]:
        expected = reference.encode(text, output_value="token_embeddings", convert_to_numpy=False).numpy()
        vectors, offsets = embed.tokens(text)
        assert len(vectors) == len(offsets) == len(expected) - 2
        np.testing.assert_allclose(vectors, expected[1:-1], atol=1e-5)


def encoder(source):
    """MiniLM's first layers, or a small random encoder: own words, non-trivial norms, tanh gelu for `bert`."""
    if source == "minilm":
        return load_encoder(MINILM, num_layers=2)
    if source == "bert, unigram":  # as multilingual-e5-small
        return random_encoder("bert", TEXTS, unigram)
    return random_encoder(source, TEXTS, activation="gelu_tanh" if source == "bert" else "gelu")


@pytest.mark.parametrize(
    ("source", "pooling", "normalize"),
    [
        ("minilm", "mean", False),
        ("minilm", "cls", False),
        ("minilm", "mean", True),
        ("bert", "mean", False),
        ("bert, unigram", "mean", True),
        ("roberta", "mean", False),
        ("xlm-roberta", "mean", True),  # as multilingual-e5
        ("mpnet", "cls", False),  # as multi-qa-mpnet
        ("nomic_bert", "mean", False),
        ("modernbert", "cls", True),
        ("modernbert", "mean", False),
        ("qwen3", "last", True),  # as Qwen3-Embedding
        ("qwen3", "mean", False),
    ],
)
def test_exported_encoder(tmp_path, capfd, caplog, source, pooling, normalize):
    loaded = encoder(source)
    loaded = replace(loaded, config=replace(loaded.config, pooling=pooling, normalize=normalize))
    window = 64
    export_sentence_transformer(
        tmp_path, loaded.config, loaded.params, loaded.tokenizer, window=window, pooler=loaded.pooler
    )
    reference = load_reference(tmp_path)
    assert reference.similarity_fn_name == "dot" and reference.max_seq_length == window
    vectors = reference.encode(TEXTS)
    np.testing.assert_allclose(vectors, make_embedder(loaded, window=window)(TEXTS), atol=1e-5)
    np.testing.assert_allclose(vectors, make_embedder(load_encoder(tmp_path))(TEXTS), atol=1e-5)
    np.testing.assert_allclose(reference.similarity(vectors, vectors), vectors @ vectors.T, rtol=1e-4, atol=1e-5)
    captured = capfd.readouterr()
    printed = captured.out + captured.err + caplog.text
    assert "MISSING" not in printed and "UNEXPECTED" not in printed


def cosines(ours, theirs):
    return (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dim", [None, 8])
def test_prompts_and_first_components(tmp_path, family, dim):
    from sentence_transformers import SentenceTransformer

    loaded = random_encoder(family, TEXTS, normalize=True)
    prompts = Prompts("Find what answers the milk: ", "passage: ")
    export_sentence_transformer(tmp_path, loaded.config, loaded.params, loaded.tokenizer, prompts=prompts)
    reference = SentenceTransformer(str(tmp_path), device="cpu", truncate_dim=dim)
    again = load_encoder(tmp_path, dim=dim)
    assert again.prompts == prompts
    embed = make_embedder(again)
    for ours, theirs in (
        (embed.questions(TEXTS), reference.encode_query(TEXTS)),
        (embed(TEXTS), reference.encode_document(TEXTS)),
    ):
        assert ours.shape == theirs.shape == (len(TEXTS), dim or 16)
        assert cosines(ours, theirs).min() > 1 - 1e-6
        np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("source", ["minilm", "bert, unigram", *FAMILIES])
def test_tokens_of_an_exported_encoder(tmp_path, source):
    loaded = encoder(source)
    export_sentence_transformer(tmp_path, loaded.config, loaded.params, loaded.tokenizer)
    reference = load_reference(tmp_path).tokenizer
    special = loaded.tokenizer.special_tokens
    texts = [
        *TEXTS[:5],
        f"Mary {special['pad_token']} went {special['sep_token']} there",
        "[PAD] [SEP] <pad> </s> <mask>",
    ]
    table = loaded.tokenizer.encode(texts, 64)
    theirs = reference(texts)["input_ids"]
    assert [row[:length].tolist() for row, length in zip(table.tokens, table.lengths, strict=True)] == theirs
    ids = (reference.pad_token_id, reference.unk_token_id, reference.cls_token_id, reference.sep_token_id)
    own = loaded.tokenizer
    assert ids == (own.pad_id, None if own.unknown_id < 0 else own.unknown_id, own.cls_id, own.sep_id)


@pytest.mark.parametrize(("pooling", "normalize", "scale"), [("cls", False, 0.1), ("mean", True, 1.0)])
def test_exported_router_and_its_towers_read_back(tmp_path, pooling, normalize, scale):
    state = encoder("mpnet")
    state = replace(state, config=replace(state.config, pooling=pooling, normalize=normalize))
    action = replace(
        state, params=random_encoder("mpnet", TEXTS, num_layers=2).params | {"layer_1": state.params["layer_0"]}
    )
    params = {"state": state.params, "action": action.params}
    windows = {"state": 64, "action": 32}
    export_router(tmp_path, state.config, params, state.tokenizer, scale=scale, windows=windows)
    reference = load_reference(tmp_path)
    queries, documents = reference.encode_query(TEXTS), reference.encode_document(TEXTS)
    np.testing.assert_allclose(queries, make_embedder(state, window=64)(TEXTS) * scale, atol=1e-5)
    np.testing.assert_allclose(documents, make_embedder(action, window=32)(TEXTS) * scale, atol=1e-5)
    for route, vectors in (("query", queries), ("document", documents)):
        again = load_encoder(tmp_path / "0_Router" / f"{route}_0_Transformer")
        assert again.config == state.config
        np.testing.assert_allclose(make_embedder(again)(TEXTS), vectors, atol=1e-5)
