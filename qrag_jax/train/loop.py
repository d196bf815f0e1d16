"""The training loop: the only Python loop over updates. Prefetches batches, logs, saves, resumes."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.checkpoint import Checkpoint
from qrag_jax.models.network import PyTree
from qrag_jax.retrieval.batching import Packer, Sample, materialise
from qrag_jax.retrieval.retriever import Retriever, new_retriever, retriever_files
from qrag_jax.retrieval.tasks import Task
from qrag_jax.sharding import is_main_process, make_mesh, place, replicated, split_rows, state_shardings, to_host
from qrag_jax.train.dev import Best, make_dev_score
from qrag_jax.train.log import RunLog
from qrag_jax.train.q_learner import Learner, LearnerState, make_learner
from qrag_jax.train.run import RunConfig, make_sampler
from qrag_jax.train.saving import (
    check_out,
    check_resumable,
    describe_task,
    restore_best,
    restore_state,
    save_batch,
    save_run,
)
from qrag_jax.types import InputError, Stopped

# A batch's number of distinct chunks may outgrow its shape: rarely, and only at the start of a run.
MAX_TRACES = 6
_ROWS_MULTIPLE = 128
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
    start: Checkpoint | None = None,
    stop: Callable[[], bool] | None = None,
) -> Retriever:
    """Trains a retriever.

    All processes of a run on several call it alike; the first one writes.

    Args:
        config: the run.
        task: its training data (`run.training_tasks`).
        out: run folder for checkpoints and logs, which must not hold a run yet unless `start` is of it; None writes
            nothing.
        report: called with progress.
        dev: held-out queries; the parameters with the best mean return on them are the result, the later ones among
            equals. None takes the last parameters.
        calibrate: called at the end with the result and the held-out queries; the checkpoint keeps what it returns.
        start: a checkpoint of the same run (`checkpoint.load_checkpoint(out, groups=())`) to go on from: every later
            update is what it would have been, bit for bit on the same devices.
        stop: asked after every update; where it says True the run is saved and ends.

    Returns:
        The trained retriever.

    Raises:
        UsageError: the config does not fit itself, the data or the devices, or `out` holds a run.
        InputError: a context that cannot be played, a loss that is not finite (its batch is saved), or a `start` of
            another run.
        Stopped: `stop` said so; the run is saved.
    """
    report = _silent if report is None else report
    about = describe_task(task)
    if start is not None:
        check_resumable(start, config, about)
    elif out is not None:
        check_out(out)
    task.check_steps(config.env.num_steps)
    mesh = make_mesh(config.mesh)
    key_params, key_run = jax.random.split(jax.random.key(config.seed))
    embed_progress = lambda done, of: report("embed", done, of, {})  # noqa: E731
    retriever, rows, num_cut = new_retriever(
        config.model, config.env, task.texts, key_params, embed_progress, task.questions
    )
    questions, num_questions_cut = retriever.rows(task.questions, "question")
    learner = make_learner(retriever.network, config.env, config.learner, config.num_updates)
    best = None if dev is None else Best(make_dev_score(retriever, dev, _part_size(config), config.seed, mesh))
    state, shardings, first = _first_state(learner, retriever, key_run, mesh, start, best)
    capacity = 0 if start is None else start.metadata["rows"]
    sampler = make_sampler(task, Packer(int(np.lcm(_ROWS_MULTIPLE, mesh.size)), capacity), config)
    update = jitted_update(learner, config.learner.accumulate, shardings)
    chunk_pool, question_pool = place((rows, questions), replicated(mesh))
    sample_sharding = split_rows(mesh, axis=int(config.learner.accumulate > 1))
    facts = {"num_texts": len(rows_of(rows)), "num_texts_cut": num_cut, "num_questions_cut": num_questions_cut}
    facts["num_left_out"] = task.num_left_out
    writes = out is not None and is_main_process()
    log = RunLog(out, facts, first, config.tensorboard) if writes and out is not None else None
    files = retriever_files(retriever)
    check = _FiniteCheck(task, out if writes else None)

    def save(sample: Sample, fitted: dict[str, Any] | None = None) -> None:
        if out is not None:
            known = about | {"rows": sample.distinct.shape[-1]}
            save_run(out, config, state, retriever.constants, files, known, best, fitted)

    report("compile", 0, 1, {})
    sample = None
    with jax.set_mesh(mesh):
        for step, sample in enumerate(prefetch(sampler, config.num_updates, first), start=first):
            state, metrics = update(state, chunk_pool, question_pool, place(sample, sample_sharding))
            done = step + 1
            if done == first + 1:
                report("compile", 1, 1, {})
            last = done == config.num_updates
            asked = stop is not None and not last and _any_process(stop())
            to_log = last or done % config.log_every == 0
            to_save = asked or last or done % config.save_interval == 0
            to_score = best is not None and (last or done % (config.dev.every or max(1, config.num_updates // 10)) == 0)
            check.later(done, metrics, sample)
            if not (to_log or to_save or to_score):
                continue
            values = check.now()
            if best is not None and to_score:
                values["dev_return"] = best.offer(state.params, done)
            if to_log or to_score:
                if log is not None:
                    log.write(done, values)
                report("train", done, config.num_updates, values)
            if to_save and not last:
                save(sample)
            if asked:
                raise Stopped(f"stopped after update {done:,}" + (f", saved in {out}" if out is not None else ""))
    result = state.params if best is None else best.params
    trained = replace(retriever, params=jax.tree.map(jnp.asarray, to_host(result, mesh)))
    fitted = {} if dev is None or calibrate is None else calibrate(trained, dev)
    if sample is not None:  # else the run was complete already
        save(sample, fitted)
    return trained


def _first_state(
    learner: Learner,
    retriever: Retriever,
    key: jax.Array,
    mesh: jax.sharding.Mesh,
    start: Checkpoint | None,
    best: Best | None,
) -> tuple[LearnerState, LearnerState, int]:
    """(state, its shardings, updates done): fresh, or of a checkpoint."""
    shapes = jax.eval_shape(learner.init, retriever.params, key)
    shardings = state_shardings(mesh, shapes)
    if start is None:
        # Keys travel as numbers: of several processes each makes the whole state, and keeps its share.
        init = lambda params, data: learner.init(params, jax.random.wrap_key_data(data))  # noqa: E731
        host = jax.tree.map(np.asarray, (retriever.params, jax.random.key_data(key)))
        return jax.jit(init, out_shardings=shardings)(*host), shardings, 0
    state = restore_state(start, shapes, shardings)
    if best is not None:
        restore_best(start, best, shapes.params, shardings.params)
    return state, shardings, start.step


def jitted_update(
    learner: Learner, num_parts: int = 1, shardings: LearnerState | None = None
) -> Callable[[LearnerState, PyTree, PyTree, Sample], tuple[LearnerState, dict]]:
    """(state, chunk pool, question pool, sample) -> (state, metrics), compiled, with the old state's buffers reused.

    Args:
        learner: the update.
        num_parts: `learner.accumulate`; above 1 the sample has one more axis in front.
        shardings: of the new state; None leaves them to XLA. Metrics are on every device.
    """
    gather = materialise if num_parts == 1 else jax.vmap(materialise, in_axes=(None, None, 0))

    def step(state: LearnerState, chunks: PyTree, questions: PyTree, sample: Sample) -> tuple[LearnerState, dict]:
        return learner.update(state, gather(chunks, questions, sample))

    step.__name__ = f"update_{next(_RUN_NUMBERS)}"  # chex counts by place and name: a run must not count for another
    counted = chex.assert_max_traces(step, n=MAX_TRACES)
    if shardings is None:
        return jax.jit(counted, donate_argnums=0)
    everywhere = replicated(shardings.step.mesh)  # type: ignore[attr-defined]
    return jax.jit(counted, donate_argnums=0, out_shardings=(shardings, everywhere))


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


class _FiniteCheck:
    """Looks at the metrics of every update, one update later, so that the device is never idle."""

    def __init__(self, task: Task, out: Path | None):
        """Args: task, for the texts of a bad batch; out, where it is saved, None for nowhere."""
        self._task, self._out = task, out
        self._waiting: tuple[int, dict[str, jax.Array], Sample] | None = None

    def later(self, update: int, metrics: dict[str, jax.Array], sample: Sample) -> None:
        """Takes the metrics of an update that may still run, and checks those before."""
        if self._waiting is not None:
            self.now()
        self._waiting = update, metrics, sample

    def now(self) -> dict[str, float]:
        """The metrics of the last update, when it is done.

        Raises:
            InputError: one is not finite; nothing is saved after it but the batch.
        """
        assert self._waiting is not None
        update, metrics, sample = self._waiting
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        bad = [name for name, value in values.items() if not np.isfinite(value)]
        if bad:
            where = "" if self._out is None else str(save_batch(self._out, update, values, self._task, sample))
            raise InputError(
                f"update {update}: {', '.join(bad)} not finite; the run stops. Lower learner.learning_rate or raise "
                "learner.temperature, and look for extreme values in the input" + (where and f"; its batch: {where}")
            )
        return values


def _part_size(config: RunConfig) -> int:
    """Environments that are played at a time."""
    return config.data.batch_size // config.learner.accumulate


def _any_process(asked: bool) -> bool:
    """Whether any process of the run was asked, known to all of them."""
    if jax.process_count() == 1:
        return asked
    from jax.experimental import multihost_utils  # here: it starts what one process never needs

    return bool(multihost_utils.process_allgather(np.array(asked)).any())


def rows_of(rows: PyTree) -> np.ndarray:
    """Any leaf of a table: its length is the number of rows."""
    return jax.tree.leaves(rows)[0]


def _silent(stage: str, done: int, of: int, metrics: dict[str, float]) -> None:
    """Reports nothing."""
