"""Schedules of the learning rate, the temperature and the exploration rate, each its own."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from qrag_jax.types import UsageError


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
        if not 0 <= self.warmup < 1:
            raise UsageError(f"warmup={self.warmup} must lie in [0, 1): it is a share of the run")
        if not self.warmup < self.until <= 1:
            raise UsageError(f"until={self.until} must lie above warmup={self.warmup}, and be at most 1")
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
