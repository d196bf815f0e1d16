"""Groups of answers on the device, drawn and learned from: each prompt is read once for its whole group.

Functions to be jitted with the parameters as an argument, for learners whose policy changes with every update; they
have no journal, no grammar and no stop texts.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt32

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.network import (
    ComputeDtype,
    Params,
    attend_cached,
    attend_packed,
    hidden_states,
    next_logprobs,
    vocabulary_logits,
)


@struct.dataclass
class Rollouts:
    """G answers for each of P prompts, at most M tokens each.

    Attributes:
        tokens: int32 [P, G, M]; 0 behind the end.
        logprobs: float32 [P, G, M]: `log p(token)` at temperature 1 whatever the draw's was, as `token_logprobs` has
            them; 0 behind the end.
        lengths: int32 [P, G], the token that ends an answer counted.
        finished: bool [P, G]; False where an answer was cut at M tokens.
    """

    tokens: Int[Array, "P G M"]
    logprobs: Float[Array, "P G M"]
    lengths: Int[Array, "P G"]
    finished: Bool[Array, "P G"]


@struct.dataclass
class LayerCache:
    """Rotated keys and values of every layer: [L, B, S, kv_heads, c]."""

    keys: Array
    values: Array

    def layer(self, number: Array) -> tuple[Array, Array]:
        """Keys and values of one layer."""
        at = partial(jax.lax.dynamic_index_in_dim, index=number, keepdims=False)
        return at(self.keys), at(self.values)

    def write(self, number: Array, slot: Array | int, keys: Array, values: Array) -> "LayerCache":
        """With the tokens [B, T, kv_heads, c] of a layer from a slot on."""
        start = (number, 0, slot, 0, 0)
        put = jax.lax.dynamic_update_slice
        return LayerCache(
            put(self.keys, keys[None].astype(self.keys.dtype), start),
            put(self.values, values[None].astype(self.values.dtype), start),
        )


def empty_cache(config: DecoderConfig, batch: int, slots: int, dtype: ComputeDtype) -> LayerCache:
    """A cache of zeros."""
    shape = (config.num_layers, batch, slots, config.num_kv_heads, config.head_dim)
    return LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def read_prompts(
    params: Params,
    prompts: Int[Array, "P N"],
    lengths: Int[Array, " P"],
    *,
    config: DecoderConfig,
    slots: int | None = None,
    dtype: ComputeDtype = "float32",
) -> tuple[Float[Array, "P vocab"], LayerCache]:
    """Logits of the first new token of every prompt, and the cache of the prompts.

    Args:
        prompts: padded on the left with any id.
        lengths: tokens of each prompt, at least 1.
        slots: of the cache, at least N; None is N.
    """
    count, size = prompts.shape
    pads = size - lengths[:, None]
    segments = (jnp.arange(size) >= pads).astype(jnp.int32)

    def attend(query: Array, key: Array, value: Array, layer: Array, cache: LayerCache) -> tuple[Array, LayerCache]:
        return attend_packed(query, key, value, segments), cache.write(layer, 0, key, value)

    positions = jnp.maximum(jnp.arange(size) - pads, 0)
    cache = empty_cache(config, count, slots or size, dtype)
    hidden, cache = hidden_states(params, prompts, positions, attend, cache, config=config, dtype=dtype)
    return vocabulary_logits(params, hidden[:, -1]), cache


def generate_groups(
    params: Params,
    prompts: Int[Array, "P N"],
    lengths: Int[Array, " P"],
    seeds: UInt32[Array, "P G"],
    *,
    config: DecoderConfig,
    max_tokens: int,
    end_ids: tuple[int, ...],
    temperature: float = 1.0,
    dtype: ComputeDtype = "float32",
) -> Rollouts:
    """Draws an answer for every seed of every prompt from `softmax(logits / temperature)`.

    Token t of an answer is drawn with `fold_in(key(seed), t)`: it depends on the parameters, the prompt and the seed,
    not on the other rows or on the devices. Compile it with `config`, `max_tokens`, `end_ids`, `temperature` and
    `dtype` fixed; each shape of the arrays compiles once.

    Args:
        prompts: padded on the left with any id.
        lengths: tokens of each prompt, at least 1.
        seeds: of the answers of a group; equal seeds give equal answers.
        max_tokens: M, at least 1.
        end_ids: a drawn token among them ends an answer.
        temperature: 0 takes the most likely token.
    """
    (num_prompts, group), size = seeds.shape, prompts.shape[1]
    rows = num_prompts * group
    logits, read = read_prompts(params, prompts, lengths, config=config, dtype=dtype)
    logits = jnp.repeat(logits, group, axis=0)
    keys = jax.vmap(jax.random.key)(seeds.reshape(rows))
    ends = jnp.asarray(end_ids, jnp.int32)
    real = jnp.arange(size) >= size - lengths[:, None]
    starts = jnp.repeat(lengths, group)

    def draw(logits: Array, step: Array) -> tuple[Array, Array]:
        token = logits.argmax(axis=-1)
        if temperature > 0:
            own = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
            token = jax.vmap(jax.random.categorical)(own, logits / temperature)
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=-1)[:, 0]
        return token.astype(jnp.int32), logprobs

    def attend(step: Array, query: Array, key: Array, value: Array, layer: Array, cache: LayerCache) -> tuple:
        cache = cache.write(layer, step, key, value)
        written = jnp.broadcast_to(jnp.arange(max_tokens) <= step, (rows, 1, max_tokens))
        of_group = query.reshape(num_prompts, group, *query.shape[2:])
        parts = [
            attend_part(of_group, *read.layer(layer), jnp.broadcast_to(real[:, None], (num_prompts, group, size))),
            attend_part(query, *cache.layer(layer), written),
        ]
        return join_parts(
            [(mixed.reshape(query.shape), total.reshape(query.shape[:3])) for mixed, total in parts]
        ), cache

    def goes_on(state: tuple) -> Array:
        step, *_, done = state
        return (step < max_tokens) & ~done.all()

    def advance(state: tuple) -> tuple:
        step, logits, cache, tokens, logprobs, counts, done = state
        token, logprob = draw(logits, step)
        tokens = tokens.at[:, step].set(jnp.where(done, 0, token))
        logprobs = logprobs.at[:, step].set(jnp.where(done, 0.0, logprob))
        counts, done = counts + ~done, done | jnp.isin(token, ends)
        hidden, cache = hidden_states(
            params, token[:, None], (starts + step)[:, None], partial(attend, step), cache, config=config, dtype=dtype
        )
        return step + 1, vocabulary_logits(params, hidden[:, 0]), cache, tokens, logprobs, counts, done

    state = (
        jnp.int32(0),
        logits,
        empty_cache(config, rows, max_tokens, dtype),
        jnp.zeros((rows, max_tokens), jnp.int32),
        jnp.zeros((rows, max_tokens), jnp.float32),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros(rows, bool),
    )
    *_, tokens, logprobs, counts, done = jax.lax.while_loop(goes_on, advance, state)
    grouped = (num_prompts, group)
    return Rollouts(
        tokens.reshape(*grouped, -1), logprobs.reshape(*grouped, -1), counts.reshape(grouped), done.reshape(grouped)
    )


def answer_logprobs(
    params: Params,
    prompts: Int[Array, "P N"],
    lengths: Int[Array, " P"],
    answers: Int[Array, "P G M"],
    *,
    config: DecoderConfig,
    dtype: ComputeDtype = "float32",
    remat: bool = True,
) -> Float[Array, "P G M"]:
    """`log p(token)` of the tokens of answers, as `token_logprobs` of each prompt with each of its answers.

    The group shares its prompt: N + G M tokens are read in place of G (N + M).

    Args:
        prompts: padded on the left with any id.
        lengths: tokens of each prompt, at least 1.
        answers: any id behind an end; the numbers there mean nothing.
        remat: see `hidden_states`.
    """
    (num_prompts, group, size), width = answers.shape, prompts.shape[1]
    pads = width - lengths[:, None]
    real = jnp.arange(width) >= pads
    segments, earlier = real.astype(jnp.int32), real & (jnp.arange(width) < width - 1)
    # Every answer begins with the last token of its prompt, whose output predicts the first token of the answer.
    last = jnp.broadcast_to(prompts[:, -1:, None], (num_prompts, group, 1))
    begun = jnp.concatenate([last, answers[..., :-1]], axis=-1).reshape(num_prompts, -1)
    places = jnp.broadcast_to((lengths[:, None] - 1 + jnp.arange(size))[:, None], answers.shape)
    rows = num_prompts * group
    seen = jnp.broadcast_to(earlier[:, None, None], (num_prompts, group, size, width)).reshape(rows, size, width)
    mask = jnp.concatenate(
        [seen, jnp.broadcast_to(jnp.tril(jnp.ones((size, size), bool)), (rows, size, size))], axis=-1
    )

    def attend(query: Array, key: Array, value: Array, _: Array, cache: tuple) -> tuple[Array, tuple]:
        shared, new = ([x[:, :width] for x in (query, key, value)], [x[:, width:] for x in (query, key, value)])
        single = [x.reshape(rows, size, *x.shape[2:]) for x in new]
        # One softmax over both: `attend_part` would lose the gradient, because JAX stops it at the residual.
        both = [jnp.concatenate([jnp.repeat(x, group, axis=0), y], axis=1) for x, y in zip(shared, single, strict=True)]
        mixed = attend_cached(single[0], both[1], both[2], mask).reshape(new[0].shape)
        return jnp.concatenate([attend_packed(shared[0], shared[1], shared[2], segments), mixed], axis=1), cache

    hidden, _ = hidden_states(
        params,
        jnp.concatenate([prompts, begun], axis=1),
        jnp.concatenate([jnp.maximum(jnp.arange(width) - pads, 0), places.reshape(num_prompts, -1)], axis=1),
        attend,
        config=config,
        dtype=dtype,
        remat=remat,
    )
    new = hidden[:, width:].reshape(rows, size, -1)
    return next_logprobs(params, new, answers.reshape(rows, size)).reshape(answers.shape)


def attend_part(
    query: Float[Array, "B T heads c"],
    keys: Float[Array, "B S kv_heads c"],
    values: Float[Array, "B S kv_heads c"],
    mask: Bool[Array, "B T S"],
) -> tuple[Float[Array, "B T heads c"], Float[Array, "B T heads"]]:
    """Attention to some of the slots, and the logarithm of the sum of their weights, for `join_parts`.

    Only for drawing: JAX lets no gradient through the logarithm.
    """
    return jax.nn.dot_product_attention(query, keys, values, mask=mask[:, None], return_residual=True)


def join_parts(
    parts: list[tuple[Float[Array, "B T heads c"], Float[Array, "B T heads"]]],
) -> Float[Array, "B T heads c"]:
    """Attention to the slots of all parts: `sum_i softmax_i(total_i) mixed_i`."""
    mixed, totals = (jnp.stack(each) for each in zip(*parts, strict=True))
    weights = jax.nn.softmax(totals.astype(jnp.float32), axis=0).astype(mixed.dtype)
    return (weights[..., None] * mixed).sum(axis=0)
