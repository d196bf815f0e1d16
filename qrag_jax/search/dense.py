"""Exact search by vectors: every question against every chunk, no index that could lose one."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

_BLOCK_ELEMENTS = 4_000_000  # scores and copies of vectors that are held at once: 32 MB each
_DIGITS = 9
Ranking = tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"]]
# (questions [q, dim], k) -> of each question the places of its `k` nearest vectors and their cosines, best first.
FindNearest = Callable[[Float[np.ndarray, "q dim"], int], list[Ranking]]


def in_memory(vectors: Float[np.ndarray, "n dim"]) -> FindNearest:
    """A store (`names.STORES`) that holds the unit vectors of all chunks and compares each, by `search_vectors`."""
    return lambda questions, k: search_vectors(questions, vectors, k)


def search_vectors(
    questions: Float[np.ndarray, "q dim"],
    vectors: Float[np.ndarray, "n dim"],
    k: int,
    among: Sequence[Int[np.ndarray, " _"]] | None = None,
) -> list[Ranking]:
    """The `k` nearest chunks of every question by cosine, best first; ties in the order of the chunks.

        score(q, c) = q . c    of unit vectors, summed in float64 and rounded to 9 digits

    Scores are held for a block of questions at a time, so that memory does not grow with questions x chunks.

    Args:
        questions, vectors: of length 1; zeros where a text has no direction.
        k: most chunks a question; where fewer compete it gets all of them.
        among: for each question the chunks that compete, increasing; None: all.

    Returns:
        For each question the indices of its chunks (int64) and their scores (float64).
    """
    if among is not None:
        return _search_some(questions, vectors, k, among)
    found: list[Ranking] = []
    step = max(1, _BLOCK_ELEMENTS // len(vectors))
    for start in range(0, len(questions), step):
        for scores in cosine_scores(questions[start : start + step], vectors):
            best = top_in_order(scores, k)
            found.append((best, scores[best]))
    return found


def top_in_order(
    scores: Float[np.ndarray, " n"], k: int, then: Float[np.ndarray, " n"] | None = None
) -> Int[np.ndarray, " _"]:
    """Indices (int64) of the `k` largest scores, or of all, best first; linear in n but for k.

    Args:
        scores: to order by.
        then: orders equal scores, the largest first; what is equal in this too goes by index.
    """
    kept = np.arange(len(scores))
    if len(scores) > k:
        worst = np.partition(scores, len(scores) - k)[len(scores) - k]
        above, ties = np.flatnonzero(scores > worst), np.flatnonzero(scores == worst)
        if then is not None:
            ties = ties[np.argsort(-then[ties], kind="stable")]
        kept = np.sort(np.concatenate([above, ties[: k - len(above)]]))
    keys = (-scores[kept],) if then is None else (-then[kept], -scores[kept])
    return kept[np.lexsort(keys)]


def _search_some(
    questions: Float[np.ndarray, "q dim"],
    vectors: Float[np.ndarray, "n dim"],
    k: int,
    among: Sequence[Int[np.ndarray, " _"]],
) -> list[Ranking]:
    found: list[Ranking] = []
    for row, chunks in enumerate(among):
        scores = cosine_scores(questions[row : row + 1], vectors[chunks])[0]
        best = top_in_order(scores, k)
        found.append((chunks[best].astype(np.int64), scores[best]))
    return found


def rounded(scores: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """To 9 digits: sums in another order differ in their last bits; so equal texts tie, and ties go by order."""
    return np.round(scores, _DIGITS)


def cosine_scores(
    questions: Float[np.ndarray, "q dim"], vectors: Float[np.ndarray, "n dim"]
) -> Float[np.ndarray, "q n"]:
    """The score of every question and chunk of `search_vectors`, all held at once."""
    scores = np.empty((len(questions), len(vectors)))
    left = questions.astype(np.float64)
    step = max(1, _BLOCK_ELEMENTS // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), step):
        scores[:, start : start + step] = left @ vectors[start : start + step].astype(np.float64).T
    return rounded(scores)
