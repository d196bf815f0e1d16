"""Puts the best candidates of a search into the order of a model that reads question and passage together.

    ranked, reranked = rerank(question, corpus, ranked, reranker, RerankOptions(files=10))

Candidates are the best passage of each of the best files, or simply the best passages:

    score(c) = search(c) + weight * reranker(q, c)          or, without a weight, score(c) = reranker(q, c)
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked, SomeRanked
from qrag_jax.types import Reranker, check_fields

Show = Callable[[Reranker], Reranker]  # wraps a reranker, to show progress
_MORE = 8  # nodes ranked for each file wanted, so that few questions need a second ranking


@dataclass(frozen=True)
class RerankOptions:
    """How candidates are reranked.

    Attributes:
        model: a reranker, or its name as `load_reranker` takes it.
        files: number of files whose best passage is a candidate; without `passages`.
        passages: number of best passages that are candidates, whatever their files.
        weight: of the reranker's score beside the search's; a large one orders by the reranker alone. None is the
            reranker's own (`types.Reranker`), five times that after token vectors, or no weight if the search compares
            only words, whose scores have another scale.
        show: wraps a reranker that is loaded by its name.
    """

    model: "str | Reranker"
    files: int = 10
    passages: int | None = None
    weight: float | None = None
    show: Show | None = None

    def __post_init__(self) -> None:
        check_fields(self, positive=("files", "passages"), within={"weight": "[0, inf)"})


@dataclass(frozen=True)
class Reranked:
    """The work of a reranker for one question.

    Attributes:
        name: of the reranker.
        weight: of its scores; None if they alone order the candidates.
        scores: of the candidates, by node.
        num_tokens: read.
        num_cut: candidates that it did not read to their end.
        seconds: wall time.
    """

    name: str
    weight: float | None
    scores: dict[int, float]
    num_tokens: int
    num_cut: int
    seconds: float


def candidates(corpus: Corpus, ranked: Ranked, options: RerankOptions) -> Int[np.ndarray, " n"]:
    """Places in the ranking that are reranked, the best first."""
    if options.passages is not None:
        return np.arange(min(len(ranked), options.passages))
    _, first = np.unique(corpus.numbers_of(ranked.ids), return_index=True)
    return np.sort(first)[: options.files]


def rank_enough(
    rank: Callable[[int | None], SomeRanked], corpus: Corpus, top_k: int | None, options: RerankOptions
) -> SomeRanked:
    """A ranking with at least `top_k` nodes and all candidates.

    Args:
        rank: most nodes -> the ranking; called again for more nodes if those of the first have too few files.
    """
    wanted = options.passages or min(options.files, len(corpus.documents))
    most = None if top_k is None else max(top_k, wanted if options.passages else _MORE * wanted)
    while True:
        ranked = rank(most)
        if most is None or len(ranked) < most or len(candidates(corpus, ranked, options)) >= wanted:
            return ranked
        most *= _MORE


def rerank(
    question: str, corpus: Corpus, ranked: SomeRanked, reranker: Reranker, options: RerankOptions, *, by_words: bool
) -> tuple[SomeRanked, Reranked]:
    """The ranking with its candidates first, in their new order; the other nodes follow in their old one.

    Scores of candidates are those of the module. The others keep the distances of their old scores, shifted so that
    none is above a candidate. Equal scores keep their old order.

    Args:
        reranker: reads the passages as they are searched (`Corpus.full_texts`).
        by_words: the scores of the search are those of BM25.
    """
    start, before = time.perf_counter(), reranker.counts
    places = candidates(corpus, ranked, options)
    nodes = ranked.ids[places].tolist()
    found = reranker(question, [corpus.full_texts[node] for node in nodes]) if nodes else np.zeros(0)
    weight = options.weight if options.weight is not None or by_words else reranker.weight
    scores = found if weight is None else ranked.scores[places] + weight * found
    order = np.argsort(-scores, kind="stable")
    rest = np.setdiff1d(np.arange(len(ranked)), places)
    counts = reranker.counts
    told = Reranked(
        reranker.name,
        weight,
        dict(zip(nodes, found.tolist(), strict=True)),
        counts.num_tokens - before.num_tokens,
        counts.num_texts_cut - before.num_texts_cut,
        time.perf_counter() - start,
    )
    below = ranked.scores[rest]
    if len(below) and len(scores):
        below = below - max(0.0, below[0] - scores.min())
    new = np.concatenate([scores[order], below])
    return replace(ranked, ids=ranked.ids[np.concatenate([places[order], rest])], scores=new), told
