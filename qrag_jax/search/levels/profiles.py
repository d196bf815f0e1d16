"""Profiles sum up a first cheap search for a router, by the best scores of every level.

For each level, the nodes that represent it are ranked. With their scores s_1 >= s_2 >= ...:

    best      s_1
    mean      of s_1 .. s_5
    gap       s_1 - s_2, and s_1 - s_10
    spread    documents among the first 10, as a share of these
    overlap   of a level and the next finer one: 1 if the best node of one contains that of the other
    agree     1 if the best nodes of all levels are from one document
    question  ln(1 + words), share of words with a capital letter, 1 if there is a digit
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.levels.level_search import LevelIndex

NUM_BEST = 10  # of each level
_NUM_MEAN = 5
_OF_LEVEL = ("best", "mean", "gap_2", "gap_10", "spread")
_OF_QUESTION = ("words", "capitals", "digits")


def profile_names(levels: Sequence[str]) -> tuple[str, ...]:
    """Names of the numbers of a profile, from the names of the levels."""
    own = [f"{name}.{what}" for name in levels for what in _OF_LEVEL]
    return (*own, *(f"overlap.{coarse}.{fine}" for coarse, fine in pairwise(levels)), "agree", *_OF_QUESTION)


def score_profiles(
    index: LevelIndex, questions: Sequence[str], vectors: Float[np.ndarray, "questions dim"]
) -> Float[np.ndarray, "questions features"]:
    """The profile of every question, in the order of `profile_names(index.names)`.

    Args:
        index: searched once for each level and question.
        vectors: of the questions, by the encoder of the corpus.
    """
    rows = [_profile(index, question, vector) for question, vector in zip(questions, vectors, strict=True)]
    return np.array(rows, np.float64).reshape(len(rows), len(profile_names(index.names)))


def _profile(index: LevelIndex, question: str, vector: Float[np.ndarray, " dim"]) -> list[float]:
    levels = [LevelRange(level, level) for level in range(len(index.names))]
    found = [index.rank(question, vector, one, NUM_BEST) for one in levels]
    best = [int(ranked.ids[0]) for ranked in found]
    overlap = [float(_overlap(index, coarse, fine)) for coarse, fine in pairwise(best)]
    agree = float(len(np.unique(index.corpus.numbers_of(np.array(best)))) == 1)
    words = question.split()
    capitals = sum(word[0].isupper() for word in words) / max(1, len(words))
    digits = float(any(letter.isdigit() for letter in question))
    own = [value for ranked in found for value in _of_level(index, ranked)]
    return [*own, *overlap, agree, float(np.log1p(len(words))), capitals, digits]


def _of_level(index: LevelIndex, ranked: Ranked) -> list[float]:
    """The numbers of `_OF_LEVEL`; the last score is repeated for missing nodes."""
    scores = np.pad(ranked.scores, (0, NUM_BEST - len(ranked)), mode="edge")
    spread = len(np.unique(index.corpus.numbers_of(ranked.ids))) / len(ranked)
    return [scores[0], scores[:_NUM_MEAN].mean(), scores[0] - scores[1], scores[0] - scores[-1], spread]


def _overlap(index: LevelIndex, first: int, second: int) -> bool:
    nodes = index.corpus.nodes[first], index.corpus.nodes[second]
    (start, end), (begin, stop) = nodes[0].spans[0], nodes[1].spans[0]
    return nodes[0].document_id == nodes[1].document_id and start < stop and begin < end
