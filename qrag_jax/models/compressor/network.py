"""The compressor's networks: pure functions of one parent; `jax.vmap` makes them of many.

Of children c_i of t_i tokens, w_i = t_i / sum t:

    mean        m = sum_i w_i c_i / |sum_i w_i c_i|
    mlp         y = m + W gelu(U sum_i w_i f(c_i) + b),     f(c) = gelu(A c + a)
    attention   y = sum_i softmax_i(log t_i + s_i) c_i,     s_i = v . gelu(C c_i + M m + F x_i + d)
    both        the attention's y in the place of m, and the mlp's correction

x_i are how near child i is to the mean, log t_i and the logarithm of the number of children. The parent is y / |y|. W
and v are zero at first, so that what is not trained is the mean. The order of the children counts for nothing.
"""

import math
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Kind = Literal["mlp", "attention", "both"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NUM_FEATURES = 3
_LEAST = -1e30  # a score that takes part in nothing
Params = dict[str, Any]

# Names of the parameters of each part, with their shapes by `dim` and `hidden`.
_MLP = {"child": "dh", "child_bias": "h", "inner": "hh", "inner_bias": "h", "out": "hd"}
_ATTENTION = {"score_child": "dh", "score_mean": "dh", "score_features": "fh", "score_bias": "h", "score_out": "h"}
_ZERO = ("out", "score_out", "child_bias", "inner_bias", "score_bias")


def shapes(kind: Kind, dim: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its name."""
    sizes = {"d": dim, "h": hidden, "f": NUM_FEATURES}
    named = (_MLP if kind != "attention" else {}) | (_ATTENTION if kind != "mlp" else {})
    return {name: tuple(sizes[letter] for letter in letters) for name, letters in named.items()}


def init(key: Array, kind: Kind, dim: int, hidden: int) -> Params:
    """Parameters of a compressor that is the mean.

    Args:
        key: consumed.
        hidden: units of each inner layer.
    """
    wanted = shapes(kind, dim, hidden)
    keys = jax.random.split(key, len(wanted))
    return {
        name: jnp.zeros(shape) if name in _ZERO else jax.random.normal(own, shape) / math.sqrt(shape[0])
        for own, (name, shape) in zip(keys, wanted.items(), strict=True)
    }


def compress(
    params: Params,
    children: Float[Array, "children dim"],
    num_tokens: Int[Array, " children"],
    mask: Bool[Array, " children"],
) -> Float[Array, " dim"]:
    """The vector of one parent, of length 1; zeros where its children have no direction.

    Args:
        params: of `init`; they say which network it is.
        children: of length 1 or 0; those that are not in `mask` are any finite numbers.
        num_tokens: of each child; one without a token counts as one.
        mask: which children are there; at least one, or the parent has no direction.
    """
    kept = jnp.where(mask[:, None], children, 0.0)
    tokens = jnp.where(mask, jnp.maximum(num_tokens, 1), 0).astype(kept.dtype)
    weights = tokens / jnp.maximum(tokens.sum(), 1.0)
    mean = unit(weights @ kept)
    pooled = mean if "score_out" not in params else _attend(params, kept, tokens, mask, mean)
    return unit(pooled if "out" not in params else pooled + _correction(params, kept, weights))


def _correction(
    params: Params, children: Float[Array, "children dim"], weights: Float[Array, " children"]
) -> Float[Array, " dim"]:
    """W gelu(U sum_i w_i f(c_i) + b), f(c) = gelu(A c + a)."""
    told = weights @ jax.nn.gelu(children @ params["child"] + params["child_bias"])
    return jax.nn.gelu(told @ params["inner"] + params["inner_bias"]) @ params["out"]


def _attend(
    params: Params,
    children: Float[Array, "children dim"],
    tokens: Float[Array, " children"],
    mask: Bool[Array, " children"],
    mean: Float[Array, " dim"],
) -> Float[Array, " dim"]:
    """sum_i softmax_i(log t_i + s_i) c_i at length 1, s_i = v . gelu(C c_i + M m + F x_i + d)."""
    log_tokens = jnp.log(jnp.maximum(tokens, 1.0))
    number = jnp.broadcast_to(jnp.log(jnp.maximum(mask.sum(), 1).astype(children.dtype)), tokens.shape)
    features = jnp.stack([children @ mean, log_tokens, number], axis=1)
    inner = children @ params["score_child"] + mean @ params["score_mean"] + features @ params["score_features"]
    scores = log_tokens + jax.nn.gelu(inner + params["score_bias"]) @ params["score_out"]
    weights = jax.nn.softmax(jnp.where(mask, scores, _LEAST))  # finite, so that a parent without children is no NaN
    return unit(weights @ children)


def unit(vector: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """A vector at length 1; one of (nearly) no length is zeros, and has no gradient."""
    squared = jnp.sum(jnp.square(vector))
    has_length = squared > 1e-24
    return jnp.where(has_length, vector / jnp.sqrt(jnp.where(has_length, squared, 1.0)), 0.0)
