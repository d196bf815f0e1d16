from dataclasses import replace

import chex
import numpy as np
import pytest
from support.decoders import decoder_config, random_decoder_params
from support.gguf_files import TOKENS, decoder_fields, decoder_tensors, interleaved, write_gguf
from support.tiers import slow_but

from qrag_jax.models.decoder.config import RopeScaling
from qrag_jax.models.decoder.gguf_weights import GGUFTensors, gguf_decoder_config, halves_from_pairs
from qrag_jax.models.decoder.rotary import inverse_frequencies
from qrag_jax.models.decoder.table import decoder_params_from_tensors
from qrag_jax.models.gguf.file import read_gguf
from qrag_jax.types import InputError

WIDE = {"vocab_size": len(TOKENS), "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
CONFIGS = {
    "llama": decoder_config("llama", **WIDE),
    "llama, biases": decoder_config(
        "llama", **WIDE, tie_embeddings=False, qkv_bias=True, output_bias=True, mlp_bias=True
    ),
    "llama, one kv head": decoder_config("llama", **WIDE, num_kv_heads=1),
    "qwen2": decoder_config("qwen2", **WIDE, rope_theta=1e6),
    "qwen3": decoder_config("qwen3", **WIDE | {"head_dim": 16}),
}


def written(tmp_path, config, drop=(), add=None, **changes):
    """The open file of a random decoder; changes to its metadata are without the architecture's name."""
    fields = decoder_fields(config) | {f"{config.family}.{name}": value for name, value in changes.items()}
    fields = {name: value for name, value in fields.items() if value is not None}
    tensors = decoder_tensors(config, random_decoder_params(config)) | (add or {})
    tensors = {name: array for name, array in tensors.items() if name not in drop}
    return read_gguf(write_gguf(tmp_path / "tiny.gguf", fields, tensors))


@pytest.mark.parametrize("name", CONFIGS)
def test_config_and_parameters_come_back(tmp_path, name):
    config = CONFIGS[name]
    file = written(tmp_path, config)
    assert gguf_decoder_config(file) == config
    found = decoder_params_from_tensors(config, GGUFTensors(file, config))
    chex.assert_trees_all_equal(found, random_decoder_params(config))


def test_rows_by_hand():
    # Two heads of four components: 0 and 2, 1 and 3 turn together; on file they are neighbours.
    on_file = np.array([0, 2, 1, 3, 4, 6, 5, 7])
    np.testing.assert_array_equal(halves_from_pairs(on_file, 2), np.arange(8))
    rows = np.arange(24.0).reshape(12, 2)
    np.testing.assert_array_equal(halves_from_pairs(interleaved(rows, 3), 3), rows)
    assert halves_from_pairs(np.arange(5), 2).shape == (5,)


def test_fields_that_files_leave_out(tmp_path):
    config = CONFIGS["llama"]
    absent = ("attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base")
    file = written(tmp_path, config, **dict.fromkeys(absent))
    assert gguf_decoder_config(file) == config
    full = written(tmp_path, replace(config, num_kv_heads=4), **{"attention.head_count_kv": None})
    assert gguf_decoder_config(full).num_kv_heads == 4


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"rope.scaling.type": "none"}, RopeScaling()),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}, RopeScaling("linear", 2.5)),
        # As llama.cpp reads older files: a factor without a type is linear.
        ({"rope.scaling.factor": 2.5}, RopeScaling("linear", 2.5)),
        ({"rope.scale_linear": 4.0}, RopeScaling("linear", 4.0)),
        ({"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, RopeScaling("linear", 4.0)),
        ({"rope.scale_linear": 4.0, "rope.scaling.factor": 2.5}, RopeScaling("linear", 2.5)),
        ({"rope.scale_linear": 0.0}, RopeScaling()),
        ({"rope.scale_linear": 1.0}, RopeScaling()),
        ({"rope.scaling.type": "none", "rope.scale_linear": 4.0}, RopeScaling()),
        ({"attention.causal": True}, RopeScaling()),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16},
            RopeScaling("yarn", 4.0, original_max_positions=16),
        ),
    ],
)
def test_stretched_positions(tmp_path, fields, scaling):
    config = CONFIGS["qwen2"]
    assert gguf_decoder_config(written(tmp_path, config, **fields)) == replace(config, rope_scaling=scaling)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_stretch_of_llama3_is_known_by_its_factors(tmp_path, factor):
    config = decoder_config("llama", **WIDE | {"head_dim": 64}, rope_theta=5e5, max_positions=131_072)
    scaling = RopeScaling("llama3", factor, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    stretched = replace(config, rope_scaling=scaling)
    divisors = inverse_frequencies(config)[0] / inverse_frequencies(stretched)[0]
    assert divisors.max() == pytest.approx(factor) and divisors.min() == pytest.approx(1)
    file = written(tmp_path, config, add={"rope_freqs.weight": divisors.astype(np.float32)})
    assert gguf_decoder_config(file) == stretched and "rope_freqs.weight" not in GGUFTensors(file, stretched)
    for other in (divisors * 1.1, divisors[:-1], np.full_like(divisors, np.nan)):
        file = written(tmp_path, config, add={"rope_freqs.weight": other.astype(np.float32)})
        with pytest.raises(InputError, match="rope_freqs.weight contains other factors than Llama 3.1 to 3.3"):
            gguf_decoder_config(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": None}, "llama.block_count is None; one positive whole number is needed"),
        ({"block_count": 0}, "llama.block_count is 0;"),
        ({"embedding_length": "32"}, "llama.embedding_length is '32';"),
        ({"attention.head_count": [4, 4]}, "llama.attention.head_count is array"),
        ({"attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is None; a positive number"),
        ({"rope.freq_base": float("nan")}, "rope.freq_base is nan;"),
        ({"attention.causal": False}, "llama.attention.causal is False; only causal decoders"),
        ({"rope.scale_linear": -2.0}, "rope.scale_linear is -2.0; a positive number"),
        ({"rope.dimension_count": 4}, "llama.rope.dimension_count is 4, heads have 8 components"),
        ({"attention.value_length": 16}, "attention.value_length is 16, heads have 8"),
        ({"expert_count": 8}, "llama.expert_count 8: not supported"),
        ({"attention.sliding_window": 64, "logit_scale": 2.0}, "sliding_window 64, llama.logit_scale 2.0: not supp"),
        ({"rope.scaling.type": "longrope"}, "rope.scaling.type is 'longrope'; only none, linear and yarn"),
        ({"rope.scaling.type": "linear"}, "rope.scaling.factor is None; a positive number"),
        ({"attention.head_count_kv": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        gguf_decoder_config(written(tmp_path, CONFIGS["llama"], **changes))


@pytest.mark.parametrize("value", [1e39, 1e300, 1e-46, float("inf"), 0.0])
@pytest.mark.parametrize("name", ["rope.freq_base", "attention.layer_norm_rms_epsilon"])
def test_numbers_beyond_float32(tmp_path, name, value):
    file = written(tmp_path, CONFIGS["llama"])
    file = replace(file, metadata={**file.metadata, f"llama.{name}": value})  # as a field of 8 bytes has them
    with pytest.raises(InputError, match=f"llama.{name} is .*; a positive number of float32's range is needed"):
        gguf_decoder_config(file)


def test_another_architecture_and_a_missing_table(tmp_path):
    file = read_gguf(write_gguf(tmp_path / "x.gguf", {"general.architecture": "gemma"}, {}))
    with pytest.raises(InputError, match="general.architecture is 'gemma', only llama, qwen2, qwen3 are read"):
        gguf_decoder_config(file)
    with pytest.raises(InputError, match="token_embd.weight is missing"):
        gguf_decoder_config(written(tmp_path, CONFIGS["llama"], drop=["token_embd.weight"]))


def test_wrong_tensors_are_all_named(tmp_path):
    config = CONFIGS["llama"]
    bad = np.ones((32, 32), np.float32)
    bad[3, 4] = np.inf
    add = {"blk.1.attn_v.weight": np.ones((3, 32), np.float32), "blk.0.attn_output.weight": bad, "odd.weight": bad}
    file = written(tmp_path, config, drop=["blk.0.ffn_up.weight", "output_norm.weight"], add=add)
    with pytest.raises(InputError) as error:
        decoder_params_from_tensors(config, GGUFTensors(file, config), "tiny.gguf")
    for part in (
        "missing: model.layers.0.mlp.up_proj.weight, model.norm.weight",
        "left over: odd.weight",
        r"model.layers.1.self_attn.v_proj.weight: shape (3, 32), needed (16, 32)",
        "model.layers.0.self_attn.o_proj.weight: contains NaN or infinity",
    ):
        assert part in str(error.value)


def test_a_tensor_by_two_names_is_refused(tmp_path):
    config = CONFIGS["llama"]
    file = written(tmp_path, config, add={"model.norm.weight": np.ones(32, np.float32)})
    with pytest.raises(InputError, match="occur twice, under two names: output_norm.weight"):
        GGUFTensors(file, config)


@pytest.mark.parametrize("name", ["block_count", "rope.scaling.type", "expert_count", "logit_scale", "rope.freq_base"])
@pytest.mark.parametrize("value", slow_but([[0.5]], [[1, 2], ["a", "b"], [0.5]]))
def test_a_list_where_one_value_is_needed(tmp_path, name, value):
    with pytest.raises(InputError, match=f"llama.{name}"):
        gguf_decoder_config(written(tmp_path, CONFIGS["llama"], **{name: value}))
