"""A decoder split over the axis "model" of a mesh (tensor parallel), as shardings: XLA adds the communication.

Query, key, value, gate and up are split by output, output and down by input, so that a layer needs two all-reduces;
embedding and output layer by vocabulary. Whatever does not divide among the devices stays whole on each: heads are
never cut, and the result does not depend on the number of devices but for rounding.
"""

from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qrag_jax.models.decoder.causal_lm import KVCache
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.types import UsageError

PyTree = Any
_AXIS = "model"


def decoder_shardings(mesh: Mesh, config: DecoderConfig, params: PyTree) -> PyTree:
    """Where each parameter lives; for `jax.device_put(params, ...)` and `in_shardings`.

    Args:
        mesh: with an axis "model"; further axes hold copies.
        config: of the decoder; it says which columns belong to one head.
        params: arrays or their shapes (`jax.eval_shape`).
    """
    ways = _ways(mesh)
    units = {
        "query": config.num_heads, "output": config.num_heads, "key": config.num_kv_heads,
        "value": config.num_kv_heads, "gate": config.intermediate_size, "up": config.intermediate_size,
        "down": config.intermediate_size, "embed": config.vocab_size, "head": config.vocab_size,
    }  # fmt: skip

    def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        module, name = (entry.key for entry in path[-2:])
        axis = _split_axis(module, name)
        if axis is None or units[module] % ways:
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, _AXIS))

    return jax.tree_util.tree_map_with_path(of, params)


def _split_axis(module: str, name: str) -> int | None:
    """The axis of a parameter that devices share; None where each has all of it."""
    if module in ("output", "down"):
        return 0 if name == "kernel" else None  # a bias is added once, after the sum over devices
    if module in ("query", "key", "value", "gate", "up", "head"):
        return 1 if name == "kernel" else 0
    return 0 if module == "embed" else None


def cache_sharding(mesh: Mesh, config: DecoderConfig) -> KVCache:
    """Where each layer's keys and values live: split by head where the heads divide, else whole everywhere."""
    spec = PartitionSpec() if config.num_kv_heads % _ways(mesh) else PartitionSpec(_AXIS)
    layers = (NamedSharding(mesh, spec),) * config.num_layers
    return KVCache(layers, layers)


def _ways(mesh: Mesh) -> int:
    if _AXIS not in mesh.shape:
        raise UsageError(f'a mesh with the axes {list(mesh.shape)}: a decoder is split over an axis named "{_AXIS}"')
    if set(mesh.axis_types) != {AxisType.Auto}:
        raise UsageError(
            f"a mesh of axis types {mesh.axis_types}: XLA is to place what is in between; make it with "
            "jax.make_mesh(..., axis_types=(AxisType.Auto,) * number of axes)"
        )
    return mesh.shape[_AXIS]
