"""Contexts in the manner of BabiLong: the facts of a story hidden, in order, among real sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.data.stories.haystack import Haystack
from qrag_jax.data.stories.stories import Stories
from qrag_jax.types import InputError, UsageError


@dataclass(frozen=True)
class Composed:
    """A batch of B contexts of M chunks over one text table: the facts of the stories, then the haystack.

    Attributes:
        question_ids: int32 [B], ids into `stories.questions`.
        chunks: int32 [B, M], ids into `text_table(stories, haystack)`, in document order.
        gold: bool [B, M], true where a chunk is a supporting fact.
        story: int32 [B], which question of the stories each context asks.
    """

    question_ids: np.ndarray
    chunks: np.ndarray
    gold: np.ndarray
    story: np.ndarray


def text_table(stories: Stories, haystack: Haystack) -> tuple[str, ...]:
    """The texts that the ids of `Composed.chunks` point to: facts first, then sentences of the haystack."""
    common = set(stories.texts).intersection(haystack.sentences)
    if common:
        raise InputError(
            f"haystack {haystack.name!r} contains {len(common)} sentences that are facts, for example {min(common)!r}; "
            "use haystack.without(stories.texts)"
        )
    return stories.texts + haystack.sentences


def fits(stories: Stories, num_chunks: int) -> np.ndarray:
    """bool [n]: true where all facts of the story fit into a context of `num_chunks` chunks."""
    return stories.num_facts <= num_chunks


def draw_noise_pool(haystack: Haystack, size: int, rng: np.random.Generator, run_length: int = 100) -> np.ndarray:
    """Draws int64 [size] ids of haystack sentences in runs, for the environments of a batch to share as their haystack.

    Fewer distinct chunks mean fewer embeddings a step. A run is up to `run_length` consecutive sentences of a document.
    """
    if size < 1:
        raise UsageError(f"a noise pool needs at least one sentence, got size {size}")
    return _draw_runs(np.arange(len(haystack)), haystack.ends, 1, size, rng, run_length)[0]


def compose(
    stories: Stories,
    haystack: Haystack,
    story_ids: Sequence[int] | np.ndarray,
    num_chunks: int,
    rng: np.random.Generator,
    run_length: int = 100,
    noise_pool: np.ndarray | None = None,
) -> Composed:
    """Hides the facts of `stories[story_ids]` in real sentences, `num_chunks` chunks a context.

    Facts keep their order and get positions drawn without replacement, uniformly over all subsets. The other places
    contain runs of up to `run_length` consecutive sentences of one document, which continue after the facts between
    them;
    a run starts at a uniformly drawn sentence (so a document is drawn in proportion to its length) and ends early
    with its document.

    Args:
        haystack: source of noise; see `text_table` for the id space.
        story_ids: B indices of questions, repeats allowed; each must fit (see `fits`).
        num_chunks: M, chunks in every context.
        rng: consumed; the same state gives the same batch.
        noise_pool: ids of haystack sentences to draw the runs from (`draw_noise_pool`); all sentences by default.
    """
    story = np.asarray(story_ids, np.int32)
    facts = [stories.facts[i] for i in story]
    num_facts = np.fromiter((len(row) for row in facts), np.int64, len(facts))
    if (num_facts > num_chunks).any():
        raise UsageError(
            f"{int((num_facts > num_chunks).sum())} of {len(story)} stories have more than num_chunks={num_chunks} "
            f"facts (up to {int(num_facts.max())}); leave them out with fits() or raise num_chunks"
        )
    is_fact = _random_places(num_facts, num_chunks, rng)
    noise = _noise(haystack, len(story), num_chunks, rng, run_length, noise_pool)
    chunks = np.empty(is_fact.shape, np.int32)
    # Boolean indexing goes row by row, so batch order then document order: the order of the concatenated facts, and
    # the first num_chunks - num_facts sentences of each row of noise.
    chunks[~is_fact] = noise[np.arange(num_chunks) < (num_chunks - num_facts)[:, None]] + len(stories.texts)
    flat_fact = np.flatnonzero(is_fact.reshape(-1))
    chunks.reshape(-1)[flat_fact] = np.concatenate(facts) if len(facts) else 0
    first = np.cumsum(num_facts) - num_facts
    gold_rows = [stories.gold[i] for i in story]
    num_gold = np.fromiter((len(row) for row in gold_rows), np.int64, len(gold_rows))
    gold = np.zeros(chunks.shape, bool)
    if len(story):
        gold.reshape(-1)[flat_fact[np.concatenate(gold_rows) + np.repeat(first, num_gold)]] = True
    return Composed(stories.question_ids[story], chunks, gold, story)


def _random_places(num_facts: np.ndarray, num_chunks: int, rng: np.random.Generator) -> np.ndarray:
    """bool [B, M] with `num_facts[b]` true places in row b, every subset of that size equally likely."""
    order = np.argsort(rng.random((len(num_facts), num_chunks), np.float32), axis=1, kind="stable")
    places = np.zeros(order.shape, bool)
    np.put_along_axis(places, order, np.arange(num_chunks) < num_facts[:, None], axis=1)
    return places


def _noise(
    haystack: Haystack, batch: int, num_chunks: int, rng: np.random.Generator, run_length: int, pool: np.ndarray | None
) -> np.ndarray:
    """int32 [B, M] ids of haystack sentences in runs."""
    if run_length < 1:
        raise UsageError(f"run_length must be at least 1, got {run_length}")
    if pool is None:
        return _draw_runs(np.arange(len(haystack)), haystack.ends, batch, num_chunks, rng, run_length)
    if not len(pool) or int(pool.min()) < 0 or int(pool.max()) >= len(haystack):
        raise UsageError(f"noise_pool must be ids of the {len(haystack)} sentences of the haystack, at least one")
    follows = (np.diff(pool) == 1) & (np.diff(haystack.document[pool]) == 0)
    breaks = np.append(np.flatnonzero(~follows) + 1, len(pool))
    ends = breaks[np.searchsorted(breaks, np.arange(len(pool)), side="right")]
    return _draw_runs(pool, ends, batch, num_chunks, rng, run_length)


def _draw_runs(
    ids: np.ndarray, ends: np.ndarray, batch: int, size: int, rng: np.random.Generator, run_length: int
) -> np.ndarray:
    """int32 [B, size]: rows join runs `ids[start : min(start + run_length, ends[start])]`, the last one cut to fit."""
    starts = np.empty((batch, 0), np.int64)
    lengths = np.empty((batch, 0), np.int64)
    while (lengths.sum(axis=1) < size).any():
        more = rng.integers(len(ids), size=(batch, size // run_length + 1))
        starts = np.concatenate([starts, more], axis=1)
        lengths = np.concatenate([lengths, np.minimum(ends[more] - more, run_length)], axis=1)
    before = np.cumsum(lengths, axis=1) - lengths
    lengths = np.clip(size - before, 0, lengths)
    index = np.repeat((starts - before).reshape(-1), lengths.reshape(-1)).reshape(batch, size)
    return ids[index + np.arange(size)].astype(np.int32)
