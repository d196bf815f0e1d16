"""`qrag train`: trains a retriever from a config into a run folder that stands alone."""

import argparse
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.cli import say, write_json
from qrag_jax.cli.progress import Progress
from qrag_jax.config import dump_config, load_config
from qrag_jax.eval.calibration import fit_on_dev
from qrag_jax.retrieval.tasks import Task
from qrag_jax.train.loop import check_out, train
from qrag_jax.train.run import RunConfig, training_tasks

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
    config = load_config(RunConfig, args.config_path, args.overrides)
    if args.dry_run:
        sys.stdout.write(dump_config(config))
        return 0
    out = Path(args.out)
    check_out(out)
    task, dev = training_tasks(config)
    for note in task.notes:
        say(note)
    say(describe(task) + (f"; {len(dev):,} held out" if dev is not None else ""))
    with Progress() as progress:
        fit = partial(fit_on_dev, beam_widths=config.dev.beam_widths)
        train(config, task, out, progress.report, dev, fit)
    facts, last = read_metrics(out / "metrics.jsonl")
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
    if args.json:
        write_json({"run": str(out), **last})
    if dev is not None:
        chosen = load_checkpoint(out, groups=()).metadata["dev"]
        say(
            f"held-out questions chose update {chosen['update']:,} (return {chosen['return']:.3f}) and the threshold "
            f"{chosen['threshold']:.4g} (F1 {chosen['fact_f1']:.3f} on the {chosen['num_questions']:,} of them)"
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
    return 0


def describe(task: Task) -> str:
    """One line about the training data: `worlds2: 20,000 questions over 12,240 chunks`, and what was left out."""
    line = f"{task.name}: {len(task):,} questions over {len(task.texts):,} distinct chunks"
    if task.num_left_out:
        why = "see above" if task.notes else "their story is longer than a context"
        line += f"; {task.num_left_out:,} left out, {why}"
    return line


def read_metrics(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts about the data and the last logged step, of a metrics.jsonl that a run has just written."""
    first, *_, last = path.read_text(encoding="utf-8").splitlines()
    return json.loads(first)["data"], json.loads(last)
