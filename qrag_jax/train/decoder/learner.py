"""Updates of a decoder: one pure function for imitation and for GRPO, jitted once, its state donated."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.network import ComputeDtype, Params, token_logprobs
from qrag_jax.models.decoder.rollout import Rollouts, answer_logprobs, generate_groups
from qrag_jax.models.decoder.sharding import decoder_shardings
from qrag_jax.train.decoder.losses import grpo_loss, sft_loss
from qrag_jax.train.lora import join_trained
from qrag_jax.train.trainer import jit_update


@struct.dataclass
class LearnerState:
    """The arrays that an update changes.

    Attributes:
        params: the parameters that are trained: all, or the low-rank ones (`lora.split_trained`).
        opt_state: of Adam, one for imitation and reinforcement; new at the start of every phase of a run.
        reference: `params` of the reference policy; {} if the loss does not read it.
    """

    params: Any
    opt_state: optax.OptState
    reference: Any


class Imitated(NamedTuple):
    """Rows to imitate.

    Attributes:
        tokens, segments: [rows, width], as in `packing.Rows`.
        weights: [rows, width], `losses.token_weights`.
    """

    tokens: Any
    segments: Any
    weights: Any


class Drawn(NamedTuple):
    """Groups of drawn answers to learn from.

    Attributes:
        prompts: [P, N], padded on the left; `lengths` [P] of them count.
        answers: [P, G, M].
        weights: [P, G, M], `losses.token_weights`.
        advantages: [P, G].
        old_logprobs: [P, G, M], under the policy that drew them; None: that policy is the one before this update.
    """

    prompts: Any
    lengths: Any
    answers: Any
    weights: Any
    advantages: Any
    old_logprobs: Any = None


Batch = Imitated | Drawn


@dataclass(frozen=True)
class LearnerConfig:
    """Everything that is compiled into the functions of a learner.

    Attributes:
        decoder: the model.
        end_ids: tokens that end an answer.
        max_tokens: limit of an answer.
        parts: of the groups of an update, one in memory at a time.
    """

    decoder: DecoderConfig
    end_ids: tuple[int, ...]
    dtype: ComputeDtype = "float32"
    remat: bool = True
    max_norm: float = 1.0
    max_tokens: int = 128
    temperature: float = 1.0
    parts: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.04


class Learner(NamedTuple):
    """Jitted functions; each shape of their arrays compiles once, whatever the run.

    Attributes:
        init: trained parameters -> state with a new optimiser, the reference being these parameters.
        update: (state, other parameters, batch, learning rate) -> (state, metrics).
        logprobs: (trained, other parameters, prompts, lengths, answers) -> log-probabilities of answers.
        draw, draw_greedy: (trained, other parameters, prompts, lengths, seeds) -> `Rollouts`; greedy without a seed.
    """

    init: Callable[[Any], LearnerState]
    update: Callable[..., tuple[LearnerState, dict[str, Array]]]
    logprobs: Callable[..., Array]
    draw: Callable[..., Rollouts]
    draw_greedy: Callable[..., Rollouts]


@cache
def make_learner(config: LearnerConfig, mesh: Mesh) -> Learner:
    """The functions of a learner; equal configs share them, so that runs in one process compile once."""
    optimiser = optax.chain(optax.clip_by_global_norm(config.max_norm), optax.scale_by_adam())
    options = {"config": config.decoder, "dtype": config.dtype, "remat": config.remat}
    read, read_answers = partial(token_logprobs, **options), partial(answer_logprobs, **options)

    def placed(state: LearnerState) -> LearnerState:
        if mesh.size == 1:
            return state
        return jax.lax.with_sharding_constraint(state, decoder_shardings(mesh, config.decoder, state))

    def init(params: Params) -> LearnerState:
        own = jax.tree.map(jnp.copy, params)  # the update reuses its buffers
        reference = jax.tree.map(jnp.copy, params) if config.kl_coef else {}
        return placed(LearnerState(own, optimiser.init(own), reference))

    def loss(params: Params, others: Params, reference: Params, batch: Batch) -> tuple[Array, dict[str, Array]]:
        if isinstance(batch, Imitated):
            value = sft_loss(read(join_trained(params, others), batch.tokens, batch.segments), batch.weights)
            return value, {"imitation": value}
        asked = batch.prompts, batch.lengths, batch.answers
        logprobs = read_answers(join_trained(params, others), *asked)
        known = logprobs if not config.kl_coef else read_answers(join_trained(reference, others), *asked)
        old = logprobs if batch.old_logprobs is None else batch.old_logprobs
        flat, old, known = (x.reshape(-1, x.shape[-1]) for x in (logprobs, old, known))
        options = {"clip_low": config.clip_low, "clip_high": config.clip_high, "kl_coef": config.kl_coef}
        weights = batch.weights.reshape(flat.shape)
        value, metrics = grpo_loss(flat, old, known, batch.advantages.ravel(), weights, **options)
        return value, metrics | {"loss": value}

    def gradient(state: LearnerState, others: Params, batch: Batch) -> tuple[Params, dict[str, Array]]:
        own = jax.grad(loss, has_aux=True)
        if config.parts == 1 or isinstance(batch, Imitated):
            return own(state.params, others, state.reference, batch)
        parts = jax.tree.map(lambda x: x.reshape(config.parts, -1, *x.shape[1:]), batch)
        one = lambda part: own(state.params, others, state.reference, part)  # noqa: E731

        def add(total: Any, part: Batch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, one(part)), None

        shapes = jax.eval_shape(one, jax.tree.map(lambda x: x[0], parts))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.scan(add, zeros, parts)[0]  # weights are known, so parts add up

    def update(
        state: LearnerState, others: Params, batch: Batch, rate: Float[Array, ""]
    ) -> tuple[LearnerState, dict[str, Array]]:
        slope, metrics = gradient(state, others, batch)
        step, opt_state = optimiser.update(slope, state.opt_state, state.params)
        params = jax.tree.map(lambda x, change: x - rate * change, state.params, step)
        sizes = {"gradient": optax.tree.norm(slope), "parameters": optax.tree.norm(params)}  # of both: no NaN is saved
        return placed(LearnerState(params, opt_state, state.reference)), metrics | sizes

    def draw(params: Params, others: Params, *prompts: Array, temperature: float) -> Rollouts:
        return generate_groups(
            join_trained(params, others),
            *prompts,
            config=config.decoder,
            max_tokens=config.max_tokens,
            end_ids=config.end_ids,
            temperature=temperature,
            dtype=config.dtype,
        )

    return Learner(
        jax.jit(init),
        jit_update(update),
        jax.jit(lambda params, others, *rows: read_answers(join_trained(params, others), *rows)),
        jax.jit(partial(draw, temperature=config.temperature)),
        jax.jit(partial(draw, temperature=0.0)),
    )


@partial(jax.jit, static_argnums=(3, 4))
def answer_seeds(seed: ArrayLike, step: ArrayLike, salt: ArrayLike, rows: int, group: int) -> Array:
    """A seed for every answer, uint32 [rows, group]: the run's key folded with the step, its kind of rollout, the row.

    Args:
        salt: 0 for vanilla rollouts, 1 for hinted ones, ...
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), salt)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))
    return jax.vmap(lambda own: jax.random.bits(own, (group,), jnp.uint32))(keys)
