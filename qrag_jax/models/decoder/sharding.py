"""A decoder on a mesh, as shardings: axis "model" splits layers (tensor parallel), "fsdp" what is kept; XLA adds the
communication.

Query, key, value, gate and up are split by output, output and down by input, so that a layer needs two all-reduces;
embedding and output layer by vocabulary. Whatever does not divide among the devices stays whole on each: heads are
never cut, and the result does not depend on the number of devices but for rounding.
"""

import math
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.rollout import LayerCache
from qrag_jax.sharding import SMALLEST_SPLIT
from qrag_jax.types import UsageError

PyTree = Any
_AXIS = "model"
# The axis that devices share, counted from the end; a bias of "output" is added once, after the sum over devices.
_BY_OUTPUT = {"kernel": -1, "bias": -1, "lora_b": -1}
_BY_INPUT = {"kernel": -2, "lora_a": -2}
_SPLIT = {
    **dict.fromkeys(("query", "key", "value", "gate", "up", "head"), _BY_OUTPUT),
    **dict.fromkeys(("output", "down"), _BY_INPUT),
    "embed": {"embedding": -2},
}


def decoder_shardings(mesh: Mesh, config: DecoderConfig, tree: PyTree) -> PyTree:
    """Where each parameter lives; for `jax.device_put` and `in_shardings`.

    Args:
        mesh: with an axis "model"; an axis "fsdp" splits large arrays once more; further axes hold copies.
        config: of the decoder; it says which columns belong to one head.
        tree: parameters or their shapes (`jax.eval_shape`), or a state that contains trees of them, such as an
            optimiser's; other leaves are whole everywhere.
    """
    ways, kept = _ways(mesh), mesh.shape.get("fsdp", 1)
    units = {
        "query": config.num_heads, "output": config.num_heads, "key": config.num_kv_heads,
        "value": config.num_kv_heads, "gate": config.intermediate_size, "up": config.intermediate_size,
        "down": config.intermediate_size, "embed": config.vocab_size, "head": config.vocab_size,
    }  # fmt: skip

    def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [getattr(entry, "key", None) for entry in path]
        module, name = [None, None, *names][-2:]
        spec: list[str | None] = [None] * len(leaf.shape)
        axis = _SPLIT.get(module, {}).get(name)
        if axis is not None and units[module] % ways == 0:
            spec[axis] = _AXIS
        first = int("layers" in names)  # a scan takes its layer from every device
        free = [i for i, size in enumerate(leaf.shape) if i >= first and spec[i] is None and size % kept == 0]
        if kept > 1 and free and math.prod(leaf.shape) >= SMALLEST_SPLIT:
            spec[max(free, key=lambda i: leaf.shape[i])] = "fsdp"
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree_util.tree_map_with_path(of, tree)


def cache_sharding(mesh: Mesh, config: DecoderConfig) -> LayerCache:
    """Where keys and values live: split by head where the heads divide, else whole everywhere."""
    spec = PartitionSpec() if config.num_kv_heads % _ways(mesh) else PartitionSpec(None, None, None, _AXIS)
    where: Any = NamedSharding(mesh, spec)
    return LayerCache(where, where)


def _ways(mesh: Mesh) -> int:
    if _AXIS not in mesh.shape:
        raise UsageError(f'a mesh with the axes {list(mesh.shape)}: a decoder is split over an axis named "{_AXIS}"')
    if set(mesh.axis_types) != {AxisType.Auto}:
        raise UsageError(
            f"a mesh of axis types {mesh.axis_types}: XLA is to place what is in between; make it with "
            "jax.make_mesh(..., axis_types=(AxisType.Auto,) * number of axes)"
        )
    return mesh.shape[_AXIS]
