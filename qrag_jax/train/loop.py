"""The training loop: the only Python loop over updates. Prefetches batches, logs, saves."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import chex
import jax
import numpy as np

from qrag_jax.checkpoint import save_checkpoint
from qrag_jax.config import to_dict
from qrag_jax.models.network import PyTree
from qrag_jax.retrieval.batching import Packer, Sample, materialise
from qrag_jax.retrieval.retriever import Retriever, new_retriever, retriever_files
from qrag_jax.retrieval.tasks import Task
from qrag_jax.train.q_learner import Learner, LearnerState, make_learner
from qrag_jax.train.run import RunConfig, make_sampler
from qrag_jax.types import InputError

# A batch's number of distinct chunks may outgrow its shape: rarely, and only at the start of a run.
MAX_TRACES = 6
_RUN_NUMBERS = count()
Report = Callable[[str, int, int, dict[str, float]], None]  # (stage, done, of, metrics)


def train(config: RunConfig, task: Task, out: Path | None = None, report: Report | None = None) -> Retriever:
    """Trains a retriever.

    Args:
        config: the run.
        task: its training data (`run.training_task`).
        out: run folder for checkpoints and metrics.jsonl; None writes nothing.
        report: called with progress.

    Returns:
        The trained retriever.

    Raises:
        UsageError: the config does not fit itself or the data.
        InputError: a context that cannot be played, or a loss that is not finite.
    """
    report = _silent if report is None else report
    task.check_steps(config.env.num_steps)
    key_params, key_run = jax.random.split(jax.random.key(config.seed))
    embed_progress = lambda done, of: report("embed", done, of, {})  # noqa: E731
    retriever, rows, num_cut = new_retriever(config.model, config.env, task.texts, key_params, embed_progress)
    questions, _ = retriever.rows(task.questions, "question")
    sampler = make_sampler(task, Packer(), config)
    learner = make_learner(retriever.network, config.env, config.learner, config.num_updates)
    state = learner.init(retriever.params, key_run)
    update = jitted_update(learner)
    chunk_pool, question_pool = jax.device_put((rows, questions))
    log = _Log(out, {"num_texts": len(rows_of(rows)), "num_texts_cut": num_cut, "num_left_out": task.num_left_out})
    report("compile", 0, 1, {})
    for step, sample in enumerate(prefetch(sampler, config.num_updates)):
        state, metrics = update(state, chunk_pool, question_pool, sample)
        done = step + 1
        if done == 1:
            report("compile", 1, 1, {})
        last = done == config.num_updates
        to_log = last or done % config.log_every == 0
        to_save = last or (config.save_every is not None and done % config.save_every == 0)
        if not (to_log or to_save):
            continue
        values = finite({name: float(value) for name, value in metrics.items()}, done)
        if to_log:
            log.write(done, values)
            report("train", done, config.num_updates, values)
        if to_save and out is not None:
            save_run(out, config, retriever, state, task)
    return replace(retriever, params=state.params)


def jitted_update(learner: Learner) -> Callable[[LearnerState, PyTree, PyTree, Sample], tuple[LearnerState, dict]]:
    """(state, chunk pool, question pool, sample) -> (state, metrics), compiled, with the old state's buffers reused."""

    def step(state: LearnerState, chunks: PyTree, questions: PyTree, sample: Sample) -> tuple[LearnerState, dict]:
        return learner.update(state, materialise(chunks, questions, sample))

    step.__name__ = f"update_{next(_RUN_NUMBERS)}"  # chex counts by place and name: a run must not count for another
    return jax.jit(chex.assert_max_traces(step, n=MAX_TRACES), donate_argnums=0)


def prefetch(sampler: Callable[[int], Sample], num_steps: int, first: int = 0, depth: int = 4) -> Iterator[Sample]:
    """Batches in order, made ahead of use in a thread; an error in the thread is raised here."""
    steps = iter(range(first, num_steps))
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        waiting = deque(pool.submit(sampler, step) for step in islice(steps, depth))
        while waiting:
            ready = waiting.popleft().result()
            waiting.extend(pool.submit(sampler, step) for step in islice(steps, 1))
            yield ready
    finally:
        pool.shutdown(cancel_futures=True)


def finite(metrics: dict[str, float], step: int) -> dict[str, float]:
    """The metrics, if all are finite; nothing is ever trained on after a NaN."""
    bad = [name for name, value in metrics.items() if not np.isfinite(value)]
    if bad:
        raise InputError(
            f"update {step}: {', '.join(bad)} not finite; the run stops. Lower learner.learning_rate or raise "
            "learner.temperature, and look for extreme values in the input"
        )
    return metrics


def save_run(out: Path, config: RunConfig, retriever: Retriever, state: LearnerState, task: Task) -> Path:
    """Writes a checkpoint that stands alone: arrays, config, encoder or tokenizer, what it was trained on."""
    arrays = {
        "params": state.params,
        "target_params": state.target_params,
        "opt_state": state.opt_state,
        "step": state.step,
        "key": state.key,
        "constants": dict(retriever.constants),
    }
    about = {"task": task.name, "num_questions": len(task), "num_left_out": task.num_left_out}
    about["num_chunks"] = int(task.sizes.max())  # of the longest context
    return save_checkpoint(out, int(state.step), arrays, to_dict(config), retriever_files(retriever), about)


def rows_of(rows: PyTree) -> np.ndarray:
    """Any leaf of a table: its length is the number of rows."""
    return jax.tree.leaves(rows)[0]


def _silent(stage: str, done: int, of: int, metrics: dict[str, float]) -> None:
    """Reports nothing."""


class _Log:
    """metrics.jsonl of a run: a line of facts about the data, then one a logged step."""

    def __init__(self, out: Path | None, facts: dict):
        self._path = None if out is None else Path(out) / "metrics.jsonl"
        self._start = time.perf_counter()
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"data": facts}) + "\n", encoding="utf-8")

    def write(self, step: int, values: dict[str, float]) -> None:
        """Appends one line."""
        if self._path is None:
            return
        line = {"step": step, "seconds": round(time.perf_counter() - self._start, 3)} | values
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
