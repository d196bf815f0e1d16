"""The questions of `qrag eval`: from its flags to tasks."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qrag_jax.cli.terminal import say
from qrag_jax.data.questions.examples import read_examples
from qrag_jax.data.questions.multihop import READERS, describe
from qrag_jax.data.questions.vector_task import read_vector_task
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.haystack import Haystack, held_back_haystack
from qrag_jax.qrag.tasks import Task, examples_task, hidden_stories_tasks, vectors_task
from qrag_jax.types import UsageError

LENGTH_FACTORS = (1, 4, 16, 64)


def report_tasks(args: argparse.Namespace, training_chunks: int, trained_on: Mapping[str, Any]) -> Iterator[Task]:
    """The questions to report, a task a length.

    Args:
        args: flags of `qrag eval`.
        training_chunks: length that the run was trained at.
        trained_on: the `data` section of the run's config.
    """
    kind, path = source(args)
    if kind != "babi" and args.num_chunks:
        raise UsageError(f"--num_chunks hides facts of --babi; questions of --{kind} come with their chunks")
    if kind != "babi":
        yield _task_with_chunks(kind, path)
        return
    haystack = _haystack(args, trained_on)
    if len(haystack) == args.max_haystack_sentences:
        say(f"haystack {args.haystack}: {len(haystack):,} of its sentences are used (--max_haystack_sentences)")
    lengths = args.num_chunks or tuple(factor * training_chunks for factor in LENGTH_FACTORS)
    if len(set(lengths)) != len(lengths):
        raise UsageError(f"--num_chunks {','.join(map(str, lengths))}: a length stands twice")
    yield from hidden_stories_tasks(_name(path), read_babi(path), haystack, lengths)


def calibration_task(args: argparse.Namespace, training_chunks: int, trained_on: Mapping[str, Any]) -> Task:
    """The questions of --calibrate, of the same kind as those that are reported; stories at the training length."""
    kind, path = source(args)[0], args.calibrate
    if kind != "babi":
        return _task_with_chunks(kind, path)
    return hidden_stories_tasks(_name(path), read_babi(path), _haystack(args, trained_on), (training_chunks,))[0]


def source(args: argparse.Namespace) -> tuple[str, str]:
    """Kind and path of the questions: the flag that was given, and its value."""
    given = {kind: getattr(args, kind) for kind in ("babi", "jsonl", "vectors", *READERS)}
    return next((kind, path) for kind, path in given.items() if path is not None)


def _task_with_chunks(kind: str, path: str) -> Task:
    """Questions of any kind but `babi`: they come with their chunks."""
    if kind == "jsonl":
        return examples_task(_name(path), read_examples(path))
    if kind == "vectors":
        return vectors_task(_name(path), read_vector_task(path))
    read = READERS[kind](path)
    say(describe(_name(path), read))
    return examples_task(f"{kind} {_name(path)}", read.examples, sum(read.left_out.values()), answers=read.answers)


def _haystack(args: argparse.Namespace, trained_on: Mapping[str, Any]) -> Haystack:
    return held_back_haystack(args.haystack, args.max_haystack_sentences, trained_on, note=say)


def _name(path: str) -> str:
    return Path(path).name.split(".")[0]
