"""Schedules of the learning rate, the temperature and the exploration rate, each its own."""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import optax


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


def make_schedule(config: ScheduleConfig, num_updates: int, name: str = "schedule") -> optax.Schedule:
    """The schedule as a pure function of the update's number.

    Raises:
        ValueError: shares out of order, or an exponential schedule that touches 0.
    """
    if not 0 <= config.warmup < config.until <= 1:
        raise ValueError(f"{name}: need 0 <= warmup < until <= 1, got warmup={config.warmup}, until={config.until}")
    if config.kind == "exponential" and min(config.start, config.end) <= 0:
        raise ValueError(f"{name}: an exponential schedule needs start and end above 0, got {config.start}, {config.end}")
    rise = config.warmup * num_updates
    fall = (config.until - config.warmup) * num_updates

    def schedule(count: jnp.ndarray) -> jnp.ndarray:
        step = jnp.asarray(count, jnp.float32)
        share = jnp.clip((step - rise) / max(fall, 1.0), 0.0, 1.0)
        if config.kind == "linear":
            value = config.start + (config.end - config.start) * share
        elif config.kind == "cosine":
            value = config.end + (config.start - config.end) * 0.5 * (1 + jnp.cos(jnp.pi * share))
        else:
            value = config.start * (config.end / config.start) ** share
        # The first update of a warm-up already moves: (step + 1), not step.
        return jnp.where(step < rise, config.start * (step + 1) / max(rise, 1.0), value)

    return schedule
