"""Runs methods over tasks at several context lengths: one row a method, protocol and length, one record a question.

A method picks T chunks once; every protocol then scores the picks that it keeps of them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from qrag_jax.eval.retrieval.long_contexts import count_repeats, draw_long, has_long, peak_gib
from qrag_jax.eval.retrieval.pickers import Picked, Picker
from qrag_jax.eval.retrieval.protocols import check_apart, keep, kept_by_oracle, kept_by_threshold
from qrag_jax.eval.retrieval.records import QueryRecord, Row, make_records, summarise
from qrag_jax.eval.setting import Setting
from qrag_jax.measures.facts import NOT_TAKEN, score_facts
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.tasks import Task

# Chunks of one compiled call: enough to keep the cores busy, little enough to stay in tens of megabytes (latent towers)
# or 200 MB (text towers of 384). Each beam of a search counts its chunks again.
CHUNKS_PER_CALL = 65_536
MOST_PER_CALL = 256


@dataclass(frozen=True)
class Labels:
    """Labels of the run in its rows."""

    mode: str
    positions: str
    seed: int
    training_chunks: int


@dataclass(frozen=True)
class Threshold:
    """A threshold on the scores of one method.

    Attributes:
        value: a method stops before the first pick with a lower score.
        fitted_on: fingerprints (`Task.fingerprint`) of the questions that it was fitted on.
    """

    value: float
    fitted_on: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scoring:
    """How `evaluate` scores.

    Attributes:
        num_steps: T, picks a question, fewer where a context has fewer chunks; protocols other than `fixed` keep the
            first of them.
        num_questions: size of a random subset; None scores all.
        seed: draws the subset and the contexts.
        protocols: of `protocols.PROTOCOLS`; a method without a threshold or a learned STOP has no row of that name.
        thresholds: by method.
        beam_width: of the pickers' search.
        keep_texts: put the chosen chunks' texts into the records.
    """

    num_steps: int
    num_questions: int | None = None
    seed: int = 0
    protocols: tuple[str, ...] = ("fixed",)
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    beam_width: int = 1
    keep_texts: bool = False


Report = Callable[[str], None]  # told what is being scored


def draw_contexts(task: Task, num_questions: int | None = None, seed: int = 0) -> tuple[np.ndarray, Contexts]:
    """The queries to score (int [n]; all, or a random subset) and their contexts: the same for every method."""
    queries, rng = _draw(task, num_questions, seed)
    return queries, draw_long(task, queries, rng) if has_long(task) else task.contexts(queries, rng)


def asked(task: Task, num_questions: int | None = None, seed: int = 0) -> list[str]:
    """Fingerprints of the queries that `draw_contexts` gives."""
    return [task.fingerprint(int(query)) for query in _draw(task, num_questions, seed)[0]]


def _draw(task: Task, num_questions: int | None, seed: int) -> tuple[np.ndarray, np.random.Generator]:
    rng = np.random.default_rng([seed, 3, len(task)])
    if num_questions is None or num_questions >= len(task):
        return np.arange(len(task)), rng
    return np.sort(rng.permutation(len(task))[:num_questions]), rng


def evaluate(
    task: Task, pickers: Mapping[str, Picker], labels: Labels, how: Scoring, report: Report | None = None
) -> tuple[list[Row], list[QueryRecord]]:
    """Scores every method on the same contexts of one task, under every protocol that it has.

    Args:
        task: queries and their contexts at one length.
        pickers: by method name (`pickers.make_pickers`), indexed over `task.texts`.
        labels: of the run in the rows.
        how: number of picks, questions, protocols.
        report: called before each method.

    Returns:
        (rows, records), method by method.

    Raises:
        UsageError: a threshold was fitted on one of the questions that it would be reported on.
    """
    queries, contexts = draw_contexts(task, how.num_questions, how.seed)
    _check_fitted(task, pickers, how)
    num_chunks = contexts.chunks.shape[1]
    repeats = count_repeats(task, contexts) if has_long(task) else None
    rows, records = [], []
    for method, picker in pickers.items():
        if report is not None:
            report(f"{task.name}: {method} at {num_chunks} chunks")
        start = time.perf_counter()
        picked, gold = pick_all(picker, contexts, how.num_steps, how.beam_width)
        search = _Search(task, queries, contexts, picked, gold, time.perf_counter() - start)
        for protocol in how.protocols:
            setting = _setting(task, method, labels, protocol, how.beam_width, num_chunks)
            if (counted := _count(search, setting, labels, how)) is not None:
                rows.append(counted[0])
                records += counted[1]
    if has_long(task):
        told = {} if repeats is None else repeats._asdict()
        rows = [_with_costs(row, how.num_steps, told) for row in rows]
    return rows, records


def _with_costs(row: Row, num_steps: int, repeats: Mapping[str, Any]) -> Row:
    return replace(row, step_ms=1e3 * row.seconds / (row.n * num_steps), peak_gib=peak_gib(), **repeats)


class _Search(NamedTuple):
    """All that a method picked for the queries of a task; its fields are those of `evaluate` and `pick_all`."""

    task: Task
    queries: np.ndarray
    contexts: Contexts
    picked: Picked
    gold: np.ndarray
    seconds: float


def _count(search: _Search, setting: Setting, labels: Labels, how: Scoring) -> tuple[Row, list[QueryRecord]] | None:
    """The scores of a method on the picks that a protocol keeps; None if the method does not have the protocol."""
    task, queries, contexts, picked, gold, seconds = search
    threshold = how.thresholds.get(setting.method)
    num_kept = num_kept_by(setting.protocol, picked, gold, threshold)
    if num_kept is None:
        return None
    sizes = (contexts.chunks >= 0).sum(axis=1)
    chosen = keep(picked.chosen, np.minimum(num_kept, sizes))
    scores = score_facts(chosen, contexts.gold)
    row = summarise(
        scores,
        task.name,
        setting,
        length_factor=setting.num_chunks / labels.training_chunks,
        seconds=seconds,
        num_left_out=task.num_left_out,
        threshold=_threshold_of(setting, threshold, picked),
    )
    ids = [task.query_ids[int(i)] for i in queries]
    records = make_records(
        scores,
        setting,
        list(zip(ids, _questions(task, contexts), strict=True)),
        chosen=chosen,
        q_values=picked.scores,
        gold=contexts.gold,
        texts=_chosen_texts(task, contexts, chosen) if how.keep_texts else None,
    )
    return row, records


def _check_fitted(task: Task, pickers: Mapping[str, Picker], how: Scoring) -> None:
    if how.thresholds and ("threshold" in how.protocols or how.beam_width > 1):  # beams are searched with it
        fingerprints = asked(task, how.num_questions, how.seed)
        for method in set(how.thresholds) & set(pickers):
            check_apart(how.thresholds[method].fitted_on, fingerprints)


def _setting(task: Task, method: str, labels: Labels, protocol: str, beam_width: int, num_chunks: int) -> Setting:
    """The setting of a method in rows and records; only the trained method has the mode and positions of the run."""
    reads_text = method in ("untrained", "single_step") and not isinstance(task.texts, np.ndarray)
    mode, positions = ("text" if reads_text else "none"), "none"
    if method == "trained":
        mode, positions = labels.mode, labels.positions
    return Setting(
        method=method,
        mode=mode,
        positions=positions,
        protocol=protocol,
        beam_width=beam_width,
        seed=int(labels.seed),
        num_chunks=num_chunks,
    )


def _threshold_of(setting: Setting, threshold: Threshold | None, picked: Picked) -> float | None:
    """The threshold that a row depends on: by its protocol, or as what ends the beams of a search without STOP."""
    searched_with = setting.beam_width > 1 and picked.num_before_stop is None
    return threshold.value if threshold is not None and (setting.protocol == "threshold" or searched_with) else None


def num_kept_by(protocol: str, picked: Picked, gold: np.ndarray, threshold: Threshold | None) -> np.ndarray | None:
    """The number of first picks that a protocol keeps, int [n]; None if the method does not have the protocol."""
    if protocol == "fixed":
        return np.full(len(picked.chosen), picked.chosen.shape[1])
    if protocol == "oracle":
        return kept_by_oracle(picked.chosen, gold)
    if protocol == "stop":
        return picked.num_before_stop
    return None if threshold is None else kept_by_threshold(picked.scores, threshold.value)


def pick_all(picker: Picker, contexts: Contexts, num_steps: int, beam_width: int = 1) -> tuple[Picked, np.ndarray]:
    """All picks of a method, and the gold mask that they index; every beam of a call counts its chunks again.

    All chunks of a context with fewer than `num_steps` chunks are picked. The missing picks up to T point at empty
    slots after those of the contexts, in the returned mask bool [n, M + T], with scores below all others.
    """
    sizes = np.minimum((contexts.chunks >= 0).sum(axis=1), num_steps)
    total, num_chunks = contexts.chunks.shape
    gold = np.pad(contexts.gold, ((0, 0), (0, num_steps)))
    chosen = np.tile(np.arange(num_steps) + num_chunks, (total, 1))
    scores, before = np.full(chosen.shape, np.nan), None
    for size in np.unique(sizes):  # one, but for very short contexts
        rows = np.flatnonzero(sizes == size)
        own = contexts if len(rows) == total else Contexts(*(x[rows] for x in _fields(contexts)))
        part = _pick_equal(picker, own, int(size), beam_width)
        chosen[rows, :size], scores[rows, :size] = part.chosen, part.scores
        if part.num_before_stop is not None:
            before = np.full(total, num_steps) if before is None else before
            before[rows] = part.num_before_stop
    return Picked(chosen, np.where(np.isnan(scores), np.nanmin(scores) - 1, scores), before), gold


def _fields(contexts: Contexts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return contexts.questions, contexts.chunks, contexts.gold


def _pick_equal(picker: Picker, contexts: Contexts, num_steps: int, beam_width: int) -> Picked:
    """Calls a picker on slices of one shape, the last one padded with repeats, so that a length compiles once."""
    total, num_chunks = contexts.chunks.shape
    size = max(1, min(total, MOST_PER_CALL, CHUNKS_PER_CALL // (num_chunks * beam_width)))
    parts = []
    for first in range(0, total, size):
        part = np.minimum(np.arange(first, first + size), total - 1)
        parts.append(picker(Contexts(*(x[part] for x in _fields(contexts))), num_steps))
    join = lambda name, kind: np.concatenate([getattr(p, name) for p in parts])[:total].astype(kind)  # noqa: E731
    stop = None if parts[0].num_before_stop is None else join("num_before_stop", np.int64)
    return Picked(join("chosen", np.int64), join("scores", np.float64), stop)


def _questions(task: Task, contexts: Contexts) -> list[str]:
    if isinstance(task.questions, np.ndarray):
        return [f"question {i}" for i in contexts.questions]
    return [str(task.questions[i]) for i in contexts.questions]


def _chosen_texts(task: Task, contexts: Contexts, chosen: np.ndarray) -> list[list[str]] | None:
    if isinstance(task.texts, np.ndarray):
        return None
    ids = np.take_along_axis(contexts.chunks, np.maximum(chosen, 0), axis=1)
    taken = chosen != NOT_TAKEN
    return [[str(task.texts[i]) for i in row[kept]] for row, kept in zip(ids, taken, strict=True)]
