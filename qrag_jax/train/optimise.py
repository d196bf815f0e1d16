"""Groups of parameters: frozen parts, and parts with a separate learning rate.

Schedules of the learning rate, the temperature and the exploration rate, each its own.

Parameters of another run to start from: these alone; optimiser, schedules and update number are new.
"""

import hashlib
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from qrag_jax.checkpoint import Checkpoint
from qrag_jax.files.manifest import MANIFEST
from qrag_jax.sharding import PyTree
from qrag_jax.types import InputError, UsageError, check_fields


@dataclass(frozen=True)
class ScheduleConfig:
    """A value that moves from `start` to `end` over a share of the run.

    Attributes:
        start: value after the warm-up.
        end: value at the end of the decay, kept afterwards.
        kind: shape of the decay.
        warmup: share of the run in which the value rises linearly from 0 to `start`.
        until: share of the run at which the decay ends.
    """

    start: float
    end: float
    kind: Literal["linear", "cosine", "exponential"] = "linear"
    warmup: float = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, within={"warmup": "[0, 1)", "until": f"({self.warmup}, 1]"})
        if self.kind == "exponential" and min(self.start, self.end) <= 0:
            raise UsageError(
                f"an exponential schedule needs start and end above 0, got start={self.start} and end={self.end}"
            )


def make_schedule(config: ScheduleConfig, num_updates: int) -> optax.Schedule:
    """The schedule as a pure function of the update's number."""
    rise = config.warmup * num_updates
    fall = (config.until - config.warmup) * num_updates

    def schedule(count: ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        share = jnp.clip((step - rise) / max(fall, 1.0), 0.0, 1.0)
        if config.kind == "linear":
            value = config.start + (config.end - config.start) * share
        elif config.kind == "cosine":
            value = config.end + (config.start - config.end) * 0.5 * (1 + jnp.cos(jnp.pi * share))
        else:
            value = config.start * (config.end / config.start) ** share
        # The first update of a warm-up already moves: (step + 1), not step; and it never overshoots.
        risen = jnp.minimum((step + 1) / max(rise, 1.0), 1.0)
        return jnp.where(step < rise, config.start * risen, value)

    return schedule


_FROZEN = "frozen"
_SHOWN = 12  # names of leaves in a message


@dataclass(frozen=True)
class GroupConfig:
    """Settings of a group of parameters.

    Attributes:
        learning_rate_factor: their learning rate, and with it their weight decay, is this many times the schedule's.
        frozen: they keep their values, and have no optimiser state.
    """

    learning_rate_factor: float = 1.0
    frozen: bool = False

    def __post_init__(self) -> None:
        check_fields(self, within={"learning_rate_factor": "(0, inf)"})


Groups = Mapping[str, GroupConfig]  # by a pattern of the paths of leaves: `action/layers_0/*`; * is any text


def leaf_paths(tree: PyTree) -> list[str]:
    """The path of every leaf, its parts joined by `/`, in the order of `jax.tree.leaves`."""
    return [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in jax.tree_util.tree_leaves_with_path(tree)]


def group_optimiser(
    make: Callable[[float], optax.GradientTransformation], groups: Groups
) -> optax.GradientTransformation:
    """One optimiser a learning rate; without groups `make(1.0)` itself, whose state old checkpoints hold.

    Args:
        make: learning rate factor -> optimiser.
        groups: which leaves are special; `init` raises a UsageError where they do not fit the parameters.
    """
    if not groups:
        return make(1.0)
    factors = {1.0, *(group.learning_rate_factor for group in groups.values() if not group.frozen)}
    parts: dict[Hashable, optax.GradientTransformation] = {_FROZEN: optax.set_to_zero()}
    parts |= {_label(GroupConfig(factor)): make(factor) for factor in factors}
    return optax.partition(parts, lambda params: label_leaves(params, groups))


def stop_frozen(gradient: PyTree, groups: Groups) -> PyTree:
    """The gradient with zeros for frozen leaves: they count in no norm, and XLA computes nothing for them."""
    if not groups:
        return gradient
    labels = label_leaves(gradient, groups)
    return jax.tree.map(lambda label, x: jnp.zeros_like(x) if label == _FROZEN else x, labels, gradient)


def label_leaves(params: PyTree, groups: Groups) -> PyTree:
    """The label of every leaf's optimiser."""
    paths = leaf_paths(params)
    found = [[pattern for pattern in groups if fnmatchcase(path, pattern)] for path in paths]
    faults = [
        f"groups.{pattern} matches no parameter; there are {_list(paths)}"
        for pattern in groups
        if not any(pattern in own for own in found)
    ]
    faults += [
        f"{path} is in the groups {' and '.join(own)}: a parameter has one"
        for path, own in zip(paths, found, strict=True)
        if len(own) > 1
    ]
    labels = [_label(groups[own[0]] if own else GroupConfig()) for own in found]
    if set(labels) == {_FROZEN}:
        faults.append("groups: every parameter is frozen, none is left to train")
    if faults:
        raise UsageError("\n".join(faults))
    return jax.tree.unflatten(jax.tree.structure(params), labels)


def _label(group: GroupConfig) -> str:
    return _FROZEN if group.frozen else f"rate_x{group.learning_rate_factor!r}"


def _list(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


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
        f"{name} contains NaN or infinity there" for name in ours if name in theirs and not _is_finite(theirs[name])
    ]
    if faults:
        raise InputError(
            f"init: the parameters of {saved.folder} do not fit: {'; '.join(faults)}. Use the model "
            "settings from its config.yaml, or give another init"
        )
    return jax.tree.unflatten(jax.tree.structure(like), [np.asarray(theirs[name]) for name in ours])


def describe_source(source: str, saved: Checkpoint, group: str) -> Mapping[str, Any]:
    """Metadata about a warm start: the given folder, the step, the group, and the sha256 of the manifest."""
    digest = hashlib.sha256((saved.folder / MANIFEST).read_bytes()).hexdigest()
    return {"folder": source, "step": saved.step, "group": group, "manifest_sha256": digest}


def _is_finite(leaf: Any) -> bool:
    return not jnp.issubdtype(leaf.dtype, jnp.inexact) or bool(jnp.isfinite(leaf).all())


def _show(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
