"""Supervised training of the same towers (Q-RAG, section 4.5, row "with SFT"): trajectory supervision on gold chunks.

The state grows by gold chunks only, in an order that is drawn, and at every step each gold chunk that is left is right.
"""

import jax
import jax.numpy as jnp

from qrag_jax.models.towers.network import Network, PyTree
from qrag_jax.retrieval.mdp.env import Batch, EnvConfig, allowed_actions, observe, q_values, untaken
from qrag_jax.retrieval.mdp.heads import ranking_factor
from qrag_jax.train.q.ranking import cross_entropy, right_actions


def trajectory_loss(
    network: Network, params: PyTree, batch: Batch, key: jax.Array, env: EnvConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Cross-entropy of the gold chunks that are left, over states of gold chunks.

        loss = mean over (env, t < |gold|) of  -log sum_{a in gold left} softmax(scale * Q(s_t, .))_a

    The scale is 1, or with `env.ranking_scale` learned. With `env.stop` the states without gold left count too, those
    with a chunk too many among them: there STOP is right.

    Args:
        params: parameters; gradients flow to all of them.
        key: draws which gold chunk a state grows by; folded by environment, then by step; consumed.
        env: positions, heads and the number of steps; its rewards play no part.

    Returns:
        The loss, and a dict of scalars: the loss, the share of episodes whose best chunk is right at every step, and
        the steps that count in an episode.
    """
    keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(batch.env)
    rows = network.actions(params, batch.table)[batch.chunks]
    scale = None if env.ranking_scale is None else ranking_factor(params["ranking"])
    taken = jnp.zeros((batch.chunks.shape[0], 0), jnp.int32)
    losses, rights, counts = [], [], []
    for t in range(env.num_steps):
        allowed, right = allowed_actions(batch.valid, taken, env), right_actions(batch.gold, batch.valid, taken, env)
        _, rotation = observe(batch, taken, env, network.num_rotated)
        q = q_values(network, params, rows, batch, taken, rotation, env).sum(1)
        logits = q if scale is None else scale * q
        some = right.any(axis=1)
        losses.append(cross_entropy(logits, allowed, right))
        best = jnp.argmax(jnp.where(allowed, logits, -jnp.inf), axis=1)
        rights.append(jnp.take_along_axis(right, best[:, None], axis=1)[:, 0] | ~some)
        counts.append(some.astype(jnp.float32))
        # Where no gold is left the state grows by any free chunk.
        free = jax.vmap(untaken)(batch.valid, taken)
        left = batch.gold & free
        target = jnp.where(left.any(axis=1)[:, None], left, free)
        step_keys = jax.vmap(lambda k, t=t: jax.random.fold_in(k, t))(keys)
        grown = jax.vmap(jax.random.categorical)(step_keys, jnp.where(target, 0.0, -jnp.inf)).astype(jnp.int32)
        taken = jnp.sort(jnp.concatenate([taken, grown[:, None]], axis=1), axis=1)
    count = jnp.stack(counts)
    loss = (jnp.stack(losses) * count).sum() / count.sum()
    steps = count.sum(axis=0).mean()
    metrics = {"loss": loss, "complete": jnp.stack(rights).all(axis=0).mean(), "steps": steps}
    return loss, metrics if scale is None else metrics | {"ranking_scale": scale}
