"""Runs methods over tasks at several context lengths: one row a method and length, one record a question."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrag_jax.eval.facts import score_facts
from qrag_jax.eval.pickers import Picker
from qrag_jax.eval.records import QueryRecord, Row, make_records, summarise
from qrag_jax.retrieval.batching import Contexts
from qrag_jax.retrieval.tasks import Task

# Chunks of one compiled call: enough to keep the cores busy, little enough to stay in tens of megabytes.
CHUNKS_PER_CALL = 65_536
MOST_PER_CALL = 256


@dataclass(frozen=True)
class Labels:
    """What rows say of the run that they belong to."""

    mode: str
    positions: str
    seed: int
    training_chunks: int


Report = Callable[[str], None]  # told what is being scored


def evaluate(
    task: Task,
    pickers: dict[str, Picker],
    num_steps: int,
    labels: Labels,
    num_questions: int | None = None,
    seed: int = 0,
    report: Report | None = None,
    keep_texts: bool = False,
) -> tuple[list[Row], list[QueryRecord]]:
    """Scores every method on the same contexts of one task.

    Args:
        task: queries and their contexts at one length.
        pickers: by method name (`pickers.make_pickers`), indexed over `task.texts`.
        num_steps: T, picks a question: fixed, no early stop.
        labels: of the rows.
        num_questions: a random subset of this size; None scores all.
        seed: of the subset and of the contexts.
        report: called before each method.
        keep_texts: put the chosen chunks' texts into the records.

    Returns:
        (rows, records), method by method.
    """
    rng = np.random.default_rng([seed, 3, len(task)])
    queries = np.arange(len(task))
    if num_questions is not None and num_questions < len(task):
        queries = np.sort(rng.permutation(len(task))[:num_questions])
    task.check_steps(num_steps)
    contexts = task.contexts(queries, rng)
    num_chunks = contexts.chunks.shape[1]
    read_as_text = () if isinstance(task.texts, np.ndarray) else ("untrained", "single_step")
    rows, records = [], []
    for method, picker in pickers.items():
        if report is not None:
            report(f"{task.name}: {method} at {num_chunks} chunks")
        start = time.perf_counter()
        chosen, q_values = pick_all(picker, contexts, num_steps)
        seconds = time.perf_counter() - start
        scores = score_facts(chosen, contexts.gold)
        trained = method == "trained"
        names: dict[str, Any] = {
            "method": method,
            "mode": labels.mode if trained else "text" if method in read_as_text else "none",
            "positions": labels.positions if trained else "none",
            "seed": labels.seed,
        }
        rows.append(
            summarise(
                scores,
                task=task.name,
                num_chunks=num_chunks,
                length_factor=num_chunks / labels.training_chunks,
                seconds=seconds,
                num_left_out=task.num_left_out,
                **names,
            )
        )
        records += make_records(
            scores,
            query_ids=[task.query_ids[int(i)] for i in queries],
            questions=_questions(task, contexts),
            chosen=chosen,
            q_values=q_values,
            gold=contexts.gold,
            texts=_chosen_texts(task, contexts, chosen) if keep_texts else None,
            **names,
        )
    return rows, records


def pick_all(picker: Picker, contexts: Contexts, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Calls a picker on slices of one shape, the last one padded with repeats, so that a length compiles once."""
    total, num_chunks = contexts.chunks.shape
    size = max(1, min(total, MOST_PER_CALL, CHUNKS_PER_CALL // num_chunks))
    chosen, scores = [], []
    for first in range(0, total, size):
        part = np.minimum(np.arange(first, first + size), total - 1)
        slots, values = picker(
            Contexts(contexts.questions[part], contexts.chunks[part], contexts.gold[part]), num_steps
        )
        chosen.append(slots)
        scores.append(values)
    return np.concatenate(chosen)[:total].astype(np.int64), np.concatenate(scores)[:total].astype(np.float64)


def _questions(task: Task, contexts: Contexts) -> list[str]:
    if isinstance(task.questions, np.ndarray):
        return [f"question {i}" for i in contexts.questions]
    return [str(task.questions[i]) for i in contexts.questions]


def _chosen_texts(task: Task, contexts: Contexts, chosen: np.ndarray) -> list[list[str]] | None:
    if isinstance(task.texts, np.ndarray):
        return None
    ids = np.take_along_axis(contexts.chunks, chosen, axis=1)
    return [[str(task.texts[i]) for i in row] for row in ids]
