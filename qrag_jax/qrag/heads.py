"""Parameters of Q besides the towers: of STOP, of links, and the factor from Q to the logits of a ranking loss."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

StopHead = Literal["vector", "affine"]
HEADS = ("stop", "ranking", "links")  # the parts of the parameters that a run may have and another not
SCALES = (0.01, 1000.0)  # what a learned factor stays in: a loss that is done would raise it without end
_SPREAD = 4.0  # links are shares, mostly far below 1: of the first weights on them, in units of the usual ones
_FLOOR = 1e-12  # of a mean square: a state of zeros keeps its finite gradient


def fresh_heads(dim: int, num_q_heads: int, stop_head: StopHead | None, ranking_scale: float | None) -> dict[str, Any]:
    """Additional parameters next to those of the towers; empty without STOP and ranking.

    Args:
        dim: width of the vectors that meet.
        stop_head: of a run that learns STOP; None otherwise.
        ranking_scale: start of the learned factor; None has none.

    Returns:
        `stop`: float32 [dim], zeros, so STOP has value 0 at first; for an affine head a dict of `vector`, `scale`
        [heads], ones, and `bias` [heads], zeros. `ranking`: a dict of `log_scale` [].
    """
    heads: dict[str, Any] = {}
    if stop_head is not None:
        vector = jnp.zeros(dim)
        affine = {"vector": vector, "scale": jnp.ones(num_q_heads), "bias": jnp.zeros(num_q_heads)}
        heads["stop"] = affine if stop_head == "affine" else vector
    if ranking_scale is not None:
        heads["ranking"] = {"log_scale": jnp.float32(np.log(ranking_scale))}
    return heads


def stop_q_values(stop: Any, states: Float[Array, "batch dim"], num_q_heads: int) -> Float[Array, "batch heads"]:
    """Q of STOP in every state, for each head.

        vector: Q_h = <s_h, w_h>
        affine: Q_h = b_h + c_h * <s_h / rms(s_h), w_h> / sqrt(n),   n components a head

    An affine head therefore does not depend on the length of the vectors, and its bias can move all states together.

    Args:
        stop: `params["stop"]`, of either kind.
        states: vectors of the state tower.
    """
    if not isinstance(stop, dict):
        return (states * stop).reshape(len(states), num_q_heads, -1).sum(-1)
    s = states.reshape(len(states), num_q_heads, -1)
    w = stop["vector"].reshape(num_q_heads, -1)
    unit = s * jax.lax.rsqrt((s * s).mean(-1, keepdims=True) + _FLOOR)
    return stop["bias"] + stop["scale"] * (unit * w).sum(-1) * np.float32(s.shape[-1] ** -0.5)


def ranking_factor(ranking: dict[str, Array]) -> Float[Array, ""]:
    """The learned factor, the inverse of a temperature: `clip(exp(log_scale))` to `SCALES`."""
    low, high = np.log(SCALES).astype(np.float32)
    return jnp.exp(jnp.clip(ranking["log_scale"], low, high))


def fresh_links(key: Array, num_inputs: int, width: int, num_q_heads: int) -> dict[str, Array]:
    """Parameters of `link_q_values`: `linear` and `out` are zeros, so links have no effect at first.

    Args:
        key: draws the hidden layer; consumed.
        num_inputs: of `link_inputs`, and of `coverage_inputs` where Q reads them.

    Returns:
        float32 `linear` [inputs, heads], `hidden` [inputs, width], `bias` [width], `out` [width, heads].
    """
    return {
        "linear": jnp.zeros((num_inputs, num_q_heads)),
        "hidden": jax.random.normal(key, (num_inputs, width)) * np.float32(_SPREAD * num_inputs**-0.5),
        "bias": jnp.zeros(width),
        "out": jnp.zeros((width, num_q_heads)),
    }


def link_inputs(
    links: Float[Array, "batch sources chunks links"], taken: Int[Array, "batch taken"]
) -> Float[Array, "batch chunks inputs"]:
    """Link inputs of every chunk in a state: the links of the question, then the maximum over the taken chunks.

        x(s, a) = [l(question, a), max_{c taken} l(c, a)],   zeros if no chunk is taken

    Args:
        links: of the question (source 0) and of each chunk i (source 1 + i), as of `text_links.link_features` and,
            behind them, `text_links.bridge_features` where the run reads these.
        taken: slots of the chunks in the state.
    """
    of_taken = jnp.take_along_axis(links, 1 + taken[:, :, None, None], axis=1)
    return jnp.concatenate([links[:, 0], of_taken.max(axis=1, initial=0.0)], axis=-1)


def coverage_inputs(
    words: Float[Array, "batch sources words"], taken: Int[Array, "batch taken"]
) -> Float[Array, "batch chunks 3"]:
    """Three shares of words, each in [0, 1], that compare every chunk with the whole state: `text_links.COVERAGE`.

    * `covered`: share of the chunk's words that the question or a taken chunk contains.
    * `adds`: share of the question's words that the chunk contains and no taken chunk does.
    * `elsewhere`: share of the chunk's words that any other text of the context contains, taken or not.

    A maximum over pairs of texts cannot express the first share: a fact that joins two others has half of its words
    in each.

    Args:
        words: of the question (source 0) and of each chunk i (source 1 + i), as of `text_links.shared_words`.
        taken: slots of the chunks in the state.
    """
    has = (words > 0).astype(words.dtype)
    of_taken = jnp.take_along_axis(has, 1 + taken[:, :, None], axis=1).max(axis=1, initial=0.0)
    question, chunks = words[:, 0], words[:, 1:]
    covered = jnp.einsum("bnw,bw->bn", chunks, jnp.maximum(has[:, 0], of_taken))
    adds = jnp.einsum("bnw,bw->bn", has[:, 1:], question * (1 - of_taken))
    return jnp.stack([covered, adds, chunks.sum(-1)], axis=-1)


def link_q_values(
    params: dict[str, Array], inputs: Float[Array, "batch chunks inputs"]
) -> Float[Array, "batch heads chunks"]:
    """The term that links add to Q of every chunk: `x U + gelu(x W + b) V`, with U `linear`, W `hidden` and V `out`."""
    hidden = jax.nn.gelu(inputs @ params["hidden"] + params["bias"])
    return jnp.swapaxes(inputs @ params["linear"] + hidden @ params["out"], 1, 2)
