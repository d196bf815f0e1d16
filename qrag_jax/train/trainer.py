"""The training loop of any learner: the only Python loop over updates.

A learner brings `update(state, batch) -> (state, metrics)`, jitted by `jit_update`, and `batch(number)`, a function
of seed and number alone, so a resumed run draws the same batches. The loop makes batches ahead of use, places them,
logs, saves, scores on held-out data, stops on request, and checks every update for numbers that are not finite. It
does not depend on the learner: `tests/train/test_trainer.py` fits a line with it.

Also here: named losses that add up, the parameters that did best on held-out data, and a layout of the loop's arrays
over its devices and over the runs that one update trains together.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from qrag_jax.sharding import MeshConfig, PyTree, any_process, is_main_process, make_mesh, place, replicated, split_rows
from qrag_jax.train.log import RunLog
from qrag_jax.types import InputError, Stopped, UsageError


def add_losses(terms: Mapping[str, tuple[jax.Array, float]]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss that a learner descends, and its parts for the log.

        total = sum over terms of  weight * loss

    Args:
        terms: by name (loss, scalar; weight, at least 0). A weight of 0 logs a loss and trains nothing on it.

    Returns:
        The total, and it as the metric `loss`, with each term before its weight as `loss/NAME` where there are several.

    Raises:
        UsageError: no term, or a weight that is negative or not finite.
    """
    for name, (_, weight) in terms.items():
        if not 0 <= weight < math.inf:
            raise UsageError(f"loss {name}: weight={weight} must be at least 0 and finite")
    weighted = [loss if weight == 1 else weight * loss for loss, weight in terms.values() if weight]
    if not weighted:
        raise UsageError(f"no loss is left to train on: give one of {', '.join(terms) or 'none'} a weight above 0")
    total = sum(weighted[1:], start=weighted[0])
    parts = {f"loss/{name}": loss for name, (loss, _) in terms.items()} if len(terms) > 1 else {}
    return total, {"loss": total, **parts}


class KeepBest:
    """The parameters with the best score so far, the later ones among equals; for `trainer.Hooks.score`."""

    def __init__(self, score: Callable[[PyTree], float], margin: float = 0.0):
        """Args: score, of parameters, the higher the better; margin, that must be gained over those of update 0."""
        self.params: PyTree = None
        self.update, self.value = 0, -np.inf
        self._score, self._margin = score, margin

    def offer(self, params: PyTree, update: int) -> float:
        """Scores parameters and keeps a copy of them (the update reuses their buffers) if none were better."""
        value = self._score(params)
        if value >= self.value + (self._margin if update and not self.update else 0.0):
            self.params, self.update, self.value = jax.tree.map(jnp.copy, params), update, value
        return value


Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Layout:
    """The arrays of runs in one: those of one run as they are, those of several in front of all axes.

    Attributes:
        mesh: devices.
        num_runs: runs in one update, `vmap`ped over them and spread over the devices.
        num_parts: above 1 a batch has one more axis in front, of parts that are played one after the other.
    """

    mesh: Mesh
    num_runs: int = 1
    num_parts: int = 1

    @property
    def stacked(self) -> bool:
        """True if arrays have an axis of runs."""
        return self.num_runs > 1

    @property
    def batches(self) -> NamedSharding:
        """Every device has a share of the rows of a batch, or some of the runs."""
        return split_rows(self.mesh, axis=int(not self.stacked and self.num_parts > 1))

    def join(self, trees: Sequence[PyTree]) -> PyTree:
        """One tree of those of all runs."""
        if not self.stacked:
            return trees[0]
        stack = jax.jit(
            lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees), out_shardings=split_rows(self.mesh)
        )
        return stack(list(trees))

    def part(self, tree: PyTree, i: int) -> PyTree:
        """The part of run i of a joined tree or of host arrays."""
        return jax.tree.map(lambda x: x[i], tree) if self.stacked else tree

    def shardings(self, one: PyTree) -> PyTree:
        """Shardings of the joined state, from those of one run's."""
        return jax.tree.map(lambda _: split_rows(self.mesh), one) if self.stacked else one

    def sampler(self, samplers: Sequence[Callable[[int], Batch]]) -> Callable[[int], Batch]:
        """Update number -> the batches of all runs, joined."""
        if not self.stacked:
            return samplers[0]

        def sample(number: int) -> Batch:
            drawn = [one(number) for one in samplers]
            if len({tuple(map(np.shape, jax.tree.leaves(one))) for one in drawn}) > 1:  # a later run needed more rows
                drawn = [one(number) for one in samplers]
            return jax.tree.map(lambda *arrays: np.stack(arrays), *drawn)

        return sample


# A batch's shape may grow: rarely, and only at the start of a run.
_MAX_TRACES = 6
_RUN_NUMBERS = count()

State = TypeVar("State")
Metrics = Mapping[str, Any]  # scalars by name
Update = Callable[[State, Batch], tuple[State, Metrics]]
Report = Callable[[str, int, int, dict[str, float]], None]  # (stage, done, of, metrics)


@dataclass(frozen=True)
class Plan:
    """The updates of a run, and what happens after which update; after the last one, everything except a score
    happens.

    Attributes:
        num_updates: of the whole run.
        log_every: updates between two lines of the log.
        save_every: updates between two checkpoints.
        score_every: updates between two scores on held-out data, the last update's among them; null scores nothing.
        first: number of finished updates: 0, or that of the checkpoint to resume from.
    """

    num_updates: int
    log_every: int
    save_every: int
    score_every: int | None = None
    first: int = 0

    def is_last(self, done: int) -> bool:
        """True if no update is left."""
        return done == self.num_updates

    def to_score(self, done: int) -> bool:
        """True if the state is scored after that many updates."""
        return self.score_every is not None and (self.is_last(done) or done % self.score_every == 0)

    def to_log(self, done: int) -> bool:
        """True if the metrics of an update are logged; they are always logged with a score."""
        return self.is_last(done) or self.to_score(done) or done % self.log_every == 0

    def to_save(self, done: int) -> bool:
        """True if the state is saved after that many updates."""
        return self.is_last(done) or done % self.save_every == 0


@dataclass(frozen=True)
class Hooks(Generic[State, Batch]):
    """Outputs of one run; each part is optional.

    Attributes:
        out: the run's folder, for messages.
        log: takes the metrics; of several processes the first one's only.
        save: (state, batch) after the updates that are saved; the batch is the last one that the state has seen.
        score: (state, updates done) -> metrics on held-out data, logged with those of the update.
        save_bad_batch: (update, metrics, batch) -> the file that it wrote, for a batch whose metrics are not finite.
    """

    out: Path | None = None
    log: RunLog | None = None
    save: Callable[[State, Batch], object] | None = None
    score: Callable[[State, int], Mapping[str, float]] | None = None
    save_bad_batch: Callable[[int, Mapping[str, float], Batch], Path] | None = None


class _Seen(NamedTuple):
    """An update that may still run on the device."""

    done: int
    metrics: Metrics
    batch: Any


def _silent(stage: str, done: int, of: int, metrics: dict[str, float]) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class Trainer(Generic[State, Batch]):
    """A loop over updates, of one run or of several that one update trains together.

    Attributes:
        update: the learner's, jitted (`jit_update`).
        batch: number of an update, from 0 -> its batch on the host.
        plan: the updates.
        hooks: of each run.
        layout: devices and runs; None is one run on the first device.
        report: progress.
        stop: asked after every update; where it says True in any process, all save and end.
        ends: asked after every update with its state; where it says True, that update is the last one.
        advice: what to do about numbers that are not finite.
    """

    update: Update
    batch: Callable[[int], Batch]
    plan: Plan
    hooks: Sequence[Hooks] = (Hooks(),)
    layout: Layout = field(default_factory=lambda: Layout(make_mesh(MeshConfig())))
    report: Report = _silent
    stop: Callable[[], bool] | None = None
    ends: Callable[[State], bool] | None = None
    advice: str = "Lower the learning rate"

    def run(self, state: State) -> tuple[State, Batch | None]:
        """All updates that are left.

        Args:
            state: before the first of them; its buffers are reused.

        Returns:
            The state after the last update, and the last batch; None where no update was left.

        Raises:
            InputError: metrics that are not finite; their batch is saved, and nothing after it.
            Stopped: `stop` said so; the state is saved.
        """
        plan, waiting, batch = self.plan, None, None
        self.report("compile", 0, 1, {})
        ahead = closing(prefetch(self.batch, plan.num_updates, plan.first))
        with jax.set_mesh(self.layout.mesh), ahead as batches:
            for done, batch in enumerate(batches, start=plan.first + 1):
                state, metrics = self.update(state, place(batch, self.layout.batches))
                if done == plan.first + 1:
                    self.report("compile", 1, 1, {})
                if self.ends is not None and self.ends(state):
                    plan = replace(plan, num_updates=done)
                asked = self.stop is not None and not plan.is_last(done) and any_process(self.stop())
                if waiting is not None:  # looked at one update later, so that the device is never idle
                    self._look(waiting)
                waiting = _Seen(done, metrics, batch)
                if plan.to_log(done) or plan.to_save(done) or asked:
                    replace(self, plan=plan)._write(state, waiting, asked)
                    waiting = None
                if asked:
                    raise Stopped(f"stopped after update {done:,}{self._where()}")
                if plan.is_last(done):
                    break
        return state, batch

    def _write(self, state: State, seen: _Seen, asked: bool) -> None:
        """Logs and saves as planned, once the update is done and its metrics are finite."""
        values = self._look(seen)
        if self.plan.to_log(seen.done):
            self._log(state, seen.done, values)
        if self.plan.to_save(seen.done) or asked:
            self._save(state, seen.batch)

    def _look(self, seen: _Seen) -> list[dict[str, float]]:
        """The metrics of each run when the update is done; raises an error if one is not finite."""
        host, found = jax.device_get(seen.metrics), []
        for i, hooks in enumerate(self.hooks):
            values = {name: float(value) for name, value in self.layout.part(host, i).items()}
            bad = [name for name, value in values.items() if not np.isfinite(value)]
            if bad:
                where = ""
                if hooks.save_bad_batch is not None and is_main_process():
                    own = self.layout.part(seen.batch, i)
                    where = f"; its batch: {hooks.save_bad_batch(seen.done, values, own)}"
                raise InputError(
                    f"update {seen.done}: {', '.join(bad)} not finite; the run stops. {self.advice}, and look for "
                    f"extreme values in the input{where}"
                )
            found.append(values)
        return found

    def _log(self, state: State, done: int, values: Sequence[dict[str, float]]) -> None:
        """Writes the metrics of each run, with its score on held-out data where it is due."""
        for i, (own, hooks) in enumerate(zip(values, self.hooks, strict=True)):
            if hooks.score is not None and self.plan.to_score(done):
                own |= hooks.score(self.layout.part(state, i), done)
            if hooks.log is not None:
                hooks.log.write(done, own)
        mean = {name: float(np.mean([own[name] for own in values])) for name in values[0]}
        self.report("train", done, self.plan.num_updates, mean)

    def _save(self, state: State, batch: Batch) -> None:
        for i, hooks in enumerate(self.hooks):
            if hooks.save is None:
                continue
            if hooks.log is not None:
                hooks.log.sync()
            hooks.save(self.layout.part(state, i), self.layout.part(batch, i))

    def _where(self) -> str:
        folders = ", ".join(str(hooks.out) for hooks in self.hooks if hooks.out is not None)
        return folders and f", saved in {folders}"


def jit_update(update: Callable[..., tuple[State, Metrics]], shardings: PyTree = None) -> Callable[..., Any]:
    """An update compiled, with the old state's buffers reused; more than `_MAX_TRACES` compilations are an error.

    Args:
        update: (state, batch and what else it reads) -> (state, metrics).
        shardings: of the new state; None leaves them to XLA. Metrics are on every device.
    """

    def counted(state: State, *batch: Any) -> tuple[State, Metrics]:
        return update(state, *batch)

    counted.__name__ = f"update_{next(_RUN_NUMBERS)}"  # chex counts by place and name: no run counts for another
    counted = chex.assert_max_traces(counted, n=_MAX_TRACES)

    def step(state: State, *batch: Any) -> tuple[State, Metrics]:
        return counted(state, *batch)  # one name in all runs: XLA's compile cache goes by it

    if shardings is None:
        return jax.jit(step, donate_argnums=0)
    everywhere = replicated(jax.tree.leaves(shardings)[0].mesh)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, everywhere))


def prefetch(
    batch: Callable[[int], Batch], num_updates: int, first: int = 0, depth: int = 4
) -> Generator[Batch, None, None]:
    """Batches in order, made ahead of use in a thread; an error in the thread is raised here."""
    numbers = iter(range(first, num_updates))
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        waiting = deque(pool.submit(batch, number) for number in islice(numbers, depth))
        while waiting:
            ready = waiting.popleft().result()
            waiting.extend(pool.submit(batch, number) for number in islice(numbers, 1))
            yield ready
    finally:
        pool.shutdown(cancel_futures=True)
