"""Runs that are trained together: what they must share, and how their arrays stand in one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from qrag_jax.checkpoint import Checkpoint
from qrag_jax.folder_lock import lock_folder
from qrag_jax.models.network import PyTree
from qrag_jax.retrieval.batching import Sample
from qrag_jax.sharding import any_process, is_main_process, split_rows
from qrag_jax.train.q_learner import LearnerState
from qrag_jax.train.run import RunConfig
from qrag_jax.types import UsageError


@dataclass(frozen=True)
class Member:
    """One of the runs that are trained together: its config, its folder or None, and where it goes on from."""

    config: RunConfig
    out: Path | None = None
    start: Checkpoint | None = None


def check_members(members: Sequence[Member]) -> None:
    """Refuses runs that cannot share one update.

    Raises:
        UsageError: says why.
    """
    if len(members) == 1:
        return
    config = members[0].config
    if any(replace(member.config, seed=config.seed) != config for member in members) or config.data.seed is None:
        raise UsageError("runs that are trained together differ in nothing but their seed, and share data.seed")
    if config.model.mode != "latent" or config.model.encoder.source == "scratch":
        raise UsageError("only latent towers on a frozen encoder train several seeds together: start each seed alone")
    if len(members) % config.mesh.size:
        raise UsageError(f"{len(members)} runs cannot be spread evenly over the {config.mesh.size} devices of mesh")
    if config.keep < 2:
        raise UsageError("keep=1 could leave runs that are trained together without a common checkpoint: set keep=2")
    steps = sorted({0 if member.start is None else member.start.step for member in members})
    if len(steps) > 1:
        raise UsageError(f"runs that go on together must stand at the same update, these stand at {steps}")


@contextmanager
def lock_runs(outs: Sequence[Path | None]) -> Iterator[None]:
    """Holds the locks of run folders, None being none; of several processes the main one does, and all learn of it.

    Raises:
        UsageError: another process works in one of them.
    """
    with ExitStack() as locks:
        refusal = None
        if is_main_process():
            try:
                for out in outs:
                    if out is not None:
                        locks.enter_context(lock_folder(out, "qrag train"))
            except UsageError as error:  # the others wait for the answer
                refusal = error
        if any_process(refusal is not None):
            raise refusal or UsageError("a run folder is in use or cannot be made: process 0 says which")
        yield


def saved_rows(members: Sequence[Member]) -> int:
    """Rows that a batch was padded to when the runs were saved; 0 for fresh ones."""
    return max(0 if member.start is None else member.start.metadata["rows"] for member in members)


class Layout:
    """The arrays of runs in one: those of one run as they are, those of several in front of all axes."""

    def __init__(self, mesh: Mesh, num_members: int, num_parts: int):
        """Args: mesh of the runs; how many there are; `learner.accumulate`."""
        self.stacked = num_members > 1
        self._spread = split_rows(mesh)
        self.samples = self._spread if self.stacked else split_rows(mesh, axis=int(num_parts > 1))

    def join(self, trees: Sequence[PyTree]) -> PyTree:
        """One tree of those of all members."""
        if not self.stacked:
            return trees[0]
        stack = jax.jit(lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees), out_shardings=self._spread)
        return stack(list(trees))

    def part(self, tree: PyTree, i: int) -> PyTree:
        """What of a joined tree, or of host arrays, is member i's."""
        return jax.tree.map(lambda x: x[i], tree) if self.stacked else tree

    def shardings(self, one: LearnerState) -> LearnerState:
        """Shardings of the joined state."""
        return jax.tree.map(lambda _: self._spread, one) if self.stacked else one

    def sampler(self, samplers: Sequence[Callable[[int], Sample]]) -> Callable[[int], Sample]:
        """Step number -> the samples of all members, joined."""
        if not self.stacked:
            return samplers[0]

        def sample(step: int) -> Sample:
            drawn = [one(step) for one in samplers]
            if len({one.distinct.shape[-1] for one in drawn}) > 1:  # a later member needed more rows
                drawn = [one(step) for one in samplers]
            return jax.tree.map(lambda *arrays: np.stack(arrays), *drawn)

        return sample
