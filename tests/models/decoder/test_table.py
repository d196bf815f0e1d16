from dataclasses import replace

import chex
import jax
import numpy as np
import pytest
from support.decoders import FAMILIES, decoder_config, random_decoder_params

from qrag_jax.models.decoder.table import decoder_params_from_tensors, decoder_table, tensors_from_decoder_params
from qrag_jax.types import InputError

# One layer of a Qwen 2 with an output layer of its own, by the names of transformers, [out, in]; written by hand.
SHAPES = {
    "model.embed_tokens.weight": (13, 16),
    "model.layers.0.input_layernorm.weight": (16,),
    "model.layers.0.self_attn.q_proj.weight": (16, 16),
    "model.layers.0.self_attn.q_proj.bias": (16,),
    "model.layers.0.self_attn.k_proj.weight": (8, 16),
    "model.layers.0.self_attn.k_proj.bias": (8,),
    "model.layers.0.self_attn.v_proj.weight": (8, 16),
    "model.layers.0.self_attn.v_proj.bias": (8,),
    "model.layers.0.self_attn.o_proj.weight": (16, 16),
    "model.layers.0.post_attention_layernorm.weight": (16,),
    "model.layers.0.mlp.gate_proj.weight": (24, 16),
    "model.layers.0.mlp.up_proj.weight": (24, 16),
    "model.layers.0.mlp.down_proj.weight": (16, 24),
    "model.norm.weight": (16,),
    "lm_head.weight": (13, 16),
}
CONFIG = decoder_config("qwen2", num_layers=1)
VARIANTS = {
    **{family: decoder_config(family) for family in FAMILIES},
    "llama, biases": decoder_config("llama", tie_embeddings=False, qkv_bias=True, output_bias=True, mlp_bias=True),
}


def tensors():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def test_names_and_shapes_by_hand():
    assert {row.name: row.shape for row in decoder_table(CONFIG)} == SHAPES


@pytest.mark.parametrize("name", VARIANTS)
def test_the_table_is_what_the_network_has(name):
    config = VARIANTS[name]
    shapes = {row.path: row.our_shape for row in decoder_table(config)}
    leaves = jax.tree_util.tree_leaves_with_path(random_decoder_params(config))
    assert shapes == {tuple(key.key for key in path): leaf.shape for path, leaf in leaves}


@pytest.mark.parametrize("name", VARIANTS)
def test_both_ways(name):
    config = VARIANTS[name]
    params = random_decoder_params(config)
    again = decoder_params_from_tensors(config, tensors_from_decoder_params(config, params))
    chex.assert_trees_all_equal(again, params)


def test_kernels_are_transposed_and_copied():
    given = tensors()
    params = decoder_params_from_tensors(CONFIG, given)
    np.testing.assert_array_equal(params["layers"]["down"]["kernel"][0], given["model.layers.0.mlp.down_proj.weight"].T)
    np.testing.assert_array_equal(params["head"]["kernel"], given["lm_head.weight"].T)
    for tensor in given.values():
        tensor[:] = 0
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(params))


def test_dtypes():
    half = {name: tensor.astype(np.float16) for name, tensor in tensors().items()}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(decoder_params_from_tensors(CONFIG, half))} == {"float32"}
    params = decoder_params_from_tensors(CONFIG, tensors(), dtype=jax.numpy.bfloat16)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"}
    assert {tensor.dtype.name for tensor in tensors_from_decoder_params(CONFIG, params).values()} == {"float32"}


def test_known_names_that_are_not_read():
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    decoder_params_from_tensors(CONFIG, tensors() | frequencies)
    tied = replace(CONFIG, tie_embeddings=True)
    assert "head" not in decoder_params_from_tensors(tied, tensors())
    untied = {name: tensor for name, tensor in tensors().items() if name != "lm_head.weight"}
    with pytest.raises(InputError, match="missing: lm_head.weight$"):
        decoder_params_from_tensors(CONFIG, untied)


def test_all_problems_are_named_together():
    given = tensors()
    del given["model.norm.weight"], given["model.layers.0.self_attn.q_proj.bias"]
    given["model.layers.1.mlp.up_proj.weight"] = given["model.layers.0.mlp.up_proj.weight"]
    given["model.layers.0.mlp.up_proj.weight"] = np.ones((16, 24), np.float32)
    given["model.layers.0.mlp.gate_proj.weight"][2, 3] = np.nan
    given["lm_head.weight"] = np.ones((13, 16), np.int32)
    with pytest.raises(InputError) as error:
        decoder_params_from_tensors(CONFIG, given, "folder")
    assert str(error.value) == (
        "folder: the tensors do not fit the config; "
        "missing: model.layers.0.self_attn.q_proj.bias, model.norm.weight; "
        "left over: model.layers.1.mlp.up_proj.weight; "
        "model.layers.0.mlp.gate_proj.weight: contains NaN or infinity; "
        "model.layers.0.mlp.up_proj.weight: shape (16, 24), needed (24, 16); "
        "lm_head.weight: dtype int32, a float is needed"
    )


def test_a_config_that_declares_a_tower_of_layers_makes_no_table():
    with pytest.raises(InputError, match="x: 9999 layers are declared, but 15 tensors are there"):
        decoder_params_from_tensors(replace(CONFIG, num_layers=9_999), tensors(), "x")


def test_parameters_that_do_not_fit_are_named_together():
    params = random_decoder_params(CONFIG)
    params = params | {"extra": params["norm"], "embed": {"embedding": np.ones((2, 2), np.float32)}}
    del params["norm"]
    with pytest.raises(InputError) as error:
        tensors_from_decoder_params(CONFIG, params)
    assert str(error.value) == (
        "parameters do not fit the decoder config; missing: norm/scale; left over: extra/scale; "
        "embed/embedding: shape (2, 2), needed (13, 16)"
    )
