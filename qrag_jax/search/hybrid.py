"""Retrieval in one step over a corpus: by vectors, by words, or by both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.chunking.text.spans import readable
from qrag_jax.names import RETRIEVERS
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.corpus import Corpus, are_unknown, embed_question
from qrag_jax.search.dense import (
    SMALLEST,
    cosine_scores,
    may_be_best,
    rough_cosines,
    rough_error,
    rough_error_of,
    rounded,
    search_vectors,
    top_in_order,
)
from qrag_jax.types import Embed, Note, UsageError

_RANK_CONSTANT = 60.0
WORDS_WEIGHT = 0.5  # chosen on 48 questions about documentation: benchmarks/search/results/own_documents
_LEAST_NEAR, _MORE_NEAR = 200, 20  # leaves that a store finds: at least, and for each one wanted
_FARTHEST = 10  # leaves among which the lowest cosine is looked for, because a store rounds
_FUSED_DIGITS = 15  # neighbours at rank 1,000 differ by 1e-6, at rank 100,000 by 1e-10
SomeRanked = TypeVar("SomeRanked", bound="Ranked")


@dataclass(frozen=True)
class Ranked:
    """Nodes of a corpus, the best first.

    Attributes:
        ids: of the nodes, without repeats; some nodes may be missing.
        scores: of each node, on the scale of the method. They never increase, except Q values of picks.
        copies: a node -> the nodes that were left out because their text is the same (`search/copies.py`).
    """

    ids: Int[np.ndarray, " k"]
    scores: Float[np.ndarray, " k"]
    copies: Mapping[int, Sequence[int]] = field(default_factory=dict, kw_only=True)

    def __len__(self) -> int:
        return len(self.ids)

    def first(self: SomeRanked, number: int | None) -> SomeRanked:
        """The first `number` nodes; None is all."""
        return replace(self, ids=self.ids[:number], scores=self.scores[:number])

    def notes_of(self, node: int) -> tuple[Note, ...]:
        """The notes that brought a node in, the best first; empty if the search ignores notes."""
        return ()


# (question, corpus, top_k) -> the best leaves, at most `top_k`; None: as many as the method ranks.
Retrieve = Callable[[str, Corpus, int | None], Ranked]


def check_top_k(top_k: int | None) -> None:
    """Refuses a `top_k` below 1."""
    if top_k is not None and top_k < 1:
        raise UsageError(f"top_k={top_k}: give at least 1, or None for as many as the method ranks")


def rank_dense(question: str, corpus: Corpus, embed: Embed, top_k: int | None = None) -> Ranked:
    """Ranks the leaves by the cosine of their vectors and the question's; ties in the order of the corpus.

    Args:
        question: the only text that is embedded.
        corpus: with vectors of the same encoder.
        embed: texts -> vectors.
        top_k: most nodes; None ranks all.

    Raises:
        InputError: the corpus has no vectors or those of another encoder, or as `embed_texts`.
        UsageError: `top_k` is below 1.
    """
    check_top_k(top_k)
    asked = embed_question(corpus, embed, question)
    vectors = corpus.unit_vectors
    if not corpus.finds_near or top_k is None:
        ((places, scores),) = search_vectors(asked[None], vectors, len(vectors) if top_k is None else top_k)
    else:
        nothing = np.zeros(len(vectors))
        exact = lambda leaves: cosine_scores(asked[None], vectors[leaves])[0]  # noqa: E731
        places, scores = first_near(corpus, asked, nothing, nothing > 0, exact, top_k, 0.0)
    return Ranked(corpus.leaves[places], scores)


def rank_bm25(question: str, corpus: Corpus, top_k: int | None = None) -> Ranked:
    """Ranks the leaves that share a word with the question by BM25 over all leaves; ties in the order of the corpus.

    Words are counted at the first question and kept with the corpus.

    Raises:
        UsageError: `top_k` is below 1.
    """
    return rank_words(question, corpus, corpus.words, top_k)


def rank_words(question: str, corpus: Corpus, words: Bm25Index, top_k: int | None = None) -> Ranked:
    """As `rank_bm25`, with given words of the leaves, for example including those of notes.

    Args:
        words: of the leaves; ids are positions in `corpus.leaves`.
        top_k: most nodes; None is all that share a word with the question.
    """
    check_top_k(top_k)
    scores = words.scores(readable(question))
    near = np.flatnonzero(scores > 0) if top_k is None else may_be_best(scores, top_k, SMALLEST)
    found = rounded(scores[near])
    best = top_in_order(found, len(found) if top_k is None else top_k)
    best = best[found[best] > 0]
    return Ranked(corpus.leaves[near[best]], found[best])


def rank_hybrid(
    question: str, corpus: Corpus, embed: Embed, top_k: int | None = None, weight: float = WORDS_WEIGHT
) -> Ranked:
    """Ranks the leaves by vectors and words together; ties in the order of the corpus.

    Vectors of text in words that the encoder does not know are noise. So a question in such words is ranked by words
    alone (ties by vectors), and such a leaf has the lowest of all cosines.

        score(c) = (1 - weight) * cosine(q, c) + weight * share(q, c)

    This is a convex combination of scores, BM25 divided by an upper bound (`Bm25Index.shares`). Unlike fusion of ranks,
    it uses how much better one chunk is than the next. Bruch, Gai and Ingber (2023) divide BM25 by the best score of
    the question instead; that would give full weight to words even if no text contains the question's rare words.

    Args:
        question: the only text that is embedded.
        corpus: with vectors of the same encoder.
        embed: texts -> vectors.
        top_k: most nodes; None ranks all.
        weight: of the words, in [0, 1]; 0 is the order of `rank_dense`, 1 that of `rank_bm25`
            if identifiers counted more.

    Returns:
        Scores in [-1, 1].

    Raises:
        InputError: as `rank_dense`.
        UsageError: `top_k` is below 1, or the weight is out of range.
    """
    check_top_k(top_k)
    _check_weight(weight)
    by_words = words_weight(question, embed, weight)
    asked, vectors = embed_question(corpus, embed, question), corpus.unit_vectors
    if top_k is not None and by_words == weight:
        shares, unknown = corpus.words.shares(readable(question)), corpus.unknown_leaves(embed)

        def exact(leaves: Int[np.ndarray, " _"]) -> Float[np.ndarray, " _"]:
            return cosine_scores(asked[None], vectors[leaves])[0]

        if needs_list(corpus, weight):
            best, found = first_near(corpus, asked, shares, unknown, exact, top_k, weight)
        else:
            rough = rough_cosines(asked[None], vectors)[0]
            best, found = first_fused(rough, shares, unknown, exact, top_k, weight, rough_error_of(vectors))
        return Ranked(corpus.leaves[best], found)
    own = known_scores(cosine_scores(asked[None], vectors)[0], corpus, embed)
    found = fused_with_words(own, corpus.words, question, by_words)
    order = np.lexsort((-own if by_words != weight else np.zeros(len(own)), -found))
    return Ranked(corpus.leaves[order], found[order]).first(top_k)


def first_fused(
    rough: Float[np.ndarray, " leaves"],
    shares: Float[np.ndarray, " leaves"],
    unknown: Bool[np.ndarray, " leaves"],
    exact: Callable[[Int[np.ndarray, " _"]], Float[np.ndarray, " _"]],
    top_k: int,
    weight: float,
    error: float,
    then: Callable[[Int[np.ndarray, " _"]], Float[np.ndarray, " _"]] | None = None,
) -> tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"]]:
    """The first `top_k` leaves by scores and words together, with exact scores for those that may be among them.

    Args:
        rough: scores of all leaves, each off by at most `error`.
        shares: of the words (`Bm25Index.shares`).
        unknown: leaves that get the lowest of all scores (`known_scores`).
        exact: positions of leaves -> their scores.
        top_k: most leaves.
        weight: of the words, in [0, 1].
        error: of a rough score.
        then: positions of leaves -> values that order equal scores.

    Returns:
        Positions of the leaves, and their fused scores, the best first; ties in the order of the leaves.
    """
    lowest = None
    if unknown.any():
        lowest = exact(may_be_best(-rough, 1, error)).min()
        rough = np.where(unknown, rough.min(), rough)
    fused = weight * shares
    fused += (1 - weight) * rough
    near = may_be_best(fused, top_k, error)
    scores = exact(near) if lowest is None else np.where(unknown[near], lowest, exact(near))
    return _first_of(near, scores, shares, top_k, weight, then)


def needs_list(corpus: Corpus, weight: float) -> bool:
    """True if leaves are compared that a store or signs find nearest (`first_near`), and not all.

    Words may lift a leaf that is far away, so a list that includes it for sure is often long. So all vectors on this
    machine are compared where words count.
    """
    return corpus.stored is not None or (not weight and corpus.finds_near)


def first_near(
    corpus: Corpus,
    asked: Float[np.ndarray, " dim"],
    shares: Float[np.ndarray, " leaves"],
    unknown: Bool[np.ndarray, " leaves"],
    exact: Callable[[Int[np.ndarray, " _"]], Float[np.ndarray, " _"]],
    top_k: int,
    weight: float,
    then: Callable[[Int[np.ndarray, " _"]], Float[np.ndarray, " _"]] | None = None,
    linked: Callable[[Int[np.ndarray, " _"]], Int[np.ndarray, " _"]] = lambda leaves: leaves,
) -> tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"]]:
    """As `first_fused`, among the leaves that the store finds nearest and those with the best words.

    A leaf outside both lists scores at most

        (1 - weight) * (worst cosine that the store found) + weight * (worst share of the list of words)

    If the last of the first `top_k` is not above this, the lists are made four times as long. So the result is that of
    `first_fused` if the store is exact.

    Args:
        corpus: with vectors in a store.
        asked: vector of the question, of length 1.
        shares, unknown, exact, top_k, weight, then: as in `first_fused`.
        linked: positions of leaves -> these, and the leaves that they can lift as high as themselves.
    """
    lowest = exact(np.sort(corpus.find_near(-asked, _FARTHEST)[0])).min() if unknown.any() else None
    number = max(_LEAST_NEAR, _MORE_NEAR * top_k) if weight else 2 * top_k
    while True:
        near, rough = corpus.find_near(asked, number)
        wordy = top_in_order(shares, number) if weight else near[:0]
        worst = shares[wordy].min(initial=1.0)
        leaves = linked(np.union1d(near, wordy))
        scores = exact(leaves) if lowest is None else np.where(unknown[leaves], lowest, exact(leaves))
        best, found = _first_of(leaves, scores, shares, top_k, weight, then)
        if len(near) < number:  # the store has no more
            return best, found
        bound = (1 - weight) * (rough[-1] + rough_error(len(asked))) + weight * worst
        if len(found) == top_k and found[-1] > bound:
            return best, found
        number *= 4


def _first_of(
    leaves: Int[np.ndarray, " n"],
    scores: Float[np.ndarray, " n"],
    shares: Float[np.ndarray, " leaves"],
    top_k: int,
    weight: float,
    then: Callable[[Int[np.ndarray, " _"]], Float[np.ndarray, " _"]] | None,
) -> tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"]]:
    """The first `top_k` of some leaves by their exact scores and shares, and their fused scores."""
    found = rounded((1 - weight) * scores + weight * shares[leaves])
    best = top_in_order(found, top_k, None if then is None else then(leaves))
    return leaves[best], found[best]


def words_weight(question: str, embed: Embed, weight: float) -> float:
    """The weight of the words of a question: 1 if the encoder does not know them, else as given; 0 stays 0."""
    return 1.0 if weight and are_unknown(embed, [question])[0] else weight


def known_scores(scores: Float[np.ndarray, " leaves"], corpus: Corpus, embed: Embed) -> Float[np.ndarray, " leaves"]:
    """Scores of the leaves by vectors; leaves in words that the encoder does not know get the lowest of all."""
    unknown = corpus.unknown_leaves(embed)
    return np.where(unknown, scores.min(), scores) if unknown.any() else scores


def fused_with_words(
    scores: Float[np.ndarray, " chunks"], words: Bm25Index, question: str, weight: float
) -> Float[np.ndarray, " chunks"]:
    """`(1 - weight) * score(c) + weight * share(q, c)` of every chunk (`Bm25Index.shares`).

    Args:
        words: of the chunks, in the same order.
        weight: of the words, in [0, 1].

    Raises:
        UsageError: the weight is out of range.
    """
    _check_weight(weight)
    return rounded((1 - weight) * scores + weight * words.shares(readable(question)))


def fuse(rankings: Sequence[Ranked], constant: float = _RANK_CONSTANT) -> Ranked:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009): scores nodes by their ranks in several rankings.

        score(c) = sum_r 1 / (constant + rank_r(c)),    rank_r(c) = 1 + number of nodes with a better score in r

    A ranking adds nothing to nodes that it does not contain. Nodes with equal scores share the best of their ranks, so
    equal texts get equal scores.

    Args:
        rankings: of the same nodes, with scores that never increase.
        constant: the paper's 60; a larger one gives the first ranks less weight.

    Raises:
        UsageError: the constant is negative or not finite.
    """
    if not 0 <= constant < np.inf:
        raise UsageError(f"constant {constant}: must be finite and at least 0")
    scores = np.zeros(1 + max((int(ranked.ids.max()) for ranked in rankings if len(ranked)), default=-1))
    for ranked in rankings:
        better = np.searchsorted(-ranked.scores, -ranked.scores, side="left")
        scores[ranked.ids] += 1 / (constant + 1 + better)
    scores = np.round(scores, _FUSED_DIGITS)
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > 0]
    return Ranked(order, scores[order])


def make_single_step(name: str, embed: Embed | None = None) -> Retrieve:
    """A retriever by its name.

    Args:
        name: `dense` or `single_step` (`rank_dense`), `bm25` (`rank_bm25`), or `hybrid` (`rank_hybrid`).
        embed: embeds the questions; needed by all but `bm25`.

    Raises:
        UsageError: the name is unknown, or the embedder is missing.
    """
    if name not in RETRIEVERS:
        raise UsageError(f"retriever {name!r}: choose one of {', '.join(RETRIEVERS)}")
    if name == "bm25":
        return lambda question, corpus, top_k: rank_bm25(question, corpus, top_k)
    if embed is None:
        raise UsageError(f"retriever {name}: needs an embedder; give `embed`")
    if name in ("dense", "single_step"):
        return lambda question, corpus, top_k: rank_dense(question, corpus, embed, top_k)
    return lambda question, corpus, top_k: rank_hybrid(question, corpus, embed, top_k)


def _check_weight(weight: float) -> None:
    if not 0 <= weight <= 1:
        raise UsageError(f"weight {weight}: must be a share from 0 to 1")
