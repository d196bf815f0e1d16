"""Losses of decoders that learn, as sums over tokens with weights that are known before the update.

A weight says how much a token counts: 0 for prompts and padding. So an update can add up the losses of parts of a
batch, and packed rows give the same loss as separate ones.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Mean = Literal["sequence", "token", "constant"]


def sft_loss(logprobs: Float[Array, "rows tokens"], weights: Float[Array, "rows tokens"]) -> Float[Array, ""]:
    """Cross-entropy of the tokens of answers.

        L = - sum_t w_t log pi(o_t | earlier tokens)

    Args:
        logprobs: natural logarithms.
        weights: `token_weights`; 0 where a token is not part of an answer.
    """
    return -(weights * logprobs).sum()


def grpo_loss(
    logprobs: Float[Array, "rows tokens"],
    old_logprobs: Float[Array, "rows tokens"],
    reference_logprobs: Float[Array, "rows tokens"],
    advantages: Float[Array, " rows"],
    weights: Float[Array, "rows tokens"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl_coef: float = 0.04,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The negated objective of GRPO (SmartChunk eq. 1, 2, 5), to be minimised.

        r_t = exp(log pi(o_t) - log pi_old(o_t))
        k3_t = exp(log pi_ref(o_t) - log pi(o_t)) - (log pi_ref(o_t) - log pi(o_t)) - 1
        L = - sum_t w_t (min(r_t A, clip(r_t, 1 - clip_low, 1 + clip_high) A) - kl_coef k3_t)

    The value of k3 is an unbiased estimate of KL(pi || pi_ref) under pi; its gradient is that of KL(pi_ref || pi).

    Args:
        logprobs: of drawn tokens, natural logarithms; only here gradients flow.
        old_logprobs: under the policy that drew them.
        reference_logprobs: under the reference policy; any numbers if `kl_coef` is 0.
        advantages: of each row (`group_advantages`).
        weights: `token_weights`.
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]; DAPO's clip-higher has a larger
            `clip_high` (.28).
        kl_coef: weight of the KL term; 0 leaves it out (DAPO).

    Returns:
        The loss, and by name: the KL estimate before its weight, and the share of weight with a clipped ratio.
    """
    fixed = jax.lax.stop_gradient
    ratio = jnp.exp(logprobs - fixed(old_logprobs))
    clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    value = advantages[:, None]
    objective = jnp.minimum(ratio * value, clipped * value)
    metrics = {"clipped": fixed((weights * (clipped * value < ratio * value)).sum())}
    if kl_coef:
        gap = fixed(reference_logprobs) - logprobs
        kl = jnp.exp(gap) - gap - 1
        objective = objective - kl_coef * kl
        metrics["kl"] = fixed((weights * kl).sum())
    # Where a token has no weight its logarithm may be anything, and 0 x inf is not a number.
    return -jnp.where(weights > 0, weights * objective, 0.0).sum(), metrics


def token_weights(valid: Bool[np.ndarray, "rows tokens"], mean: Mean, max_tokens: int = 1) -> np.ndarray:
    """The weight of each token, float32 [rows, tokens].

    Args:
        valid: tokens that count. A row without any counts nowhere.
        mean: "sequence" (GRPO, eq. 1): w = 1 / (length of its row x number of rows); "token" (DAPO): w = 1 / number of
            tokens; "constant": w = 1 / (`max_tokens` x number of rows), so that no length is favoured.
        max_tokens: limit of an answer, for "constant".
    """
    lengths = valid.sum(1, keepdims=True)
    rows = max(int((lengths > 0).sum()), 1)
    scale = {
        "sequence": np.maximum(lengths, 1) * rows,
        "token": np.maximum(lengths.sum(), 1),
        "constant": max_tokens * rows,
    }
    return (valid / scale[mean]).astype(np.float32)


def group_advantages(
    rewards: Float[np.ndarray, "groups answers"],
    valid: Bool[np.ndarray, "groups answers"],
    *,
    ddof: int = 1,
    epsilon: float = 1e-6,
    scales: bool = True,
) -> tuple[Float[np.ndarray, "groups answers"], Bool[np.ndarray, " groups"]]:
    """How much better each answer is than its group (SmartChunk eq. 2).

        A_i = (R_i - mean(R)) / (std(R) + epsilon)

    Args:
        rewards: of the answers to one question, a row a group.
        valid: answers that have a reward; the others take no part, and their advantage is 0.
        ddof: the deviation divides by n - ddof. The paper states none; 1 is that of its framework (verl).
        epsilon: added to the deviation.
        scales: False leaves the division out.

    Returns:
        Advantages, and the groups whose valid rewards are all equal (or fewer than two): their advantages are exactly
        0, whatever rounding makes of their mean.
    """
    count = np.maximum(valid.sum(1, keepdims=True), 1)
    kept = np.where(valid, rewards, 0.0)
    away = np.where(valid, kept - kept.sum(1, keepdims=True) / count, 0.0)
    deviation = np.sqrt((away**2).sum(1, keepdims=True) / np.maximum(count - ddof, 1))
    highest = np.where(valid, rewards, -np.inf).max(1)
    lowest = np.where(valid, rewards, np.inf).min(1)
    equal = ~(highest > lowest)
    advantages = away / (deviation + epsilon) if scales else away
    return np.where(equal[:, None], 0.0, advantages), equal


def soft_overlong(lengths: Int[np.ndarray, "*shape"], max_tokens: int, margin: int) -> Float[np.ndarray, "*shape"]:
    """DAPO's penalty of long answers, in [-1, 0].

        0 up to max_tokens - margin, then (max_tokens - margin - length) / margin, and -1 beyond max_tokens

    Args:
        lengths: tokens of answers.
        margin: tokens below the limit where the penalty begins; 0 is no penalty.
    """
    if not margin:
        return np.zeros(np.shape(lengths))
    return np.clip((max_tokens - margin - np.asarray(lengths)) / margin, -1.0, 0.0)
