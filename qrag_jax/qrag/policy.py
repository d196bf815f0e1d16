"""How a retriever picks the next chunk from Q values: greedily, or by a Boltzmann draw with uniform exploration."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.qrag.env import Policy


def greedy(q: Float[Array, " chunks"], allowed: Bool[Array, " chunks"]) -> Int[Array, ""]:
    """The allowed chunk with the highest Q; ties go to the first in document order."""
    return jnp.argmax(jnp.where(allowed, q, -jnp.inf)).astype(jnp.int32)


def boltzmann_log_probs(
    q: Float[Array, " chunks"],
    allowed: Bool[Array, " chunks"],
    temperature: Float[Array, ""] | float,
    epsilon: Float[Array, ""] | float = 0.0,
    top_k: int | None = None,
) -> Float[Array, " chunks"]:
    """Log probabilities of `(1 - epsilon) * softmax(Q / temperature) + epsilon * uniform` over allowed chunks.

    Args:
        temperature: alpha > 0, in units of Q.
        epsilon: share of uniform draws, in [0, 1]; they ignore `top_k`.
        top_k: the softmax sees only the best k allowed chunks.

    Returns:
        Log probabilities, -inf at chunks that are not allowed.
    """
    masked = jnp.where(allowed, q, -jnp.inf)
    if top_k is not None and top_k < q.shape[0]:
        best = jnp.zeros_like(allowed).at[jax.lax.top_k(masked, top_k)[1]].set(True)  # exactly k, also among equals
        masked = jnp.where(best, masked, -jnp.inf)
    soft = jax.nn.softmax(masked / temperature)
    weights = allowed.astype(q.dtype)
    uniform = weights / jnp.maximum(weights.sum(), 1)
    return jnp.log((1 - epsilon) * soft + epsilon * uniform)


def make_boltzmann(temperature: Array | float, epsilon: Array | float, top_k: int | None = None) -> Policy:
    """A policy that draws from `boltzmann_log_probs`, with one key per environment."""

    def draw(key: Array, q: Array, allowed: Array) -> tuple[Array, Array]:
        log_probs = boltzmann_log_probs(q, allowed, temperature, epsilon, top_k)
        action = jax.random.categorical(key, log_probs).astype(jnp.int32)
        return action, log_probs[action]

    return jax.vmap(draw)


def make_greedy(num_chunks: int | None = None) -> Policy:
    """A policy that always takes the best action; keys are ignored, log probabilities are 0.

    Args:
        num_chunks: only the first `num_chunks` actions; STOP comes after them, so it is never taken.
    """

    def pick(key: Array, q: Array, allowed: Array) -> tuple[Array, Array]:
        del key
        return greedy(q[:num_chunks], allowed[:num_chunks]), jnp.float32(0.0)

    return jax.vmap(pick)
