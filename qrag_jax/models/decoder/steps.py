"""The jitted functions that generation runs on the device: read a chunk of a prompt, move rows, decode a block."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, UInt32

from qrag_jax.models.decoder.causal_lm import ComputeDtype, KVCache, Params, extend
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.constraint import Constraint, Where, allowed_tokens, step_on
from qrag_jax.models.decoder.sampling import draw_tokens, draw_unfiltered, log_probabilities
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


class Steps(NamedTuple):
    """Compiled functions of one architecture; those that take a cache to change it use it up."""

    read: Callable[..., Any]
    resize: Callable[..., Any]
    move_in: Callable[..., Any]
    shift: Callable[..., Any]
    choose: Callable[..., Any]
    decode: Callable[..., Any]


@cache
def compiled_steps(
    config: DecoderConfig, compute_dtype: ComputeDtype, ends: tuple[int, ...], mesh: Mesh | None
) -> Steps:
    """The jitted functions, shared by all decoders of an architecture.

    Args:
        ends: ids that end an answer.
        mesh: where caches live; None is one device.
    """
    # Said, not left to XLA: another sharding of the next call's cache would be another compilation.
    where = None

    def jit(function: Callable[..., Any], donate: int | tuple[()], out: Any, **options: Any) -> Callable[..., Any]:
        placed = {} if where is None else {"out_shardings": out}
        return jax.jit(function, donate_argnums=donate, **placed, **options)

    def read(
        params: Params, tokens: Int[Array, "1 C"], cache: KVCache, start: Int[Array, ""], last: Int[Array, ""]
    ) -> tuple[Float[Array, "1 vocab"], KVCache]:
        pads = jnp.zeros(1, jnp.int32)
        return extend(config, params, tokens, pads, cache, start, last=last, compute_dtype=compute_dtype)

    decode = partial(_decode_block, config, compute_dtype, ends)
    return Steps(
        read=jit(read, 2, (None, where)),
        resize=jit(resized, (), where, static_argnames="size"),
        move_in=jit(move_in, 0, where),
        shift=jit(shift_left, 0, where),
        choose=jax.jit(_choose_tokens),
        decode=jit(lambda *args: decode(*args), 1, (where, None, None, None, None)),
    )


def resized(cache: KVCache, size: int) -> KVCache:
    """A copy with `size` slots: its first ones, or zeros behind its own."""

    def copy(rows: Array) -> Array:
        return jnp.pad(rows[:, :size], ((0, 0), (0, max(0, size - rows.shape[1])), (0, 0)))

    return jax.tree.map(copy, cache)


def move_in(cache: KVCache, row: KVCache, index: Int[Array, ""], by: Int[Array, ""]) -> KVCache:
    """The cache with row `index` replaced by the only row of `row`, moved right by `by` slots (left if negative).

    What is pushed over an end comes in at the other: it lies in padding, or in slots that are written before they are
    read.
    """

    def put(all_rows: Array, one: Array) -> Array:
        heads, *rest = one.shape
        by_row = all_rows.reshape(heads, -1, *rest)
        moved = jnp.roll(one, by, axis=1)[:, None]
        return jax.lax.dynamic_update_slice_in_dim(by_row, moved, index, axis=1).reshape(all_rows.shape)

    return jax.tree.map(put, cache, row)


def shift_left(cache: KVCache, by: Int[Array, ""]) -> KVCache:
    """The cache with all rows moved left by `by` slots; see `move_in`."""
    return jax.tree.map(lambda rows: jnp.roll(rows, -by, axis=1), cache)


def _choose_tokens(
    logits: Float[Array, "B vocab"],
    hashes: UInt32[Array, "B 2"],
    counts: Int[Array, " B"],
    rooms: Int[Array, " B"],
    draws: Draws,
    constraint: Constraint | None,
) -> tuple[Int[Array, "B 1"], Float[Array, "B 1"], Where | None]:
    """The next token of every row, its log-probability, and where its grammar then is.

    Args:
        hashes: of each row's prompt and seed; with `counts` they make the key of a draw.
        counts: new tokens that each row has already.
        rooms: most new tokens of each row.
        constraint: what rows are held to; None is nothing. Log-probabilities are those without it.
    """
    kept = logits
    if constraint is not None:
        kept = jnp.where(allowed_tokens(constraint, rooms - counts), logits, -jnp.inf)
    if draws.kind == "greedy":
        tokens = jnp.argmax(kept, axis=-1)
    else:
        keys = jax.vmap(_key_of)(hashes, counts)
        if draws.kind == "all":
            tokens = draw_unfiltered(keys, kept, draws.temperature)
        else:
            tokens = draw_tokens(keys, kept, draws.temperature, draws.top_k, draws.top_p)
    tokens = tokens.astype(jnp.int32)
    where = None if constraint is None else step_on(constraint, tokens)
    return tokens[:, None], log_probabilities(logits, tokens)[:, None], where


def _key_of(hashed: UInt32[Array, " 2"], count: Int[Array, ""]) -> Any:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(hashed[0]), hashed[1]), count)


def _decode_block(
    config: DecoderConfig,
    compute_dtype: ComputeDtype,
    ends: tuple[int, ...],
    params: Params,
    cache: KVCache,
    tokens: Int[Array, " B"],
    pads: Int[Array, " B"],
    hashes: UInt32[Array, "B 2"],
    counts: Int[Array, " B"],
    rooms: Int[Array, " B"],
    live: Any,
    slot: Int[Array, ""],
    steps: Int[Array, ""],
    leave_early: Any,
    draws: Draws,
    constraint: Constraint | None,
) -> tuple[KVCache, Int[Array, "B steps"], Float[Array, "B steps"], Int[Array, ""], Where | None]:
    """Up to `steps` new tokens of every row, without a word to the host.

    It ends earlier when all rows have ended, or with `leave_early` when one has and another prompt waits for its place.
    Rows that have ended go on with tokens that nobody reads.

    Args:
        config, compute_dtype, ends: see `compiled_steps`.
        cache: with everything before `slot`.
        tokens: the last token of each row, which is in no slot yet.
        pads: slots before each row's prompt.
        hashes, counts: see `_choose_tokens`.
        rooms: most new tokens of each row.
        live: bool [B], rows whose answer is not over.
        slot: where `tokens` go.
        steps: at most `BLOCK`.
        constraint: see `_choose_tokens`.

    Returns:
        The cache; tokens and log-probabilities [B, BLOCK], whose first `n` columns are told; n; and where the rows'
        grammars are.
    """
    batch = tokens.shape[0]

    def go_on(state: Any) -> Any:
        _, step, _, alive, _, _, _ = state
        return (step < steps) & alive.any() & ~(leave_early & (live & ~alive).any())

    def one(state: Any) -> Any:
        cache, step, last, alive, chosen, logprobs, where = state
        logits, cache = extend(config, params, last[:, None], pads, cache, slot + step, compute_dtype=compute_dtype)
        held = None if constraint is None else Constraint(constraint.tables, where)
        new, logprob, where = _choose_tokens(logits, hashes, counts + step, rooms, draws, held)
        last = new[:, 0]
        over = (counts + step + 1 >= rooms) | jnp.isin(last, jnp.asarray(ends, jnp.int32))
        put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=step, axis=1)
        return cache, step + 1, last, alive & ~over, put(chosen, new), put(logprobs, logprob), where

    told = jnp.zeros((batch, BLOCK), jnp.int32), jnp.zeros((batch, BLOCK), jnp.float32)
    state = cache, jnp.int32(0), tokens, live, *told, None if constraint is None else constraint.where
    cache, count, _, _, chosen, logprobs, where = jax.lax.while_loop(go_on, one, state)
    return cache, chosen, logprobs, count, where
