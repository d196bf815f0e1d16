"""Low-rank changes of projections (LoRA, Hu et al. 2021): added, trained alone, merged on saving."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

Params = Mapping[str, Any]
_LEAVES = ("lora_a", "lora_b")


def add_lora(params: Params, rank: int, projections: Sequence[str], key: PRNGKeyArray) -> dict[str, Any]:
    """Parameters with low-rank leaves beside the kernels of some projections; they change nothing until trained.

    Args:
        key: draws A, normal with variance 1 / inputs; B is 0. The key is consumed.
    """
    layers = dict(params["layers"])
    for name, own in zip(projections, jax.random.split(key, len(projections)), strict=True):
        number, inputs, outputs = layers[name]["kernel"].shape
        drawn = jax.random.normal(own, (number, inputs, rank)) / math.sqrt(inputs)
        layers[name] = {**layers[name], "lora_a": drawn, "lora_b": jnp.zeros((number, rank, outputs))}
    return {**params, "layers": layers}


def merge_lora(params: Params) -> dict[str, Any]:
    """Parameters without low-rank leaves that compute the same: W + A B, in modules at any depth."""
    merged: dict[str, Any] = {
        name: merge_lora(leaf) if isinstance(leaf, Mapping) else leaf for name, leaf in params.items()
    }
    if "lora_a" in merged:
        change = jnp.matmul(merged.pop("lora_a"), merged.pop("lora_b"), precision="highest")
        merged["kernel"] = merged["kernel"] + change.astype(merged["kernel"].dtype)
    return merged


def split_trained(params: Params) -> tuple[dict[str, Any], dict[str, Any]]:
    """(leaves that are trained, the others), as nested dicts: the low-rank leaves where there are any, else all."""
    if not any("lora_a" in module for module in params["layers"].values()):
        return dict(params), {}
    trained = {
        name: {leaf: module[leaf] for leaf in _LEAVES}
        for name, module in params["layers"].items()
        if "lora_a" in module
    }
    others = {
        name: {leaf: value for leaf, value in module.items() if leaf not in _LEAVES}
        for name, module in params["layers"].items()
    }
    return {"layers": trained}, {**params, "layers": others}


def join_trained(trained: Params, others: Params) -> dict[str, Any]:
    """The parameters that `split_trained` divided."""
    joined = dict(others)
    for name, value in trained.items():
        joined[name] = join_trained(value, others.get(name, {})) if isinstance(value, Mapping) else value
    return joined
