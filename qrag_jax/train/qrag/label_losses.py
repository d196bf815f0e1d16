"""Losses from labels in every visited state: the right chunks and the reward of STOP.

Supervised training of the same towers (Q-RAG, section 4.5, row "with SFT"): trajectory supervision on gold chunks.

The state grows by gold chunks only, in an order that is drawn, and at every step each gold chunk that is left is right.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.models.towers.q_network import Network, PyTree
from qrag_jax.qrag.batching import Sample
from qrag_jax.qrag.env import (
    Batch,
    EnvConfig,
    Rollout,
    Visited,
    allowed_actions,
    observe,
    q_of_negatives,
    q_values,
    stop_reward,
    untaken,
)
from qrag_jax.qrag.heads import ranking_factor
from qrag_jax.qrag.pool import Looked, PoolBatch
from qrag_jax.qrag.tasks import Task
from qrag_jax.train.qrag.returns import chosen_pair_loss
from qrag_jax.types import UsageError

_NEGATIVES = 10  # stream of the run's seed
_GROUPS = 16  # places that negatives are met at in a state


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
    logits: Float[Array, "batch actions"],
    allowed: Bool[Array, "batch actions"],
    right: Bool[Array, "batch actions"],
    rest: Float[Array, " batch"] | None = None,
) -> Float[Array, " batch"]:
    """`-log sum_{a right} softmax(logits)_a` over the allowed actions; 0 where none is right.

    The sum over the right actions counts, so no right action is lowered because another one is high.

    Args:
        rest: log of the sum of `exp(logit)` over wrong actions without a column; None: there are none.
    """
    some = right.any(axis=1)
    target = jnp.where(some[:, None], right, allowed)
    log_sum = lambda which: jax.nn.logsumexp(jnp.where(which, logits, -jnp.inf), axis=1)  # noqa: E731
    everything = log_sum(allowed)
    if rest is not None:
        everything = jnp.where(some, jnp.logaddexp(everything, rest), everything)
    return everything - log_sum(target)


def rest_of_documents(logits: Float[Array, "batch negatives"], batch: Batch) -> Float[Array, " batch"]:
    """Log of the sum of `exp(logit)` over the chunks that contexts leave out of their documents, as noise tells it.

        log sum_{n in document, not in context} exp(z_n)  ~  log((L - N) / m) + log sum_{n of m negatives} exp(z_n)

    A context of N chunks is a sample of a document of L chunks (`batching.stretched_indices`). The other L - N chunks
    are noise; m sentences drawn from the haystack represent them, and the estimate of the sum is unbiased. It is -inf
    if the context is the whole document.
    """
    left_out = (batch.lengths - batch.valid.sum(axis=1)).astype(jnp.float32)
    return jnp.log(left_out / logits.shape[1]) + jax.nn.logsumexp(logits, axis=1)


def ranking_loss(
    network: Network, params: PyTree, batch: Batch, played: Rollout, visited: Sequence[Visited], config: EnvConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Cross-entropy of the right actions in the visited states, over all actions that were allowed there.

        loss = mean over (env, t) alive of  -log sum_{a right} softmax(scale * Q(s_t, .))_a,   0 where nothing is right

    Q is a return, of 0 to 1 or so, and the logits of a softmax over thousands of chunks are not: `scale` is learned.
    With `Batch.negatives` the softmax is over the whole document that a context is a sample of (`rest_of_documents`).

    Args:
        params: parameters; gradients flow to all of them.
        played: the rollout whose states count.
        visited: these states (`visited_states` of the same parameters).
        config: the decision process; `ranking_scale` is set.

    Returns:
        The loss and a dict of scalars: `ranked`, the share of the states with a right action whose best one is right,
        and `ranking_scale`.
    """
    scale = ranking_factor(params["ranking"])
    negatives = None if batch.negatives is None else network.actions(params, batch.negatives)
    steps = []
    for taken, allowed, states, q in visited:
        logits, rest = scale * q.sum(axis=1), None
        if negatives is not None:
            rest = rest_of_documents(scale * q_of_negatives(network, negatives, batch, taken, states, config), batch)
        steps.append((logits, allowed, right_actions(batch.gold, batch.valid, taken, config), rest))
    return _mean_entropy(steps, played, scale)


def _mean_entropy(
    steps: Sequence[tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]], played: Rollout, scale: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`ranking_loss` of (logits, allowed, right, rest) of each step."""
    losses, hits, counts = [], [], []
    for t, (logits, allowed, right, rest) in enumerate(steps):
        losses.append(cross_entropy(logits, allowed, right, rest))
        best = jnp.argmax(jnp.where(allowed, logits, -jnp.inf), axis=1)
        counts.append(jnp.where(right.any(axis=1), played.alive[:, t], 0.0))
        hits.append(jnp.where(jnp.take_along_axis(right, best[:, None], axis=1)[:, 0], counts[-1], 0.0))
    loss = (jnp.stack(losses, axis=1) * played.alive).sum() / jnp.maximum(played.alive.sum(), 1.0)
    ranked = jnp.stack(hits).sum() / jnp.maximum(jnp.stack(counts).sum(), 1.0)
    return loss, {"ranked": ranked, "ranking_scale": scale}


def pool_ranking_loss(
    params: PyTree, batch: PoolBatch, played: Rollout, looked: Looked, config: EnvConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`ranking_loss` over the candidates of each step of an episode over a pool, the gold chunks among them.

    Chunks that are drawn stand for the rest of the pool (`PoolBatch.drawn`): the weight of each in the sum is the
    number of chunks left out divided by the number drawn, so the estimate is unbiased.

    Args:
        looked: the candidates of all steps (`pool.pool_rollout` with gold).
    """
    scale, num = ranking_factor(params["ranking"]), looked.ids.shape[-1]
    steps = []
    for t in range(config.num_steps):
        ids, allowed = looked.ids[t], looked.allowed[t]
        weights = jnp.pad(looked.log_weights[t], ((0, 0), (0, int(config.stop))))
        right = jnp.take_along_axis(batch.gold, jnp.maximum(ids, 0), axis=1) & allowed[:, :num]
        if config.stop:
            taken = jnp.take_along_axis(batch.gold, played.actions[:, :t], axis=1)
            is_complete = taken.sum(axis=1, keepdims=True) == batch.gold.sum(axis=1, keepdims=True)
            right = jnp.concatenate([right, is_complete], axis=1)
        steps.append((scale * looked.q[t].sum(axis=1) + weights, allowed, right, None))
    return _mean_entropy(steps, played, scale)


def stop_loss(batch: Batch | PoolBatch, played: Rollout, visited: Sequence[Visited], config: EnvConfig) -> jax.Array:
    """Squared error of Q of STOP against its reward, in every visited state in which STOP was allowed.

        loss = mean over (env, t) alive of  (Q(s_t, STOP) - r(s_t, STOP))^2,   0 at the first step

    STOP ends the episode, so its reward is its return: no draw of it is needed, and none is noisy.

    Args:
        played: the rollout whose states count.
        visited: these states (`visited_states`); gradients flow through them.
    """
    errors = [jnp.zeros(len(batch.gold))]
    for taken, _, _, q in visited:
        if taken.shape[1]:
            paid = jax.vmap(stop_reward, in_axes=(0, 0, None))(batch.gold, taken, config)
            errors.append(jax.vmap(chosen_pair_loss)(q[..., -1], paid))
    return (jnp.stack(errors, axis=1) * played.alive).sum() / played.alive.sum()


def check_negatives(task: Task, num_negatives: int | None, num_devices: int) -> None:
    """Refuses negatives that a task or the devices cannot give, before anything is embedded."""
    if num_negatives is None:
        return
    if task.noise is None:
        raise UsageError(
            f"data.num_negatives={num_negatives}: {task.name} has no haystack to draw from; set it to null, or "
            "data.task to worlds or babi"
        )
    if len(task.noise) < num_negatives:
        raise UsageError(f"data.num_negatives={num_negatives}: the haystack has {len(task.noise)} sentences only")
    multiple = lcm(_GROUPS, num_devices)
    if num_negatives % multiple:
        raise UsageError(
            f"data.num_negatives={num_negatives} must be a multiple of {multiple}: they go to {_GROUPS} places of a "
            f"document, on {num_devices} devices"
        )


def negatives_sampler(
    sample: Callable[[int], Sample], task: Task, num_negatives: int, seed: int
) -> Callable[[int], Sample]:
    """A sampler whose samples also hold `Sample.negatives` and their places, drawn for every update."""
    assert task.noise is not None
    noise = np.asarray(task.noise, np.int32)

    def add(update: int) -> Sample:
        drawn, rng = sample(update), np.random.default_rng([seed, _NEGATIVES, update])
        *parts, size, _ = np.shape(drawn.chunks)
        ids = rng.choice(noise, num_negatives, replace=False)
        places = rng.random((*parts, size, _GROUPS), np.float32)
        return replace(drawn, negatives=np.broadcast_to(ids, (*parts, num_negatives)), places=places)

    return add


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
