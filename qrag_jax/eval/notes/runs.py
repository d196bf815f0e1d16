"""A multi-step run (Q-RAG) on the pools of notes: picks in several steps beside searches in one."""

import time
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from qrag_jax.eval.notes.note_scores import ModeScores
from qrag_jax.eval.notes.note_sets import Pool
from qrag_jax.eval.retrieval.harness import pick_all
from qrag_jax.eval.retrieval.pickers import multi_step_picker
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.multi_step_search import make_action_bank
from qrag_jax.qrag.retriever import QRagRetriever
from qrag_jax.search.corpus import Corpus, embed_corpus
from qrag_jax.search.hybrid import rank_dense
from qrag_jax.types import Embed, UsageError


def score_run(
    pool: Pool,
    retriever: QRagRetriever,
    ks: Sequence[int],
    num_steps: int,
    among: Int[np.ndarray, "n candidates"] | None = None,
) -> ModeScores:
    """What the first k picks of a run hold, for every question of a pool.

    Texts and questions are cut at the run's windows. A pool may be far longer than the contexts of training: its index
    is made once, and a step compares one state with all chunks. A run that compares the chunks of a context with each
    other (`env.links`) picks from candidates alone.

    Args:
        pool: chunks and questions.
        retriever: as trained.
        ks: picks that are looked at; those beyond `num_steps` are not there and find nothing.
        num_steps: picks; text towers read them all, and have room for few.
        among: for each question the chunks that it picks from (`nearest_chunks`); None: all.

    Returns:
        `seconds`: the mean of a question, asked in batches, with the compilation of the search and without the index.
        `embedded`: states that text towers read behind the first one.

    Raises:
        UsageError: `num_steps` is below 1, or a state has no room for so many picks.
        InputError: no chunks, or more candidates than a run compares with each other.
    """
    if num_steps < 1:
        raise UsageError(f"num_steps {num_steps}: pick at least one chunk")
    index = make_action_bank(retriever, Corpus(pool.documents, pool.chunks).texts)
    number = len(pool.asked)
    chunks = np.tile(np.arange(index.num_chunks), (number, 1)) if among is None else among
    gold = np.array([np.isin(row, list(asked.gold)) for row, asked in zip(chunks, pool.asked, strict=True)])
    contexts = Contexts(np.arange(number, dtype=np.int32), chunks.astype(np.int32), gold)
    start = time.perf_counter()
    picker = multi_step_picker(index, [asked.question for asked in pool.asked])
    picked, is_gold = pick_all(picker, contexts, num_steps)
    seconds = (time.perf_counter() - start) / number
    found = np.take_along_axis(is_gold, picked.chosen, axis=1)
    wanted = np.array([len(asked.gold) for asked in pool.asked])
    recall = np.stack([found[:, :k].sum(axis=1) / wanted for k in ks], axis=1)
    states = num_steps - 1 if retriever.model.mode == "text" else 0
    all_gold, none = (recall == 1).astype(np.float64), np.zeros(number)
    return ModeScores(all_gold, recall, np.full(number, 1.0 * states), np.full(number, seconds), none, none)


def nearest_chunks(pool: Pool, embed: Embed, number: int) -> Int[np.ndarray, "n candidates"]:
    """For each question the chunks with the nearest vectors, at most so many, in the order of the pool."""
    corpus = embed_corpus(Corpus(pool.documents, pool.chunks), embed)
    found = [np.sort(rank_dense(asked.question, corpus, embed, number).ids) for asked in pool.asked]
    return np.stack(found)
