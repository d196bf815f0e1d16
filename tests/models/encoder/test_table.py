from functools import partial

import chex
import jax
import numpy as np
import pytest
from support.encoders import NUM_TYPES
from support.tensors import CONFIG, config_of, shapes_of, tensors_of

from qrag_jax.models.encoder.table import params_from_tensors, tensors_from_params, weight_table
from qrag_jax.models.encoder.text_encoder import init_encoder
from qrag_jax.types import InputError


@pytest.fixture
def tensors():
    return tensors_of("bert")


@pytest.mark.parametrize("family", NUM_TYPES)
def test_table_has_one_row_a_tensor(family):
    config = config_of(family)
    assert {row.name: row.shape for row in weight_table(config)} == shapes_of(family)
    shapes = jax.eval_shape(partial(init_encoder, config=config), jax.random.key(0))
    paths = {tuple(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)}
    assert paths == {row.path for row in weight_table(config)}


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


def test_tensors_of_mpnet_land_where_they_belong():
    tensors = tensors_of("mpnet")
    params = params_from_tensors(config_of("mpnet"), tensors)
    for ours, theirs in {"query": "q", "key": "k", "value": "v", "attention_output": "o"}.items():
        tensor = tensors[f"encoder.layer.1.attention.attn.{theirs}.weight"]
        np.testing.assert_array_equal(params["layer_1"][ours]["kernel"], tensor.T)
    np.testing.assert_array_equal(
        params["layer_1"]["attention_norm"]["bias"], tensors["encoder.layer.1.attention.LayerNorm.bias"]
    )
    bias = tensors["encoder.relative_attention_bias.weight"]
    np.testing.assert_array_equal(params["relative_bias"]["embedding"], bias)


@pytest.mark.parametrize("family", NUM_TYPES)
def test_round_trip_is_bit_identical(family):
    config, tensors = config_of(family), tensors_of(family)
    params = params_from_tensors(config, tensors)
    back = tensors_from_params(config, params)
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    shapes = jax.eval_shape(partial(init_encoder, config=config), jax.random.key(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(params, shapes)


@pytest.mark.parametrize(
    ("family", "prefix", "head"),
    [
        ("bert", "bert", "cls.predictions.transform.dense.weight"),
        ("roberta", "roberta", "lm_head.dense.weight"),
        ("xlm-roberta", "roberta", "lm_head.layer_norm.weight"),
        ("mpnet", "mpnet", "lm_head.decoder.weight"),
    ],
)
def test_prefix_position_ids_and_heads_are_known(family, prefix, head):
    config, tensors = config_of(family), tensors_of(family)
    prefixed = {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
    prefixed[f"{prefix}.embeddings.position_ids"] = np.arange(7)[None]
    prefixed[f"{prefix}.pooler.dense.weight"] = np.zeros((4, 4), np.float32)
    prefixed[head] = np.zeros((4, 4), np.float32)
    chex.assert_trees_all_equal(params_from_tensors(config, prefixed), params_from_tensors(config, tensors))
    with pytest.raises(InputError, match=f"some tensors occur twice, with and without the prefix '{prefix}.'"):
        params_from_tensors(config, prefixed | tensors)


def test_tensors_of_another_family_are_refused():
    with pytest.raises(InputError, match=r"missing: .*token_type_embeddings.*; left over: .*relative_attention_bias"):
        params_from_tensors(config_of("roberta"), tensors_of("mpnet"))


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
        "encoder.layer.1.output.dense.weight: contains NaN or infinity",
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
    assert "missing: layer_0/query/bias; left over: layer_2/bias; layer_1/key/kernel: shape (4, 5)" in str(caught.value)
