"""Vectors of nodes, and evidence recall of every way to rank them, kept in files; `levels.py` says what for."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig, level_names, make_tree_builder
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.chunking.tree.parent_vectors import Parents, fill_levels_above, mean_of_children
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.costs import Meter
from qrag_jax.eval.study.cells.filled_contexts import section_points
from qrag_jax.eval.study.cells.level_cells import LevelContexts
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder
from qrag_jax.search.corpus import Corpus, tree_corpus
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.profiles import score_profiles
from qrag_jax.types import CountTokens

SIZES = (512, 256, 128, 64, 32)
_NODES_AT_ONCE = 4_000
_SPECIAL = 2
BUDGETS = (128, 256, 512, 1024, 2048)
SHARES = (0.25, 0.5, 0.75)  # of the parent's score
_RANK_CONSTANT = 60.0
_FORMAT = 3


@dataclass(frozen=True)
class LevelSet:
    """A task, its trees with vectors of length 1 of all nodes, the names of its levels, and the questions' vectors."""

    task: StudyTask
    corpus: Corpus
    names: tuple[str, ...]
    questions: np.ndarray


def level_config(task: StudyTask) -> ChunkConfig:
    """Names where documents have sections, else sizes."""
    return (
        ChunkConfig("levels", 256)
        if task.name == "scisumm"
        else ChunkConfig("levels", levels=LevelsConfig(sizes=SIZES))
    )


def level_set(task: StudyTask, encoder: StudyEncoder, cache: Path, config: ChunkConfig | None = None) -> LevelSet:
    """What of it is in the cache is not computed again.

    A node that the encoder reads whole has the vector of its text; one that is longer has the mean of its children's,
    which are the windows of its text but for their borders.
    """
    config = config or level_config(task)
    split = make_splitter("sentencex", "en")
    build = make_tree_builder(config, encoder.count, split, section_points(task))
    corpus = tree_corpus(task.documents, [build(document) for document in task.documents], encoder.count)
    cache.mkdir(parents=True, exist_ok=True)
    vectors = _kept(
        cache / f"{task.name}-{_digest(corpus, config, encoder)}.npy", lambda: node_vectors(corpus, encoder)
    )
    questions = encoder.embed([question.text for question in task.questions], Meter())
    return LevelSet(task, replace(corpus, vectors=vectors), level_names(config), questions)


def _digest(corpus: Corpus, config: ChunkConfig, encoder: StudyEncoder) -> str:
    """Of all that the vectors of nodes are made of."""
    texts = [[document.id, document.text] for document in corpus.documents]
    return hashlib.sha256(json.dumps([texts, asdict(config), encoder.fingerprint]).encode()).hexdigest()[:16]


def _kept(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """An array of a file, made where it is not there."""
    if not path.exists():
        np.save(path, make())
    return np.load(path, allow_pickle=False)


def node_vectors(corpus: Corpus, encoder: StudyEncoder) -> np.ndarray:
    """float32 [nodes, dim]."""
    vectors = np.zeros((len(corpus), encoder.dim), np.float32)
    texts = {document.id: document.text for document in corpus.documents}
    is_read = corpus.num_tokens + _SPECIAL <= encoder.window
    is_read[corpus.leaves] = True
    read = np.flatnonzero(is_read)
    for start in range(0, len(read), _NODES_AT_ONCE):
        some = read[start : start + _NODES_AT_ONCE]
        vectors[some], _ = encoder.chunk_vectors(texts, [corpus.nodes[node] for node in some.tolist()], Meter())
        print(f"  {start + len(some):,} of {len(read):,} nodes", flush=True)
    parent, level = joined(corpus)
    fill_levels_above(parent, level, vectors, corpus.num_tokens, mean_of_children, ~is_read)
    return vectors


def joined(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Of all nodes of the corpus: parent (-1 of a root) and level."""
    starts = [corpus.nodes_of(document.id).start for document in corpus.documents]
    parent = [np.where(t.parent < 0, -1, t.parent + start) for t, start in zip(corpus.trees, starts, strict=True)]
    return np.concatenate(parent), np.concatenate([tree.level for tree in corpus.trees])


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
    tree, found, sent, profiles = TreeScores(index), [], [], []
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


def _rankings(index: ScoredIndex, tree: "TreeScores", own: np.ndarray, vector: np.ndarray, text: str) -> Iterator:
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


class TreeScores:
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
