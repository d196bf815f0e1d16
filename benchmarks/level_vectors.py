"""Vectors of all nodes of levels and of questions, kept in a file; `levels.py` says what for."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig, level_names, make_tree_builder
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.chunking.tree.parent_vectors import fill_levels_above, mean_of_children
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.costs import Meter
from qrag_jax.eval.study.cells.filled_contexts import section_points
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder
from qrag_jax.search.corpus import Corpus, tree_corpus

SIZES = (512, 256, 128, 64, 32)
_NODES_AT_ONCE = 4_000
_SPECIAL = 2


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


def level_set(task: StudyTask, encoder: StudyEncoder, cache: Path) -> LevelSet:
    """What of it is in the cache is not computed again.

    A node that the encoder reads whole has the vector of its text; one that is longer has the mean of its children's,
    which are the windows of its text but for their borders.
    """
    config = level_config(task)
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
