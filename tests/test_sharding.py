"""Meshes, shardings, and rows that devices share; whole runs on many devices are in tests/train/test_devices.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from qrag_jax.sharding import (
    MeshConfig,
    is_main_process,
    make_mesh,
    map_rows,
    place,
    replicated,
    split_rows,
    start_processes,
    state_shardings,
    to_host,
)
from qrag_jax.types import Arg, UsageError


@pytest.mark.parametrize(("data", "fsdp"), [(1, 1), (8, 1), (2, 4), (1, 3)])
def test_a_mesh_has_the_devices_that_were_asked_for(data, fsdp):
    mesh = make_mesh(MeshConfig(data, fsdp))
    assert dict(mesh.shape) == {"data": data, "fsdp": fsdp}
    assert set(mesh.devices.flat) == set(jax.devices()[: data * fsdp])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_mesh(MeshConfig(3, 4)), r"mesh.data=3 x mesh.fsdp=4 needs 12 devices, but there are 8 \(cpu\)"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_processes_that_no_cluster_describes_are_refused():
    with pytest.raises(UsageError, match="cannot start process") as error:
        start_processes(None, None, None)
    assert Arg("coordinator", "HOST:PORT") in error.value.remedy
    assert is_main_process()


def test_large_arrays_are_split_along_their_longest_axis_that_divides():
    state = {
        "square": np.zeros((64, 64)),
        "tall": np.zeros((30, 512)),
        "wide": np.zeros((4096, 6)),
        "odd": np.zeros((101, 103)),
        "small": np.zeros(8),
        "step": np.zeros(()),
    }
    specs = {name: sharding.spec for name, sharding in state_shardings(make_mesh(MeshConfig(2, 4)), state).items()}
    assert specs == {
        "square": PartitionSpec("fsdp"),
        "tall": PartitionSpec(None, "fsdp"),
        "wide": PartitionSpec("fsdp"),
        "odd": PartitionSpec(),  # neither side is a multiple of 4
        "small": PartitionSpec(),
        "step": PartitionSpec(),
    }
    whole = state_shardings(make_mesh(MeshConfig(8, 1)), state)
    assert all(sharding.spec == PartitionSpec() for sharding in whole.values())


def test_what_is_split_comes_back_whole():
    mesh = make_mesh(MeshConfig(2, 4))
    rows = np.arange(48.0).reshape(16, 3)
    split = place({"a": rows}, split_rows(mesh))["a"]
    assert {shard.data.shape for shard in split.addressable_shards} == {(2, 3)}
    np.testing.assert_array_equal(to_host({"a": split}, mesh)["a"], rows)
    parts = place(np.stack([rows, rows]), split_rows(mesh, axis=1))
    assert {shard.data.shape for shard in parts.addressable_shards} == {(2, 2, 3)}
    everywhere = place(rows, replicated(mesh))
    assert {shard.data.shape for shard in everywhere.addressable_shards} == {(16, 3)}


def softmax_rows(weights, rows, scale):
    return jax.nn.softmax(rows @ weights, axis=-1) * scale[:, None]


@pytest.mark.parametrize("num_rows", [16, 13])
def test_rows_mapped_over_a_mesh_have_the_values_and_gradients_of_one_device(num_rows):
    rng = np.random.default_rng(0)
    shapes = (4, 5), (num_rows, 4), (num_rows,)
    weights, rows, scale = (jnp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in shapes)
    traced = []

    def spy(weights, rows, scale):
        traced.append(rows.shape)
        return softmax_rows(weights, rows, scale)

    def loss(weights):
        return (map_rows(spy, weights, rows, scale) ** 2).sum()

    def expected(weights):
        return (softmax_rows(weights, rows, scale) ** 2).sum()

    with jax.set_mesh(make_mesh(MeshConfig(2, 4))):
        found = jax.jit(jax.value_and_grad(loss))(weights)
    # 13 rows do not divide: then every device has them all.
    assert set(traced) == {(2, 4) if num_rows == 16 else (13, 4)}
    for one, other in zip(found, jax.jit(jax.value_and_grad(expected))(weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert map_rows(softmax_rows, weights, rows, scale).shape == (num_rows, 5)  # no mesh: as it is
