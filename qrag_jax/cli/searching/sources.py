"""What `qrag find` and `qrag ask` search, and by what: files or an index, a method of one step or a run."""

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from qrag_jax.cli.errors import as_flag
from qrag_jax.cli.progress import WithBar
from qrag_jax.cli.search_flags import SHOWN_RETRIEVERS
from qrag_jax.cli.searching.cutting import make_chunking
from qrag_jax.cli.terminal import say
from qrag_jax.data.questions.asked import Asked, read_asked
from qrag_jax.documents.decoding import check_encoding, is_utf8
from qrag_jax.documents.found import Only
from qrag_jax.documents.read import STDIN, read_files
from qrag_jax.errors import worded
from qrag_jax.files.manifest import MANIFEST
from qrag_jax.files.step_folders import checkpoint_steps, step_folder
from qrag_jax.index.folder import CATALOGUE, SHARDS, finished_shards, is_filled, is_index
from qrag_jax.index.load import load_index
from qrag_jax.index.methods import Method, multi_step_method, single_step_method
from qrag_jax.index.settings import IndexSettings, check_encoder, read_settings
from qrag_jax.names import RETRIEVERS, NoteMode, RetrieverName
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.note_search import NotedCorpus, make_noted_retrieve
from qrag_jax.types import Document, InputError, UsageError

if TYPE_CHECKING:
    from qrag_jax.qrag.retriever import QRagRetriever

_OF_FILES = ("strategy", "max_tokens", "points", "tagger", "sizes", "model")
_OF_METHODS = {
    "strategy": "a run reads sentences",
    "max_tokens": "a run reads sentences",
    **dict.fromkeys(("points", "tagger", "sizes"), "a run reads sentences"),
    "model": "a run has the encoder that it was trained with",
    "top_k": "a run picks --num_steps chunks",
}


@dataclass(frozen=True)
class Source:
    """What the words and flags of a command name.

    Attributes:
        paths: files and folders to search; or one index.
        retriever: name of a method, or the folder of a run.
        is_run: it is a run's.
        index: settings of the index; None where files are searched.
        notes_mode: what notes do; none where the index has none.
    """

    paths: tuple[str, ...]
    retriever: str
    is_run: bool
    index: IndexSettings | None = None
    notes_mode: NoteMode = "none"


def find_source(args: argparse.Namespace, of_runs: Sequence[str], *, run_first: bool = False) -> Source:
    """Sorts out paths and `--retriever`; looks at names and settings alone.

    Args:
        args: `paths` and the flags of `search_flags`.
        of_runs: names of flags that belong to a run.
        run_first: the first path may be a run, which then searches the others.
    """
    first, *rest = args.paths
    paths, retriever = tuple(args.paths), args.retriever
    if run_first and is_run(first):
        if retriever is not None:
            raise UsageError(f"{first}: is a run, and --retriever names {retriever}: leave one of them out")
        if not rest:
            raise UsageError(f"{first}: is a run: name the files or folders to search between it and the question")
        paths, retriever = tuple(rest), first
    index = _index_of(paths)
    if retriever is None:
        retriever = index.model if index is not None and index.is_run else "hybrid"
    searches_in_steps = retriever not in RETRIEVERS
    has_notes = index is not None and index.has_notes and not searches_in_steps
    source = Source(paths, retriever, searches_in_steps, index, args.notes_mode or ("best_of" if has_notes else "none"))
    if source.is_run and not os.path.isdir(retriever):
        raise UsageError(
            f"--retriever {retriever}: one of {SHOWN_RETRIEVERS}, or the folder of a run, and no such folder is there"
        )
    _check_flags(args, source, of_runs)
    return source


def _index_of(paths: Sequence[str]) -> IndexSettings | None:
    """The settings of the index that is to be searched; None where paths are files and folders."""
    for path in paths:
        _refuse_half_an_index(path)
    found = [path for path in paths if path != STDIN and is_index(path) and is_filled(path)]
    if found and len(paths) > 1:
        raise UsageError(
            f"{found[0]}: is an index, which is searched alone: `qrag index add {found[0]} PATHS...` brings more files "
            "into it"
        )
    return read_settings(found[0]) if found else None


def _refuse_half_an_index(path: str) -> None:
    """Refuses what its name makes an index and has no documents to search; any other folder is left alone."""
    if is_filled(path):
        return
    try:
        shards = finished_shards(Path(path))
    except UsageError:  # may not be looked into: what reads it says so
        return
    if any(is_index(os.path.join(path, SHARDS, name)) for name in shards):
        raise UsageError(
            f"{path}: an index in shards that are not joined: `qrag index merge {path}` when all are there"
        )
    try:
        read_settings(path)
    except (UsageError, InputError):  # no index, or something else's `index.json`
        return
    raise InputError(
        f"{path}: an index without its {CATALOGUE}: copy the index again, or remove its folder and build it again"
    )


def _check_flags(args: argparse.Namespace, source: Source, of_runs: Sequence[str]) -> None:
    if source.index is not None:
        given = [name for name in _OF_FILES if getattr(args, name) is not None]
        check_encoding(args.encoding)
        given += ["strict"] * args.strict + ["encoding"] * (not is_utf8(args.encoding))
        if given:
            cut = worded(source.index.cutting, as_flag)
            raise UsageError(f"--{given[0]}: belongs to files; {source.paths[0]} is an index, made with {cut}")
    if args.notes_mode not in (None, "none") and (source.index is None or source.is_run or not source.index.has_notes):
        what = "a run does not look at notes" if source.is_run else "only an index has notes"
        if source.index is not None and not source.is_run:
            what = f"{source.paths[0]} has no notes: `qrag index add {source.paths[0]} PATHS... --notes mentions`"
        raise UsageError(f"--notes_mode {args.notes_mode}: {what}; or leave it out")
    for name, reason in _OF_METHODS.items():
        if source.is_run and getattr(args, name, None) is not None:
            raise UsageError(f"--{name}: belongs to {SHOWN_RETRIEVERS}; {reason}")
    for name in of_runs:
        if not source.is_run and getattr(args, name) not in (None, False):
            raise UsageError(f"--{name}: belongs to a run, not to {source.retriever}; leave it out, or name a run")


def is_run(path: str) -> bool:
    """Whether a path is a run's folder or one of its steps, by the names in there."""
    folder = Path(path)
    if path == STDIN or not os.path.isdir(folder):
        return False
    try:
        steps = [folder, *(step_folder(folder, step) for step in checkpoint_steps(folder))]
        return any((step / MANIFEST).is_file() and (step / "metadata.json").is_file() for step in steps)
    except PermissionError:  # what reads it says so
        return False


def read_source(args: argparse.Namespace, source: Source) -> list[Document] | Corpus | NotedCorpus:
    """The documents of a source, in its order; of an index all that it holds, with notes where they are used."""
    if source.index is None:
        return read_files(source.paths, args.encoding, strict=args.strict, only=args.only)
    choose = Only(args.only).of_names if args.only else None
    if source.notes_mode == "none":
        return load_index(source.paths[0], choose)
    from qrag_jax.index.build import load_noted_index  # imports what builds one

    return load_noted_index(source.paths[0], choose)


def searched(found: list[Document] | Corpus | NotedCorpus, method: Method, source: Source) -> tuple[Corpus, Method]:
    """The corpus of what was read, and the method that searches it, with its notes where they are used."""
    if isinstance(found, NotedCorpus):
        retrieve = make_noted_retrieve(cast(RetrieverName, source.retriever), found, method.embed, source.notes_mode)
        return found.corpus, replace(method, retrieve=retrieve)
    return (found if isinstance(found, Corpus) else method.build(found)), method


def read_questions(args: argparse.Namespace) -> list[Asked] | Iterator[Asked]:
    """The question of the command, or those of `--questions`: a list, or what comes from standard input."""
    if args.questions is None:
        if not args.question.strip():
            raise InputError("question: nothing to ask; write a question")
        return [Asked(args.question)]
    if args.questions == STDIN and STDIN in args.paths:
        raise UsageError("--questions -: standard input is named as a document too: give one of them as a file")
    return read_asked(args.questions)


def checked(asked: Iterable[Asked], check: Callable[[str], None]) -> Iterator[Asked]:
    """The questions, each looked at by `check`: all of a list now, before anything is searched; others as they come."""

    def look(one: Asked) -> Asked:
        try:
            check(one.question)
        except InputError as error:
            if not one.where:
                raise
            raise error.at(one.where) from error
        return one

    return iter([look(one) for one in asked]) if isinstance(asked, list) else map(look, asked)


def make_method(args: argparse.Namespace, source: Source) -> Method:
    """The method that searches a source, loaded."""
    if source.is_run:
        return multi_step_method(load_run(source), args.num_steps, WithBar, source.retriever)
    if source.index is not None:
        from qrag_jax.index.build import index_method  # imports what builds one

        return index_method(source.index, source.retriever, show=WithBar)
    name, chunking = cast(RetrieverName, source.retriever), make_chunking(args)
    return single_step_method(name, args.model or "minilm", chunking, WithBar, args.tagger)


def load_run(source: Source) -> "QRagRetriever":
    """The retriever of a source's run; what it was trained on is said on standard error."""
    from qrag_jax.checkpoint import load_checkpoint
    from qrag_jax.qrag.retriever import load_retriever

    saved = load_checkpoint(source.retriever, groups=())
    retriever = load_retriever(saved.folder)
    if retriever.encoder is None:
        raise UsageError(
            f"{source.retriever}: this run was trained on given vectors and has no text encoder to read files with: "
            "name one that was trained on texts, or search its vectors with `qrag eval RUN --vectors DIR` or from "
            "Python (qrag_jax.qrag.multi_step_search)"
        )
    if source.index is not None:
        check_encoder(source.index, retriever.chunk_encoder.fingerprint, source.retriever)
    say(trained_on(saved.config, source.retriever))
    return retriever


def trained_on(config: Mapping[str, Any], run: str) -> str:
    """What a run has learned from, and what to do where texts or questions are of another kind."""
    data = config.get("data", {})
    paths, hidden = ", ".join(map(str, data.get("paths", ()))), f"hidden in {data.get('haystack')}"
    kinds = {
        "worlds": f"simulated stories of {data.get('num_facts')} facts, {hidden}",
        "babi": f"stories of {paths}, {hidden}",
        "jsonl": f"the questions of {paths}",
        "multihop": f"the questions of {paths}",
    }
    return (
        f"{run} was trained on {kinds.get(data.get('task'), 'data that it does not name')}; for texts or questions of "
        "another kind leave it out: the search is then by meaning and words, which needs no training"
    )


@contextmanager
def timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    """Adds the seconds that its body takes to a stage."""
    start = time.perf_counter()
    yield
    seconds[stage] = round(seconds.get(stage, 0.0) + time.perf_counter() - start, 3)
