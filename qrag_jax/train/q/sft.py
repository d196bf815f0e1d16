"""Supervised training of the same towers (Q-RAG, section 4.5, row "with SFT"): trajectory supervision on gold chunks.

The state grows by gold chunks only, in an order that is drawn, and at every step each gold chunk that is left is right.
"""

import jax
import jax.numpy as jnp

from qrag_jax.models.towers.network import Network, PyTree
from qrag_jax.retrieval.mdp.env import Batch, EnvConfig, observe, q_values, untaken


def trajectory_loss(
    network: Network, params: PyTree, batch: Batch, key: jax.Array, env: EnvConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Cross-entropy of the gold chunks that are left, over states of gold chunks.

        loss = mean over (env, t < |gold|) of  -log sum_{a in gold left} softmax(Q(s_t, .))_a

    Args:
        network: the towers.
        params: parameters; gradients flow to all of them.
        batch: environments.
        key: draws which gold chunk a state grows by; folded by environment, then by step; consumed.
        env: positions, heads and the number of steps; its rewards play no part.

    Returns:
        The loss, and a dict of scalars: the loss, the share of episodes whose best chunk is right at every step, and
        the steps that count in an episode.
    """
    keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(batch.env)
    rows = network.actions(params, batch.table)[batch.chunks]
    taken = jnp.zeros((batch.chunks.shape[0], 0), jnp.int32)
    losses, rights, counts = [], [], []
    for t in range(env.num_steps):
        free = jax.vmap(untaken)(batch.valid, taken)
        left = batch.gold & free
        _, rotation = observe(batch, taken, env, network.dim)
        q = jnp.where(free, q_values(network, params, rows, batch, taken, rotation, env).sum(1), -jnp.inf)
        some = left.any(axis=1)
        # Where no gold is left any chunk stands in, so that nothing is infinite; the step is not counted.
        target = jnp.where(some[:, None], left, free)
        right = jax.nn.logsumexp(jnp.where(target, q, -jnp.inf), axis=1)
        losses.append(jax.nn.logsumexp(q, axis=1) - right)
        rights.append(jnp.take_along_axis(left, jnp.argmax(q, axis=1)[:, None], axis=1)[:, 0] | ~some)
        counts.append(some.astype(jnp.float32))
        step_keys = jax.vmap(lambda k, t=t: jax.random.fold_in(k, t))(keys)
        grown = jax.vmap(jax.random.categorical)(step_keys, jnp.where(target, 0.0, -jnp.inf)).astype(jnp.int32)
        taken = jnp.sort(jnp.concatenate([taken, grown[:, None]], axis=1), axis=1)
    count = jnp.stack(counts)
    loss = (jnp.stack(losses) * count).sum() / count.sum()
    steps = count.sum(axis=0).mean()
    return loss, {"loss": loss, "complete": jnp.stack(rights).all(axis=0).mean(), "steps": steps}
