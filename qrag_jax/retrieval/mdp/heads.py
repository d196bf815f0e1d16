"""Parameters of Q beside the towers': STOP's own, and the factor between Q and the logits of a ranking loss."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

StopHead = Literal["vector", "affine"]
HEADS = ("stop", "ranking")  # the parts of the parameters that a run may have and another not
SCALES = (0.01, 1000.0)  # what a learned factor stays in: a loss that is done would raise it without end
_FLOOR = 1e-12  # of a mean square: a state of zeros keeps its finite gradient


def fresh_heads(dim: int, num_q_heads: int, stop_head: StopHead | None, ranking_scale: float | None) -> dict[str, Any]:
    """What the parameters of the towers are joined by; empty without STOP and ranking.

    Args:
        dim: width of the vectors that meet.
        num_q_heads: slices of them.
        stop_head: of a run that learns STOP; None is one that does not.
        ranking_scale: start of the learned factor; None has none.

    Returns:
        `stop`: float32 [dim], zeros, so that STOP is worth nothing until an episode says otherwise; of an affine head
        a dict of it (`vector`), `scale` [heads], ones, and `bias` [heads], zeros. `ranking`: a dict of `log_scale` [].
    """
    heads: dict[str, Any] = {}
    if stop_head is not None:
        vector = jnp.zeros(dim)
        affine = {"vector": vector, "scale": jnp.ones(num_q_heads), "bias": jnp.zeros(num_q_heads)}
        heads["stop"] = affine if stop_head == "affine" else vector
    if ranking_scale is not None:
        heads["ranking"] = {"log_scale": jnp.float32(np.log(ranking_scale))}
    return heads


def stop_q_values(stop: Any, states: Float[Array, "batch dim"], num_q_heads: int) -> Float[Array, "batch heads"]:
    """Q of STOP in every state, summed to by the heads.

        vector: Q_h = <s_h, w_h>
        affine: Q_h = b_h + c_h * <s_h / rms(s_h), w_h> / sqrt(n),   n components a head

    So what an affine head says does not hang on how long the vectors of the towers are, and it can move all states at
    once.

    Args:
        stop: `params["stop"]`, of either kind.
        states: what the state tower says.
        num_q_heads: slices of the vectors.
    """
    if not isinstance(stop, dict):
        return (states * stop).reshape(len(states), num_q_heads, -1).sum(-1)
    s = states.reshape(len(states), num_q_heads, -1)
    w = stop["vector"].reshape(num_q_heads, -1)
    unit = s * jax.lax.rsqrt((s * s).mean(-1, keepdims=True) + _FLOOR)
    return stop["bias"] + stop["scale"] * (unit * w).sum(-1) * np.float32(s.shape[-1] ** -0.5)


def ranking_factor(ranking: dict[str, Array]) -> Float[Array, ""]:
    """The learned factor, the inverse of a temperature: `clip(exp(log_scale))` to `SCALES`."""
    low, high = np.log(SCALES).astype(np.float32)
    return jnp.exp(jnp.clip(ranking["log_scale"], low, high))
