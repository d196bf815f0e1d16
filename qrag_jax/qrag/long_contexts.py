"""Greedy search in contexts of any length: rows stay on the host, perhaps in a mapped file, and are scored in blocks.

A block has one shape, and its chunks are split over the devices. Each device scores its share at the exact positions
and returns its best few; the host merges them. So the memory beside the rows depends only on the size of a block.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from qrag_jax.models.towers.positions import chunk_positions, rotary_scores
from qrag_jax.models.towers.q_network import AnyArray, Network, PyTree
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.env import EnvConfig, rotation_at
from qrag_jax.qrag.heads import stop_q_values
from qrag_jax.sharding import MeshConfig, make_mesh, place, split_rows

LONG = 2**17  # chunks of a context: more are scored in blocks
BLOCK = 2**14  # chunks that are scored at once, by all devices together
_IN_FLIGHT = 2  # blocks: one is gathered while one is scored


def is_long(num_chunks: int) -> bool:
    """True if contexts of so many chunks are scored in blocks."""
    return num_chunks > LONG


class LongPlay(NamedTuple):
    """Greedy picks in long contexts: the fields of `env.Rollout` with these names, as NumPy arrays."""

    actions: np.ndarray
    positions: np.ndarray
    q_values: np.ndarray
    stop_q_values: np.ndarray
    best: np.ndarray
    best_q_values: np.ndarray


class _Found(NamedTuple):
    """Candidates of a step, for each chunk its place in the document, position and Q of every head."""

    places: AnyArray  # int32 [n]
    positions: AnyArray  # float32 [n]
    q: AnyArray  # float32 [n, heads]
    total: AnyArray  # float32 [n], over the heads; -inf of chunks that may not be taken


@dataclass(frozen=True)
class BlockFunctions:
    """Jitted; made by `make_block_functions`.

    Attributes:
        state: (env, params, question rows [1, ...], rows of the taken chunks [t, ...], order int32 [1, t]) -> state
            float32 [dim] and Q of STOP float32 [heads], -inf where the run learned none; env is static.
        best: (env, k, mesh, state, action vectors [block, dim], places int32 [block], taken int32 [T], length) ->
            the best k candidates of every device; the first three are static, vectors and places are split over the
            mesh, and entries of `taken` from `length` on count as not taken.
    """

    state: Callable[..., tuple[jax.Array, jax.Array]]
    best: Callable[..., _Found]


def make_block_functions(network: Network) -> BlockFunctions:
    """The functions of a network, for contexts of all lengths."""

    def state(
        env: EnvConfig, params: PyTree, question: PyTree, chosen: PyTree, order: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        states = network.states(params, question, chosen, order)
        if not env.stop:
            return states[0], jnp.full(env.num_q_heads, -jnp.inf)
        return states[0], stop_q_values(params["stop"], states, env.num_q_heads)[0]

    def best(
        env: EnvConfig,
        k: int,
        mesh: Mesh,
        state: jax.Array,
        vectors: jax.Array,
        places: jax.Array,
        taken: jax.Array,
        length: jax.Array,
    ) -> _Found:
        split, whole = split_rows(mesh).spec, PartitionSpec()
        own = partial(_best_of_share, env, k, network.num_rotated)
        mapped = jax.shard_map(own, mesh=mesh, in_specs=(whole, split, split, whole, whole), out_specs=split)
        return mapped(state, vectors, places, taken, length)

    return BlockFunctions(jax.jit(state, static_argnums=0), jax.jit(best, static_argnums=(0, 1, 2)))


def _best_of_share(
    env: EnvConfig,
    k: int,
    num_rotated: int,
    state: jax.Array,
    vectors: jax.Array,
    places: jax.Array,
    taken: jax.Array,
    length: jax.Array,
) -> _Found:
    rho = chunk_positions(env.positions, places, taken, length, env.delta, env.ell)
    rotation = None if env.positions == "none" else rotation_at(rho, env, num_rotated)
    q = rotary_scores(state, vectors, rotation, env.num_q_heads)
    free = (places < length) & ~(places[:, None] == taken[None, :]).any(axis=1)
    total, slots = jax.lax.top_k(jnp.where(free, q.sum(0), -jnp.inf), min(k, len(places)))
    return _Found(places[slots], rho[slots], q[:, slots].T, total)


def play_long(
    functions: BlockFunctions,
    env: EnvConfig,
    params: PyTree,
    pool: PyTree,
    questions: PyTree,
    contexts: Contexts,
    num_best: int = 0,
    mesh: Mesh | None = None,
    block: int = BLOCK,
) -> LongPlay:
    """The greedy picks of `env.rollout`, without STOP, question by question.

    Args:
        functions: of the network.
        env: the decision process; without `links`, which no context of this length has.
        params: parameters of the network.
        pool: (action vectors float32 [rows, dim], rows of the towers), NumPy arrays.
        questions: rows of the pool of questions.
        contexts: over the pool, each with at least T chunks.
        num_best: chunks to report in `best`.
        mesh: devices that share each block; None takes all.
        block: chunks of a block; rounded up to a multiple of the number of devices.
    """
    mesh = mesh or make_mesh(MeshConfig(data=jax.device_count()))
    search = _Search(functions, env, params, pool, max(1, num_best), mesh, -(-block // mesh.size) * mesh.size)
    asked = jax.tree.map(np.asarray, questions)
    played = [
        search.play(jax.tree.map(lambda leaf, q=question: leaf[q : q + 1], asked), chunks[chunks >= 0])
        for question, chunks in zip(contexts.questions, contexts.chunks, strict=True)
    ]
    return LongPlay(*map(np.stack, zip(*played, strict=True)))


class _Search(NamedTuple):
    """The arguments of `play_long` that all questions share."""

    functions: BlockFunctions
    env: EnvConfig
    params: PyTree
    pool: PyTree
    num_best: int
    mesh: Mesh
    block: int

    def play(self, question: PyTree, chunks: np.ndarray) -> tuple[np.ndarray, ...]:
        """The picks of one question; `chunks` are ids into the pool."""
        taken: list[int] = []
        steps = []
        for _ in range(self.env.num_steps):
            state, stop_q = self._state(question, chunks, sorted(taken))
            found = self._best(state, chunks, sorted(taken))
            stop_q = np.asarray(stop_q) if taken else np.full(self.env.num_q_heads, -np.inf, np.float32)
            steps.append((found.places[0], found.positions[0], found.q[0], stop_q, found.places, found.total))
            taken.append(int(found.places[0]))
        return tuple(map(np.stack, zip(*steps, strict=True)))

    def _state(self, question: PyTree, chunks: np.ndarray, taken: Sequence[int]) -> tuple[jax.Array, jax.Array]:
        ids = chunks[[*taken, *([] if taken else [0])]]  # a table has a row, also where no chunk is taken
        chosen = jax.tree.map(lambda leaf: leaf[ids], self.pool[1])
        order = np.arange(len(taken), dtype=np.int32)[None]
        return self.functions.state(self.env, self.params, question, chosen, order)

    def _best(self, state: jax.Array, chunks: np.ndarray, taken: Sequence[int]) -> _Found:
        """The best chunks of all blocks, best first; of equals the first in the document."""
        length = len(chunks)
        filled = np.asarray([*taken, *[length] * (self.env.num_steps - len(taken))], np.int32)
        parts: list[_Found] = []
        for places, vectors in self._blocks(chunks, parts):
            own = place((vectors, places), split_rows(self.mesh))
            parts.append(self.functions.best(self.env, self.num_best, self.mesh, state, *own, filled, np.int32(length)))
        joined = _Found(*(np.concatenate([np.asarray(x) for x in column]) for column in zip(*parts, strict=True)))
        order = np.lexsort((joined.places, -np.asarray(joined.total)))[: min(self.num_best, length)]
        return _Found(*(x[order] for x in joined))

    def _blocks(self, chunks: np.ndarray, parts: Sequence[_Found]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Places and action vectors, block by block; the last one is filled up with places behind the document.

        Buffers are used again when the block that they held is scored (`parts`).
        """
        actions = self.pool[0]
        buffers = [np.zeros((self.block, actions.shape[1]), actions.dtype) for _ in range(_IN_FLIGHT)]
        for number, first in enumerate(range(0, len(chunks), self.block)):
            ids, vectors = chunks[first : first + self.block], buffers[number % _IN_FLIGHT]
            if number >= _IN_FLIGHT:
                jax.block_until_ready(parts[number - _IN_FLIGHT])
            np.take(actions, ids, axis=0, out=vectors[: len(ids)], mode="clip")
            yield np.arange(first, first + self.block, dtype=np.int32), vectors
