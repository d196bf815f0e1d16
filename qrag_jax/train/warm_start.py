"""Parameters of another run to start from: these alone; optimiser, schedules and update number are new."""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.checkpoint import Checkpoint
from qrag_jax.files.manifest import MANIFEST
from qrag_jax.sharding import PyTree
from qrag_jax.train.param_groups import leaf_paths
from qrag_jax.types import InputError


def take_params(saved: Checkpoint, group: str, like: PyTree, optional: Collection[str] = ()) -> PyTree:
    """A group of a checkpoint as the parameters of another run, on the host.

    Args:
        saved: a checkpoint of which the group was read without a template.
        group: such as `params`.
        like: parameters; or their shapes, where nothing is optional.
        optional: parts (the first names of paths) that may be missing, and are then as in `like`, or left over.
    """
    theirs = dict(zip(leaf_paths(saved.arrays[group]), jax.tree.leaves(saved.arrays[group]), strict=True))
    ours = dict(zip(leaf_paths(like), jax.tree.leaves(like), strict=True))
    parts = [{path.split("/")[0] for path in paths} for paths in (theirs, ours)]
    one_sided = (parts[0] ^ parts[1]) & set(optional)
    kept = {path: leaf for path, leaf in ours.items() if path.split("/")[0] in one_sided}
    theirs = {path: leaf for path, leaf in theirs.items() if path.split("/")[0] not in one_sided} | kept
    faults = [f"{name} is not there" for name in ours if name not in theirs]
    faults += [f"{name} is there and not here" for name in theirs if name not in ours]
    faults += [
        f"{name} is {_show(theirs[name])} there and {_show(ours[name])} here"
        for name in ours
        if name in theirs and _show(theirs[name]) != _show(ours[name])
    ]
    faults += [
        f"{name} holds NaN or infinity there" for name in ours if name in theirs and not _is_finite(theirs[name])
    ]
    if faults:
        raise InputError(
            f"init: the parameters of {saved.folder} do not fit: {'; '.join(faults)}. Give a model as in its "
            "config.yaml, or another init"
        )
    return jax.tree.unflatten(jax.tree.structure(like), [np.asarray(theirs[name]) for name in ours])


def describe_source(source: str, saved: Checkpoint, group: str) -> Mapping[str, Any]:
    """Metadata about a warm start: the folder as it was given, the step, the group, and the sha256 of the manifest."""
    digest = hashlib.sha256((saved.folder / MANIFEST).read_bytes()).hexdigest()
    return {"folder": source, "step": saved.step, "group": group, "manifest_sha256": digest}


def _is_finite(leaf: Any) -> bool:
    return not jnp.issubdtype(leaf.dtype, jnp.inexact) or bool(jnp.isfinite(leaf).all())


def _show(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
