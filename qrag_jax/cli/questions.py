"""The questions of `qrag eval`: from its flags to tasks."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qrag_jax.cli import say
from qrag_jax.data.babi import read_babi
from qrag_jax.data.haystack import Haystack, limit_haystack, load_haystack
from qrag_jax.data.jsonl import read_examples
from qrag_jax.data.multihop import READERS, describe
from qrag_jax.data.vector_task import read_vector_task
from qrag_jax.retrieval.tasks import Task, examples_task, hidden_stories_tasks, vectors_task
from qrag_jax.types import UsageError

LENGTH_FACTORS = (1, 4, 16, 64)


def held_back_haystack(source: str, most: int | None, trained_on: Mapping[str, Any], seed: int = 0) -> Haystack:
    """Sentences to hide facts in: of a source that the run was trained on, only the fifth that training never saw.

    Args:
        source: as of `load_haystack`.
        most: sentences to keep; None keeps all.
        trained_on: the `data` section of the run's config.
        seed: of the choice of documents.
    """
    own = _place(source) == _place(str(trained_on.get("haystack", "")))
    if own and trained_on.get("haystack_split") == "all" and trained_on.get("task") in ("worlds", "babi"):
        say(f"haystack {source}: the run was trained on all of it; scores in text that it knows say less")
    return limit_haystack(load_haystack(source, "valid" if own else "all"), most, seed)


def _place(source: str) -> str:
    """One name for one source: a path in full, however it was written."""
    return str(Path(source).resolve()) if Path(source).exists() else source


def report_tasks(args: argparse.Namespace, training_chunks: int, trained_on: Mapping[str, Any]) -> Iterator[Task]:
    """The questions to report, a task a length.

    Args:
        args: flags of `qrag eval`.
        training_chunks: length that the run was trained at.
        trained_on: the `data` section of the run's config.

    Raises:
        UsageError: a path or length that cannot be.
        InputError: a malformed file.
    """
    kind, path = source(args)
    if kind != "babi" and args.num_chunks:
        raise UsageError(f"--num_chunks hides facts of --babi; questions of --{kind} come with their chunks")
    if kind in READERS:
        yield _multihop_task(kind, path)
    elif kind == "jsonl":
        yield examples_task(_name(path), read_examples(path))
    elif kind == "vectors":
        yield vectors_task(_name(path), read_vector_task(path))
    else:
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
    if kind in READERS:
        return _multihop_task(kind, path)
    if kind == "jsonl":
        return examples_task(_name(path), read_examples(path))
    if kind == "vectors":
        return vectors_task(_name(path), read_vector_task(path))
    return hidden_stories_tasks(_name(path), read_babi(path), _haystack(args, trained_on), (training_chunks,))[0]


def source(args: argparse.Namespace) -> tuple[str, str]:
    """Kind and path of the questions: the flag that was given, and its value."""
    given = {kind: getattr(args, kind) for kind in ("babi", "jsonl", "vectors", *READERS)}
    return next((kind, path) for kind, path in given.items() if path)


def _multihop_task(kind: str, path: str) -> Task:
    read = READERS[kind](path)
    say(describe(_name(path), read))
    return examples_task(f"{kind} {_name(path)}", read.examples, sum(read.left_out.values()), answers=read.answers)


def _haystack(args: argparse.Namespace, trained_on: Mapping[str, Any]) -> Haystack:
    return held_back_haystack(args.haystack, args.max_haystack_sentences, trained_on)


def _name(path: str) -> str:
    return Path(path).name.split(".")[0]
