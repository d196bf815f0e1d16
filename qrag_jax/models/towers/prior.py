"""Latent towers that start as a search in several steps (ours), and learn what to change of it.

For few questions: the similarity of the encoder need not be learned, and an untrained run is already a retriever.
"""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from qrag_jax.models.encoder.text_encoder import FLOAT32, Compute
from qrag_jax.models.towers.latent import LatentConfig, read_state
from qrag_jax.models.towers.q_network import Network, VectorRows

_ZEROS = nn.initializers.zeros_init()
_SHORTEST = 1e-6  # vectors below this length stay short, and do not become noise


def unit(x: Float[Array, "... n"]) -> Float[Array, "... n"]:
    """Vectors at length 1; zeros stay zeros, with a finite gradient."""
    return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(-1, keepdims=True), _SHORTEST**2))


class PriorState(nn.Module):
    """Question and taken chunks, as vectors in document order -> one state vector."""

    config: LatentConfig
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self,
        question: Float[Array, "batch vector"],
        chunks: Float[Array, "batch taken vector"],
        similar: Float[Array, "batch vector"],
        similar_chunks: Float[Array, "batch taken vector"],
    ) -> Float[Array, "batch dim"]:
        """Encodes a batch of states that hold the same number of chunks.

        Args:
            question: standardised; the learned parts read it.
            similar: the question's vector of length 1, relative to the mean of all chunks; the prior compares it.
        """
        c = self.config
        x = read_state(c, self.dtype, question, chunks)
        beta = self.param("beta", nn.initializers.constant(c.prior_beta), ())
        scale = self.param("scale", nn.initializers.ones_init(), ())
        prior = unit(similar + beta * similar_chunks.sum(axis=1))
        still = scale * (prior + _correction(c, self.dtype, x, similar.shape[-1]))
        bias = nn.Dense(1, dtype=self.dtype, kernel_init=_ZEROS, name="bias")(x).astype(jnp.float32)
        turned = nn.Dense(c.dim, dtype=self.dtype, kernel_init=_ZEROS, name="turned")(x).astype(jnp.float32)
        return jnp.concatenate([still, bias, turned], axis=-1)


class PriorAction(nn.Module):
    """A chunk's vector -> its action vector."""

    config: LatentConfig
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self, chunks: Float[Array, "rows vector"], similar: Float[Array, "rows vector"]
    ) -> Float[Array, "rows dim"]:
        """Encodes every row alone; arguments as of `PriorState`."""
        c = self.config
        x = nn.gelu(nn.Dense(c.action_hidden, dtype=self.dtype, name="hidden")(chunks))
        still = similar + _correction(c, self.dtype, x, similar.shape[-1])
        turned = nn.Dense(c.dim, dtype=self.dtype, name="turned")(x).astype(jnp.float32)
        return jnp.concatenate([still, jnp.ones((len(chunks), 1)), turned], axis=-1)


def _correction(config: LatentConfig, dtype: str, x: Float[Array, "n hidden"], width: int) -> Float[Array, "n vector"]:
    """A correction of low rank, zero at first."""
    low = nn.Dense(config.prior_rank, dtype=dtype, name="low")(x)
    return nn.Dense(width, use_bias=False, dtype=dtype, kernel_init=_ZEROS, name="high")(low).astype(jnp.float32)


def make_prior_network(
    config: LatentConfig,
    mean: Float[np.ndarray, " vector"],
    std: Float[np.ndarray, " vector"],
    compute: Compute = FLOAT32,
) -> Network:
    """Towers whose initial Q is the similarity to the question and to the taken chunks, independent of positions.

        Q(s, a) = scale * <unit(q + beta * sum_taken c) + low rank(s), a + low rank(a)> + b(s) + <t(s), R(rho) t(a)>

    with q, c and a at length 1 from the mean of all chunks; low rank(s), low rank(a), b(s) and t(s) are zero at first,
    scale is 1. The last product alone is turned by positions.

    Args:
        config: sizes; `dim` is that of t.
        mean: mean of the training vectors.
        std: their standard deviation per component, positive.
    """
    state, action = PriorState(config, compute.dtype), PriorAction(config, compute.dtype)

    def views(vectors: Array) -> tuple[Array, Array]:
        centred = vectors - mean
        return centred / std, unit(centred)

    def init(key: Array) -> dict:
        key_state, key_action = jax.random.split(key)
        one, chunks = (jax.ShapeDtypeStruct((*size, len(mean)), jnp.float32) for size in ((1,), (1, 1)))
        return {
            "state": state.lazy_init(key_state, one, chunks, one, chunks),
            "action": action.lazy_init(key_action, one, one),
        }

    def actions(params: dict, table: VectorRows) -> Array:
        return cast(Array, action.apply(params["action"], *views(table.vectors)))

    def states(params: dict, questions: VectorRows, table: VectorRows, taken: Int[Array, "batch taken"]) -> Array:
        (question, similar), (chunks, similar_chunks) = views(questions.vectors), views(table.vectors[taken])
        return cast(Array, state.apply(params["state"], question, chunks, similar, similar_chunks))

    num_unrotated = len(mean) + 1  # the prior and the bias
    return Network(init, actions, states, num_unrotated + config.dim, num_unrotated)
