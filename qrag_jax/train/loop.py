"""The training loop: the only Python loop over updates. Prefetches batches, logs, saves, resumes."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from qrag_jax.retrieval.retriever import Retriever, new_retriever, retriever_files, with_fresh_params
from qrag_jax.retrieval.tasks import Task
from qrag_jax.sharding import (
    any_process,
    check_same_everywhere,
    is_main_process,
    make_mesh,
    place,
    replicated,
    state_shardings,
    to_host,
)
from qrag_jax.train.dev import Best, make_dev_score, rows_multiple
from qrag_jax.train.log import RunLog
from qrag_jax.train.members import Layout, Member, check_members, lock_runs, saved_rows
from qrag_jax.train.q_learner import Learner, LearnerState, make_learner
from qrag_jax.train.run import RunConfig, make_sampler
from qrag_jax.train.saving import (
    check_out,
    check_resumable,
    check_same_encoder,
    describe_task,
    is_calibrated,
    restore,
    save_batch,
    save_run,
)
from qrag_jax.types import InputError, Stopped

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
        UsageError: the config does not fit itself, the data or the devices, or `out` holds a run or is in use.
        InputError: a context that cannot be played, a loss that is not finite (its batch is saved), or a `start` of
            another run.
        Stopped: `stop` said so; the run is saved.
    """
    return train_together([Member(config, out, start)], task, report, dev, calibrate, stop)[0]


def train_together(
    members: Sequence[Member],
    task: Task,
    report: Report | None = None,
    dev: Task | None = None,
    calibrate: Calibrate | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[Retriever]:
    """Trains runs that differ in their seed only, in one update that is `vmap`ped over them; `train` for the rest.

    Each run is what it is alone, but for rounding. Over several devices the runs are spread, if they divide evenly.

    Raises:
        UsageError: as `train`; several members whose configs differ in more than the seed, that are text towers (whose
            encoder skips what a batch does not fill, which `vmap` cannot), or that start after different updates.
    """
    with lock_runs([member.out for member in members]):
        together = _Together(members, task, dev, _silent if report is None else report)
        try:
            together.run_updates(stop)
            return together.results(calibrate)
        finally:
            together.close()


class _Together:
    """The state of runs that are trained together, and what becomes of it."""

    def __init__(self, members: Sequence[Member], task: Task, dev: Task | None, report: Report):
        """Checks everything that can be refused, embeds, and makes or restores the state."""
        config = members[0].config
        self.members, self.task, self.dev, self.config, self.report = members, task, dev, config, report
        check_members(members)
        self.about = describe_task(task, dev)
        check_same_everywhere("the training data", self.about["data_sha256"])
        for member in members:
            if member.start is not None:
                check_resumable(member.start, member.config, self.about)
            elif member.out is not None:
                check_out(member.out)
        task.check_steps(config.env.num_steps)
        self.mesh = make_mesh(config.mesh)
        self.layout = Layout(self.mesh, len(members), config.learner.accumulate)
        keys = [jax.random.split(jax.random.key(member.config.seed)) for member in members]
        embed_progress = lambda done, of: report("embed", done, of, {})  # noqa: E731
        self.retriever, rows, num_cut = new_retriever(
            config.model, config.env, task.texts, keys[0][0], embed_progress, task.questions
        )
        questions, num_questions_cut = self.retriever.rows(task.questions, "question")
        self.chunk_pool, self.question_pool = place((rows, questions), replicated(self.mesh))
        self.files = retriever_files(self.retriever)
        for member in members:
            if member.start is not None:
                check_same_encoder(member.start, self.files)
        score = None
        if dev is not None:
            score = make_dev_score(self.retriever, dev, _part_size(config), config.data_seed, self.mesh)
        self.bests = [None if score is None else Best(score) for _ in members]
        self.learner = make_learner(self.retriever.network, config.env, config.learner, config.num_updates)
        states = [self._first_state(*one) for one in zip(members, keys, self.bests, strict=True)]
        self.state = self.layout.join([state for state, _ in states])
        self.shardings = self.layout.shardings(states[0][1])
        self.first = 0 if members[0].start is None else members[0].start.step
        self.rows = saved_rows(members)
        facts = {"num_texts": len(rows_of(rows)), "num_texts_cut": num_cut, "num_questions_cut": num_questions_cut}
        facts["num_left_out"] = task.num_left_out
        self.logs = [_open_log(member, facts, self.first) for member in members]

    def _first_state(self, member: Member, keys: jax.Array, best: Best | None) -> tuple[LearnerState, LearnerState]:
        """(state of one run, its shardings): fresh, or of a checkpoint."""
        retriever = with_fresh_params(self.retriever, keys[0])
        shapes = jax.eval_shape(self.learner.init, retriever.params, keys[1])
        shardings = state_shardings(self.mesh, shapes)
        if member.start is None:
            # Keys travel as numbers: of several processes each makes the whole state, and keeps its share.
            init = lambda params, data: self.learner.init(params, jax.random.wrap_key_data(data))  # noqa: E731
            host = jax.tree.map(np.asarray, (retriever.params, jax.random.key_data(keys[1])))
            return jax.jit(init, out_shardings=shardings)(*host), shardings
        return restore(member.start, shapes, shardings, best), shardings

    def run_updates(self, stop: Callable[[], bool] | None) -> None:
        """All updates that are left; see `train` for what it raises."""
        config, layout = self.config, self.layout
        packer = Packer(rows_multiple(self.mesh), self.rows)
        sampler = layout.sampler([make_sampler(self.task, packer, member.config) for member in self.members])
        update = jitted_update(self.learner, config.learner.accumulate, self.shardings, len(self.members))
        check = _FiniteCheck(self.task, self.members, layout)
        score_interval = config.dev.every or max(1, config.num_updates // 10)
        self.report("compile", 0, 1, {})
        with jax.set_mesh(self.mesh):
            for step, sample in enumerate(prefetch(sampler, config.num_updates, self.first), start=self.first):
                self.state, metrics = update(
                    self.state, self.chunk_pool, self.question_pool, place(sample, layout.samples)
                )
                self.rows, done = sample.distinct.shape[-1], step + 1
                if step == self.first:
                    self.report("compile", 1, 1, {})
                last = done == config.num_updates
                asked = stop is not None and not last and any_process(stop())
                check.later(done, metrics, sample)
                to_score = self.dev is not None and (last or done % score_interval == 0)
                to_log = last or to_score or done % config.log_every == 0
                to_save = last or asked or done % config.save_interval == 0
                values = check.now() if to_log or to_save else []
                if to_log:
                    self._log(done, values, to_score)
                if to_save:
                    self._save()
                if asked:
                    folders = ", ".join(str(member.out) for member in self.members if member.out is not None)
                    raise Stopped(f"stopped after update {done:,}" + (folders and f", saved in {folders}"))

    def _log(self, done: int, values: list[dict[str, float]], to_score: bool) -> None:
        """Writes the metrics of each run, with its score on held-out queries where it is due."""
        for i, (own, best, log) in enumerate(zip(values, self.bests, self.logs, strict=True)):
            if best is not None and to_score:
                own["dev_return"] = best.offer(self.layout.part(self.state.params, i), done)
            if log is not None:
                log.write(done, own)
        mean = {name: float(np.mean([own[name] for own in values])) for name in values[0]}
        self.report("train", done, self.config.num_updates, mean)

    def _save(self, fitted: Sequence[dict[str, Any]] = ()) -> None:
        """Saves each run, with what was fitted on held-out queries at the end."""
        for i, (member, best, log) in enumerate(zip(self.members, self.bests, self.logs, strict=True)):
            if member.out is None:
                continue
            if log is not None:
                log.sync()
            state, known = self.layout.part(self.state, i), self.about | {"rows": self.rows}
            more = fitted[i] if fitted else {}
            save_run(member.out, member.config, state, self.retriever.constants, self.files, known, best, more)

    def close(self) -> None:
        """Ends the logs."""
        for log in self.logs:
            if log is not None:
                log.close()

    def results(self, calibrate: Calibrate | None) -> list[Retriever]:
        """The retrievers; what is calibrated on held-out queries is saved with them."""
        trained = []
        for i, best in enumerate(self.bests):
            params = self.layout.part(self.state.params, i) if best is None else best.params
            params = jax.tree.map(jnp.asarray, to_host(params, self.mesh))
            trained.append(replace(self.retriever, params=params))
        if self.dev is not None and calibrate is not None and not all(map(is_calibrated, self.members)):
            self._save([calibrate(retriever, self.dev) for retriever in trained])
        return trained


def _open_log(member: Member, facts: dict[str, Any], first: int) -> RunLog | None:
    if member.out is None or not is_main_process():
        return None
    return RunLog(member.out, facts, first, member.config.tensorboard)


def jitted_update(
    learner: Learner, num_parts: int = 1, shardings: LearnerState | None = None, num_members: int = 1
) -> Callable[[LearnerState, PyTree, PyTree, Sample], tuple[LearnerState, dict]]:
    """(state, chunk pool, question pool, sample) -> (state, metrics), compiled, with the old state's buffers reused.

    Args:
        learner: the update.
        num_parts: `learner.accumulate`; above 1 the sample has one more axis in front.
        shardings: of the new state; None leaves them to XLA. Metrics are on every device.
        num_members: runs that are trained together; above 1 state, sample and metrics have one more axis in front.
    """
    gather = materialise if num_parts == 1 else jax.vmap(materialise, in_axes=(None, None, 0))

    def one(state: LearnerState, chunks: PyTree, questions: PyTree, sample: Sample) -> tuple[LearnerState, dict]:
        return learner.update(state, gather(chunks, questions, sample))

    def step(state: LearnerState, chunks: PyTree, questions: PyTree, sample: Sample) -> tuple[LearnerState, dict]:
        update = one if num_members == 1 else jax.vmap(one, in_axes=(0, None, None, 0))
        return update(state, chunks, questions, sample)

    step.__name__ = f"update_{next(_RUN_NUMBERS)}"  # chex counts by place and name: a run must not count for another
    counted = chex.assert_max_traces(step, n=MAX_TRACES)
    if shardings is None:
        return jax.jit(counted, donate_argnums=0)
    everywhere = replicated(jax.tree.leaves(shardings)[0].mesh)
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

    def __init__(self, task: Task, members: Sequence[Member], layout: Layout):
        """Args: task, for the texts of a bad batch; the members, whose folders it is saved in; how they are joined."""
        self._task, self._members, self._layout = task, members, layout
        self._waiting: tuple[int, dict[str, jax.Array], Sample] | None = None

    def later(self, update: int, metrics: dict[str, jax.Array], sample: Sample) -> None:
        """Takes the metrics of an update that may still run, and checks those before."""
        if self._waiting is not None:
            self.now()
        self._waiting = update, metrics, sample

    def now(self) -> list[dict[str, float]]:
        """The metrics of the last update by member, when it is done.

        Raises:
            InputError: one is not finite; nothing is saved after it but the batch.
        """
        assert self._waiting is not None
        update, metrics, sample = self._waiting
        host, found = jax.device_get(metrics), []
        for i, member in enumerate(self._members):
            values = {name: float(value) for name, value in self._layout.part(host, i).items()}
            bad = [name for name, value in values.items() if not np.isfinite(value)]
            if bad:
                own, where = self._layout.part(sample, i), ""
                if member.out is not None and is_main_process():
                    where = f"; its batch: {save_batch(member.out, update, values, self._task, own)}"
                raise InputError(
                    f"update {update}: {', '.join(bad)} not finite; the run stops. Lower learner.learning_rate or "
                    f"raise learner.temperature, and look for extreme values in the input{where}"
                )
            found.append(values)
        return found


def _part_size(config: RunConfig) -> int:
    """Environments that are played at a time."""
    return config.data.batch_size // config.learner.accumulate


def rows_of(rows: PyTree) -> np.ndarray:
    """Any leaf of a table: its length is the number of rows."""
    return jax.tree.leaves(rows)[0]


def _silent(stage: str, done: int, of: int, metrics: dict[str, float]) -> None:
    """Reports nothing."""
