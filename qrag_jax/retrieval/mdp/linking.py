"""Contexts with what their texts say of each other, for runs whose Q reads it (`env.links`)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qrag_jax.retrieval.mdp.batching import Contexts
from qrag_jax.retrieval.mdp.env import EnvConfig
from qrag_jax.retrieval.rank.bridges import bridge_features
from qrag_jax.retrieval.rank.links import MOST_WORDS, link_features, shared_words
from qrag_jax.types import InputError, UsageError

MOST_LINKED = 64  # chunks of a context: the work grows with their square

Texts = Sequence[str] | np.ndarray  # texts, or their vectors
Link = Callable[[Contexts], Contexts]


def make_linker(config: EnvConfig, texts: Texts | None, questions: Texts) -> Link:
    """Contexts -> the same with `Contexts.links` and `words`, as far as a run reads these; else they stay as they are.

    Every context is read once: what was made of it is kept as long as the linker lives.

    Args:
        texts: pool of chunks that the contexts are over.
    """
    if not config.links:
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
        words = np.zeros((size, 1 + width, MOST_WORDS), np.float32) if config.coverage else None
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
    """Refuses a context that is too long to compare all its chunks with each other."""
    if num_chunks > MOST_LINKED:
        raise InputError(
            f"a context of {num_chunks:,} chunks: this run compares the chunks of a context with each other "
            f"(env.links=true), which it does for at most {MOST_LINKED}; use a run with env.links=false, or larger "
            "chunks"
        )
