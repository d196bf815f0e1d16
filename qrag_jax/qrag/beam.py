"""Plan Q-RAG (appendix D): beam search over Q. A beam is a set of taken chunks. All beams of a batch run together.

The score of a beam is the Q value of its last action: the return that the retriever expects after all chunks that it
has read. Beams of one length are compared by it, because the paper ranks candidates by Q. A beam finishes

* by STOP, if the run has learned it: its score is then Q(s, STOP), the expected reward of its set;
* below a threshold, if one is given: no untaken chunk reaches it (App. B). The beam keeps the score of its last
  action. Without this rule, a complete set would lose to an incomplete one, because it can earn nothing more.

With a reward for every fact (`env.fact_reward`), the expected return falls with every fact that is found. The score
then also counts the estimated reward of each earlier action: the drop of Q from it to the best next action, within
[0, fact_reward]. Without this reward, the score is Q alone.

Finished beams stay among the candidates with their score. Two orders of one set are one state, so the better one
replaces both.

The searches over an index are compiled once for each retriever and shape.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.models.towers.q_network import Network, PyTree
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.env import Batch, EnvConfig, Rollout, allowed_actions, observe, q_values, rollout
from qrag_jax.qrag.policy import make_greedy
from qrag_jax.qrag.pool import PoolBatch, look, pool_positions
from qrag_jax.types import UsageError

_PER_QUESTION = tuple(field.name for field in fields(Batch))[1:]  # all but the table


class Plan(NamedTuple):
    """The best beam of every question. After its end it continues greedily, so it always has T steps.

    Attributes:
        actions: int32 [batch, T], slots in order of retrieval.
        q_values: float32 [batch, T], Q of each chosen action, summed over heads.
        positions: float32 [batch, T].
        num_kept: int32 [batch], chunks of the beam before STOP or the threshold ended it.
        scores: float32 [batch], of the beam.
    """

    actions: jax.Array
    q_values: jax.Array
    positions: jax.Array
    num_kept: jax.Array
    scores: jax.Array


class _Beams(NamedTuple):
    """All beams [batch, width, ...] after t steps."""

    actions: jax.Array  # int32 [batch, width, t]
    q_values: jax.Array  # float32 [batch, width, t]
    positions: jax.Array  # float32 [batch, width, t]
    scores: jax.Array  # float32 [batch, width], -inf where there is no beam
    earned: jax.Array  # float32 [batch, width], fact rewards of all actions but the last
    num_kept: jax.Array  # int32 [batch, width]
    finished: jax.Array  # bool [batch, width]


def beam_search(
    network: Network,
    params: PyTree,
    batch: Batch,
    config: EnvConfig,
    width: int,
    threshold: Float[Array, ""] | float = -jnp.inf,
    action_vectors: Float[Array, "rows dim"] | None = None,
) -> Plan:
    """Searches the best set of up to T chunks for every question. Pure and deterministic. Width 1 is greedy search.

    Args:
        network: the towers.
        params: their parameters.
        batch: questions and their contexts; each must hold at least T chunks.
        config: the decision process.
        width: number of beams kept, and of actions that expand each beam.
        threshold: a beam with at least one chunk finishes if the Q of its best next chunk is lower; -inf disables
            this.
        action_vectors: of the table, if already computed.

    Raises:
        UsageError: `width` below 1.
    """
    rows = (network.actions(params, batch.table) if action_vectors is None else action_vectors)[batch.chunks]
    num_chunks = batch.chunks.shape[1]

    def see(actions: Array) -> _Seen:
        repeat = _repeater(actions.shape[0] // len(batch.env))
        flat = Batch(batch.table, *(repeat(getattr(batch, name)) for name in _PER_QUESTION))
        taken = jnp.sort(actions, axis=1)
        allowed = allowed_actions(flat.valid, taken, config)
        rho, rotation = observe(flat, taken, config, network.num_rotated)
        q = q_values(network, params, repeat(rows), flat, taken, rotation, config).sum(1)
        q = jnp.where(allowed, q, -jnp.inf)
        ids = jnp.broadcast_to(jnp.arange(num_chunks, dtype=jnp.int32), q[:, :num_chunks].shape)
        return _Seen(ids, q[:, :num_chunks], q[:, num_chunks:], lambda best: jnp.take_along_axis(rho, best, axis=1))

    return _search(see, len(batch.env), config, width, threshold)


def pool_beam_search(
    network: Network,
    params: PyTree,
    batch: PoolBatch,
    config: EnvConfig,
    width: int,
) -> Plan:
    """`beam_search` over one pool of many documents: each beam searches it at each step. Actions are chunk ids.

    Raises:
        UsageError: `width` below 1, or `PoolConfig.base="hybrid"`, whose Q is a score of plain search and no return.
    """
    check_beams(config)
    actions_of_pool = network.actions(params, batch.pool.rows)

    def see(actions: Array) -> _Seen:
        num_beams, t = actions.shape
        repeat = _repeater(num_beams // len(batch.env))
        flat = replace(batch, questions=repeat(batch.questions), gold=repeat(batch.gold), env=repeat(batch.env))
        taken = jnp.pad(actions, ((0, 0), (0, config.num_steps - t)), constant_values=-1)
        seen = look(network, params, flat, actions_of_pool, taken, jnp.int32(t), config)
        num = seen.ids.shape[1]
        q = jnp.where(seen.allowed, seen.q.sum(1), -jnp.inf)

        def positions(best: Array) -> Array:
            ids = jnp.maximum(jnp.take_along_axis(seen.ids, best, axis=1), 0)
            return jax.vmap(pool_positions, in_axes=(None, 0, 0, None))(batch.pool, taken, ids, config)

        return _Seen(seen.ids, q[:, :num], q[:, num:], positions)

    return _search(see, len(batch.env), config, width, -jnp.inf)


def check_beams(config: EnvConfig) -> None:
    """Refuses a run whose Q is no return."""
    if config.pool is not None and config.pool.base == "hybrid":
        raise UsageError(
            "beams compare returns, but Q of a run with env.pool.base=hybrid is a score of plain search; leave it out",
            field="beam_widths",
        )


class _Seen(NamedTuple):
    """The actions of states: ids int32 [states, n], Q of chunks [states, n] and of STOP [states, 0 or 1], -inf where
    they are not allowed, and a function from places in `ids` to positions."""

    ids: jax.Array
    q: jax.Array
    stop_q: jax.Array
    positions: Callable[[jax.Array], jax.Array]


def _repeater(times: int) -> Callable[[PyTree], PyTree]:
    """Repeats each row, once for each beam of its question."""
    return lambda tree: jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), tree)


See = Callable[[jax.Array], _Seen]  # of the actions of all beams, int32 [batch * beams, t], in the order of their picks


def _search(see: See, size: int, config: EnvConfig, width: int, threshold: Array | float) -> Plan:
    if width < 1:
        raise UsageError(f"beam width {width}: at least 1 beam is needed")
    beams = _Beams(
        actions=jnp.zeros((size, 1, 0), jnp.int32),
        q_values=jnp.zeros((size, 1, 0)),
        positions=jnp.zeros((size, 1, 0)),
        scores=jnp.zeros((size, 1)),
        earned=jnp.zeros((size, 1)),
        num_kept=jnp.zeros((size, 1), jnp.int32),
        finished=jnp.zeros((size, 1), bool),
    )
    for _ in range(config.num_steps):
        beams = _best(_expand(see, beams, config, width, threshold), width)
    first = lambda x: x[:, 0]  # noqa: E731
    return Plan(*(first(x) for x in (beams.actions, beams.q_values, beams.positions, beams.num_kept, beams.scores)))


def _expand(see: See, beams: _Beams, config: EnvConfig, width: int, threshold: Array | float) -> _Beams:
    """Children of every beam: its best `width` chunks, STOP, or, of a finished beam, itself with one more chunk."""
    size, num_beams, t = beams.actions.shape
    seen = see(beams.actions.reshape(size * num_beams, t))
    split = lambda x: x.reshape(size, num_beams, *x.shape[1:])  # noqa: E731
    # Equal values: the first in document order.
    best_q, places = jax.lax.top_k(seen.q, min(width, seen.q.shape[1]))
    best_q, position = split(best_q), split(seen.positions(places))
    best, stop_q = split(jnp.take_along_axis(seen.ids, places, axis=1)), split(seen.stop_q)
    finished = beams.finished[..., None]
    earned = beams.earned
    if t:
        best_next = jnp.maximum(best_q[..., 0], stop_q.max(-1, initial=-jnp.inf))
        earned += jnp.clip(beams.q_values[..., -1] - best_next, 0.0, max(config.fact_reward, 0.0))
    rank = jnp.arange(best.shape[-1], dtype=jnp.int32)
    # The first chunk is taken in any case, and a beam whose first chunk lies below the threshold has it alone; another
    # chunk below the threshold is taken by finished beams only.
    worth = jnp.ones(best_q.shape, bool)
    if t:
        worth = (best_q >= threshold) & (beams.q_values[..., :1] >= threshold)
    ends = ~finished & ~worth.any(axis=-1, keepdims=True)
    going = finished | ends  # these go on greedily, with the score and the number of chunks that they ended with
    children = _Beams(
        actions=_append(beams.actions, best.astype(jnp.int32)),
        q_values=_append(beams.q_values, best_q),
        positions=_append(beams.positions, position),
        scores=jnp.where(
            going,
            jnp.where(rank == 0, beams.scores[..., None], -jnp.inf),
            jnp.where(worth, earned[..., None] + best_q, -jnp.inf),
        ),
        earned=jnp.broadcast_to(earned[..., None], best.shape),
        num_kept=jnp.broadcast_to(jnp.where(going, beams.num_kept[..., None], t + 1), best.shape),
        finished=jnp.broadcast_to(going, best.shape),
    )
    children = children._replace(scores=jnp.where(jnp.isneginf(beams.scores)[..., None], -jnp.inf, children.scores))
    children = _join(children)
    if not config.stop or not t:
        return children
    # STOP: the beam ends with the set that it has, and goes on greedily.
    stop_score = jnp.where(beams.finished | jnp.isneginf(beams.scores), -jnp.inf, earned + stop_q[..., 0])
    stopped = _Beams(
        actions=_append(beams.actions, best[..., :1].astype(jnp.int32)),
        q_values=_append(beams.q_values, best_q[..., :1]),
        positions=_append(beams.positions, position[..., :1]),
        scores=stop_score[..., None],
        earned=earned[..., None],
        num_kept=beams.num_kept[..., None],
        finished=jnp.ones((size, num_beams, 1), bool),
    )
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), children, _join(stopped))


def _append(prefix: Array, last: Array) -> Array:
    """[batch, beams, t] and [batch, beams, children] -> [batch, beams, children, t + 1]."""
    repeated = jnp.broadcast_to(prefix[:, :, None], (*last.shape, prefix.shape[-1]))
    return jnp.concatenate([repeated, last[..., None]], axis=-1)


def _join(children: _Beams) -> _Beams:
    """[batch, beams, children, ...] -> [batch, beams * children, ...]."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]), children)


def _best(beams: _Beams, width: int) -> _Beams:
    """The `width` best distinct sets, best first; fewer are filled up with beams of score -inf."""
    order = jnp.argsort(-beams.scores, axis=1, stable=True)
    beams = _pick(beams, order)
    repeated = jax.vmap(_repeats)(jnp.sort(beams.actions, axis=2), beams.num_kept, beams.finished)
    scores = jnp.where(repeated, -jnp.inf, beams.scores)
    kept = jnp.argsort(-scores, axis=1, stable=True)[:, :width]
    return _pick(beams._replace(scores=scores), kept)


def _pick(beams: _Beams, order: Int[Array, "batch kept"]) -> _Beams:
    return jax.tree.map(
        lambda x: jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), axis=1), beams
    )


def _repeats(
    sets: Int[Array, "beams t"], num_kept: Int[Array, " beams"], finished: Bool[Array, " beams"]
) -> Bool[Array, " beams"]:
    """True if an earlier (better) beam contains the same set and has ended, or not ended, in the same place."""
    same = (sets[:, None] == sets[None]).all(-1) & (finished[:, None] == finished[None])
    same &= num_kept[:, None] == num_kept[None]
    return jnp.tril(same, k=-1).any(axis=1)


class SearchFunctions(NamedTuple):
    """Jitted; a pool is (action vectors, rows of the chunks).

    Attributes:
        play: (env, number of best chunks to report, params, pool, question rows, contexts) -> greedy rollouts; the
            first two are static.
        plan: (env, beam width, threshold, params, pool, question rows, contexts) -> beam search; the first two are
            static.
    """

    play: Callable[..., Rollout]
    plan: Callable[..., Plan]


def make_search_functions(network: Network) -> SearchFunctions:
    """The searches of a network; parameters and pools are arguments, not constants."""

    def play(
        env: EnvConfig, num_best: int, params: PyTree, pool: PyTree, questions: PyTree, contexts: Contexts
    ) -> Rollout:
        vectors, rows = pool
        batch = _over_pool(rows, questions, contexts)
        key = jax.random.key(0)  # a greedy policy draws nothing
        policy = make_greedy(num_chunks=contexts.chunks.shape[1])
        return rollout(network, params, batch, key, policy, env, action_vectors=vectors, num_best=num_best)

    def plan(
        env: EnvConfig,
        width: int,
        threshold: jax.Array,
        params: PyTree,
        pool: PyTree,
        questions: PyTree,
        contexts: Contexts,
    ) -> Plan:
        vectors, rows = pool
        batch = _over_pool(rows, questions, contexts)
        return beam_search(network, params, batch, env, width, threshold, action_vectors=vectors)

    return SearchFunctions(jax.jit(play, static_argnums=(0, 1)), jax.jit(plan, static_argnums=(0, 1)))


def _over_pool(rows: PyTree, questions: PyTree, contexts: Contexts) -> Batch:
    """Uses the pool as the table of the batch: nothing is encoded, because the index has the vectors."""
    valid = contexts.chunks >= 0
    return Batch(
        table=rows,
        questions=questions.take(contexts.questions),
        chunks=jnp.maximum(contexts.chunks, 0),
        indices=jnp.broadcast_to(jnp.arange(contexts.chunks.shape[1]), contexts.chunks.shape),
        lengths=valid.sum(1),
        valid=valid,
        gold=contexts.gold,
        env=jnp.arange(len(contexts.chunks)),
        links=contexts.links,
        words=contexts.words,
    )
