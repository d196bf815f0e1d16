"""Latent towers (ours): a transformer over the vectors of the question and the chunks taken so far, an MLP on chunks.

The text encoder stays frozen: the index of chunk vectors is built once and a retrieval step costs microseconds. The
vectors may come from anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from qrag_jax.models.encoder.text_encoder import FLOAT32, Compute
from qrag_jax.models.towers.q_network import Network, VectorRows
from qrag_jax.models.weights.config_limits import size_problem
from qrag_jax.types import UsageError, check_fields


@dataclass(frozen=True)
class LatentConfig:
    """Sizes of the latent towers.

    `residual` starts from the similarity of the vectors: a tower adds a correction, at first zero, to the
    standardised vector of the question or the chunk. It needs `dim` to be the width of the vectors. It suits few
    questions; with many, towers with a separate `dim` learn faster and score at lower cost.

    `prior` starts from a search in several steps (`prior.make_prior_network`): similarity to the question and, `beta`
    times, to the chunks taken so far, without rotation by positions. The towers learn corrections of rank
    `prior_rank` and `dim` components that positions rotate.

    Raises:
        UsageError: a size below 1, a width that does not split into heads, or two starts at once.
    """

    width: int = 128  # state transformer
    num_layers: int = 2
    num_heads: int = 4
    action_hidden: int = 256  # hidden width of the chunk MLP
    dim: int = 128  # where states and actions meet
    residual: bool = False
    prior: bool = False
    prior_beta: float = 0.5  # what a taken chunk counts beside the question at first; learned
    prior_rank: int = 16  # of the corrections

    def __post_init__(self) -> None:
        sizes = ("width", "num_layers", "num_heads", "action_hidden", "dim", "prior_rank")
        check_fields(self, positive=sizes, within={"prior_beta": "[0, inf)"})
        for name in sizes:
            if problem := size_problem(name if name.startswith("num_") else "hidden_size", getattr(self, name), name):
                raise UsageError(problem)
        if self.width % (2 * self.num_heads):
            raise UsageError(f"width={self.width} must be a multiple of twice num_heads={self.num_heads}")
        if self.residual and self.prior:
            raise UsageError("residual=true and prior=true cannot both be set: choose one")


class LatentState(nn.Module):
    """Question and taken chunks, as vectors in document order -> one state vector."""

    config: LatentConfig
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self, question: Float[Array, "batch vector"], chunks: Float[Array, "batch taken vector"]
    ) -> Float[Array, "batch dim"]:
        """Encodes a batch of states that hold the same number of chunks."""
        return _out(self.config, self.dtype, question)(read_state(self.config, self.dtype, question, chunks))


def read_state(
    config: LatentConfig, dtype: str, question: Float[Array, "batch vector"], chunks: Float[Array, "batch taken vector"]
) -> Float[Array, "batch width"]:
    """The transformer over a state, before the last layer of its tower; to be called in a compact module."""
    question_token = nn.Dense(config.width, dtype=dtype, name="question_in")(question)[:, None]
    chunk_tokens = nn.Dense(config.width, dtype=dtype, name="chunk_in")(chunks)
    chunk_tokens = chunk_tokens + order_code(chunks.shape[1], config.width).astype(chunk_tokens.dtype)
    x = jnp.concatenate([question_token, chunk_tokens], axis=1)
    for layer in range(config.num_layers):
        x = Block(config.width, config.num_heads, dtype, name=f"layer_{layer}")(x)
    return nn.LayerNorm(dtype=dtype, name="final_norm")(x[:, 0])


class Block(nn.Module):
    """One pre-norm transformer layer without dropout."""

    width: int
    num_heads: int
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens width"]:
        """Self-attention and MLP, each with a residual."""
        dtype = self.dtype
        y = nn.LayerNorm(dtype=dtype, name="attention_norm")(x)
        x = x + nn.MultiHeadDotProductAttention(
            self.num_heads, dtype=dtype, force_fp32_for_softmax=True, name="attention"
        )(y)
        y = nn.LayerNorm(dtype=dtype, name="mlp_norm")(x)
        y = nn.Dense(4 * self.width, dtype=dtype, name="mlp_in")(y)
        return x + nn.Dense(self.width, dtype=dtype, name="mlp_out")(nn.gelu(y))


class LatentAction(nn.Module):
    """A chunk's vector -> its action vector."""

    config: LatentConfig
    dtype: str = "float32"

    @nn.compact
    def __call__(self, chunks: Float[Array, "rows vector"]) -> Float[Array, "rows dim"]:
        """Encodes every row alone."""
        x = nn.gelu(nn.Dense(self.config.action_hidden, dtype=self.dtype, name="hidden")(chunks))
        return _out(self.config, self.dtype, chunks)(x)


def _out(config: LatentConfig, dtype: str, vectors: Float[Array, "n vector"]) -> Callable[[Array], Array]:
    """The last layer of a tower, to float32; of a residual one a correction of `vectors`, zero at first."""
    if not config.residual:
        out = nn.Dense(config.dim, dtype=dtype, name="out")
        return lambda x: out(x).astype(jnp.float32)
    correction = nn.Dense(config.dim, dtype=dtype, name="out", kernel_init=nn.initializers.zeros_init())
    return lambda x: vectors + correction(x).astype(jnp.float32)


def order_code(num_chunks: int, width: int) -> np.ndarray:
    """Sinusoidal code of the rank of a taken chunk in document order, float32 [num_chunks, width]."""
    rank = np.arange(num_chunks, dtype=np.float64)[:, None]
    angle = rank * 100.0 ** (-np.arange(width // 2, dtype=np.float64) / (width // 2))
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1).astype(np.float32)


def make_latent_network(
    config: LatentConfig,
    mean: Float[np.ndarray, " vector"],
    std: Float[np.ndarray, " vector"],
    compute: Compute = FLOAT32,
) -> Network:
    """Latent towers over vectors that are standardised with the given constants.

    Args:
        config: sizes.
        mean: mean of the training vectors.
        std: their standard deviation per component.
        compute: precision; these towers are too small for `remat` to matter.

    Raises:
        ValueError: a component of `std` is not positive.
        UsageError: residual towers of another width than the vectors.
    """
    if not np.all(std > 0):
        raise ValueError(
            "std must be positive in every component: a constant component carries nothing, set its std to 1"
        )
    if config.residual and config.dim != len(mean):
        raise UsageError(
            f"model.latent.residual=true needs model.latent.dim={len(mean)}, the width of the vectors, got {config.dim}"
        )
    state, action = LatentState(config, compute.dtype), LatentAction(config, compute.dtype)
    # Fresh Q values are moderate: inner products of random vectors, or of standardised ones (then about a cosine).
    scale = np.float32(1 / config.dim if config.residual else config.dim**-0.5)

    def standardise(vectors: Array) -> Array:
        return (vectors - mean) / std

    def init(key: Array) -> dict:
        key_state, key_action = jax.random.split(key)
        one, chunks = (jax.ShapeDtypeStruct((*size, len(mean)), jnp.float32) for size in ((1,), (1, 1)))
        return {"state": state.lazy_init(key_state, one, chunks), "action": action.lazy_init(key_action, one)}

    def actions(params: dict, table: VectorRows) -> Array:
        return cast(Array, action.apply(params["action"], standardise(table.vectors)))

    def states(params: dict, questions: VectorRows, table: VectorRows, taken: Int[Array, "batch taken"]) -> Array:
        chunks = standardise(table.vectors[taken])
        return scale * cast(Array, state.apply(params["state"], standardise(questions.vectors), chunks))

    return Network(init, actions, states, config.dim)
