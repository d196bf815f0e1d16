"""Options of searching and asking an `Index`, their checks, and the result of a search."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.errors import Arg
from qrag_jax.index.sources import MemorySource, StoredSource
from qrag_jax.names import RETRIEVERS, NoteMode
from qrag_jax.search.levels.planners import Planned, Planner
from qrag_jax.types import Cost, Hit, Sampling, UsageError

if TYPE_CHECKING:
    from qrag_jax.qrag.retriever import QRagRetriever


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        top_k: most passages; None is as many as the method ranks, of a run as in training.
        only: patterns of the documents that are searched (`documents.found.Only`); none is all.
        retriever: hybrid, dense, bm25, a run or its folder; None is the run that the index was made with, else hybrid.
        notes: what notes do; None is best_of where there are notes and no run searches, else none.
        levels: of documents that have them: section:paragraph, one alone, all, router:RUN, a range, or a planner; llm
            has the language model of `ask` choose.
        num_steps: of a run: picks, where `top_k` is None. To `ask`: most passages.
        stop: of a run: only the picks before its own stop.
    """

    top_k: int | None = 5
    only: tuple[str, ...] = ()
    retriever: "str | os.PathLike | QRagRetriever | None" = None
    notes: NoteMode | None = None
    levels: str | LevelRange | Planner | None = None
    num_steps: int | None = None
    stop: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.retriever, os.PathLike):
            object.__setattr__(self, "retriever", os.fspath(self.retriever))

    @property
    def is_run(self) -> bool:
        """Whether a run is named."""
        return self.retriever is not None and self.retriever not in RETRIEVERS


@dataclass(frozen=True)
class AskOptions:
    """Options of an answer.

    Attributes:
        search: how passages are found; its `top_k` counts for nothing.
        max_context_tokens: of the passages; None is 2,000, or what the window of the model leaves.
        num_around: of a run: sentences that each pick is widened by on either side; None is 2.
        merge: a whole section in place of its passages, of an index with trees.
        num_quotes: most quotes, where no language model is asked; 0 gives the passages alone.
        prompts: folder of one's own prompts; None is ours.
        sampling: of the language model.
    """

    search: SearchOptions = SearchOptions(top_k=None)
    max_context_tokens: int | None = None
    num_around: int | None = None
    merge: bool = False
    num_quotes: int = 3
    prompts: Path | None = None
    sampling: Sampling = Sampling()


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        question: as asked.
        hits: the best first; of a run in the order of its picks.
        retriever: name of the method, or the folder of the run.
        notes: what notes did.
        num_chunks: leaves that were searched.
        num_chunks_cut: of all leaves, those that are longer than the encoder reads.
        cost: seconds by stage, those of reading, loading, cutting and embedding with the first question after; tokens
            that were embedded.
        levels: that were searched.
        stop_reason: of a run.
    """

    question: str
    hits: list[Hit]
    retriever: str
    notes: NoteMode
    num_chunks: int
    num_chunks_cut: int
    cost: Cost
    levels: Planned | None = None
    stop_reason: str | None = None


def check_options(options: SearchOptions, source: StoredSource | MemorySource, asks: bool) -> None:
    """Refuses options that do not go with what is searched.

    Args:
        options: with a retriever.
        asks: they are for `Index.ask`, where every search has a most number of passages.
    """
    settings, is_run, retriever = source.settings, options.is_run, options.retriever
    if is_run and isinstance(retriever, str) and not os.path.isdir(retriever):
        names = "hybrid, dense, bm25, or the folder of a run, and no such folder is there"
        raise UsageError((Arg("retriever", retriever), f": one of {names}"), field="retriever", value=retriever)
    if options.top_k is not None and options.top_k < 1:
        raise UsageError("give at least 1", field="top_k", value=options.top_k)
    if options.notes not in (None, "none") and (is_run or not settings.has_notes):
        what = "a run does not look at notes" if is_run else "only an index has notes"
        if isinstance(source, StoredSource) and not is_run:
            what = f"{source.name} has no notes: `qrag index add {source.name} PATHS... --notes mentions`"
        reason = (Arg("notes", options.notes), f": {what}; or leave it out")
        raise UsageError(reason, field="notes", value=options.notes)
    if not is_run and (options.stop or (options.num_steps is not None and not asks)):
        _refuse_of_run("stop" if options.stop else "num_steps", retriever)
    if options.levels is not None:
        _check_levels(options, source)


def _refuse_of_run(field: str, retriever: object) -> NoReturn:
    raise UsageError((Arg(field), f": belongs to a run, not to {retriever}; leave it out, or name a run"), field=field)


def _check_levels(options: SearchOptions, source: StoredSource | MemorySource) -> None:
    if source.settings.parents is None:
        what = ("made with ", *source.settings.cutting, ", whose documents have no levels")
        if isinstance(source, MemorySource):
            what = ("files have no levels that are kept",)
        raise UsageError(
            (f"{source.name}: ", *what),
            field="levels",
            remedy=": `qrag index build INDEX PATHS... --strategy levels`, and ask that",
        )
    if options.is_run:
        why = "at once, and a run goes step by step; leave the run out"
        raise UsageError((Arg("levels"), f": levels are searched {why}"), field="levels")
    if options.retriever == "bm25":
        why = "by meaning, and bm25 goes by words; choose hybrid or dense"
        raise UsageError((Arg("levels"), f": levels are searched {why}"), field="levels")
    if options.notes not in (None, "none"):
        raise UsageError((Arg("notes"), ": not with levels; leave one of both out"), field="notes")


def check_context(options: AskOptions, search: SearchOptions, source: StoredSource | MemorySource) -> None:
    """Refuses to merge what has no sections, to widen what is no sentence, and a context of no tokens."""
    if options.max_context_tokens is not None and options.max_context_tokens < 1:
        raise UsageError("give at least 1", field="max_context_tokens", value=options.max_context_tokens)
    if not search.is_run and options.num_around is not None:
        _refuse_of_run("num_around", search.retriever)
    if not options.merge:
        return
    if not source.settings.is_tree:
        is_stored = isinstance(source, StoredSource)
        what = ("made with ", *source.settings.cutting) if is_stored else ("files are cut into passages",)
        raise UsageError(
            (f"{source.name}: ", *what, ", which have no sections around them"),
            field="merge",
            remedy=": `qrag index build INDEX PATHS --strategy tree` (or hierarchy), and ask that; or leave it out",
        )
    if options.num_around or search.levels is not None:
        other = "num_around" if options.num_around else "levels"
        raise UsageError((Arg("merge"), ": not with ", Arg(other), "; leave one of both out"), field="merge")
