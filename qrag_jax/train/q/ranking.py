"""What the labels say of every state that is visited: which chunks are right there, and what STOP pays."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.models.towers.network import Network, PyTree
from qrag_jax.retrieval.mdp.env import Batch, EnvConfig, Rollout, stop_reward, untaken, visited_states
from qrag_jax.retrieval.mdp.heads import ranking_factor
from qrag_jax.train.q.returns import chosen_pair_loss


def right_actions(
    gold: Bool[Array, "batch chunks"],
    valid: Bool[Array, "batch chunks"],
    taken: Int[Array, "batch taken"],
    config: EnvConfig,
) -> Bool[Array, "batch actions"]:
    """The gold chunks that are left and, where none is, STOP if the run learns it: its column is the last one."""
    left = gold & jax.vmap(untaken)(valid, taken)
    if not config.stop:
        return left
    return jnp.concatenate([left, ~left.any(axis=1, keepdims=True)], axis=1)


def cross_entropy(
    logits: Float[Array, "batch actions"], allowed: Bool[Array, "batch actions"], right: Bool[Array, "batch actions"]
) -> Float[Array, " batch"]:
    """`-log sum_{a right} softmax(logits)_a` over the allowed actions; 0 where none is right.

    Any of the right actions will do: none of them is pushed down because another is up.
    """
    target = jnp.where(right.any(axis=1, keepdims=True), right, allowed)
    log_sum = lambda which: jax.nn.logsumexp(jnp.where(which, logits, -jnp.inf), axis=1)  # noqa: E731
    return log_sum(allowed) - log_sum(target)


def ranking_loss(
    network: Network, params: PyTree, batch: Batch, played: Rollout, config: EnvConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Cross-entropy of what is right in the visited states, over all that could have been chosen there.

        loss = mean over (env, t) alive of  -log sum_{a right} softmax(scale * Q(s_t, .))_a,   0 where nothing is right

    Q is a return, of 0 to 1 or so, and the logits of a softmax over thousands of chunks are not: `scale` is learned.

    Args:
        network: the towers.
        params: parameters; gradients flow to all of them.
        batch: environments.
        played: the rollout whose states count.
        config: the decision process; `ranking_scale` is set.

    Returns:
        The loss and a dict of scalars: `ranked`, the share of the states with a right action whose best one is right,
        and `ranking_scale`.
    """
    scale = ranking_factor(params["ranking"])
    losses, hits, counts = [], [], []
    for t, (taken, allowed, q) in enumerate(visited_states(network, params, batch, played, config)):
        right = right_actions(batch.gold, batch.valid, taken, config)
        logits = scale * q.sum(axis=1)
        losses.append(cross_entropy(logits, allowed, right))
        best = jnp.argmax(jnp.where(allowed, logits, -jnp.inf), axis=1)
        counts.append(jnp.where(right.any(axis=1), played.alive[:, t], 0.0))
        hits.append(jnp.where(jnp.take_along_axis(right, best[:, None], axis=1)[:, 0], counts[-1], 0.0))
    loss = (jnp.stack(losses, axis=1) * played.alive).sum() / played.alive.sum()
    ranked = jnp.stack(hits).sum() / jnp.stack(counts).sum()
    return loss, {"ranked": ranked, "ranking_scale": scale}


def stop_loss(
    network: Network, params: PyTree, batch: Batch, played: Rollout, config: EnvConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Squared error of STOP against what it pays, in every visited state in which it could have been chosen.

        loss = mean over (env, t) alive of  (Q(s_t, STOP) - r(s_t, STOP))^2,   0 at the first step

    STOP ends the episode, so its reward is its return: no draw of it is needed, and none is noisy.

    Returns:
        The loss, and no metrics.
    """
    errors = [jnp.zeros(len(batch.gold))]
    for taken, _, q in visited_states(network, params, batch, played, config):
        if taken.shape[1]:
            paid = jax.vmap(stop_reward, in_axes=(0, 0, None))(batch.gold, taken, config)
            errors.append(jax.vmap(chosen_pair_loss)(q[..., -1], paid))
    return (jnp.stack(errors, axis=1) * played.alive).sum() / played.alive.sum(), {}
