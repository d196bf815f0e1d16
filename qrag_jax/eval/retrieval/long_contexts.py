"""Draws long contexts of an evaluation into mapped files, counts repeats of their noise, and reads the peak memory."""

import re
from pathlib import Path

import numpy as np

from qrag_jax.eval.retrieval.records import Repeats
from qrag_jax.files.mapped import mapped_array
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.long_contexts import is_long
from qrag_jax.qrag.tasks import Task


def has_long(task: Task) -> bool:
    """True if contexts of the task are scored in blocks."""
    return is_long(int(task.sizes.max()))


def draw_long(task: Task, queries: np.ndarray, rng: np.random.Generator) -> Contexts:
    """The contexts of these queries, drawn one after the other and kept on the disk (`files.mapped`)."""
    chunks = gold = None
    questions = np.zeros(len(queries), np.int32)
    for row in range(len(queries)):
        one = task.contexts(queries[row : row + 1], rng)
        if chunks is None or gold is None:
            shape = len(queries), one.chunks.shape[1]
            chunks, gold = mapped_array(shape, np.int32), mapped_array(shape, bool)
        questions[row], chunks[row], gold[row] = one.questions[0], one.chunks[0], one.gold[0]
    return Contexts(questions, chunks, gold)


def count_repeats(task: Task, contexts: Contexts) -> Repeats | None:
    """Counts the noise of every context; None for a task without noise."""
    if task.noise is None or isinstance(task.texts, np.ndarray):
        return None
    numbers: dict[str, int] = {}
    of_text = np.asarray([numbers.setdefault(text, len(numbers)) for text in task.texts])
    is_noise = np.zeros(len(task.texts), bool)
    is_noise[task.noise] = True
    found = []
    for row in contexts.chunks:
        noise = row[row >= 0]
        counts = np.bincount(of_text[noise[is_noise[noise]]])
        found.append((np.count_nonzero(counts), counts.sum(), counts.max()))
    distinct, total, most = np.asarray(found).T
    return Repeats(float(distinct.mean()), float((total / distinct).mean()), int(most.max()))


def peak_gib() -> float | None:
    """Most memory of this process so far in GiB, pages of mapped files included; None where the system does not say."""
    status = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
    return None if found is None else int(found[1]) / 2**20
