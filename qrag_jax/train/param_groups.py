"""Groups of parameters: frozen parts, parts with a learning rate of their own."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import optax

from qrag_jax.sharding import PyTree
from qrag_jax.types import UsageError

_FROZEN = "frozen"
_SHOWN = 12  # names of leaves in a message


@dataclass(frozen=True)
class GroupConfig:
    """What is special about the parameters of a group.

    Attributes:
        learning_rate_factor: their learning rate, and with it their weight decay, is this many times the schedule's.
        frozen: they keep their values, and have no optimiser state.
    """

    learning_rate_factor: float = 1.0
    frozen: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate_factor < float("inf"):
            raise UsageError(
                f"learning_rate_factor={self.learning_rate_factor} must be above 0 and finite; frozen=true trains not "
                "at all"
            )


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
