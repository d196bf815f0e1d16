"""Search of a pool by a run: its tables are made once, then any number of questions search it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.models.towers.q_network import Network, PyTree, VectorRows
from qrag_jax.qrag.beam import Plan, pool_beam_search
from qrag_jax.qrag.env import EnvConfig, PoolConfig, Rollout
from qrag_jax.qrag.multi_step_search import NUM_RUNNERS_UP, num_slots, trajectory_of, with_slots
from qrag_jax.qrag.policy import make_greedy
from qrag_jax.qrag.pool import PoolBatch, pool_rollout
from qrag_jax.qrag.pool_tables import AskedRows, PoolReader, PoolTable
from qrag_jax.qrag.retriever import Progress, QRagRetriever
from qrag_jax.search.pool_texts import PoolTexts
from qrag_jax.types import InputError, Trajectory, UsageError

_PER_CALL = 16  # questions of a compiled call


@dataclass(frozen=True)
class PoolBank:
    """A pool and the run that searches it; made by `make_pool_bank`.

    Attributes:
        retriever: of the run.
        reader: makes the tables of questions.
        table: of the pool, on the device, padded so that pools of many sizes share few compiled functions.
    """

    retriever: QRagRetriever
    reader: PoolReader
    table: PoolTable

    @property
    def texts(self) -> Sequence[str]:
        """The texts of the chunks."""
        return self.reader.pool.texts

    def question_vectors(self, questions: Sequence[str]) -> np.ndarray:
        """Vectors of questions by the encoder of the run."""
        rows, _ = self.retriever.rows(questions, "question")
        assert isinstance(rows, VectorRows)  # of latent towers
        return np.asarray(rows.vectors)

    @property
    def scored(self) -> np.ndarray | None:
        """Vectors of the chunks, where Q reads the scores of plain search."""
        pools = self.retriever.env.pool
        return np.asarray(self.table.rows.vectors) if pools is not None and pools.base == "hybrid" else None

    def play(self, questions: Sequence[str], num_steps: int, num_best: int = 0) -> Rollout:
        """Greedy episodes of the questions, as NumPy arrays; actions are chunk numbers."""
        return self._searched(partial(_search, num_best=num_best), questions, num_steps)

    def plan(self, questions: Sequence[str], num_steps: int, width: int) -> Plan:
        """Beam search of the questions (`beam.pool_beam_search`), as NumPy arrays; actions are chunk numbers."""
        return self._searched(partial(_plan, width=width), questions, num_steps)

    def _searched(self, search: Callable[..., Any], questions: Sequence[str], num_steps: int) -> Any:
        if num_steps > len(self.texts):
            raise InputError(f"{len(self.texts)} chunks in the pool cannot give {num_steps} picks: lower num_steps")
        vectors, scored = self.question_vectors(questions), self.scored
        asked = self.reader.questions(questions, vectors)
        env = replace(self.retriever.env, num_steps=num_steps)
        size, parts = min(len(questions), _PER_CALL), []
        for first in range(0, len(questions), size):
            rows = np.minimum(np.arange(first, first + size), len(questions) - 1)
            some = jax.tree.map(lambda x, rows=rows: x[rows], asked)
            if scored is not None:  # a few at a time, since each scores all chunks
                some = replace(some, plain=self.reader.plain([str(questions[i]) for i in rows], vectors[rows], scored))
            parts.append(search(self.retriever.network, env, self.retriever.params, self.table, some))
        return jax.tree.map(lambda *x: np.concatenate([np.asarray(one) for one in x])[: len(questions)], *parts)


@partial(jax.jit, static_argnames=("network", "env", "num_best"))
def _search(
    network: Network, env: EnvConfig, params: PyTree, table: PoolTable, asked: AskedRows, num_best: int
) -> Rollout:
    batch = _batch(table, asked)
    policy = make_greedy(None if not env.stop else -1)
    return pool_rollout(network, params, batch, jax.random.key(0), policy, env, num_best=num_best)[0]


@partial(jax.jit, static_argnames=("network", "env", "width"))
def _plan(network: Network, env: EnvConfig, params: PyTree, table: PoolTable, asked: AskedRows, width: int) -> Plan:
    return pool_beam_search(network, params, _batch(table, asked), env, width)


def _batch(table: PoolTable, asked: AskedRows) -> PoolBatch:
    size = asked.found.shape[0]
    return PoolBatch(table, asked, jnp.zeros((size, table.num_chunks), bool), jnp.arange(size))


def make_pool_bank(
    retriever: QRagRetriever, pool: PoolTexts, progress: Progress | None = None, like: PoolBank | None = None
) -> PoolBank:
    """Embeds a pool where it has no vectors, and makes its tables.

    Args:
        progress: of the embedding.
        like: the new tables are at least as large as those of this bank, so that both share compiled functions.

    Raises:
        UsageError: the run picks from contexts.
        InputError: an empty pool, or vectors of another encoder.
    """
    sizes = check_pools(retriever)
    reader = PoolReader(pool, sizes.links, sizes.words)
    vectors = pool.vectors
    if vectors is None:
        rows, _ = retriever.rows(pool.texts, "chunk", progress)
        assert isinstance(rows, VectorRows)  # of latent towers
        vectors = np.asarray(rows.vectors)
    else:
        check_encoder(retriever, pool)
    return PoolBank(retriever, reader, jax.device_put(_with_slots(reader.table(vectors), like and like.table)))


def search_pool(
    bank: PoolBank,
    question: str,
    num_steps: int,
    threshold: float | None = None,
    learned_stop: bool = False,
) -> Trajectory:
    """As `multi_step_search.search_bank`, over a pool."""
    played = bank.play([question], num_steps, 1 + NUM_RUNNERS_UP)
    return trajectory_of(played, threshold=threshold, learned_stop=learned_stop)


def _with_slots(table: PoolTable, like: PoolTable | None = None) -> PoolTable:
    """Adds chunks and words up to a round number, and to those of another table where it has more.

    Nothing leads to them, and the chunks belong to no document.
    """
    rows = with_slots(replace(table, idf=None, shared=None, mean=None))
    size, vocabulary, width = rows.num_chunks, num_slots(len(table.idf)), table.texts.words.shape[1]
    if like is not None:
        size, vocabulary = max(size, like.num_chunks), max(vocabulary, len(like.idf))
        width = max(width, like.texts.words.shape[1])
        more = size - rows.num_chunks
        rows = jax.tree.map(lambda x: np.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1), mode="edge"), rows)
    rows.document[table.num_chunks :] = -1
    wider = [(0, 0), (0, width - table.texts.words.shape[1])]
    words = np.pad(rows.texts.words, wider, constant_values=-1)
    texts = replace(rows.texts, words=words, flags=np.pad(rows.texts.flags, wider))
    more = vocabulary - len(table.idf)
    idf, shared = np.pad(table.idf, (0, more)), np.pad(table.shared, (0, more))
    return replace(rows, texts=texts, idf=idf, shared=shared, mean=table.mean)


def check_pools(retriever: QRagRetriever) -> PoolConfig:
    """The sizes of a step's search; refuses a run that picks from contexts."""
    if retriever.env.pool is None:
        raise UsageError(
            "this run was trained to pick from one context: train one with configs/qrag/corpus_latent.yaml (env.pool) "
            "to search many documents"
        )
    return retriever.env.pool


def check_encoder(retriever: QRagRetriever, pool: PoolTexts) -> None:
    """Refuses vectors of another encoder than that of the run."""
    if pool.fingerprint and pool.fingerprint != retriever.chunk_encoder.fingerprint:
        raise InputError(
            "the index was embedded with another encoder than the run reads: build it with the encoder, window and "
            "normalisation of the run (model.encoder), or train the run on this index"
        )
