"""The training loop: the only Python loop over updates. Prefetches batches, logs, saves."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.checkpoint import checkpoint_steps, save_checkpoint
from qrag_jax.config import to_dict
from qrag_jax.models.network import PyTree
from qrag_jax.retrieval.batching import Packer, Sample, materialise
from qrag_jax.retrieval.retriever import Retriever, new_retriever, retriever_files
from qrag_jax.retrieval.tasks import Task
from qrag_jax.train.dev import DevScore, make_dev_score
from qrag_jax.train.q_learner import Learner, LearnerState, make_learner
from qrag_jax.train.run import RunConfig, make_sampler
from qrag_jax.types import InputError, UsageError

# A batch's number of distinct chunks may outgrow its shape: rarely, and only at the start of a run.
MAX_TRACES = 6
_RUN_NUMBERS = count()
Report = Callable[[str, int, int, dict[str, float]], None]  # (stage, done, of, metrics)
Calibrate = Callable[[Retriever, Task], dict[str, Any]]  # what was fitted on held-out queries, as JSON values


def train(
    config: RunConfig,
    task: Task,
    out: Path | None = None,
    report: Report | None = None,
    dev: Task | None = None,
    calibrate: Calibrate | None = None,
) -> Retriever:
    """Trains a retriever.

    Args:
        config: the run.
        task: its training data (`run.training_tasks`).
        out: run folder for checkpoints and metrics.jsonl, which must not hold a run yet; None writes nothing.
        report: called with progress.
        dev: held-out queries; the parameters with the best mean return on them are the result, the later ones among
            equals. None takes the last parameters.
        calibrate: called at the end with the result and the held-out queries; the checkpoint keeps what it returns.

    Returns:
        The trained retriever.

    Raises:
        UsageError: the config does not fit itself or the data, or `out` holds a run.
        InputError: a context that cannot be played, or a loss that is not finite.
    """
    report = _silent if report is None else report
    if out is not None:
        check_out(out)
    task.check_steps(config.env.num_steps)
    key_params, key_run = jax.random.split(jax.random.key(config.seed))
    embed_progress = lambda done, of: report("embed", done, of, {})  # noqa: E731
    retriever, rows, num_cut = new_retriever(
        config.model, config.env, task.texts, key_params, embed_progress, task.questions
    )
    questions, num_questions_cut = retriever.rows(task.questions, "question")
    sampler = make_sampler(task, Packer(), config)
    learner = make_learner(retriever.network, config.env, config.learner, config.num_updates)
    state = learner.init(retriever.params, key_run)
    update = jitted_update(learner)
    chunk_pool, question_pool = jax.device_put((rows, questions))
    facts = {"num_texts": len(rows_of(rows)), "num_texts_cut": num_cut, "num_questions_cut": num_questions_cut}
    log = _Log(out, facts | {"num_left_out": task.num_left_out})
    best = None if dev is None else _Best(make_dev_score(retriever, dev, config.data.batch_size, config.seed))
    report("compile", 0, 1, {})
    for step, sample in enumerate(prefetch(sampler, config.num_updates)):
        state, metrics = update(state, chunk_pool, question_pool, sample)
        done = step + 1
        if done == 1:
            report("compile", 1, 1, {})
        last = done == config.num_updates
        to_log = last or done % config.log_every == 0
        to_save = last or (config.save_every is not None and done % config.save_every == 0)
        to_score = best is not None and (last or done % (config.dev.every or max(1, config.num_updates // 10)) == 0)
        if not (to_log or to_save or to_score):
            continue
        values = finite({name: float(value) for name, value in metrics.items()}, done)
        if best is not None and to_score:
            values["dev_return"] = best.offer(state.params, done)
        if to_log or to_score:
            log.write(done, values)
            report("train", done, config.num_updates, values)
        if to_save and not last and out is not None:
            save_run(out, config, retriever, state, task, best)
    trained = replace(retriever, params=state.params if best is None else best.params)
    fitted = {} if dev is None or calibrate is None else calibrate(trained, dev)
    if out is not None:
        save_run(out, config, retriever, state, task, best, fitted)
    return trained


def check_out(out: Path) -> None:
    """Refuses a run folder that holds a run already, or is no folder.

    Raises:
        UsageError: says what is there.
    """
    steps = checkpoint_steps(out)
    if steps:
        raise UsageError(f"{out}: holds a trained run already (step {steps[-1]}): choose another --out, or remove it")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is a file: choose another --out")


class _Best:
    """The parameters that did best on held-out queries so far."""

    def __init__(self, score: DevScore):
        self.params: PyTree = None
        self.update, self.value = 0, -np.inf
        self._score = score

    def offer(self, params: PyTree, update: int) -> float:
        """Scores parameters and keeps a copy of them (the update reuses their buffers) if none were better."""
        value = self._score(params)
        if value >= self.value:
            self.params, self.update, self.value = jax.tree.map(jnp.copy, params), update, value
        return value


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


def save_run(
    out: Path,
    config: RunConfig,
    retriever: Retriever,
    state: LearnerState,
    task: Task,
    best: _Best | None = None,
    fitted: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a checkpoint that stands alone: arrays, config, encoder or tokenizer, what it was trained on.

    With held-out queries `best_params` are what `load_retriever` takes, and the metadata say under `dev` which update
    they are of, their mean return, and what was fitted.
    """
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
    if best is not None and best.params is not None:
        arrays["best_params"] = best.params
        about["dev"] = {"update": best.update, "return": best.value, **(fitted or {})}
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
