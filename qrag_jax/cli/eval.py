"""`qrag eval`: scores a trained retriever and its baselines on questions with known chunks."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.cli import say, write_json
from qrag_jax.cli.progress import Progress
from qrag_jax.data.babi import read_babi
from qrag_jax.data.haystack import Haystack, limit_haystack, load_haystack
from qrag_jax.data.jsonl import read_examples
from qrag_jax.data.vector_task import read_vector_task
from qrag_jax.eval.harness import Labels, evaluate
from qrag_jax.eval.pickers import make_pickers
from qrag_jax.eval.records import METHODS, QueryRecord, Row, write_records
from qrag_jax.eval.report import format_table
from qrag_jax.models.sources import is_installed
from qrag_jax.retrieval.retriever import Retriever, load_retriever
from qrag_jax.retrieval.tasks import Task, examples_task, hidden_stories_tasks, vectors_task
from qrag_jax.types import UsageError

LENGTH_FACTORS = (1, 4, 16, 64)
_BASELINE_ENCODER = "minilm"


def run(args: argparse.Namespace) -> int:
    """Runs `qrag eval`; see `qrag eval --help`."""
    retriever = load_retriever(args.run)
    saved = load_checkpoint(args.run, groups=())
    labels = run_labels(saved, retriever)
    tasks = list(_tasks(args, labels.training_chunks, saved.config.get("data", {})))
    methods = args.methods or default_methods(vectors=bool(args.vectors))
    rows, records = score(retriever, tasks, methods, labels, args.num_steps, args.num_questions, args.seed)
    if args.per_query:
        write_records(args.per_query, records)
    if args.json:
        write_json([asdict(row) for row in rows], args.json)
    if args.json != "-":
        print(format_table(rows))
    return 0


def run_labels(saved: Checkpoint, retriever: Retriever) -> Labels:
    """What rows say of a run, from its checkpoint."""
    seed, training_chunks = saved.config.get("seed", 0), saved.metadata.get("num_chunks", 1)
    return Labels(retriever.model.mode, retriever.env.positions, seed, training_chunks)


def default_methods(vectors: bool = False) -> tuple[str, ...]:
    """All methods that this task and this machine allow; what is left out is said."""
    if vectors:
        return ("trained", "single_step")
    if not is_installed():
        say(
            "the embedded encoder is not installed: no rows untrained and single_step; name them in --methods to insist"
        )
        return ("trained", "bm25")
    return METHODS


def score(
    retriever: Retriever,
    tasks: list[Task],
    methods: tuple[str, ...],
    labels: Labels,
    num_steps: int | None = None,
    num_questions: int | None = None,
    seed: int = 0,
) -> tuple[list[Row], list[QueryRecord]]:
    """Scores methods over tasks; tasks over the same pool of texts share one index."""
    rows, records, pickers, indexed = [], [], {}, None
    with Progress() as progress:
        for task in tasks:
            if task.texts is not indexed:
                pickers = make_pickers(
                    retriever, task.texts, task.questions, methods, _BASELINE_ENCODER, progress.stage("embed")
                )
                indexed = task.texts
            steps, note = num_steps or retriever.env.num_steps, progress.note
            new_rows, new_records = evaluate(task, pickers, steps, labels, num_questions, seed, note, keep_texts=True)
            rows += new_rows
            records += new_records
    return rows, records


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


def _tasks(args: argparse.Namespace, training_chunks: int, trained_on: Mapping[str, Any]) -> Iterator[Task]:
    if args.jsonl:
        yield examples_task(_name(args.jsonl), read_examples(args.jsonl))
    elif args.vectors:
        yield vectors_task(_name(args.vectors), read_vector_task(args.vectors))
    else:
        stories = read_babi(args.babi)
        haystack = held_back_haystack(args.haystack, args.max_haystack_sentences, trained_on)
        if len(haystack) == args.max_haystack_sentences:
            say(f"haystack {args.haystack}: {len(haystack):,} of its sentences are used (--max_haystack_sentences)")
        lengths = args.num_chunks or tuple(factor * training_chunks for factor in LENGTH_FACTORS)
        if len(set(lengths)) != len(lengths):
            raise UsageError(f"--num_chunks {','.join(map(str, lengths))}: a length stands twice")
        yield from hidden_stories_tasks(_name(args.babi), stories, haystack, lengths)


def _name(path: str) -> str:
    return Path(path).name.split(".")[0]
