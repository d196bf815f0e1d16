"""Packs contexts of text ids into the arrays of a batch: each distinct chunk once, in static shapes.

Adds the links between texts to contexts, for runs whose Q reads them (`env.links`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from qrag_jax.models.towers.q_network import AnyArray, PyTree
from qrag_jax.qrag.env import Batch, EnvConfig
from qrag_jax.qrag.pool import PoolBatch
from qrag_jax.qrag.pool_tables import AskedRows, PoolTable
from qrag_jax.qrag.text_links import MAX_WORDS, bridge_features, link_features, shared_words
from qrag_jax.types import InputError, UsageError


@struct.dataclass
class Sample:
    """A batch as ids into a pool of texts that stays on the device: small to send, cheap to make on the host."""

    distinct: AnyArray  # int32 [rows], pool ids of the distinct chunks, ascending; the tail is padded with -1
    questions: AnyArray  # int32 [batch], ids into the pool of questions
    chunks: AnyArray  # int32 [batch, chunks], positions in `distinct`
    indices: AnyArray  # int32 [batch, chunks]
    lengths: AnyArray  # int32 [batch]
    valid: AnyArray  # bool [batch, chunks]
    gold: AnyArray  # bool [batch, chunks]
    env: AnyArray  # int32 [batch]
    links: AnyArray = None  # float32 [batch, 1 + chunks, chunks, links]; None where Q reads none
    words: AnyArray = None  # float32 [batch, 1 + chunks, words]; likewise
    mined: AnyArray = None  # int32 [batch, chunks], place in a pool of mined texts that a chunk gives way to; -1
    negatives: AnyArray = None  # int32 [negatives], pool ids of `Batch.negatives`
    places: AnyArray = None  # float32 [batch, groups], `Batch.places`
    queries: AnyArray = None  # int32 [batch], numbers of the queries in their task; None where no one reads them


def with_mined(sample: Sample, ids: AnyArray) -> Sample:
    """The sample with mined texts in place: `Sample.mined` indexes int32 [pool], ids of texts."""
    arrays = np if isinstance(sample.distinct, np.ndarray) else jnp
    *parts, rows = sample.distinct.shape
    own = arrays.broadcast_to(ids, (*parts, len(ids)))
    return replace(
        sample,
        distinct=arrays.concatenate([sample.distinct, own], axis=-1),
        chunks=arrays.where(sample.mined >= 0, rows + sample.mined, sample.chunks),
        mined=None,
    )


def materialise(chunk_pool: PyTree, question_pool: PyTree, sample: Sample, mined: AnyArray | None = None) -> PyTree:
    """Gathers a batch's rows from the pools, on the device. Pure; call it inside the jitted update.

    Args:
        chunk_pool: inputs of the towers for every chunk.
        question_pool: the same for every question.
        sample: ids into both.
        mined: ids of mined texts, if the sample has places for them.
    """
    if mined is not None:
        sample = with_mined(sample, mined)
    if isinstance(chunk_pool, PoolTable):
        return pool_batch(chunk_pool, question_pool.take(sample.questions), sample)
    return Batch(
        table=chunk_pool.take(sample.distinct),
        questions=question_pool.take(sample.questions),
        chunks=sample.chunks,
        indices=sample.indices,
        lengths=sample.lengths,
        valid=sample.valid,
        gold=sample.gold,
        env=sample.env,
        links=sample.links,
        words=sample.words,
        negatives=None if sample.negatives is None else chunk_pool.take(sample.negatives),
        places=sample.places,
    )


def pool_batch(table: PoolTable, questions: AskedRows, sample: Sample) -> PoolBatch:
    """Episodes over a pool; the contexts of the sample hold the gold chunks only."""
    ids = jnp.maximum(sample.distinct[sample.chunks], 0)
    rows = jnp.arange(len(ids))[:, None]
    gold = jnp.zeros((len(ids), table.num_chunks), bool).at[rows, ids].max(sample.gold & sample.valid)
    return PoolBatch(table, questions, gold, sample.env, sample.negatives)


@struct.dataclass
class Contexts:
    """Contexts over a pool of texts, made on the host. Every data source gives them to training and evaluation.

    Attributes:
        questions: int32 [batch], ids of the question texts.
        chunks: int32 [batch, chunks], ids of the chunk texts in document order; -1 at padding, on the right.
        gold: bool [batch, chunks].
        links: float32 [batch, 1 + chunks, chunks, links], features of pairs of texts (`batching.make_linker`); None
            if no run reads them.
        words: float32 [batch, 1 + chunks, words], shared words (`text_links.shared_words`); likewise.
    """

    questions: AnyArray
    chunks: AnyArray
    gold: AnyArray
    links: AnyArray = None
    words: AnyArray = None


class Packer:
    """Packs contexts into samples whose shapes stay the same from batch to batch.

    The number of rows only grows. A batch with more distinct chunks raises it to 1.1 times its own number, and by at
    least half; this costs one compilation. A run so compiles a few times at most.
    """

    def __init__(self, multiple: int = 128, capacity: int = 0):
        """Args: multiple, what the number of rows is rounded up to; capacity, the number of rows to begin with."""
        self.capacity = -(-capacity // multiple) * multiple
        self._multiple = multiple

    def __call__(
        self,
        contexts: Contexts,
        indices: np.ndarray | None = None,
        lengths: np.ndarray | None = None,
        first_env: int = 0,
    ) -> Sample:
        """Packs one batch.

        Args:
            contexts: the batch.
            indices: int [batch, chunks], document index of every chunk; by default its place in the context.
            lengths: int [batch], document lengths; by default the number of chunks.
            first_env: global number of the first environment.
        """
        valid = contexts.chunks >= 0
        distinct, inverse = np.unique(np.where(valid, contexts.chunks, contexts.chunks[:, :1]), return_inverse=True)
        if len(distinct) > self.capacity:
            # By half at least: documents of very uneven size would otherwise set a new shape again and again.
            wanted = max(int(1.1 * len(distinct)), int(1.5 * self.capacity))
            self.capacity = -(-wanted // self._multiple) * self._multiple
        rows = np.full(self.capacity, -1, np.int32)
        rows[: len(distinct)] = distinct
        size, num_chunks = valid.shape
        default_indices = np.broadcast_to(np.arange(num_chunks), valid.shape)
        return Sample(
            distinct=rows,
            questions=contexts.questions.astype(np.int32),
            chunks=inverse.reshape(valid.shape).astype(np.int32),
            indices=np.asarray(default_indices if indices is None else indices, np.int32),
            lengths=np.asarray(valid.sum(1) if lengths is None else lengths, np.int32),
            valid=valid,
            gold=contexts.gold & valid,
            env=np.arange(first_env, first_env + size, dtype=np.int32),
            links=contexts.links,
            words=contexts.words,
        )

    def stack(self, contexts: Contexts, indices: np.ndarray, lengths: np.ndarray, num_parts: int) -> Sample:
        """Packs one batch as parts of equal size, each with distinct chunks of its own.

        Args:
            contexts: the batch.
            indices: int [batch, chunks].
            lengths: int [batch].
            num_parts: divides the size of the batch.

        Returns:
            A sample whose arrays have one more axis in front, of `num_parts`.
        """
        size = len(contexts.questions) // num_parts
        parts = [slice(first, first + size) for first in range(0, len(contexts.questions), size)]

        def pack(part: slice) -> Sample:
            cut = jax.tree.map(lambda x: x[part], contexts)
            return self(cut, indices[part], lengths[part], part.start)

        samples = [pack(part) for part in parts]
        if any(len(sample.distinct) < self.capacity for sample in samples):  # a later part needed more rows
            samples = [pack(part) for part in parts]
        return jax.tree.map(lambda *arrays: np.stack(arrays), *samples)


def stretched_indices(rng: np.random.Generator, valid: np.ndarray, stretch: float) -> tuple[np.ndarray, np.ndarray]:
    """Document indices as if each context were a sample of a longer document, to train positions of long texts.

    A document length is drawn log-uniformly from the context's number of chunks to `stretch` times it, and the chunks
    get distinct sorted indices in it.

    Args:
        rng: consumed.
        valid: bool [batch, chunks], real chunks, on the left.
        stretch: at least 1; 1 leaves every chunk at its place.

    Returns:
        (indices int32 [batch, chunks], lengths int32 [batch]); padding gets indices beyond the document.
    """
    num_chunks = valid.sum(1)
    lengths = np.floor(num_chunks * np.exp(rng.uniform(0.0, np.log(stretch), len(valid)))).astype(np.int64)
    # Sorted distinct integers: sorted integers with repeats in a shorter range, plus their rank.
    spare = lengths - num_chunks + 1
    shares = np.where(valid, rng.random(valid.shape), 1.0)
    draws = np.sort((shares * spare[:, None]).astype(np.int64), axis=1)
    return (draws + np.arange(valid.shape[1])).astype(np.int32), lengths.astype(np.int32)


MAX_LINKED = 64  # chunks of a context: the work grows with their square

Texts = Sequence[str] | np.ndarray  # texts, or their vectors
Link = Callable[[Contexts], Contexts]


def make_linker(config: EnvConfig, texts: Texts | None, questions: Texts) -> Link:
    """A function that adds `Contexts.links` and `words` to contexts, as far as a run reads these.

    Every context is read once; its features are kept as long as the linker exists.

    Args:
        texts: pool of chunks that the contexts are over.
    """
    if not config.links or config.pool is not None:  # `pool.pool_links` compares the candidates of a step
        return lambda contexts: contexts
    if texts is None or isinstance(texts, np.ndarray) or isinstance(questions, np.ndarray):
        raise UsageError(
            "env.links=true compares the texts of a context, and these are vectors: give texts, or train with "
            "env.links=false"
        )
    return _linker(config, texts, questions)


def _linker(config: EnvConfig, texts: Sequence[str], questions: Sequence[str]) -> Link:
    known: dict[tuple[int, bytes], tuple[np.ndarray, np.ndarray | None]] = {}

    def of(question: int, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        key = question, chunks.tobytes()
        if key not in known:
            own = questions[question], [texts[int(i)] for i in chunks]
            pairs = [link_features(*own), *([bridge_features(*own)] if config.bridges else [])]
            known[key] = np.concatenate(pairs, axis=-1), shared_words(*own) if config.coverage else None
        return known[key]

    def link(contexts: Contexts) -> Contexts:
        size, width = contexts.chunks.shape
        check_linkable(int((contexts.chunks >= 0).sum(axis=1).max(initial=0)))
        links = np.zeros((size, 1 + width, width, config.num_links), np.float32)
        words = np.zeros((size, 1 + width, MAX_WORDS), np.float32) if config.coverage else None
        for row, (question, chunks) in enumerate(zip(contexts.questions, contexts.chunks, strict=True)):
            real = np.flatnonzero(chunks >= 0)
            sources = np.concatenate([[0], 1 + real])
            pairs, own_words = of(int(question), chunks[real])
            links[row][np.ix_(sources, real)] = pairs
            if words is not None:
                words[row, sources] = own_words
        return replace(contexts, links=links, words=words)

    return link


def check_linkable(num_chunks: int) -> None:
    """Raises an error if a context has too many chunks to compare all pairs."""
    if num_chunks > MAX_LINKED:
        raise InputError(
            f"a context of {num_chunks:,} chunks: this run compares the chunks of a context with each other "
            f"(env.links=true), which it does for at most {MAX_LINKED}; use a run with env.links=false, or larger "
            "chunks"
        )
