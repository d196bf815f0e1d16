"""Where the arrays of a training loop lie: its devices, and the runs that one update trains together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from qrag_jax.sharding import PyTree, split_rows

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Layout:
    """The arrays of runs in one: those of one run as they are, those of several in front of all axes.

    Attributes:
        mesh: devices.
        num_runs: runs in one update, `vmap`ped over them and spread over the devices.
        num_parts: above 1 a batch has one more axis in front, of parts that are played one after the other.
    """

    mesh: Mesh
    num_runs: int = 1
    num_parts: int = 1

    @property
    def stacked(self) -> bool:
        """Whether arrays have an axis of runs."""
        return self.num_runs > 1

    @property
    def batches(self) -> NamedSharding:
        """Every device has a share of the rows of a batch, or some of the runs."""
        return split_rows(self.mesh, axis=int(not self.stacked and self.num_parts > 1))

    def join(self, trees: Sequence[PyTree]) -> PyTree:
        """One tree of those of all runs."""
        if not self.stacked:
            return trees[0]
        stack = jax.jit(
            lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees), out_shardings=split_rows(self.mesh)
        )
        return stack(list(trees))

    def part(self, tree: PyTree, i: int) -> PyTree:
        """What of a joined tree, or of host arrays, is run i's."""
        return jax.tree.map(lambda x: x[i], tree) if self.stacked else tree

    def shardings(self, one: PyTree) -> PyTree:
        """Shardings of the joined state, from those of one run's."""
        return jax.tree.map(lambda _: split_rows(self.mesh), one) if self.stacked else one

    def sampler(self, samplers: Sequence[Callable[[int], Batch]]) -> Callable[[int], Batch]:
        """Update number -> the batches of all runs, joined."""
        if not self.stacked:
            return samplers[0]

        def sample(number: int) -> Batch:
            drawn = [one(number) for one in samplers]
            if len({tuple(map(np.shape, jax.tree.leaves(one))) for one in drawn}) > 1:  # a later run needed more rows
                drawn = [one(number) for one in samplers]
            return jax.tree.map(lambda *arrays: np.stack(arrays), *drawn)

        return sample
