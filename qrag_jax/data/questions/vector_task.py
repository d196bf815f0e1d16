"""Tasks over vectors that a user already has, for the latent retriever: questions, candidate chunks and gold by row."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qrag_jax.files.text_files import read_json_lines
from qrag_jax.files.vector_files import VECTOR_SUFFIXES, read_table, read_vectors
from qrag_jax.types import InputError, UsageError

_EPISODES = (
    'rows {"question": index, "gold": [chunk ids], and "chunks": [chunk ids] or "range": [start, end) or neither}'
)


@dataclass(frozen=True)
class VectorTask:
    """Questions over chunks that are given as vectors.

    Attributes:
        chunk_vectors: float32 [N, d].
        question_vectors: float32 [Q, d_q].
        question_ids: int32 [n], row of `question_vectors` of each episode.
        chunks: per episode, int32 distinct rows of `chunk_vectors` in document order.
        gold: per episode, sorted int32 positions within `chunks[i]`.
        query_ids: unique per episode.
    """

    chunk_vectors: np.ndarray
    question_vectors: np.ndarray
    question_ids: np.ndarray
    chunks: tuple[np.ndarray, ...]
    gold: tuple[np.ndarray, ...]
    query_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.query_ids)


@dataclass(frozen=True)
class VectorBatch:
    """B episodes padded to the longest: question_ids int32 [B]; chunks int32, valid bool, gold bool, each [B, M]."""

    question_ids: np.ndarray
    chunks: np.ndarray
    valid: np.ndarray
    gold: np.ndarray


def read_vector_task(folder: str | Path) -> VectorTask:
    """Reads a task over vectors from a folder.

        chunks.npy       [N, d]    one row a chunk, in document order (or chunks.parquet, chunks.arrow)
        questions.npy    [Q, d_q]  one row a question (or .parquet, .arrow)
        episodes.jsonl   one object a line (or episodes.parquet with these columns):
            "question"   row of questions
            "chunks"     ids of the candidate chunks: rows of chunks, in document order, none twice; or
            "range"      [start, end): the candidates are these rows; with neither, all chunks
            "gold"       ids of the chunks that answer, each among the candidates
            "id"         optional, unique

    Raises:
        UsageError: a file is missing.
        InputError: see `read_vectors`; an id that does not exist, gold outside of the candidates, a repeated id.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; expected one with chunks.npy, questions.npy and episodes.jsonl")
    chunks = read_vectors(_find(folder, "chunks", VECTOR_SUFFIXES))
    questions = read_vectors(_find(folder, "questions", VECTOR_SUFFIXES))
    path = _find(folder, "episodes", (".jsonl", ".jsonl.gz", ".parquet"))
    return make_vector_task(chunks, questions, _episode_rows(path))


def make_vector_task(
    chunk_vectors: np.ndarray, question_vectors: np.ndarray, episodes: Iterable[tuple[str, Mapping[str, object]]]
) -> VectorTask:
    """Checks episodes, given as (where, row) pairs with the fields of `read_vector_task`, and bundles the task."""
    num_chunks, num_questions = len(chunk_vectors), len(question_vectors)
    question_ids: list[int] = []
    chunks: list[np.ndarray] = []
    gold: list[np.ndarray] = []
    query_ids: dict[str, str] = {}
    everything = np.arange(num_chunks, dtype=np.int32)
    for where, row in episodes:
        question_ids.append(int(_ids([row.get("question")], num_questions, f"{where}: question")[0]))
        candidates = _candidates(row, everything, where)
        gold.append(_gold_positions(row.get("gold"), candidates, num_chunks, where))
        chunks.append(candidates)
        query_id = str(row.get("id") if row.get("id") is not None else len(query_ids))
        if query_id in query_ids:
            raise InputError(f"id {query_id!r} was used before at {query_ids[query_id]}", file=where)
        query_ids[query_id] = where
    if not query_ids:
        raise InputError(f"a vector task needs at least one episode; expected {_EPISODES}")
    return VectorTask(
        chunk_vectors,
        question_vectors,
        np.asarray(question_ids, np.int32),
        tuple(chunks),
        tuple(gold),
        tuple(query_ids),
    )


def stack_episodes(
    task: VectorTask, episode_ids: Sequence[int] | np.ndarray, num_chunks: int | None = None
) -> VectorBatch:
    """Stacks episodes into arrays [B, M]; M is `num_chunks` or the longest episode, padding: id 0, valid False."""
    ids = np.asarray(episode_ids, np.int64)
    lengths = np.fromiter((len(task.chunks[i]) for i in ids), np.int64, len(ids))
    width = int(lengths.max(initial=1)) if num_chunks is None else num_chunks
    if (lengths > width).any():
        raise UsageError(f"an episode has {int(lengths.max())} chunks, more than num_chunks={width}; raise num_chunks")
    valid = np.arange(width) < lengths[:, None]
    chunks = np.zeros(valid.shape, np.int32)
    gold = np.zeros(valid.shape, bool)
    for row, i in enumerate(ids):
        chunks[row, : lengths[row]] = task.chunks[i]
        gold[row, task.gold[i]] = True
    return VectorBatch(task.question_ids[ids], chunks, valid, gold)


def _find(folder: Path, stem: str, suffixes: Sequence[str]) -> Path:
    found = [folder / f"{stem}{suffix}" for suffix in suffixes if (folder / f"{stem}{suffix}").exists()]
    if len(found) != 1:
        names = ", ".join(f"{stem}{suffix}" for suffix in suffixes)
        raise UsageError(f"{folder}: expected exactly one of {names}, found {[path.name for path in found]}")
    return found[0]


def _episode_rows(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    if path.suffix == ".parquet":
        for number, row in enumerate(read_table(path).to_pylist()):
            yield f"{path}: row {number}", row
    else:
        yield from read_json_lines(path, _EPISODES)


def _ids(values: object, size: int, what: str) -> np.ndarray:
    """int32 ids in [0, size), none twice."""
    if not isinstance(values, list) or not values:
        raise InputError(f"{what} must be a list of ids, at least one; got {values!r}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
            raise InputError(f"{what} {value!r} does not exist; ids are integers in [0, {size})")
    if len(set(values)) != len(values):
        raise InputError(f"{what} names an id twice: {values!r}")
    return np.asarray(values, np.int32)


def _candidates(row: Mapping[str, object], everything: np.ndarray, where: str) -> np.ndarray:
    chunks, bounds = row.get("chunks"), row.get("range")
    if chunks is not None and bounds is not None:
        raise InputError("give chunks or range, not both", file=where)
    if chunks is not None:
        return _ids(chunks, len(everything), f"{where}: chunk")
    if bounds is None:
        return everything
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(type(bound) is int for bound in bounds):
        raise InputError(f"range must be [start, end), got {bounds!r}", file=where)
    start, end = bounds
    if not 0 <= start < end <= len(everything):
        raise InputError(f"range {bounds!r} must have 0 <= start < end <= {len(everything)}", file=where)
    return everything[start:end]


def _gold_positions(value: object, candidates: np.ndarray, num_chunks: int, where: str) -> np.ndarray:
    gold = _ids(value, num_chunks, f"{where}: gold chunk")
    order = np.argsort(candidates, kind="stable")
    places = np.minimum(np.searchsorted(candidates, gold, sorter=order), len(candidates) - 1)
    positions = order[places]
    missing = gold[candidates[positions] != gold]
    if len(missing):
        raise InputError(f"gold chunk {int(missing[0])} is not among the chunks of the episode", file=where)
    return np.sort(positions).astype(np.int32)
