"""Decoders split over 8 virtual devices give what one device gives."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from support.decoders import decoder_config, padded_rows, random_decoder_params, random_rows
from support.networks import np_jit
from support.tiers import slow_but

from qrag_jax.models.decoder.causal_lm import all_logits, extend, init_cache
from qrag_jax.models.decoder.sharding import cache_sharding, decoder_shardings
from qrag_jax.types import UsageError

WIDE = {"num_heads": 8, "num_kv_heads": 4, "hidden_size": 32, "intermediate_size": 40, "vocab_size": 24}
BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
SPLIT, REST = "model", None


def mesh_of(*sizes, names=("model",)):
    count = int(np.prod(sizes))
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes), devices=jax.devices()[:count])


def specs_of(mesh, config):
    shardings = decoder_shardings(mesh, config, random_decoder_params(config))
    return {"/".join(k.key for k in path): tuple(leaf.spec) for path, leaf in jax.tree.leaves_with_path(shardings)}


def test_what_is_split_along_which_axis():
    specs = specs_of(mesh_of(4), decoder_config("llama", num_layers=1, tie_embeddings=False, **WIDE, **BIASES))
    columns = {f"layer_0/{name}/kernel" for name in ("query", "key", "value", "gate", "up")} | {"head/kernel"}
    column_biases = {f"layer_0/{name}/bias" for name in ("query", "key", "value", "gate", "up")}
    rows = {"layer_0/output/kernel", "layer_0/down/kernel", "embed/embedding"}
    whole = {"layer_0/output/bias", "layer_0/down/bias", "norm/scale"}
    whole |= {f"layer_0/{name}_norm/scale" for name in ("attention", "mlp")}
    assert specs == (
        dict.fromkeys(columns, (REST, SPLIT)) | dict.fromkeys(column_biases | rows, (SPLIT,)) | dict.fromkeys(whole, ())
    )


def test_what_does_not_divide_stays_whole_and_heads_are_never_cut():
    """8 ways: 4 heads of keys and values do not divide though their 16 columns do, nor do 20 tokens."""
    config = decoder_config("qwen3", num_layers=1, head_dim=4, **{**WIDE, "vocab_size": 20})
    specs = specs_of(mesh_of(8), config)
    split = {name for name, spec in specs.items() if SPLIT in spec}
    assert split == {f"layer_0/{name}/kernel" for name in ("query", "output", "gate", "up", "down")}
    assert cache_sharding(mesh_of(8), config).keys[0].spec == PartitionSpec()
    assert cache_sharding(mesh_of(4), config).keys[0].spec == PartitionSpec("model")
    assert len(cache_sharding(mesh_of(4), config).values) == 1


MESHES = [
    ((8,), ("model",), {"num_kv_heads": 8}),
    ((8,), ("model",), {}),  # keys and values are whole on each device
    ((2, 4), ("data", "model"), {}),
    ((3,), ("model",), {}),  # only the vocabulary divides
]
FAMILIES_ON_MESHES = [(family, *mesh) for mesh in MESHES for family in ("llama", "qwen2", "qwen3")]
ON_MESHES_QUICK = [FAMILIES_ON_MESHES[4]]


@pytest.mark.parametrize(("family", "sizes", "names", "changes"), slow_but(ON_MESHES_QUICK, FAMILIES_ON_MESHES))
def test_devices_together_give_what_one_gives(family, sizes, names, changes):
    config = decoder_config(family, **{**WIDE, **changes})
    params = random_decoder_params(config)
    tokens, pads = map(np.asarray, padded_rows(random_rows([6, 2])))
    expected = np_jit(all_logits, static_argnums=0)(config, params, tokens, pads)
    mesh = mesh_of(*sizes, names=names)
    split = jax.device_put(params, decoder_shardings(mesh, config, params))
    where = cache_sharding(mesh, config)
    step = jax.jit(extend, static_argnums=0, donate_argnums=4, out_shardings=(None, where))
    cache = jax.device_put(np_jit(init_cache, static_argnums=(0, 1, 2))(config, 2, 8), where)
    for start, end in [(0, 4), (4, 5), (5, 6)]:
        logits, cache = step(config, split, tokens[:, start:end], pads, cache, np.int32(start))
        real = pads < end
        np.testing.assert_allclose(np.asarray(logits)[real], expected[real, end - 1], atol=5e-5, rtol=5e-5)
    assert [leaf.sharding for leaf in cache.keys] == list(where.keys)
    heads = config.num_kv_heads
    share = heads // mesh.shape["model"] if heads % mesh.shape["model"] == 0 else heads
    assert cache.keys[0].addressable_shards[0].data.shape[0] == share * len(tokens)


def test_a_mesh_without_the_axis_is_refused():
    config = decoder_config()
    for call in [lambda mesh: cache_sharding(mesh, config), lambda mesh: decoder_shardings(mesh, config, {})]:
        with pytest.raises(UsageError, match=r"axes \['data'\]: a decoder is split over an axis named \"model\""):
            call(mesh_of(2, names=("data",)))


def test_a_mesh_of_explicit_axes_is_refused():
    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])
    with pytest.raises(UsageError, match="make it with jax.make_mesh"):
        decoder_shardings(mesh, decoder_config(), {})
