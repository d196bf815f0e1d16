"""Evidence recall of every way to rank the nodes of a set, kept in a file; `levels.py` says what for."""

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from level_vectors import LevelSet, joined

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.chunking.tree.parent_vectors import Parents
from qrag_jax.eval.study.cells.level_cells import LevelContexts
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.planners import score_profiles
from qrag_jax.types import CountTokens

BUDGETS = (128, 256, 512, 1024, 2048)
SHARES = (0.25, 0.5, 0.75)  # of the parent's score
_RANK_CONSTANT = 60.0
_FORMAT = 3


class ScoredIndex(LevelIndex):
    """An index whose scores of nodes are given for one question at a time."""

    scores: np.ndarray

    def _scores(self, nodes: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return self.scores[nodes]


def searched(names: tuple[str, ...]) -> list[LevelRange]:
    """All ranges below the document, whose beginning alone would be a context."""
    levels = range(1, len(names))
    return [LevelRange(least, most) for least in levels for most in levels if least <= most]


def smoothed(names: tuple[str, ...]) -> list[tuple[LevelRange, float, str]]:
    """Ranges of one level or two, below the coarsest, with the shares of parents."""
    levels = range(2, len(names))
    ranges = [LevelRange(least, most) for least in levels for most in (least, least + 1) if most < len(names)]
    return [(one, share, how) for one in ranges for share in SHARES for how in ("smooth", "deep")]


def ways(names: tuple[str, ...]) -> list[str]:
    """Names of the columns.

    `plain 1:3` is a range; `child 3` a level with the best leaf's scores; `smooth 3:3 0.25` a level whose scores are a
    quarter the parents', `deep` the same where those of the parents are so made too; `fused 3` a level by fused ranks.
    """
    levels = range(1, len(names))
    return [
        *(f"plain {one.least}:{one.most}" for one in searched(names)),
        *(f"child {level}" for level in levels),
        *(f"{how} {one.least}:{one.most} {share}" for one, share, how in smoothed(names)),
        *(f"fused {level}" for level in levels),
        f"standard 1:{len(names) - 1}",
    ]


def recalls(known: LevelSet, count: CountTokens, cache: Path) -> dict[str, np.ndarray]:
    """`recall` [questions, ways, budgets], `sent` likewise, `profiles` [questions, features], `questions` vectors."""
    ids = [question.id for question in known.task.questions]
    key = json.dumps([_FORMAT, known.task.name, ids, known.names, len(known.corpus), ways(known.names)])
    path = cache / f"{known.task.name}-recall-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as kept:
            return dict(kept)
    index = ScoredIndex(known.corpus, known.names, Parents("windows"), has_parents=True)
    contexts = LevelContexts(known.corpus, known.task, BUDGETS, count)
    scores = known.questions.astype(np.float32) @ known.corpus.vectors.T
    tree, found, sent, profiles = _Tree(index), [], [], []
    start = time.perf_counter()
    for row, question in enumerate(known.task.questions):
        own = np.round(scores[row].astype(np.float64), 6)
        pairs = [
            contexts.recalls(question, ranked)
            for ranked in _rankings(index, tree, own, known.questions[row], question.text)
        ]
        found.append([recall for recall, _ in pairs])
        sent.append([tokens for _, tokens in pairs])
        index.scores = own
        profiles.append(score_profiles(index, [question.text], known.questions[row][None])[0])
        if row % 50 == 49:
            print(f"  {row + 1} of {len(ids)} questions, {time.perf_counter() - start:,.0f} s", flush=True)
    kept = {"recall": np.array(found), "sent": np.array(sent), "profiles": np.array(profiles)}
    kept["questions"] = known.questions
    np.savez(path, **kept)
    return kept


def _rankings(index: ScoredIndex, tree: "_Tree", own: np.ndarray, vector: np.ndarray, text: str) -> Iterator:
    """Those of `ways`, in their order."""
    most, levels = max(BUDGETS), range(1, len(index.names))

    def rank(scores: np.ndarray, levels: LevelRange):
        index.scores = scores
        return index.rank(text, vector, levels, most)

    for one in searched(index.names):
        yield rank(own, one)
    by_child = tree.best_leaf(own)
    for level in levels:
        yield rank(by_child, LevelRange(level, level))
    made = {(share, how): tree.smooth(own, share, how == "deep") for share in SHARES for how in ("smooth", "deep")}
    for one, share, how in smoothed(index.names):
        yield rank(made[share, how], one)
    fused = tree.fused(own)
    for level in levels:
        yield rank(fused, LevelRange(level, level))
    yield rank(tree.standardised(own), LevelRange(1, len(index.names) - 1))


class _Tree:
    """What scores of nodes are made of: parents, levels and leaves of all trees."""

    def __init__(self, index: LevelIndex) -> None:
        self.parent, self.level = joined(index.corpus)
        self.leaves, self.names = index.corpus.leaves, index.names
        stops = [tree.stops + index.corpus.nodes_of(tree.document_id).start for tree in index.corpus.trees]
        stop = np.concatenate(stops)
        first = np.searchsorted(self.leaves, np.arange(len(self.parent)))
        end = np.searchsorted(self.leaves, stop)
        self._borders = np.stack([first, end], axis=1).ravel()
        self._nodes = [index.nodes(LevelRange(level, level)) for level in range(len(index.names))]

    def best_leaf(self, scores: np.ndarray) -> np.ndarray:
        """Of every node the best score of a leaf under it."""
        return np.maximum.reduceat(np.append(scores[self.leaves], -np.inf), self._borders)[::2]

    def smooth(self, scores: np.ndarray, share: float, deep: bool) -> np.ndarray:
        """(1 - share) * own score + share * the parent's, which is smoothed too if `deep`; of roots their own."""
        found = scores.copy()
        for level in np.unique(self.level)[1:]:  # parents first
            here = np.flatnonzero(self.level == level)
            above = (found if deep else scores)[self.parent[here]]
            found[here] = (1 - share) * scores[here] + share * above
        return found

    def fused(self, scores: np.ndarray) -> np.ndarray:
        """sum over levels of 1 / (60 + rank) of the node itself and those around it, each among its level's nodes."""
        gain = np.zeros(len(scores))
        for nodes in self._nodes[1:]:
            order = np.argsort(-scores[nodes], kind="stable")
            gain[nodes[order]] = np.maximum(gain[nodes[order]], 1 / (_RANK_CONSTANT + 1 + np.arange(len(nodes))))
        total = gain.copy()
        for level in np.unique(self.level)[1:]:  # a node stands behind those around it, so these are summed already
            here = np.flatnonzero(self.level == level)
            total[here] = gain[here] + total[self.parent[here]]
        return total

    def standardised(self, scores: np.ndarray) -> np.ndarray:
        """Scores of each level minus their mean, by their standard deviation; a node of several has its coarsest's."""
        found = scores.copy()
        for nodes in self._nodes[:0:-1]:
            own = scores[nodes]
            found[nodes] = (own - own.mean()) / max(own.std(), 1e-9)
        return found
