"""From contexts of text ids to the arrays of a batch: distinct chunks once, in static shapes."""

import jax
import numpy as np
from flax import struct

from qrag_jax.models.network import PyTree
from qrag_jax.retrieval.env import Batch

Buckets = tuple[tuple[int, int], ...]


@struct.dataclass
class Sample:
    """A batch as ids into a resident pool of texts: small to send, cheap to make on the host."""

    distinct: jax.Array  # int32 [rows], pool ids of the distinct chunks; tail of each bucket padded with id 0
    questions: jax.Array  # int32 [batch], ids into the pool of questions
    chunks: jax.Array  # int32 [batch, chunks], positions in `distinct`
    indices: jax.Array  # int32 [batch, chunks]
    lengths: jax.Array  # int32 [batch]
    valid: jax.Array  # bool [batch, chunks]
    gold: jax.Array  # bool [batch, chunks]
    env: jax.Array  # int32 [batch]
    buckets: Buckets = struct.field(pytree_node=False, default=())


def materialise(chunk_pool: PyTree, question_pool: PyTree, sample: Sample) -> Batch:
    """Gathers a batch's rows from the pools, on the device. Pure; call it inside the jitted update."""
    return Batch(
        table=chunk_pool.take(sample.distinct, sample.buckets),
        questions=question_pool.take(sample.questions),
        chunks=sample.chunks,
        indices=sample.indices,
        lengths=sample.lengths,
        valid=sample.valid,
        gold=sample.gold,
        env=sample.env,
    )


@struct.dataclass
class Contexts:
    """Contexts over a pool of texts, made on the host: what every data source hands to training and evaluation.

    Attributes:
        questions: int32 [batch], ids of the question texts.
        chunks: int32 [batch, chunks], ids of the chunk texts in document order; -1 at padding, on the right.
        gold: bool [batch, chunks].
    """

    questions: np.ndarray
    chunks: np.ndarray
    gold: np.ndarray


class Packer:
    """Packs contexts into samples whose shapes stay the same from batch to batch.

    Distinct chunks are sorted into buckets by length. A bucket's capacity only grows: a batch that does not fit raises
    it by a tenth and costs one compilation, so a run compiles a handful of times at most.
    """

    def __init__(self, lengths: np.ndarray, widths: tuple[int, ...], multiple: int = 64):
        """Args: lengths int [pool], tokens of every text; widths, ascending, the last at least the longest text."""
        if list(widths) != sorted(set(widths)) or not len(lengths) or lengths.max() > widths[-1]:
            raise ValueError(f"bucket widths {widths} must ascend up to the longest text of {lengths.max(initial=0)} tokens")
        self.widths = tuple(int(width) for width in widths)
        self.capacities = [0] * len(widths)
        self._bucket_of = np.searchsorted(self.widths, lengths, side="left")
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
        bucket = self._bucket_of[distinct]
        counts = np.bincount(bucket, minlength=len(self.widths))
        for b, count in enumerate(counts):
            if count > self.capacities[b]:
                self.capacities[b] = -(-int(1.1 * count) // self._multiple) * self._multiple
        order = np.argsort(bucket, kind="stable")
        first_slot = np.cumsum([0, *self.capacities[:-1]])
        rank = np.arange(len(distinct)) - np.repeat(np.cumsum(counts) - counts, counts)
        slots = np.empty(len(distinct), np.int32)
        slots[order] = first_slot[bucket[order]] + rank
        rows = np.zeros(sum(self.capacities), np.int32)
        rows[slots] = distinct
        size, num_chunks = valid.shape
        default_indices = np.broadcast_to(np.arange(num_chunks), valid.shape)
        return Sample(
            distinct=rows,
            questions=contexts.questions.astype(np.int32),
            chunks=slots[inverse.reshape(valid.shape)],
            indices=np.asarray(default_indices if indices is None else indices, np.int32),
            lengths=np.asarray(valid.sum(1) if lengths is None else lengths, np.int32),
            valid=valid,
            gold=contexts.gold & valid,
            env=np.arange(first_env, first_env + size, dtype=np.int32),
            buckets=tuple((c, w) for c, w in zip(self.capacities, self.widths, strict=True) if c),
        )


def stretched_indices(
    rng: np.random.Generator, batch: int, num_chunks: int, stretch: float
) -> tuple[np.ndarray, np.ndarray]:
    """Document indices as if each context were a sample of a longer document, so that positions of long texts are met.

    A document length is drawn log-uniformly from `num_chunks` to `stretch * num_chunks`, and the context's chunks stand
    at distinct sorted indices in it.

    Returns:
        (indices int32 [batch, num_chunks], lengths int32 [batch]).
    """
    if stretch < 1:
        raise ValueError(f"data.stretch={stretch} must be at least 1 (1 = positions as they are)")
    lengths = np.floor(num_chunks * np.exp(rng.uniform(0.0, np.log(stretch), batch))).astype(np.int64)
    # Sorted distinct integers: sorted integers with repeats in a shorter range, plus their rank.
    spare = lengths - num_chunks + 1
    draws = np.sort((rng.random((batch, num_chunks)) * spare[:, None]).astype(np.int64), axis=1)
    return (draws + np.arange(num_chunks)).astype(np.int32), lengths.astype(np.int32)
