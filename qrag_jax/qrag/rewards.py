"""Rewards for completing the gold set, by name (`qrag_jax.names.REWARDS`): pure functions of one environment."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Taken(NamedTuple):
    """A step that takes a chunk.

    Attributes:
        num_gold: number of gold chunks.
        num_taken: number of taken chunks, with this one.
        is_gold: this chunk is gold.
        completes: it is the last gold chunk.
        is_complete: no gold chunk is left.
        is_last: the episode has no further step.
        bonus: reward of a complete set of this size.
        ends_at_completion: the episode ends there.
    """

    num_gold: Int[Array, ""]
    num_taken: int
    is_gold: Bool[Array, ""]
    completes: Bool[Array, ""]
    is_complete: Bool[Array, ""]
    is_last: bool
    bonus: Float[Array, ""]
    ends_at_completion: bool


# What a step pays, beside `fact_reward`. One with the tag "stop" pays a complete set when the episode ends.
Reward = Callable[[Taken], Float[Array, ""]]


def at_completion(taken: Taken) -> Float[Array, ""]:
    """The bonus once, at the step that completes the set."""
    return jnp.where(taken.completes, taken.bonus, 0.0)


def at_end(taken: Taken) -> Float[Array, ""]:
    """The bonus at the last step, once; an episode that ends at completion gets it there."""
    return jnp.where(
        taken.completes if taken.ends_at_completion else taken.is_complete & taken.is_last, taken.bonus, 0.0
    )
