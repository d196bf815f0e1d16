import json
from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from qrag_jax.models.encoder import EncoderConfig, encode, init_encoder
from qrag_jax.models.export import export_sentence_transformer, fold_scale
from qrag_jax.models.tokenizer import train_word_level
from qrag_jax.models.weights import load_encoder
from qrag_jax.types import UsageError

TOKENIZER = train_word_level(["mary went to the kitchen"])
CONFIG = EncoderConfig(
    vocab_size=TOKENIZER.vocab_size, hidden_size=4, num_layers=2, num_heads=2, intermediate_size=6, max_positions=16
)
run = jax.jit(encode, static_argnums=0)


@pytest.fixture(scope="module")
def params():
    shapes = jax.eval_shape(partial(init_encoder, config=CONFIG), jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0.2, 0.4, leaf.shape), leaf.dtype), shapes)


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


def test_files_of_an_exported_tower(params, tmp_path):
    folder = export_sentence_transformer(tmp_path / "state", CONFIG, params, TOKENIZER, role="state", window=12)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == [
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

    def read(name):
        return json.loads((folder / name).read_text())

    assert [module["type"].rsplit(".", 1)[1] for module in read("modules.json")] == ["Transformer", "Pooling"]
    assert read("config_sentence_transformers.json")["similarity_fn_name"] == "dot"
    assert read("sentence_bert_config.json")["max_seq_length"] == 12
    assert read("1_Pooling/config.json")["pooling_mode_mean_tokens"] is True
    with safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert not file.get_tensor("pooler.dense.weight").any()


def test_exported_folder_is_an_encoder_folder(params, tmp_path):
    pooler = {"pooler.dense.weight": np.eye(4, dtype=np.float32), "pooler.dense.bias": np.ones(4, np.float32)}
    config = replace(CONFIG, normalize=True)
    export_sentence_transformer(tmp_path / "e", config, params, TOKENIZER, window=12, pooler=pooler)
    loaded = load_encoder(tmp_path / "e")
    assert loaded.config == config and loaded.max_seq_length == 12
    chex.assert_trees_all_equal(loaded.params, params)
    chex.assert_trees_all_equal(loaded.pooler, pooler)


def test_card_states_the_limits(params, tmp_path):
    def card(role, **arguments):
        folder = export_sentence_transformer(tmp_path / role, CONFIG, params, TOKENIZER, role=role, **arguments)
        return (folder / "README.md").read_text()

    state = card("state", scale=0.1, base="minilm, first 2 layers", notes=["Trained on worlds."])
    assert "Only the first step can be expressed" in state
    assert "constant scale 0.1 is folded" in state and "trained from minilm, first 2 layers" in state
    assert "pooler is zeros" in state and state.rstrip().endswith("Trained on worlds.")
    assert "rotates them by their position" in card("action")
    assert state.startswith("---\nlibrary_name: sentence-transformers\n")


def test_what_cannot_be_exported_is_refused(params, tmp_path):
    export = partial(export_sentence_transformer, tmp_path / "e", CONFIG, params, TOKENIZER)
    with pytest.raises(UsageError, match="role 'query': choose one of state, action, encoder"):
        export(role="query")
    with pytest.raises(UsageError, match="scale 0.0: a positive number is needed"):
        export(scale=0.0)
    with pytest.raises(UsageError, match="the encoder normalises its vectors, so that no scale can be kept"):
        fold_scale(replace(CONFIG, normalize=True), params, 0.1)
    assert not (tmp_path / "e").exists()
