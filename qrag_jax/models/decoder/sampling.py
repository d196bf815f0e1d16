"""How the next token is chosen from logits: greedy, temperature, top-k, top-p. Pure functions, keys explicit."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Num, UInt32

_DROPPED = -jnp.inf
_MIN_TEMPERATURE = float(jnp.finfo(jnp.float32).tiny)
_MAX_TEMPERATURE = 1e30  # all tokens are as likely; the reciprocal of more is 0, which makes NaN of -inf


def log_probabilities(logits: Float[Array, "B vocab"], tokens: Int[Array, " B"]) -> Float[Array, " B"]:
    """`log softmax(logits)` at the given tokens, natural logarithm, no temperature; NaN if a logit is NaN."""
    logits = logits.astype(jnp.float32)
    logits = logits - logits.max(axis=-1, keepdims=True)  # before the sum: large logits would take its digits
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return chosen - jnp.log(jnp.exp(logits).sum(axis=-1))


def draw_tokens(
    keys: Key[Array, " B"],
    logits: Float[Array, "B vocab"],
    temperature: Num[Array, ""] | float,
    top_k: Int[Array, ""] | int,
    top_p: Num[Array, ""] | float,
) -> Int[Array, " B"]:
    """Draws a token a row from `softmax(logits / temperature)` over its top-k and then its top-p tokens.

    Top-p reads the probabilities that are left after top-k, made to sum to 1. With top_k 0 and top_p 1 all tokens
    stay; `draw_unfiltered` is then the same and faster.

    Args:
        logits: finite, or -inf for tokens that are never drawn; not all of a row.
        temperature: 0 or more; near 0 only the most likely token is left, and those that equal it.
        top_k: 0 is all.
        top_p: above 0; 1 is all.
    """
    scaled = _scaled(logits, temperature)
    kept = jnp.where((top_k <= 0) | keep_top_k(scaled, top_k), scaled, _DROPPED)
    kept = jnp.where((top_p >= 1) | keep_top_p(kept, top_p), kept, _DROPPED)
    return jax.vmap(jax.random.categorical)(keys, kept)


def draw_unfiltered(
    keys: Key[Array, " B"], logits: Float[Array, "B vocab"], temperature: Num[Array, ""] | float
) -> Int[Array, " B"]:
    """Draws a token a row from `softmax(logits / temperature)`; see `draw_tokens`."""
    return jax.vmap(jax.random.categorical)(keys, _scaled(logits, temperature))


def _scaled(logits: Float[Array, "B vocab"], temperature: Num[Array, ""] | float) -> Float[Array, "B vocab"]:
    """Logits over temperature, the largest of a row being 0: a small temperature takes only the others to -inf."""
    logits = logits.astype(jnp.float32)
    bounded = jnp.clip(jnp.asarray(temperature, jnp.float32), _MIN_TEMPERATURE, _MAX_TEMPERATURE)
    return (logits - logits.max(axis=-1, keepdims=True)) / bounded


def keep_top_k(logits: Float[Array, "B vocab"], top_k: Int[Array, ""] | int) -> Bool[Array, "B vocab"]:
    """The k largest logits of every row; all that equal the k-th largest stay, so ties may make it more."""
    return logits >= _largest_bound(logits, lambda chosen: chosen.sum(axis=-1) >= top_k)


def keep_top_p(logits: Float[Array, "B vocab"], top_p: Num[Array, ""] | float) -> Bool[Array, "B vocab"]:
    """The fewest most likely tokens whose probabilities reach `top_p` (nucleus sampling, Holtzman et al. 2020).

    The token that reaches the sum stays, so at least one does; tokens as likely as the last one stay too.
    """
    probabilities = jax.nn.softmax(logits, axis=-1)

    def reaches(chosen: Bool[Array, "B vocab"]) -> Bool[Array, " B"]:
        return jnp.where(chosen, probabilities, 0).sum(axis=-1) >= top_p

    return probabilities >= _largest_bound(probabilities, reaches)


def _largest_bound(
    values: Float[Array, "B vocab"], enough: Callable[[Bool[Array, "B vocab"]], Bool[Array, " B"]]
) -> Float[Array, "B 1"]:
    """The largest value v of each row for which `enough(values >= v)`; the smallest float if there is none.

    `enough` must stay true when more is chosen. Found bit by bit, since sorting a vocabulary takes XLA on CPU several
    times as long: the bits of floats, the sign bit turned round, are ordered as the floats are.
    """
    ordered = _ordered_bits(values.astype(jnp.float32))

    def set_bit(step: Int[Array, ""], bound: UInt32[Array, " B"]) -> UInt32[Array, " B"]:
        higher = bound | (jnp.uint32(1) << (31 - step).astype(jnp.uint32))
        return jnp.where(enough(ordered >= higher[:, None]), higher, bound)

    bound = jax.lax.fori_loop(0, 32, set_bit, jnp.zeros(values.shape[0], jnp.uint32))
    return jnp.where(ordered >= bound[:, None], values.astype(jnp.float32), jnp.inf).min(axis=-1, keepdims=True)


def _ordered_bits(values: Float[Array, "B vocab"]) -> UInt32[Array, "B vocab"]:
    """Unsigned integers in the order of the floats."""
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)
