"""The tagger's model: softmax regression over none and the levels of a section, on features and hashed cues."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qrag_jax.models.tagger.surface import NUM_CUES

NUM_LEVELS = 3  # deeper ones count as the deepest
NUM_CLASSES = NUM_LEVELS + 1  # class 0: no section begins
Params = dict[str, Any]


def init(num_features: int, num_columns: int = NUM_CLASSES, num_cues: int = NUM_CUES) -> Params:
    """Parameters that prefer no class: all are zero. The problem is convex, so no draw is needed.

    Args:
        num_columns: classes; or those of several taggers that are trained side by side.
    """
    return {
        "weights": jnp.zeros((num_features, num_columns)),
        "cues": jnp.zeros((num_cues, num_columns)),
        "bias": jnp.zeros(num_columns),
    }


def scores(
    params: Params, features: Float[Array, "gaps features"], cues: Int[Array, "gaps cues"]
) -> Float[Array, "gaps columns"]:
    """Before the softmax:  z = x W + sum of the rows of its cues + b."""
    return features @ params["weights"] + params["cues"][cues].sum(axis=1) + params["bias"]


def tag(
    params: Params, features: Float[Array, "gaps features"], cues: Int[Array, "gaps cues"]
) -> Float[Array, "gaps classes"]:
    """Log-probabilities that no section begins after a gap (class 0), or one of level 1, 2, 3.

    Args:
        params: of `init`.
    """
    return jax.nn.log_softmax(scores(params, features, cues))
