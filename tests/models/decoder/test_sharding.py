"""Decoders split over 8 virtual devices give what one device gives."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.decoders import decoder_config, random_decoder_params
from support.tiers import slow_but

from qrag_jax.models.decoder.network import init_params, token_logprobs
from qrag_jax.models.decoder.rollout import generate_groups, read_prompts
from qrag_jax.models.decoder.sharding import cache_sharding, decoder_shardings
from qrag_jax.types import UsageError

WIDE = {"num_heads": 8, "num_kv_heads": 4, "hidden_size": 32, "intermediate_size": 40, "vocab_size": 24}
BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
SPLIT, REST = "model", None


def mesh_of(*sizes, names=("model",)):
    count = int(np.prod(sizes))
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes), devices=jax.devices()[:count])


def specs_of(mesh, config, tree=None):
    shardings = decoder_shardings(mesh, config, tree or random_decoder_params(config))
    specs = {"/".join(k.key for k in path): tuple(leaf.spec) for path, leaf in jax.tree.leaves_with_path(shardings)}
    return {name.removeprefix("layers/"): spec for name, spec in specs.items()}


def test_what_is_split_along_which_axis():
    specs = specs_of(mesh_of(4), decoder_config("llama", tie_embeddings=False, **WIDE, **BIASES))
    by_output = ("query", "key", "value", "gate", "up")
    kernels, biases = ({f"{name}/{leaf}": spec for name in by_output} for leaf, spec in
                       (("kernel", (REST, REST, SPLIT)), ("bias", (REST, SPLIT))))  # fmt: skip
    rows = dict.fromkeys(("output/kernel", "down/kernel"), (REST, SPLIT, REST))
    tables = {"embed/embedding": (SPLIT, REST), "head/kernel": (REST, SPLIT), "norm/scale": (REST,)}
    names = ("output/bias", "down/bias", "attention_norm/scale", "mlp_norm/scale")
    assert specs == kernels | biases | rows | tables | dict.fromkeys(names, (REST, REST))


def test_what_does_not_divide_stays_whole_and_heads_are_never_cut():
    """8 ways: 4 heads of keys and values do not divide though their 16 columns do, nor do 20 tokens."""
    config = decoder_config("qwen3", head_dim=4, **{**WIDE, "vocab_size": 20})
    specs = specs_of(mesh_of(8), config)
    split = {name for name, spec in specs.items() if SPLIT in spec}
    assert split == {f"{name}/kernel" for name in ("query", "output", "gate", "up", "down")}
    assert cache_sharding(mesh_of(8), config).keys.spec == PartitionSpec()
    assert cache_sharding(mesh_of(4), config).keys.spec == PartitionSpec(None, None, None, "model")


def test_fsdp_splits_what_is_large_along_another_axis_and_never_by_layer():
    config = decoder_config("llama", num_layers=8, **{**WIDE, "hidden_size": 128})
    params = random_decoder_params(config)
    query = params["layers"]["query"] | {"lora_a": np.zeros((8, 128, 4)), "lora_b": np.zeros((8, 4, 32))}
    params = {**params, "layers": {**params["layers"], "query": query}}
    specs = specs_of(mesh_of(2, 4, names=("fsdp", "model")), config, params)
    assert specs["query/kernel"] == (None, "fsdp", "model") and specs["down/kernel"] == (None, "model", "fsdp")
    assert specs["query/lora_a"] == (None, "fsdp", None) and specs["query/lora_b"] == (None, None, "model")
    assert specs["mlp_norm/scale"] == (None, None) and specs["embed/embedding"] == ("model", None)
    (count, mu) = decoder_shardings(mesh_of(4), config, (np.zeros(()), {"mu": params}))
    assert count.spec == PartitionSpec() and mu["mu"]["layers"]["query"]["kernel"].spec[2] == "model"


MESHES = [
    ((8,), ("model",), {"num_kv_heads": 8}),
    ((8,), ("model",), {}),  # keys and values are whole on each device
    ((2, 4), ("data", "model"), {}),
    ((3,), ("model",), {}),  # only the vocabulary divides
]
FAMILIES_ON_MESHES = [(family, *mesh) for mesh in MESHES for family in ("llama", "qwen2", "qwen3")]
QUICK, SLOW = [FAMILIES_ON_MESHES[4]], [FAMILIES_ON_MESHES[i] for i in (0, 8, 9)]  # each mesh, each family


@pytest.mark.parametrize(("family", "sizes", "names", "changes"), slow_but(QUICK, FAMILIES_ON_MESHES, SLOW))
def test_devices_together_give_what_one_gives(family, sizes, names, changes):
    config = decoder_config(family, **{**WIDE, **changes})
    params = random_decoder_params(config)
    tokens = np.random.default_rng(0).integers(0, 24, (2, 6)).astype(np.int32)
    lengths, segments = np.array([6, 2], np.int32), (np.arange(6) >= [[0], [4]]).astype(np.int32)
    read, logprobs = (jax.jit(partial(each, config=config)) for each in (read_prompts, token_logprobs))
    expected, known = read(params, tokens, lengths)[0], logprobs(params, tokens, segments)
    mesh = mesh_of(*sizes, names=names)
    split = jax.device_put(params, decoder_shardings(mesh, config, params))
    where = cache_sharding(mesh, config)
    logits, cache = jax.jit(partial(read_prompts, config=config), out_shardings=(None, where))(split, tokens, lengths)
    np.testing.assert_allclose(logits, expected, atol=5e-5, rtol=5e-5)
    np.testing.assert_allclose(logprobs(split, tokens, segments), known, atol=1e-5)
    heads = config.num_kv_heads
    share = heads // mesh.shape["model"] if heads % mesh.shape["model"] == 0 else heads
    assert cache.keys.addressable_shards[0].data.shape[3] == share


def test_a_mesh_without_the_axis_is_refused():
    config = decoder_config()
    for call in [lambda mesh: cache_sharding(mesh, config), lambda mesh: decoder_shardings(mesh, config, {})]:
        with pytest.raises(UsageError, match=r"axes \['data'\]: a decoder is split over an axis named \"model\""):
            call(mesh_of(2, names=("data",)))


def test_a_mesh_of_explicit_axes_is_refused():
    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])
    with pytest.raises(UsageError, match="make it with jax.make_mesh"):
        decoder_shardings(mesh, decoder_config(), {})


@pytest.mark.slow
def test_losses_gradients_and_draws_are_those_of_one_device():
    config = decoder_config("llama", **{**WIDE, "hidden_size": 64, "intermediate_size": 64})
    params = init_params(config, jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, 24, (8, 12)).astype(np.int32)
    segments = np.repeat([[1, 2, 0]], [5, 6, 1], axis=1).repeat(8, axis=0).astype(np.int32)
    lengths, seeds = np.arange(5, 13, dtype=np.int32), np.arange(32, dtype=np.uint32).reshape(8, 4)
    step = jax.jit(jax.value_and_grad(lambda *batch: -token_logprobs(*batch, config=config).mean()))
    draw = jax.jit(partial(generate_groups, config=config, max_tokens=6, end_ids=(3, 4)))
    loss, gradient = step(params, tokens, segments)
    drawn = draw(params, tokens, lengths, seeds)
    assert len({tuple(row) for row in drawn.tokens.reshape(32, -1).tolist()}) > 24
    for sizes in ((8, 1, 1), (4, 1, 2), (2, 2, 2)):
        mesh = mesh_of(*sizes, names=("data", "fsdp", "model"))
        rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
        split = jax.device_put(params, decoder_shardings(mesh, config, params))
        found, of_mesh = step(split, *jax.device_put((tokens, segments), rows))
        np.testing.assert_allclose(found, loss, atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), of_mesh, gradient)
        again = draw(split, *jax.device_put((tokens, lengths, seeds), rows))
        np.testing.assert_array_equal(again.tokens, drawn.tokens)
        np.testing.assert_allclose(again.logprobs, drawn.logprobs, atol=1e-5)
