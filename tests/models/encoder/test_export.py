import json
from dataclasses import replace
from functools import partial

import chex
import jax
import numpy as np
import pytest
from safetensors import safe_open
from support.encoders import random_encoder, random_params

from qrag_jax.models.encoder.export import export_router, export_sentence_transformer, fold_scale
from qrag_jax.models.encoder.text_encoder import EncoderConfig, encode
from qrag_jax.models.encoder.tokenizer import train_word_level
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.types import InputError, UsageError

TOKENIZER = train_word_level(["mary went to the kitchen"])
CONFIG = EncoderConfig(
    vocab_size=TOKENIZER.vocab_size, hidden_size=4, num_layers=2, num_heads=2, intermediate_size=6, max_positions=16
)
run = jax.jit(encode, static_argnums=0)


@pytest.fixture(scope="module")
def params():
    return random_params(CONFIG)


@pytest.fixture(scope="module")
def towers(params):
    return {"state": params, "action": random_params(CONFIG, seed=1), "stop": np.zeros(4, np.float32)}


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_scale_is_folded_exactly(params, pooling):
    config = replace(CONFIG, pooling=pooling)
    table = TOKENIZER.encode(["mary went", "the kitchen went to mary"], 16)
    vectors = run(config, params, table.tokens, table.lengths)
    scaled = run(config, fold_scale(config, params, 0.1), table.tokens, table.lengths)
    np.testing.assert_allclose(scaled, vectors * 0.1, atol=1e-6)


def test_folding_leaves_the_given_parameters_alone(params):
    before = jax.tree.map(np.array, params)
    scaled = fold_scale(CONFIG, params, 0.5)
    chex.assert_trees_all_equal(params, before)
    np.testing.assert_array_equal(
        scaled["layer_1"]["output_norm"]["bias"], before["layer_1"]["output_norm"]["bias"] / 2
    )
    chex.assert_trees_all_equal(scaled["layer_0"], before["layer_0"])
    chex.assert_trees_all_equal(fold_scale(CONFIG, params, 1.0), before)


def test_files_of_an_exported_encoder(params, tmp_path):
    folder = export_sentence_transformer(tmp_path / "e", CONFIG, params, TOKENIZER, window=12)
    assert files_of(folder) == [
        "1_Pooling/config.json",
        "README.md",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    kinds = [module["type"].rsplit(".", 1)[1] for module in read(folder / "modules.json")]
    assert kinds == ["Transformer", "Pooling"]
    assert read(folder / "config_sentence_transformers.json")["similarity_fn_name"] == "dot"
    assert read(folder / "sentence_bert_config.json")["max_seq_length"] == 12
    assert read(folder / "1_Pooling/config.json")["pooling_mode_mean_tokens"] is True
    with safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert not file.get_tensor("pooler.dense.weight").any()


def test_files_of_an_exported_router(towers, tmp_path):
    folder = export_router(tmp_path / "r", CONFIG, towers, TOKENIZER, windows={"state": 12, "action": 9})
    tower = ["config.json", "model.safetensors", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]
    names = ["README.md", "config_sentence_transformers.json", "modules.json", "0_Router/router_config.json"]
    for route in ("query", "document"):
        names += [f"0_Router/{route}_0_Transformer/{name}" for name in tower]
        names.append(f"0_Router/{route}_1_Pooling/config.json")
    assert files_of(folder) == sorted(names)
    assert read(folder / "modules.json") == [
        {"idx": 0, "name": "0", "path": "0_Router", "type": "sentence_transformers.models.Router"}
    ]
    assert read(folder / "config_sentence_transformers.json")["similarity_fn_name"] == "dot"
    router = read(folder / "0_Router/router_config.json")
    assert router["structure"] == {
        "query": ["query_0_Transformer", "query_1_Pooling"],
        "document": ["document_0_Transformer", "document_1_Pooling"],
    }
    assert router["types"]["query_0_Transformer"] == "sentence_transformers.models.Transformer"
    assert router["types"]["document_1_Pooling"] == "sentence_transformers.models.Pooling" and len(router["types"]) == 4
    assert router["parameters"] == {"default_route": "document", "allow_empty_key": True}
    windows = [
        read(folder / f"0_Router/{route}_0_Transformer/sentence_bert_config.json")["max_seq_length"]
        for route in ("query", "document")
    ]
    assert windows == [12, 9]


@pytest.mark.parametrize(("pooling", "normalize", "scale"), [("mean", False, 0.5), ("cls", True, 1.0)])
def test_towers_of_a_router_are_encoder_folders(towers, tmp_path, pooling, normalize, scale):
    config = replace(CONFIG, pooling=pooling, normalize=normalize)
    folder = export_router(tmp_path / "r", config, towers, TOKENIZER, scale=scale, windows={"state": 12})
    for route, tower, window in (("query", "state", 12), ("document", "action", 16)):
        loaded = load_encoder(folder / "0_Router" / f"{route}_0_Transformer")
        assert loaded.config == config and loaded.max_seq_length == window
        chex.assert_trees_all_equal(loaded.params, fold_scale(config, towers[tower], scale))
    with pytest.raises(
        InputError, match=r"r: contains two towers, .* load one, such as .*0_Router/query_0_Transformer"
    ):
        load_encoder(folder)


def test_a_router_of_others_that_we_cannot_compute_is_refused(towers, tmp_path):
    folder = export_router(tmp_path / "r", CONFIG, towers, TOKENIZER)
    path = folder / "0_Router" / "router_config.json"
    router = read(path)
    path.write_text(json.dumps({"types": router["types"] | {"query_2_Dense": "sentence_transformers.models.Dense"}}))
    with pytest.raises(InputError, match=r"router_config\.json: module '.*Dense' is not supported"):
        load_encoder(folder / "0_Router" / "query_0_Transformer")
    load_encoder(folder / "0_Router" / "document_0_Transformer")
    path.write_text("[]")
    with pytest.raises(InputError, match=r"router_config\.json: expected a JSON object"):
        load_encoder(folder / "0_Router" / "query_0_Transformer")


def test_a_router_of_another_family(tmp_path):
    made = random_encoder("mpnet", ["mary went to the kitchen"])
    towers = {"state": made.params, "action": random_params(made.config, seed=1)}
    folder = export_router(tmp_path / "r", made.config, towers, made.tokenizer)
    loaded = load_encoder(folder / "0_Router" / "document_0_Transformer")
    assert loaded.config == made.config and loaded.tokenizer.special_tokens == made.tokenizer.special_tokens
    chex.assert_trees_all_equal(loaded.params, towers["action"])
    assert "- MPNet, 2 layers of 16, mean pooling, vectors, dot product" in (folder / "README.md").read_text()


def test_exported_folder_is_an_encoder_folder(params, tmp_path):
    pooler = {"pooler.dense.weight": np.eye(4, dtype=np.float32), "pooler.dense.bias": np.ones(4, np.float32)}
    config = replace(CONFIG, normalize=True)
    export_sentence_transformer(tmp_path / "e", config, params, TOKENIZER, window=12, pooler=pooler)
    loaded = load_encoder(tmp_path / "e")
    assert loaded.config == config and loaded.max_seq_length == 12
    chex.assert_trees_all_equal(loaded.params, params)
    chex.assert_trees_all_equal(loaded.pooler, pooler)


def test_card_of_an_encoder(params, tmp_path):
    folder = export_sentence_transformer(tmp_path / "e", CONFIG, params, TOKENIZER, base="minilm", notes=["Frozen."])
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: sentence-transformers\n")
    assert "- trained from minilm\n" in card and "pooler is zeros" in card and card.endswith("\n\nFrozen.\n")
    assert "- BERT, 2 layers of 4, mean pooling, vectors, dot product\n" in card
    assert "- texts beyond 16 tokens (special tokens counted) are cut" in card


def test_card_of_a_router_states_the_limits(towers, tmp_path):
    folder = export_router(
        tmp_path / "r", CONFIG, towers, TOKENIZER, scale=0.1, base="minilm, first 2 layers",
        windows={"state": 12, "action": 9}, notes=["Trained on worlds."],
    )  # fmt: skip
    card = (folder / "README.md").read_text()
    assert "Only the first step can be expressed" in card and "rotates them by their position" in card
    assert "constant scale 0.1 is folded" in card and "trained from minilm, first 2 layers" in card
    assert "queries beyond 12 tokens and documents beyond 9 (special tokens counted) are cut" in card
    assert "`encode` without a task takes the document route" in card
    assert "model.encode_query(" in card and "model.encode_document(" in card
    assert card.endswith("\n\nTrained on worlds.\n")


def test_what_cannot_be_exported_is_refused(towers, tmp_path):
    export = partial(export_router, tmp_path / "r")
    with pytest.raises(UsageError, match="scale 0.0: a positive number is needed"):
        export(CONFIG, towers, TOKENIZER, scale=0.0)
    with pytest.raises(UsageError, match="the encoder normalises its vectors, so a scale has no effect"):
        export(replace(CONFIG, normalize=True), towers, TOKENIZER, scale=0.1)
    assert not (tmp_path / "r").exists()
