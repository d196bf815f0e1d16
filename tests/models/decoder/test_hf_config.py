import json
from dataclasses import replace

import pytest
from support.decoders import FAMILIES, SCALINGS, decoder_config

from qrag_jax.models.decoder.config import DecoderConfig, RopeScaling
from qrag_jax.models.decoder.hf_config import decoder_config as from_values
from qrag_jax.models.decoder.hf_config import hf_decoder_config, read_decoder_config
from qrag_jax.types import InputError

# As the makers of a Llama 3.2, a Qwen 2.5 and a Qwen 3 write them, sizes apart.
LLAMA = {
    "model_type": "llama", "vocab_size": 13, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "head_dim": 4, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu",
    "pretraining_tp": 1, "tie_word_embeddings": True,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "vocab_size": 13, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32768, "max_window_layers": 21,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": False,
    "use_mrope": False,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "vocab_size": 13, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 40960, "rope_theta": 1000000,
    "rope_scaling": None, "sliding_window": None, "attention_bias": False,
}  # fmt: skip


def test_the_three_families():
    base = dict(vocab_size=13, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4, num_kv_heads=2)
    assert from_values(LLAMA) == DecoderConfig(
        "llama", **base, head_dim=4, max_positions=131072, norm_eps=1e-5, rope_theta=5e5, tie_embeddings=True,
        rope_scaling=RopeScaling("llama3", 32.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0),
    )  # fmt: skip
    assert from_values(QWEN2) == DecoderConfig(
        "qwen2", **base, head_dim=4, max_positions=32768, norm_eps=1e-6, rope_theta=1e6, qkv_bias=True
    )
    assert from_values(QWEN3) == DecoderConfig(
        "qwen3", **base, head_dim=128, max_positions=40960, norm_eps=1e-6, rope_theta=1e6, qk_norm=True
    )


def test_absent_fields_have_the_defaults_of_transformers():
    few = {name: LLAMA[name] for name in (
        "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "max_position_embeddings",
    )}  # fmt: skip
    config = from_values(few)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta, config.norm_eps) == (4, 4, 10_000.0, 1e-6)
    assert (config.tie_embeddings, config.qkv_bias, config.rope_scaling) == (False, False, RopeScaling())


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_heads_of_keys_that_are_not_named(family):
    values = LLAMA | {"model_type": family, "num_attention_heads": 64, "num_key_value_heads": None}
    assert from_values(values).num_kv_heads == 64
    del values["num_key_value_heads"]
    assert from_values(values).num_kv_heads == (64 if family == "llama" else 32)


@pytest.mark.parametrize("bias", [True, False])
def test_biases(bias):
    llama = from_values(LLAMA | {"attention_bias": bias, "mlp_bias": bias})
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (bias, bias, bias)
    qwen3 = from_values(QWEN3 | {"attention_bias": bias})
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.mlp_bias) == (bias, bias, False)


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        ({"type": "linear", "factor": 2}, RopeScaling("linear", 2.0)),
        # As in transformers: it stretches only what is longer than the window, whatever the file says.
        ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 9}, RopeScaling()),
        ({"rope_type": "yarn", "factor": 4.0}, RopeScaling("yarn", 4.0, 32768)),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16, "mscale": 0.7,
             "attention_factor": 0.5, "truncate": False},
            RopeScaling("yarn", 4.0, 64, beta_fast=16.0, attention_factor=0.5, truncate=False),
        ),
    ],
)  # fmt: skip
def test_stretched_positions_by_old_and_new_names(rope, scaling):
    assert from_values(QWEN2 | {"rope_scaling": rope}).rope_scaling == scaling
    del (values := dict(QWEN2))["rope_theta"]
    config = from_values(values | {"rope_parameters": rope | {"rope_theta": 5000.0}})
    assert (config.rope_scaling, config.rope_theta) == (scaling, 5000.0)


def test_windows_that_are_not_in_use():
    assert from_values(QWEN2 | {"use_sliding_window": True, "max_window_layers": 2}).num_layers == 2
    assert from_values(QWEN2 | {"use_sliding_window": True, "sliding_window": None}).num_layers == 2
    assert from_values(QWEN3 | {"layer_types": ["full_attention"] * 2}).num_layers == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral', only llama, qwen2, qwen3 are read"),
        ({"model_type": None, "vocab_size": 0}, "model_type is None.*; vocab_size is 0, a positive integer"),
        ({"num_key_value_heads": 2.0}, "num_key_value_heads is 2.0"),
        ({"num_key_value_heads": 3}, "config.json: num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"head_dim": None, "hidden_size": 18}, "hidden_size 18 is not a multiple of num_attention_heads 4, and"),
        ({"head_dim": 5}, "head_dim 5: rotary positions need an even size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, a positive number"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu' is supported"),
        ({"attention_bias": "no"}, "attention_bias is 'no', true or false"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quantised tensors are read from GGUF files only"),
        ({"use_sliding_window": True, "sliding_window": 64}, "use_sliding_window with sliding_window 64: only full"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_attention, only full"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type is 'longrope', only default, linear, dynamic, yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope linear: factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "config.json: rope scaling.factor 0.5: at least 1"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "rope yarn: factor is '4', a positive number"),
        ({"model_type": ["llama"]}, "model_type is .'llama'., only"),
        ({"rope_scaling": {"type": ["linear"]}}, "rope_type is .'linear'., only"),
        ({"rope_scaling": ["linear"]}, "rope_scaling is .'linear'., an object"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1.0, "mscale_all_dim": 0.5}}, "DeepSeek's form, are"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": -1}}, "embeddings is -1"),
        ({"rope_theta": 10**400}, "rope_theta is 1000.*, a positive number"),
        ({"rope_theta": None}, "rope_theta is None, a positive number"),
        ({"rope_scaling": None, "rope_parameters": {"rope_theta": None}}, "rope default: rope_theta is None, a posit"),
        ({"rope_scaling": {"type": "linear", "factor": 10**400}}, "rope linear: factor is 1000"),
        ({"rope_scaling": None, "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}},
         r"rope_parameters differ by kind of layer \(full_attention\): only one for all layers"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": "false"}}, "rope yarn: truncate is 'false', true"),
        ({"layer_types": []}, "layer_types is .., a list of an entry for each of 2 layers"),
        ({"layer_types": ["full_attention"]}, "layer_types is .'full_attention'., a list of an entry for each of 2"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention', a list of an entry"),
        ({"num_hidden_layers": 10**12}, "config.json: num_hidden_layers is 1000000000000, at most 10,000 is read"),
        ({"head_dim": 10**6}, "head_dim is 1000000, at most 100,000 is read"),
        ({"is_causal": False}, "is_causal is False, only causal decoders"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, only whole heads are turned"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        from_values(LLAMA | changes)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [None, *SCALINGS])
def test_written_and_read_back(tmp_path, family, kind):
    config = decoder_config(family, rope_theta=5e5)
    if kind is not None:
        config = replace(config, rope_scaling=SCALINGS[kind])
    (tmp_path / "config.json").write_text(json.dumps(hf_decoder_config(config)))
    assert read_decoder_config(tmp_path) == config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (decoder_config("llama", qkv_bias=True), "llama: transformers has none with output_bias False"),
        (decoder_config("qwen2", qkv_bias=False, mlp_bias=True), "qwen2: .* none with qkv_bias False, mlp_bias True"),
        (decoder_config("qwen3", qk_norm=False), "qwen3: transformers has none with qk_norm False"),
    ],
)
def test_what_transformers_does_not_have_is_not_written(config, message):
    with pytest.raises(InputError, match=message):
        hf_decoder_config(config)


def test_broken_files(tmp_path):
    for content, message in (("[]", "JSON object"), ("{", "config.json")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError, match=message):
            read_decoder_config(tmp_path)
