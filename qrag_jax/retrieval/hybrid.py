"""Retrieval in one step over the chunks of documents: by meaning, by words, or by both ranks together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.spans import readable
from qrag_jax.retrieval.bm25 import Bm25Index
from qrag_jax.types import Embed, InputError, UsageError

RetrieverName = Literal["single_step", "bm25", "hybrid"]
RETRIEVERS: tuple[RetrieverName, ...] = get_args(RetrieverName)
RANK_CONSTANT = 60.0
_DIGITS = 9  # sums in another order differ in their last bits: rounded, equal texts tie, and ties go by order
_FUSED_DIGITS = 15  # ranks a thousand places down differ by 1e-6, a hundred thousand down by 1e-10


@dataclass(frozen=True)
class Ranked:
    """Chunks, best first.

    Attributes:
        ids: numbers of the chunks, none twice; not all chunks need be there.
        scores: of each, on the method's own scale. Those of this module never increase; the Q values of picks that
            were made step by step may.
    """

    ids: Int[np.ndarray, " k"]
    scores: Float[np.ndarray, " k"]

    def __len__(self) -> int:
        return len(self.ids)


def rank_dense(question: str, texts: Sequence[str], embed: Embed) -> Ranked:
    """All texts by the cosine of their vector and the question's; equal ones in the order given.

    Args:
        question: what is asked.
        texts: of the chunks.
        embed: texts -> vectors, asked once for the question and the texts together.

    Raises:
        InputError: no texts, or vectors of another number or that are not finite.
    """
    if not texts:
        raise InputError("no chunk to search in: give at least one")
    vectors = np.asarray(embed([readable(text) for text in (question, *texts)]), np.float64)
    if len(vectors) != len(texts) + 1 or not np.isfinite(vectors).all():
        raise InputError(
            f"embedder: gave {vectors.shape} for {len(texts) + 1} texts: one vector each, of finite numbers, is needed"
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)  # no direction: cosine 0
    return _by_score(np.round(unit[1:] @ unit[0], _DIGITS))


def rank_bm25(question: str, texts: Sequence[str]) -> Ranked:
    """The texts that share a word with the question, by BM25 over these texts; equal ones in the order given.

    Raises:
        InputError: no texts.
    """
    if not texts:
        raise InputError("no chunk to search in: give at least one")
    ranked = _by_score(np.round(Bm25Index([readable(text) for text in texts]).scores(readable(question)), _DIGITS))
    matching = ranked.scores > 0
    return Ranked(ranked.ids[matching], ranked.scores[matching])


def fuse(rankings: Sequence[Ranked], constant: float = RANK_CONSTANT) -> Ranked:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009): a chunk counts as high as it stands in each ranking.

        score(c) = sum_r 1 / (constant + rank_r(c)),    rank_r(c) = 1 + number of chunks with a better score in r

    A ranking adds nothing for a chunk that it does not hold. Chunks with the same score share the best of their ranks,
    so that equal texts come out equal.

    Args:
        rankings: of the same chunks, with scores that never increase.
        constant: the paper's 60; the larger, the less the first ranks stand out.

    Raises:
        UsageError: the constant is negative or not finite.
    """
    if not 0 <= constant < np.inf:
        raise UsageError(f"constant {constant}: a finite number, 0 or more")
    scores = np.zeros(1 + max((int(ranked.ids.max()) for ranked in rankings if len(ranked)), default=-1))
    for ranked in rankings:
        better = np.searchsorted(-ranked.scores, -ranked.scores, side="left")
        scores[ranked.ids] += 1 / (constant + 1 + better)
    fused = _by_score(np.round(scores, _FUSED_DIGITS))
    found = fused.scores > 0
    return Ranked(fused.ids[found], fused.scores[found])


def rank(name: RetrieverName, question: str, texts: Sequence[str], embed: Embed | None = None) -> Ranked:
    """Ranks texts by a method's name.

    Args:
        name: `single_step` (`rank_dense`), `bm25` (`rank_bm25`) or `hybrid` (both, by `fuse`).
        question: what is asked.
        texts: of the chunks.
        embed: needed by all but `bm25`.

    Raises:
        UsageError: an embedder is missing.
        InputError: as the methods.
    """
    if name == "bm25":
        return rank_bm25(question, texts)
    if embed is None:
        raise UsageError(f"retriever {name}: needs an embedder")
    dense = rank_dense(question, texts, embed)
    return dense if name == "single_step" else fuse([dense, rank_bm25(question, texts)])


def _by_score(scores: Float[np.ndarray, " n"]) -> Ranked:
    order = np.argsort(-scores, kind="stable")
    return Ranked(order.astype(np.int64), scores[order])
