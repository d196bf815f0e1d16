"""`qrag train`: trains a retriever from a config into a run folder that stands alone."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from qrag_jax.checkpoint import checkpoint_steps
from qrag_jax.cli import say, write_json
from qrag_jax.cli.progress import Progress
from qrag_jax.config import dump_config, load_config
from qrag_jax.retrieval.tasks import Task
from qrag_jax.train.loop import train
from qrag_jax.train.run import RunConfig, training_task
from qrag_jax.types import UsageError

# What asks for a run's own kind of questions again.
_EVAL_FLAGS = {
    "worlds": "--babi FILE",
    "babi": "--babi FILE --haystack DIR",
    "jsonl": "--jsonl FILE",
    "vectors": "--vectors DIR",
}


def run(args: argparse.Namespace) -> int:
    """Runs `qrag train`; see `qrag train --help`."""
    config = load_config(RunConfig, args.config_path, args.overrides)
    if args.dry_run:
        sys.stdout.write(dump_config(config))
        return 0
    out = Path(args.out)
    check_out(out)
    task = training_task(config)
    say(describe(task))
    with Progress() as progress:
        train(config, task, out, progress.report)
    facts, last = read_metrics(out / "metrics.jsonl")
    if facts.get("num_texts_cut"):
        say(
            f"{facts['num_texts_cut']:,} of {facts['num_texts']:,} chunks are longer than model.encoder.window="
            f"{config.model.encoder.window} tokens; only their beginning was read"
        )
    if args.json:
        write_json({"run": str(out), **last})
    folder = shlex.quote(str(out))
    say(
        f"trained: {out}, {last['step']:,} updates in {last['seconds']:,.0f} s, {last['complete']:.1%} of the last "
        "training episodes complete"
    )
    say(f"next: qrag eval {folder} {_EVAL_FLAGS[config.data.task]}")
    if config.data.task != "vectors":
        say(f'      qrag find {folder} FILES... "question"')
    return 0


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


def describe(task: Task) -> str:
    """One line about the training data: `worlds2: 20,000 questions over 12,240 chunks`, and what was left out."""
    line = f"{task.name}: {len(task):,} questions over {len(task.texts):,} distinct chunks"
    if task.num_left_out:
        line += f"; {task.num_left_out:,} left out, their story is longer than a context"
    return line


def read_metrics(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts about the data and the last logged step, of a metrics.jsonl that a run has just written."""
    first, *_, last = path.read_text(encoding="utf-8").splitlines()
    return json.loads(first)["data"], json.loads(last)
