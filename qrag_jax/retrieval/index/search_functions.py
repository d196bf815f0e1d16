"""Search over an index as compiled functions: one pair a retriever, so that indices of equal shapes compile once."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qrag_jax.models.towers.network import Network, PyTree
from qrag_jax.retrieval.mdp.batching import Contexts
from qrag_jax.retrieval.mdp.beam import Plan, beam_search
from qrag_jax.retrieval.mdp.env import Batch, EnvConfig, Rollout, rollout
from qrag_jax.retrieval.mdp.policy import make_greedy


class SearchFunctions(NamedTuple):
    """Jitted; a pool is (action vectors, rows of the chunks).

    Attributes:
        play: (env, params, pool, question rows, contexts) -> greedy rollouts; `env` is static.
        plan: (env, beam width, threshold, params, pool, question rows, contexts) -> beam search; the first two are
            static.
    """

    play: Callable[..., Rollout]
    plan: Callable[..., Plan]


def make_search_functions(network: Network) -> SearchFunctions:
    """The searches of a network; parameters and pools are arguments, not constants."""

    def play(env: EnvConfig, params: PyTree, pool: PyTree, questions: PyTree, contexts: Contexts) -> Rollout:
        vectors, rows = pool
        batch = _over_pool(rows, questions, contexts)
        key = jax.random.key(0)  # a greedy policy draws nothing
        policy = make_greedy(num_chunks=contexts.chunks.shape[1])
        return rollout(network, params, batch, key, policy, env, action_vectors=vectors)

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

    return SearchFunctions(jax.jit(play, static_argnums=0), jax.jit(plan, static_argnums=(0, 1)))


def _over_pool(rows: PyTree, questions: PyTree, contexts: Contexts) -> Batch:
    """The pool itself is the table of the batch: nothing of it is encoded, the index is at hand."""
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
