"""What `qrag find` and `qrag ask` search, and how: files by a method of one step, or by a run. Loads what it must."""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.cli.parsers.search_flags import RETRIEVERS, SHOWN_RETRIEVERS
from qrag_jax.cli.progress import WithBar
from qrag_jax.data.files.documents import STDIN, read_files
from qrag_jax.data.questions.asked import Asked, read_asked
from qrag_jax.files.manifest import MANIFEST
from qrag_jax.files.step_folders import checkpoint_steps, step_folder
from qrag_jax.retrieval.methods import DEFAULT_CHUNKING, Method, multi_step_method, single_step_method
from qrag_jax.types import Document, InputError, UsageError

if TYPE_CHECKING:
    from qrag_jax.retrieval.index.retriever import Retriever

_OF_METHODS = {
    "strategy": "a run reads sentences",
    "max_tokens": "a run reads sentences",
    "model": "a run has the encoder that it was trained with",
    "top_k": "a run picks --num_steps chunks",
}


@dataclass(frozen=True)
class Source:
    """What the words and flags of a command name.

    Attributes:
        paths: files and folders to search.
        retriever: name of a method, or the folder of a run.
        is_run: it is a run's.
    """

    paths: tuple[str, ...]
    retriever: str
    is_run: bool


def find_source(args: argparse.Namespace, of_runs: Sequence[str], *, run_first: bool = False) -> Source:
    """Sorts out paths and `--retriever`; looks at names and folders alone.

    Args:
        args: `paths` and the flags of `search_flags`.
        of_runs: names of flags that belong to a run.
        run_first: the first path may be a run, which then searches the others.

    Raises:
        UsageError: a run and no path, or flags that do not belong to what searches.
    """
    first, *rest = args.paths
    if run_first and is_run(first):
        if args.retriever is not None:
            raise UsageError(f"{first}: is a run, and --retriever names {args.retriever}: leave one of them out")
        if not rest:
            raise UsageError(f"{first}: is a run: name the files or folders to search between it and the question")
        source = Source(tuple(rest), first, is_run=True)
    else:
        retriever = args.retriever or "hybrid"
        source = Source(tuple(args.paths), retriever, is_run=retriever not in RETRIEVERS)
        if source.is_run and not os.path.isdir(retriever):
            raise UsageError(
                f"--retriever {retriever}: one of {SHOWN_RETRIEVERS}, or the folder of a run, and no such folder is "
                "there"
            )
    for name, reason in _OF_METHODS.items():
        if source.is_run and getattr(args, name, None) is not None:
            raise UsageError(f"--{name}: belongs to {SHOWN_RETRIEVERS}; {reason}")
    for name in of_runs:
        if not source.is_run and getattr(args, name) not in (None, False):
            raise UsageError(f"--{name}: belongs to a run, not to {source.retriever}; leave it out, or name a run")
    return source


def is_run(path: str) -> bool:
    """Whether a path is a run's folder or one of its steps, by the names in there."""
    folder = Path(path)
    if path == STDIN or not os.path.isdir(folder):
        return False
    steps = [folder, *(step_folder(folder, step) for step in checkpoint_steps(folder))]
    return any((step / MANIFEST).is_file() and (step / "metadata.json").is_file() for step in steps)


def read_source(args: argparse.Namespace, source: Source) -> list[Document]:
    """The documents of a source, in its order.

    Raises:
        UsageError, InputError: as `read_files`.
    """
    return read_files(source.paths, args.encoding, strict=args.strict, only=args.only)


def read_questions(args: argparse.Namespace) -> Iterator[Asked]:
    """The question of the command, or those of `--questions`.

    Raises:
        UsageError: standard input is to be both questions and a document; or as `read_asked`.
        InputError: a blank question; or as `read_asked`.
    """
    if args.questions is None:
        if not args.question.strip():
            raise InputError("question: nothing to ask; write a question")
        return iter([Asked(args.question)])
    if args.questions == STDIN and STDIN in args.paths:
        raise UsageError("--questions -: standard input is named as a document too: give one of them as a file")
    return read_asked(args.questions)


def make_method(args: argparse.Namespace, source: Source) -> Method:
    """The method that searches a source, loaded.

    Raises:
        UsageError: there is no such retriever or encoder.
        InputError: it is damaged.
    """
    if not source.is_run:
        strategy = args.strategy or DEFAULT_CHUNKING.strategy
        chunking = ChunkConfig(strategy=strategy, max_tokens=args.max_tokens or DEFAULT_CHUNKING.max_tokens)
        return single_step_method(source.retriever, args.model or "minilm", chunking, WithBar)  # pyright: ignore[reportArgumentType]
    return multi_step_method(load_run(source), args.num_steps, WithBar, source.retriever)


def load_run(source: Source) -> "Retriever":
    """The retriever of a source's run.

    Raises:
        UsageError: there is no such run, or it has no encoder to read texts with.
        InputError: it is damaged.
    """
    from qrag_jax.retrieval.index.retriever import load_retriever

    retriever = load_retriever(source.retriever)
    if retriever.encoder is None:
        raise UsageError(
            f"{source.retriever}: this run was trained on given vectors and has no text encoder to read files with: "
            "name one that was trained on texts, or search its vectors with `qrag eval RUN --vectors DIR` or from "
            "Python (qrag_jax.retrieval.index.search)"
        )
    return retriever


@contextmanager
def timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    """Adds the seconds that its body takes to a stage."""
    start = time.perf_counter()
    yield
    seconds[stage] = round(seconds.get(stage, 0.0) + time.perf_counter() - start, 3)
