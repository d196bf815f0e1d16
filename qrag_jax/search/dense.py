"""Exact search by vectors: it compares every question with every chunk."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.search.rows import Rows

_BLOCK_ELEMENTS = 4_000_000  # most elements of scores in memory at a time: 32 MB
_CACHED_ELEMENTS = 150_000  # of copied vectors at a time: 1.2 MB, which stay in a cache of the processor
_DIGITS = 9
SMALLEST = 10.0**-_DIGITS  # scores that are rounded to as many digits
Ranking = tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"]]


def search_vectors(
    questions: Float[np.ndarray, "q dim"],
    vectors: Float[np.ndarray, "n dim"] | Rows,
    k: int,
    among: Sequence[Int[np.ndarray, " _"]] | None = None,
) -> list[Ranking]:
    """The `k` nearest chunks of every question by cosine, the best first; ties in the order of the chunks.

        score(q, c) = q . c    of unit vectors, summed in float64 and rounded to 9 digits

    Products in float32, which need no copies in float64, leave out the chunks that cannot be among the nearest.
    Scores are computed for blocks of questions, so memory does not grow with questions x chunks.

    Args:
        questions, vectors: of length 1; zeros for text without a direction.
        k: most chunks of a question; if fewer compete, it gets all of them.
        among: for each question the increasing numbers of the chunks that compete; None is all.

    Returns:
        For each question the indices of its chunks (int64) and their scores (float64).
    """
    if among is not None:
        return _search_some(questions, vectors, k, among)
    found: list[Ranking] = []
    step = max(1, _BLOCK_ELEMENTS // len(vectors))
    for start in range(0, len(questions), step):
        some = questions[start : start + step]
        if k >= len(vectors):
            found += [_best(scores, k) for scores in cosine_scores(some, vectors)]
        else:
            found += [_nearest(*pair, vectors, k) for pair in zip(some, rough_cosines(some, vectors), strict=True)]
    return found


def _best(scores: Float[np.ndarray, " n"], k: int) -> Ranking:
    best = top_in_order(scores, k)
    return best, scores[best]


def _nearest(
    question: Float[np.ndarray, " dim"],
    rough: Float[np.ndarray, " n"],
    vectors: Float[np.ndarray, "n dim"] | Rows,
    k: int,
) -> Ranking:
    near = may_be_best(rough, k, rough_error_of(vectors))
    best, scores = _best(cosine_scores(question[None], vectors[near])[0], k)
    return near[best], scores


def rough_cosines(
    questions: Float[np.ndarray, "q dim"], vectors: Float[np.ndarray, "n dim"] | Rows
) -> Float[np.ndarray, "q n"]:
    """The scores of `search_vectors` in float32, each off by at most `rough_error_of`."""
    if isinstance(vectors, Rows):
        return vectors.products(questions)
    return questions.astype(np.float32) @ vectors.astype(np.float32, copy=False).T


def rough_error_of(vectors: Float[np.ndarray, "n dim"] | Rows) -> float:
    """The error of `rough_cosines`: that of float32, and of codes if there are any."""
    return rough_error(vectors.shape[1]) + (vectors.error if isinstance(vectors, Rows) else 0.0)


def rough_error(dim: int) -> float:
    """A bound of the error of a dot product of two vectors of length 1 in float32, summed in any order.

        |fl(q . c) - q . c| <= gamma_dim |q| . |c| <= gamma_dim,    gamma_n = n u / (1 - n u),  u = 2^-24

    (Higham 2002, section 3.1); u is doubled for lengths that are rounded to float32 themselves.
    """
    return 2 * dim * 2.0**-24 + SMALLEST


def may_be_best(rough: Float[np.ndarray, " n"], k: int, error: float) -> Int[np.ndarray, " _"]:
    """Indices (int64) of all scores that may be among the `k` largest, if each is off by at most `error`."""
    if k >= len(rough):
        return np.arange(len(rough))
    worst = np.partition(rough, len(rough) - k)[len(rough) - k]
    return np.flatnonzero(rough >= worst - 2 * error)


def top_in_order(
    scores: Float[np.ndarray, " n"], k: int, then: Float[np.ndarray, " n"] | None = None
) -> Int[np.ndarray, " _"]:
    """Indices (int64) of the `k` largest scores, the best first. Time is linear in n, apart from sorting k.

    Args:
        scores: to order by.
        then: orders equal scores, the largest first; remaining ties go by index.
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
    vectors: Float[np.ndarray, "n dim"] | Rows,
    k: int,
    among: Sequence[Int[np.ndarray, " _"]],
) -> list[Ranking]:
    found: list[Ranking] = []
    for row, chunks in enumerate(among):
        some = vectors[chunks]
        # Not a product of BLAS, whose threads then wait in a loop for more: the next question needs their processors.
        rough = np.einsum("d,nd->n", questions[row].astype(np.float32), some.astype(np.float32, copy=False))
        near = may_be_best(rough, k, rough_error(vectors.shape[1]))
        best, scores = _best(cosine_scores(questions[row : row + 1], some[near])[0], k)
        found.append((chunks[near[best]].astype(np.int64), scores))
    return found


def rounded(scores: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Rounds to 9 digits: sums in another order differ in their last bits, and equal texts must tie."""
    return np.round(scores, _DIGITS)


def cosine_scores(
    questions: Float[np.ndarray, "q dim"], vectors: Float[np.ndarray, "n dim"] | Rows
) -> Float[np.ndarray, "q n"]:
    """The scores of `search_vectors` for all questions and chunks, all in memory."""
    scores = np.empty((len(questions), len(vectors)))
    left = questions.astype(np.float64)
    step = max(1, _CACHED_ELEMENTS // max(1, vectors.shape[1]))
    wide = np.empty((min(step, len(vectors)), vectors.shape[1]))
    for start in range(0, len(vectors), step):
        part = vectors[start : start + step]
        np.copyto(wide[: len(part)], part)
        scores[:, start : start + step] = left @ wide[: len(part)].T
    return rounded(scores)
