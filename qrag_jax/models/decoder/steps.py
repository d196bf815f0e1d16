"""The two steps of generation on the device: one reads the prompts of a batch, one writes a block of tokens."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.constraint import Constraint, Where, allowed_tokens, step_on
from qrag_jax.models.decoder.network import ComputeDtype, Params, attend_cached, hidden_states, vocabulary_logits
from qrag_jax.models.decoder.rollout import LayerCache, read_prompts
from qrag_jax.models.decoder.sampling import draw_tokens, draw_unfiltered, log_probabilities
from qrag_jax.models.decoder.sharding import cache_sharding
from qrag_jax.types import Sampling

BLOCK = 16  # most new tokens of a row between two looks of the host


@struct.dataclass
class Draws:
    """How tokens are drawn: numbers that may change without a new compilation, and the kind, which may not."""

    temperature: Any
    top_k: Any
    top_p: Any
    kind: str = struct.field(pytree_node=False)  # "greedy", "all" or "filtered"

    @classmethod
    def of(cls, sampling: Sampling) -> "Draws":
        """The part of a sampling that the device needs."""
        kind = "all" if sampling.top_k == 0 and sampling.top_p == 1 else "filtered"
        temperature = np.float32(min(sampling.temperature, float(np.finfo(np.float32).max)))
        kind = kind if temperature > 0 else "greedy"
        numbers = temperature, np.int32(min(sampling.top_k, 2**31 - 1)), np.float32(sampling.top_p)
        return cls(*numbers, kind)


@struct.dataclass
class Rows:
    """Prompts of a batch, and how they are to be answered.

    Attributes:
        size: int32 [], slots of the prompts, padding counted.
        lengths: int32 [B], tokens of each prompt, which stand at the end of its slots.
        hashes: uint32 [B, 2], of prompt and seed; with the number of a token they make the key of its draw.
        rooms: int32 [B], most new tokens.
        draws: how tokens are drawn.
    """

    size: Any
    lengths: Any
    hashes: Any
    rooms: Any
    draws: Draws


@struct.dataclass
class Written:
    """A batch at work: `count` new tokens of every row are in the cache, and `logits` [B, vocab] those of the next."""

    cache: LayerCache
    logits: Any
    count: Any


@cache
def compiled_steps(
    config: DecoderConfig, compute_dtype: ComputeDtype, ends: tuple[int, ...], mesh: Mesh | None
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two jitted functions, shared by all decoders of an architecture: the second uses up what it gets as `Written`.

    Args:
        ends: ids that end an answer.
        mesh: where caches live; None is one device.
    """

    def read(params: Params, prompts: Int[Array, "B N"], lengths: Int[Array, " B"], slots: int) -> Written:
        logits, cache = read_prompts(params, prompts, lengths, config=config, slots=slots, dtype=compute_dtype)
        return Written(cache, logits, jnp.int32(0))

    # Said, not left to XLA: another sharding of the next call's cache would be another compilation.
    placed: Any = None if mesh is None else Written(cache_sharding(mesh, config), None, None)
    write = partial(write_block, config, compute_dtype, ends)
    return (
        jax.jit(read, static_argnames="slots", out_shardings=placed),
        jax.jit(write, donate_argnums=1, out_shardings=None if mesh is None else (placed, None, None)),
    )


def write_block(
    config: DecoderConfig,
    compute_dtype: ComputeDtype,
    ends: tuple[int, ...],
    params: Params,
    written: Written,
    rows: Rows,
    live: Bool[Array, " B"],
    constraint: Constraint | None,
) -> tuple[Written, tuple[Int[Array, "B steps"], Float[Array, "B steps"], Int[Array, ""]], Where | None]:
    """Up to `BLOCK` new tokens of every row, without a word to the host; it ends earlier when all rows have ended.

    Rows that have ended go on with tokens that nobody reads.

    Args:
        config, compute_dtype, ends: see `compiled_steps`.
        live: rows whose answer is not over.
        constraint: what rows are held to; None is nothing. Log-probabilities are those without it.

    Returns:
        The batch; tokens and log-probabilities [B, BLOCK], whose first `n` columns are told, and n; and where the rows'
        grammars are.
    """
    slots = jnp.arange(written.cache.keys.shape[2])
    batch = live.shape[0]

    def attend(count: Array, query: Array, key: Array, value: Array, layer: Array, cache: LayerCache) -> tuple:
        slot = rows.size + count
        cache = cache.write(layer, slot, key, value)
        seen = (slots <= slot) & (slots >= rows.size - rows.lengths[:, None])
        return attend_cached(query, *cache.layer(layer), seen[:, None]), cache

    def goes_on(state: tuple) -> Array:
        _, step, alive, *_ = state
        return (step < BLOCK) & alive.any()

    def advance(state: tuple) -> tuple:
        now, step, alive, chosen, logprobs, where = state
        held = None if constraint is None else Constraint(constraint.tables, where)
        tokens, where = _draw(now.logits, now.count, rows, held)
        hidden, cache = hidden_states(
            params,
            tokens[:, None],
            (rows.lengths + now.count)[:, None],
            partial(attend, now.count),
            now.cache,
            config=config,
            dtype=compute_dtype,
        )
        after = Written(cache, vocabulary_logits(params, hidden[:, 0]), now.count + 1)
        alive &= (after.count < rows.rooms) & ~jnp.isin(tokens, jnp.asarray(ends, jnp.int32))
        logprobs = logprobs.at[:, step].set(log_probabilities(now.logits, tokens))
        return after, step + 1, alive, chosen.at[:, step].set(tokens), logprobs, where

    told = jnp.zeros((batch, BLOCK), jnp.int32), jnp.zeros((batch, BLOCK), jnp.float32)
    state = written, jnp.int32(0), live, *told, None if constraint is None else constraint.where
    written, count, _, chosen, logprobs, where = jax.lax.while_loop(goes_on, advance, state)
    return written, (chosen, logprobs, count), where


def _draw(
    logits: Float[Array, "B vocab"], count: Int[Array, ""], rows: Rows, constraint: Constraint | None
) -> tuple[Int[Array, " B"], Where | None]:
    """The next token of every row, and where its grammar then is."""
    draws = rows.draws
    if constraint is not None:
        logits = jnp.where(allowed_tokens(constraint, rows.rooms - count), logits, -jnp.inf)
    if draws.kind == "greedy":
        tokens = jnp.argmax(logits, axis=-1)
    else:
        keys = jax.vmap(lambda own: jax.random.fold_in(jax.random.fold_in(jax.random.key(own[0]), own[1]), count))(
            rows.hashes
        )
        if draws.kind == "all":
            tokens = draw_unfiltered(keys, logits, draws.temperature)
        else:
            tokens = draw_tokens(keys, logits, draws.temperature, draws.top_k, draws.top_p)
    tokens = tokens.astype(jnp.int32)
    return tokens, None if constraint is None else step_on(constraint, tokens)
