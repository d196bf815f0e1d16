"""Token vectors of encoders, and ColBERT checkpoints of both kinds of folders."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.encoders import random_encoder

from qrag_jax.models.encoder.config import Prompts
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.types import InputError, ReadsTokens, UsageError
from qrag_jax.unit_rows import unit_rows

TEXTS = ("the old mill burned", "mill", "who rebuilt the old mill", "the the the old old old mill burned burned")
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
]
DENSE = {"in_features": 16, "out_features": 6, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}


@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_tokens_come_with_the_vectors_of_the_same_pass(family):
    embed = make_embedder(random_encoder(family, TEXTS, normalize=True), window=24)
    assert isinstance(embed, ReadsTokens)
    vectors, codes = embed.with_tokens(TEXTS)
    np.testing.assert_allclose(vectors, embed(TEXTS), atol=1e-6)
    for text, one in zip(TEXTS, codes, strict=True):
        exact = unit_rows(embed.tokens(text)[0])
        assert one.dtype == np.int8 and one.shape == exact.shape == (embed.count_tokens(text), 16)
        # Half a step of 127 in every component, of at most the largest: an error of sqrt(16) / 254 in all.
        np.testing.assert_allclose(unit_rows(one.astype(np.float32)), exact, atol=16**0.5 / 254)
        np.testing.assert_allclose(embed.question_tokens(text), exact, atol=1e-6)


def test_tokens_of_a_prompt_and_beyond_the_window_are_left_out():
    prompts = Prompts("who : ", "old mill ")
    embed = make_embedder(random_encoder("bert", [*TEXTS, "who :"]), window=9, prompts=prompts)
    vectors, codes = embed.with_tokens(TEXTS)
    assert [len(one) for one in codes] == [4, 1, 5, 5] and embed.counts.num_texts_cut == 1
    np.testing.assert_allclose(vectors, embed(TEXTS), atol=1e-6)
    np.testing.assert_allclose(unit_rows(codes[1].astype(np.float32)), unit_rows(embed.tokens("mill")[0]), atol=0.02)
    assert embed.question_tokens("mill").shape == (1, 16)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of an encoder, its PyLate and its Stanford checkpoint, and the linear map of both."""
    root = tmp_path_factory.mktemp("colbert")
    loaded = random_encoder("bert", [*TEXTS, "unused0 unused1"], normalize=True)
    tokenizer = json.loads(loaded.tokenizer.to_json())
    tokenizer["model"]["vocab"]["[unused0]"] = tokenizer["model"]["vocab"].pop("unused0")
    tokenizer["model"]["vocab"]["[unused1]"] = tokenizer["model"]["vocab"].pop("unused1")
    save_encoder(root / "plain", loaded.config, loaded.params, loaded.tokenizer)
    (root / "plain" / "tokenizer.json").write_text(json.dumps(tokenizer))
    kernel = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)
    pylate, stanford = shutil.copytree(root / "plain", root / "pylate"), shutil.copytree(root / "plain", root / "ours")
    (pylate / "modules.json").write_text(json.dumps(MODULES))
    (pylate / "1_Dense").mkdir()
    (pylate / "1_Dense" / "config.json").write_text(json.dumps(DENSE))
    save_file({"linear.weight": kernel}, pylate / "1_Dense" / "model.safetensors")
    prefixes = {"query_prefix": "[unused0]", "document_prefix": "[unused1]", "query_length": 32}
    (pylate / "config_sentence_transformers.json").write_text(json.dumps(prefixes))
    (stanford / "modules.json").unlink()
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(stanford / "model.safetensors").items()}
    save_file(tensors | {"linear.weight": kernel}, stanford / "model.safetensors")
    (stanford / "artifact.metadata").write_text(json.dumps({"dim": 6, "doc_token_id": "[unused1]"}))
    return root, kernel


@pytest.mark.parametrize("name", ["pylate", "ours"])
def test_a_colbert_maps_the_tokens_of_its_encoder(folders, name):
    root, kernel = folders
    colbert = make_embedder(load_encoder(root / name))
    assert colbert.prompts == Prompts("[unused0]", "[unused1]") and (colbert.dim, colbert.token_dim) == (6, 6)
    marked = TextTokenizer.from_file(root / name / "tokenizer.json", ["[unused0]", "[unused1]"])
    assert [len(ids) for ids in marked.ids(["[unused0]", "[unused1]mill"])] == [1, 2]
    plain = load_encoder(root / "plain", document_prompt="[unused1]", query_prompt="[unused0]")
    plain = make_embedder(type(plain)(plain.config, plain.params, marked, prompts=plain.prompts))
    vectors, codes = colbert.with_tokens(TEXTS)
    for text, vector, one in zip(TEXTS, vectors, codes, strict=True):
        mapped = plain.tokens(text)[0] @ kernel.T
        np.testing.assert_allclose(colbert.tokens(text)[0], mapped, atol=1e-5)
        np.testing.assert_allclose(unit_rows(one.astype(np.float32)), unit_rows(mapped), atol=6**0.5 / 254)
        np.testing.assert_allclose(np.linalg.norm(vector), 1, atol=1e-6)
    np.testing.assert_allclose(vectors, unit_rows(plain(TEXTS) @ kernel.T), atol=1e-5)  # the mean is linear
    assert colbert.question_tokens("the old mill").shape == (3, 6)
    assert load_encoder(root / name, query_prompt=" the").prompts == Prompts("[unused0] the", "[unused1]")


def test_what_is_no_linear_map_is_refused_by_name(folders, tmp_path):
    root, _ = folders
    folder = shutil.copytree(root / "pylate", tmp_path / "pylate")
    about = folder / "1_Dense" / "config.json"
    for change, said in (
        ({"bias": True}, "bias is True"),
        ({"use_residual": True}, "use_residual is True"),
        ({"activation_function": "torch.nn.modules.activation.Tanh"}, "activation_function is 'torch.*Tanh'"),
        ({"out_features": "6"}, "the size of a token's vector is '6'"),
        ({"out_features": 7}, r"linear.weight: shape \(6, 16\), needed \(7, 16\)"),
    ):
        about.write_text(json.dumps(DENSE | change))
        with pytest.raises(InputError, match=said):
            load_encoder(folder)
    about.write_text(json.dumps(DENSE))
    (folder / "config_sentence_transformers.json").unlink()
    with pytest.raises(InputError, match=r"the vocabulary has no '\[Q\] ', '\[D\] '"):
        load_encoder(folder)
    (folder / "modules.json").write_text(json.dumps([*MODULES, {"path": "2", "type": "x.Normalize"}]))
    with pytest.raises(InputError, match=r"module 'pylate.models.Dense.Dense' is not supported; .* of a ColBERT"):
        load_encoder(folder)
    loaded = load_encoder(root / "pylate")
    with pytest.raises(UsageError, match="is a ColBERT"):
        save_encoder(tmp_path / "saved", loaded.config, loaded.params, loaded.tokenizer)
