"""Runs that are trained together, and what they must share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qrag_jax.checkpoint import Checkpoint
from qrag_jax.train.q.run import RunConfig
from qrag_jax.types import UsageError


@dataclass(frozen=True)
class Member:
    """One of the runs that are trained together: its config, its folder or None, and where it goes on from."""

    config: RunConfig
    out: Path | None = None
    start: Checkpoint | None = None


def check_members(members: Sequence[Member]) -> None:
    """Refuses runs that cannot share one update."""
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


def saved_rows(members: Sequence[Member]) -> int:
    """Rows that a batch was padded to when the runs were saved; 0 for fresh ones."""
    return max(0 if member.start is None else member.start.metadata["rows"] for member in members)
