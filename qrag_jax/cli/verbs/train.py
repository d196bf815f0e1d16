"""`qrag train`: trains a retriever from a config into a run folder that stands alone."""

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qrag_jax.checkpoint import Checkpoint, find_fault, load_checkpoint, newest_valid_step
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.config import dump_config, is_given, load_config
from qrag_jax.eval.retrieval.calibration import fit_on_dev
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.qrag.tasks import Task
from qrag_jax.sharding import is_main_process, start_processes
from qrag_jax.train.log import METRICS, TIMES, read_lines
from qrag_jax.train.qrag.config import RunConfig, fitting_updates, training_tasks
from qrag_jax.train.qrag.loop import train_together
from qrag_jax.train.qrag.saving import Member
from qrag_jax.train.run_folder import check_out, lock_runs
from qrag_jax.types import InputError, Stopped, UsageError

# What asks for a run's own kind of questions again.
_EVAL_FLAGS = {
    "worlds": "--babi FILE",
    "babi": "--babi FILE --haystack DIR",
    "jsonl": "--jsonl FILE",
    "multihop": "--hotpot FILE",
    "vectors": "--vectors DIR",
}


def run(args: argparse.Namespace) -> int:
    """Runs `qrag train`; see `qrag train --help`."""
    _join_processes(args)
    outs = [Path(args.out)] if args.seeds is None else [Path(args.out) / f"seed_{seed}" for seed in args.seeds]
    with lock_runs([] if args.dry_run else outs):  # before it is looked where to go on from
        return _run(args, outs)


def _run(args: argparse.Namespace, outs: Sequence[Path]) -> int:
    """What is done in folders that no other process works in."""
    starts = _find_starts(outs) if args.resume else [None] * len(outs)
    path = args.config_path
    if args.resume and starts[0] is None and path is None and not args.overrides:
        raise UsageError(f"--resume: {outs[0]} holds no checkpoint, and there is no config to start with: check --out")
    if path is None and starts[0] is not None:  # the run knows its own config
        path = str(starts[0].folder / "config.yaml")
    config = load_config(RunConfig, path, args.overrides)
    if args.dry_run:
        sys.stdout.write(dump_config(config))
        if _follows_size(config, path, args.overrides):
            say("num_updates follows the number of questions, as data.task=jsonl and it is not given (1,000 to 5,000)")
        return 0
    if not args.resume:
        for out in outs:
            check_out(out)
    members = [Member(*member) for member in zip(_configs(config, args.seeds), outs, starts, strict=True)]
    task, dev = training_tasks(members[0].config)
    for note in task.notes:
        _say(note)
    _say(describe(task) + (f"; {len(dev):,} held out" if dev is not None else ""))
    if _follows_size(config, path, args.overrides):
        members = [replace(member, config=_with_updates(member, len(task))) for member in members]
        config = members[0].config
        _say(f"num_updates={config.num_updates:,}, after the number of questions; num_updates=N is another number")
    if config.init and starts[0] is None:
        _say(f"starting with the parameters of {config.init}")
    signals = _Signals()
    with signals, Progress(quiet=not is_main_process()) as progress:

        def report(stage: str, done: int, of: int, metrics: dict[str, float]) -> None:
            signals.end_if_asked()
            signals.updates_run = signals.updates_run or stage == "compile"
            progress.report(stage, done, of, metrics)

        fit = partial(fit_on_dev, beam_widths=config.dev.beam_widths)
        try:
            train_together(members, task, report, dev, fit, signals.asked)
        except Stopped as stopped:
            seeds = "" if args.seeds is None else f" --seeds {','.join(map(str, args.seeds))}"
            _say(f"{stopped}; go on with: qrag train --out {shlex.quote(args.out)}{seeds} --resume")
            return signals.exit_code or 128 + signal.SIGTERM  # another process of the run was told to end
    if is_main_process():
        results = [_say_result(member.config, member.out, dev is not None) for member in members if member.out]
        if args.json:
            write_json(results[0] if args.seeds is None else results)
    return 0


def _follows_size(config: RunConfig, path: str | None, overrides: Sequence[str]) -> bool:
    """Whether a run is as long as its own questions need: nobody said how long."""
    return config.data.task == "jsonl" and not is_given("num_updates", path, overrides)


def _with_updates(member: Member, num_questions: int) -> RunConfig:
    """The config with the updates of the run that goes on, or as many as the questions need."""
    config, start = member.config, member.start
    known = None if start is None else start.config.get("num_updates")
    return replace(config, num_updates=known or fitting_updates(num_questions, config.data.batch_size))


def _join_processes(args: argparse.Namespace) -> None:
    """Joins the processes of a run, where the flags speak of several."""
    given = [args.coordinator, args.num_processes, args.process_id]
    if args.distributed and given == [None] * 3:
        start_processes(None, None, None)
    elif None not in given:
        start_processes(*given)
    elif given != [None] * 3:
        raise UsageError("--coordinator, --num_processes and --process_id belong together: give all three")


def _configs(config: RunConfig, seeds: Sequence[int] | None) -> list[RunConfig]:
    """The config of each run: itself, or one a seed over the same data."""
    if seeds is None:
        return [config]
    data = replace(config.data, seed=config.data_seed)
    return [replace(config, seed=seed, data=data) for seed in seeds]


def _find_starts(outs: Sequence[Path]) -> Sequence[Checkpoint | None]:
    """The newest whole checkpoint of each run folder; says which, which were damaged, and where there is none yet.

    Runs that are trained together go on after the same update: a kill may have come between two of their saves.
    """
    steps = []
    for out in outs:
        step, skipped = newest_valid_step(out)
        for fault in skipped:
            _say(f"damaged and skipped: {fault}")
        steps.append(step)
    if all(step is None for step in steps):
        _say(f"{', '.join(map(str, outs))}: no checkpoint yet: starting with the first update")
        return [None] * len(outs)
    if len(outs) == 1:
        _say(f"{outs[0]}: going on after update {steps[0]:,}")
        return [load_checkpoint(outs[0], step=steps[0], groups=())]
    common = set.intersection(*(set(checkpoint_steps(out)) for out in outs))
    whole = [s for s in sorted(common, reverse=True) if all(find_fault(out / f"step_{s}") is None for out in outs)]
    if not whole:
        raise UsageError(
            f"--resume: no update has a whole checkpoint in each of {', '.join(map(str, outs))}: a kill came while the "
            "first ones were written, or the runs were not trained together; remove these folders, or train alone"
        )
    _say(f"{', '.join(map(str, outs))}: going on after update {whole[0]:,}")
    return [load_checkpoint(out, step=whole[0], groups=()) for out in outs]


class _Signals:
    """SIGTERM and Ctrl-C ask a run to save and end, once updates run; before that, and a second Ctrl-C, they end it."""

    def __init__(self) -> None:
        self.updates_run = False
        self.exit_code = 0
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """Whether a signal came."""
        return self.exit_code > 0

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def end_if_asked(self) -> None:
        """Ends what comes before the updates, where a signal came whose exception was lost.

        Python throws away what is raised while it collects garbage, or inside of a library's callback.
        """
        if self.asked() and not self.updates_run:
            raise SystemExit(self.exit_code)

    def _handle(self, number: int, frame: object) -> None:
        if self.asked() and self.updates_run and number == signal.SIGTERM:  # a cluster repeats it: it is being saved
            return
        at_once = self.asked() or not self.updates_run
        self.exit_code = 128 + number  # what a shell reports for it
        if at_once:
            raise SystemExit(self.exit_code)
        with suppress(RuntimeError):  # it came in the middle of a message, which a reader that waits holds up
            _say("stopping after this update, which is saved; Ctrl-C ends it at once")


def _say(text: str) -> None:
    if is_main_process():
        say(text)


def _say_result(config: RunConfig, out: Path, has_dev: bool) -> dict[str, Any]:
    """What came out, on stderr; returns the last metrics."""
    facts, last = read_metrics(out)
    if facts.get("num_texts_cut"):
        say(
            f"{facts['num_texts_cut']:,} of {facts['num_texts']:,} chunks are longer than model.encoder.window="
            f"{config.model.encoder.window} tokens; only their beginning was read"
        )
    if facts.get("num_questions_cut"):
        say(
            f"{facts['num_questions_cut']:,} questions are longer than model.encoder.question_window="
            f"{config.model.encoder.question_window} tokens; only their beginning was read"
        )
    if has_dev:
        chosen = load_checkpoint(out, groups=()).metadata["dev"]
        say(
            f"held-out questions chose update {chosen['update']:,} (return {chosen['return']:.3f}) and the threshold "
            f"{chosen['threshold']:.4g} (F1 {chosen['fact_f1']:.3f} on the {chosen['num_questions']:,} of them)"
        )
        if chosen["update"] == 0:  # dev.untrained
            say(
                "training has helped nothing: the result is the untrained retriever; train longer, or on more questions"
            )
        if "beam_width" in chosen:
            found = ", ".join(f"{width}: {f1:.3f}" for width, f1 in chosen["beam_f1"].items())
            say(f"beam width {chosen['beam_width']} is best on them (F1 by width {found}): --beam_width of qrag eval")
    folder = shlex.quote(str(out))
    say(
        f"trained: {out}, {last['step']:,} updates in {last['seconds']:,.0f} s, {last['complete']:.1%} of the last "
        "training episodes complete"
    )
    say(f"next: qrag eval {folder} {_EVAL_FLAGS[config.data.task]}")
    if config.data.task != "vectors":
        say(f'      qrag find {folder} FILES... "question"')
    return {"run": str(out), **last}


def describe(task: Task) -> str:
    """One line about the training data: `worlds2: 20,000 questions over 12,240 chunks`, and what was left out."""
    line = f"{task.name}: {len(task):,} questions over {len(task.texts):,} distinct chunks"
    if task.num_left_out:
        why = "see above" if task.notes else "their story is longer than a context"
        line += f"; {task.num_left_out:,} left out, {why}"
    return line


def read_metrics(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts about the data, and the last logged step with its seconds, of a run folder that has just been written."""
    lines, times = read_lines(out / METRICS), read_lines(out / TIMES)
    if len(lines) < 2 or not times:
        raise InputError(f"{out}: {METRICS} or {TIMES} is not there or empty; the checkpoints are whole")
    return lines[0]["data"], lines[-1] | {"seconds": times[-1]["seconds"]}
