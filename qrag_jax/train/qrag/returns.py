"""Lambda-returns and state values: the targets of the Q learner."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

ValueKind = Literal["soft", "expected", "hard"]


def lambda_returns(
    r_t: Float[Array, " T"],
    discount_t: Float[Array, " T"],
    v_t: Float[Array, " T"],
    lambda_: Float[Array, ""] | float,
    bonus_t: Float[Array, " T"] | None = None,
) -> Float[Array, " T"]:
    """Truncated lambda-returns of one trajectory, bootstrapped from `v_t` (Q-RAG, Algorithm 1).

        G_{t-1} = r_t + discount_t * ((1 - lambda) * v_t + lambda * (G_t + bonus_t)),   G_T = v_T

    An ended episode has discount 0 at its last step; a rollout cut in mid-episode bootstraps from its last value.

    Args:
        r_t: rewards of steps 1..T.
        discount_t: discounts of steps 1..T; 0 where the episode ends.
        v_t: values of the states reached by steps 1..T.
        lambda_: mixing weight in [0, 1]; 0 is one-step TD, 1 is Monte Carlo.
        bonus_t: added to the sampled return for the next action: `-alpha * log pi(a_t | s_t)` for returns that are
            consistent with soft values. The last entry belongs to an action that was not taken and must be 0.

    Returns:
        Targets `G_0..G_{T-1}`; gradients flow through `v_t`, stop them outside.
    """
    bonus_t = jnp.zeros_like(v_t) if bonus_t is None else bonus_t
    weight = jnp.asarray(lambda_, v_t.dtype)

    def backward(g_t: Array, step: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        r, discount, v, bonus = step
        g_tm1 = r + discount * ((1 - weight) * v + weight * (g_t + bonus))
        return g_tm1, g_tm1

    _, returns = jax.lax.scan(backward, v_t[-1], (r_t, discount_t, v_t, bonus_t), reverse=True)
    return returns


def state_value(
    q: Float[Array, "heads actions"],
    allowed: Bool[Array, " actions"],
    temperature: Float[Array, ""] | float,
    kind: ValueKind = "soft",
    top_k: int | None = None,
) -> Float[Array, ""]:
    """Value of a state from the Q values of its actions, summed over Q heads (Q-RAG, eq. 4).

        soft:     V = alpha * logsumexp(Q / alpha)      over the untaken chunks
        expected: V = sum_a softmax(sum_h Q_h / alpha)_a * Q_a
        hard:     V = max_a Q_a

    Taken and padded chunks are masked before any top-k, so they can never change the value. No action left: 0.

    Args:
        allowed: True at untaken, real chunks.
        temperature: alpha > 0, in units of Q.
        top_k: only the best k actions of each head (of the sum of heads for `expected`) count.
    """
    if kind == "expected":  # the policy looks at the sum of heads, so does its expectation
        q = q.sum(0, keepdims=True)
    lowest = jnp.finfo(q.dtype).min / 2
    # Two masks: a filler of `lowest` inside exp() alone would leave NaN gradients behind `where`.
    kept = jnp.where(allowed, q, lowest)
    if top_k is not None and top_k < q.shape[-1]:
        kept = jax.lax.top_k(kept, top_k)[0]
    real = kept > lowest
    best = jax.lax.stop_gradient(jnp.max(kept, axis=-1, keepdims=True))
    if kind == "hard":
        value = jnp.max(kept, axis=-1)
    else:
        scaled = jnp.where(real, kept - best, 0.0) / temperature
        weights = jnp.where(real, jnp.exp(scaled), 0.0)
        total = jnp.maximum(weights.sum(-1), jnp.finfo(q.dtype).tiny)
        if kind == "soft":
            value = best[..., 0] + temperature * jnp.log(total)
        else:
            value = jnp.sum(weights * jnp.where(real, kept, 0.0), -1) / total
    return jnp.where(allowed.any(), value.sum(), 0.0)


def chosen_pair_loss(q_tm1: Float[Array, "heads"], g_tm1: Float[Array, ""]) -> Float[Array, ""]:
    """Squared error of one chosen pair; every one of H heads alone regresses on the return.

    mean_h (H * Q_h - G)^2        (one head: (Q - G)^2; two heads: the halves of the authors' code)
    """
    num_heads = q_tm1.shape[0]
    return jnp.mean(jnp.square(num_heads * q_tm1 - g_tm1))
