"""Trains retrievers from a config into self-contained run folders, or continues them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from qrag_jax.checkpoint import Checkpoint, find_fault, load_checkpoint, newest_valid_step
from qrag_jax.config import is_given, load_config
from qrag_jax.errors import Arg
from qrag_jax.eval.retrieval.calibration import fit_on_dev
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.qrag.tasks import Task
from qrag_jax.sharding import is_main_process
from qrag_jax.train.kind import LearnerKind
from qrag_jax.train.log import METRICS, TIMES, read_lines
from qrag_jax.train.qrag.config import RunConfig, fitting_updates, training_tasks
from qrag_jax.train.qrag.loop import train, train_together
from qrag_jax.train.qrag.saving import Member
from qrag_jax.train.run_folder import check_out, lock_runs
from qrag_jax.types import NOBODY, InputError, UsageError, Watch


@dataclass(frozen=True)
class TrainRequest:
    """Runs to train.

    Attributes:
        config_path: YAML file with the fields of `RunConfig` that differ from their defaults.
        overrides: such as `learner.gamma=0.9`; they override the file.
        out: run folder.
        seeds: of latent runs to train together, on the same data, into `out/seed_N`; None: one run with the config's
            seed.
        resume: continue the run in `out`, if there is one.
    """

    config_path: str | None = None
    overrides: tuple[str, ...] = ()
    out: str = "runs/train"
    seeds: tuple[int, ...] | None = None
    resume: bool = False

    @property
    def outs(self) -> list[Path]:
        """The folder of each run."""
        return [Path(self.out)] if self.seeds is None else [Path(self.out) / f"seed_{seed}" for seed in self.seeds]


@dataclass(frozen=True)
class TrainingPlan:
    """Runs to train, with their starting points.

    Attributes:
        config: of the run; several runs replace its seed.
        starts: for each run, the checkpoint to continue from, or None.
        follows_size: the number of updates depends on the number of questions, because none is given.
    """

    config: RunConfig
    starts: Sequence[Checkpoint | None]
    follows_size: bool


@dataclass(frozen=True)
class TrainedRun:
    """A trained run.

    Attributes:
        config: of the run.
        out: folder of the run.
        data: facts about its texts.
        metrics: of its last update, with its seconds.
        chosen: the choice by held-out questions; None if none were held out.
        reader: what a language model read to pay for it; None if gold paid.
    """

    config: RunConfig
    out: Path
    data: Mapping[str, Any]
    metrics: Mapping[str, Any]
    chosen: Mapping[str, Any] | None
    reader: Mapping[str, int | float] | None = None


def plan_training(request: TrainRequest, watch: Watch = NOBODY) -> TrainingPlan:
    """The complete config of a request, and where its runs start. Reads no data and writes nothing.

    Raises:
        UsageError: `resume` without a checkpoint and without a config.
    """
    outs, path = request.outs, request.config_path
    starts = _find_starts(outs, watch) if request.resume else [None] * len(outs)
    if request.resume and starts[0] is None and path is None and not request.overrides:
        reason = f": {outs[0]} contains no checkpoint, and there is no config to start from; check "
        raise UsageError((Arg("resume"), reason, Arg("out")), field="resume")
    if path is None and starts[0] is not None:  # the run knows its own config
        path = str(starts[0].folder / "config.yaml")
    config = load_config(RunConfig, path, request.overrides)
    is_long_enough = config.data.task != "jsonl" or is_given("num_updates", path, request.overrides)
    return TrainingPlan(config, starts, not is_long_enough)


def train_runs(
    request: TrainRequest,
    watch: Watch = NOBODY,
    stop: Callable[[], bool] | None = None,
    during: AbstractContextManager[Any] | None = None,
) -> list[TrainedRun]:
    """Trains the runs of a request.

    Args:
        stop: called after each update; if it returns true, the run is saved and `Stopped` is raised.
        during: context that is open during the updates.

    Returns:
        The trained runs; an empty list in all but the first of several processes.

    Raises:
        Stopped: `stop` returned true.
    """
    with lock_runs(request.outs):  # before looking for checkpoints
        plan = plan_training(request, watch)
        if not request.resume:
            for out in request.outs:
                check_out(out)
        configs = _configs(plan.config, request.seeds)
        members = [Member(*member) for member in zip(configs, request.outs, plan.starts, strict=True)]
        task, dev = training_tasks(members[0].config)
        for note in task.notes:
            watch.note(note)
        watch.note(describe_task(task) + (f"; {len(dev):,} held out" if dev is not None else ""))
        if plan.follows_size:
            members = [replace(member, config=_with_updates(member, len(task))) for member in members]
            num = members[0].config.num_updates
            watch.note(f"num_updates was set to {num:,} for this number of questions; change it with num_updates=N")
        if plan.config.init and plan.starts[0] is None:
            watch.note(f"starting with the parameters of {plan.config.init}")
        fit = partial(fit_on_dev, beam_widths=plan.config.dev.beam_widths)
        with nullcontext() if during is None else during:
            train_together(members, task, watch.report, dev, fit, stop)
        return [_trained(one, dev is not None) for one in members] if is_main_process() else []


def describe_task(task: Task) -> str:
    """One line about the training data: `worlds2: 20,000 questions over 12,240 chunks`, and the number left out."""
    line = f"{task.name}: {len(task):,} questions over {len(task.texts):,} distinct chunks"
    if task.num_left_out:
        why = "see above" if task.notes else "their story is longer than a context"
        line += f"; {task.num_left_out:,} left out, {why}"
    return line


def _with_updates(member: Member, num_questions: int) -> RunConfig:
    """The config with the number of updates of the resumed run, or for the number of questions."""
    config, start = member.config, member.start
    known = None if start is None else start.config.get("num_updates")
    return replace(config, num_updates=known or fitting_updates(num_questions, config.data.batch_size))


def _configs(config: RunConfig, seeds: Sequence[int] | None) -> list[RunConfig]:
    """The config of each run: the config itself, or one for each seed on the same data."""
    if seeds is None:
        return [config]
    data = replace(config.data, seed=config.data_seed)
    return [replace(config, seed=seed, data=data) for seed in seeds]


def _find_starts(outs: Sequence[Path], watch: Watch) -> Sequence[Checkpoint | None]:
    """The newest undamaged checkpoint of each run folder. Notes it, the damaged ones, and folders without one.

    Runs that are trained together continue from the same update, since one may have been killed between two saves.
    """
    steps, names = [], ", ".join(map(str, outs))
    for out in outs:
        step, skipped = newest_valid_step(out)
        for fault in skipped:
            watch.note(f"skipped a damaged checkpoint: {fault}")
        steps.append(step)
    if all(step is None for step in steps):
        watch.note(f"{names}: no checkpoint yet; starting with the first update")
        return [None] * len(outs)
    if len(outs) == 1:
        watch.note(f"{outs[0]}: continuing after update {steps[0]:,}")
        return [load_checkpoint(outs[0], step=steps[0], groups=())]
    common = set.intersection(*(set(checkpoint_steps(out)) for out in outs))
    whole = [s for s in sorted(common, reverse=True) if all(find_fault(out / f"step_{s}") is None for out in outs)]
    if not whole:
        raise UsageError(
            f"no update has an undamaged checkpoint in each of {names}; the runs were killed while writing the first "
            "ones, or were not trained together",
            field="resume",
            remedy="remove these folders, or train the runs one by one",
        )
    watch.note(f"{names}: continuing after update {whole[0]:,}")
    return [load_checkpoint(out, step=whole[0], groups=()) for out in outs]


def _trained(member: Member, has_dev: bool) -> TrainedRun:
    out = member.out
    assert out is not None
    data, metrics = _read_metrics(out)
    paid = member.config.learner.reward != "gold"
    about = load_checkpoint(out, groups=()).metadata if has_dev or paid else {}
    return TrainedRun(member.config, out, data, metrics, about["dev"] if has_dev else None, about.get("reader"))


def _read_metrics(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts about the data, and the last logged step with its seconds, from a finished run folder."""
    lines, times = read_lines(out / METRICS), read_lines(out / TIMES)
    if len(lines) < 2 or not times:
        raise InputError(f"{out}: {METRICS} or {TIMES} is missing or empty; the checkpoints are complete")
    return lines[0]["data"], lines[-1] | {"seconds": times[-1]["seconds"]}


def _train_retriever(config: RunConfig, out: Path, watch: Watch) -> Mapping[str, Any]:
    """Trains one run and returns its last metrics."""
    task, dev = training_tasks(config)
    watch.note(describe_task(task))
    train(config, task, out, watch.report, dev, partial(fit_on_dev, beam_widths=config.dev.beam_widths))
    return _read_metrics(out)[1]


def _format_retriever(row: Mapping[str, Any]) -> str:
    return f"trained: {row['run']}, {row['step']:,} updates, {learned(row)}"


def learned(last: Mapping[str, Any]) -> str:
    """Describes the episodes of the last update by its metrics."""
    if "complete" in last:
        return f"{last['complete']:.1%} of the last training episodes complete"
    return f"mean return {last['return']:.3f} in the last training episodes"


RETRIEVER = LearnerKind(RunConfig, _train_retriever, _format_retriever)
