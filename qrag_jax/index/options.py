"""Options of searching and asking an `Index`, their checks, and the result of a search."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.errors import Arg
from qrag_jax.index.sources import MemorySource, StoredSource
from qrag_jax.names import RETRIEVERS, NoteMode
from qrag_jax.search.levels.level_search import check_smooth
from qrag_jax.search.levels.planners import Planned, Planner
from qrag_jax.search.rerank import Reranked, RerankOptions
from qrag_jax.types import Cost, Hit, Hits, Sampling, UsageError

if TYPE_CHECKING:
    from qrag_jax.qrag.retriever import QRagRetriever


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        top_k: most passages; None is as many as the method ranks, or for a run as many picks as in training.
        only: patterns of the documents to search (`documents.found.Only`); empty is all.
        retriever: hybrid, dense, bm25, a run or its folder; None is the run that made the index, else hybrid.
        notes: how notes are used; None is best_of if there are notes and no run searches, else none.
        levels: for documents with levels: a range such as section:paragraph, one level, all, planner:RUN, a
            `LevelRange` or a planner; llm lets the language model of `ask` choose.
        smooth: with levels: share of the part around a part in its score, in [0, 1) (`search/levels/level_search.py`).
        num_steps: for a run: number of picks if `top_k` is None. For `ask`: most passages.
        stop: for a run: keep only the picks before it stops.
        late: order the best passages by the vectors of their tokens too (`search/late.py`), before `rerank`. None does
            so if the index stores these vectors or there is a reranker; not with levels or bm25, nor in the index of a
            run.
        rerank: how the best candidates are reranked; None leaves the order of the search.
    """

    top_k: int | None = 5
    only: tuple[str, ...] = ()
    retriever: "str | os.PathLike | QRagRetriever | None" = None
    notes: NoteMode | None = None
    levels: str | LevelRange | Planner | None = None
    smooth: float = 0.0
    num_steps: int | None = None
    stop: bool = False
    late: bool | None = None
    rerank: RerankOptions | None = None

    def __post_init__(self) -> None:
        if isinstance(self.retriever, os.PathLike):
            object.__setattr__(self, "retriever", os.fspath(self.retriever))

    @property
    def is_run(self) -> bool:
        """True if the retriever is a run."""
        return self.retriever is not None and self.retriever not in RETRIEVERS


@dataclass(frozen=True)
class AskOptions:
    """Options of an answer.

    Attributes:
        search: how passages are found; its `top_k` is ignored.
        max_context_tokens: most tokens of the passages; None is 2,000, or less if the model's window is smaller.
        num_around: for a run: sentences added on either side of each pick; None is 2.
        merge: replace passages by their whole section, in an index with trees.
        num_quotes: most quotes when no language model is asked; 0 returns only the passages.
        prompts: folder of custom prompts; None is the built-in ones.
        sampling: for the language model.
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
        hits: the best first; for a run, in the order of its picks.
        retriever: name of the method, or the folder of the run.
        notes: how notes were used.
        num_chunks: number of leaves searched.
        num_chunks_cut: number of all leaves that are longer than the encoder reads.
        cost: seconds of each stage and embedded tokens. The first question includes reading, loading, cutting and
            embedding the documents.
        levels: the levels searched.
        stop_reason: why a run stopped.
        reranked: the work of a reranker.
        late: the work of the comparison of token vectors.
        prevented: the pick that a run would have made next, if it stopped before.
    """

    question: str
    hits: Hits
    retriever: str
    notes: NoteMode
    num_chunks: int
    num_chunks_cut: int
    cost: Cost
    levels: Planned | None = None
    stop_reason: str | None = None
    reranked: Reranked | None = None
    late: Reranked | None = None
    prevented: Hit | None = None


def check_options(options: SearchOptions, source: StoredSource | MemorySource, asks: bool) -> None:
    """Refuses options that do not fit the documents.

    Args:
        options: with a retriever.
        asks: they are for `Index.ask`, whose searches always have a most number of passages.
    """
    settings, is_run, retriever = source.settings, options.is_run, options.retriever
    if is_run and isinstance(retriever, str) and not os.path.isdir(retriever):
        what = "not a retriever, and no such folder; give hybrid, dense, bm25, or the folder of a run"
        raise UsageError((Arg("retriever", retriever), f": {what}"), field="retriever", value=retriever)
    if options.top_k is not None and options.top_k < 1:
        raise UsageError("give at least 1", field="top_k", value=options.top_k)
    if options.notes not in (None, "none") and (is_run or not settings.has_notes):
        what = "a run ignores notes; leave it out" if is_run else "only an index has notes; build one, or leave it out"
        if isinstance(source, StoredSource) and not is_run:
            add = f"`qrag index add {source.name} PATHS... --notes mentions`"
            what = f"{source.name} has no notes; add some with {add}, or leave it out"
        reason = (Arg("notes", options.notes), f": {what}")
        raise UsageError(reason, field="notes", value=options.notes)
    if not is_run and (options.stop or (options.num_steps is not None and not asks)):
        _refuse_of_run("stop" if options.stop else "num_steps", retriever)
    if options.rerank is not None and is_run:
        why = ": a run picks passages step by step, and their order means something"
        raise UsageError((Arg("rerank"), why, "; leave it out, or search with hybrid, dense or bm25"), field="rerank")
    if options.late and (is_run or settings.is_run or retriever == "bm25"):
        why = "bm25 compares words only" if retriever == "bm25" else "a run reads sentences with an encoder of its own"
        raise UsageError((Arg("late"), f": {why}; leave it out, or search with hybrid or dense"), field="late")
    check_smooth(options.smooth)
    if options.smooth and options.levels is None:
        raise UsageError(
            (Arg("smooth"), ": works only with levels; name some too (", Arg("levels"), ")"), field="smooth"
        )
    if options.levels is not None:
        _check_levels(options, source)


def _refuse_of_run(field: str, retriever: object) -> NoReturn:
    raise UsageError(
        (Arg(field), f": works only with a run, not {retriever}; leave it out, or name a run"), field=field
    )


def _check_levels(options: SearchOptions, source: StoredSource | MemorySource) -> None:
    if source.settings.parents is None:
        what = ("made with ", *source.settings.cutting, ", whose documents have no levels")
        if isinstance(source, MemorySource):
            what = ("files have no stored levels",)
        raise UsageError(
            (f"{source.name}: ", *what),
            field="levels",
            remedy="build an index with `qrag index build INDEX PATHS... --strategy levels`, and search that",
        )
    if options.is_run:
        why = "in one step, but a run searches in several; leave the run out"
        raise UsageError((Arg("levels"), f": levels are searched {why}"), field="levels")
    if options.retriever == "bm25":
        why = "by vectors, but bm25 compares words; choose hybrid or dense"
        raise UsageError((Arg("levels"), f": levels are searched {why}"), field="levels")
    if options.notes not in (None, "none"):
        raise UsageError((Arg("notes"), ": does not work with levels; use only one of the two"), field="notes")


def check_context(options: AskOptions, search: SearchOptions, source: StoredSource | MemorySource) -> None:
    """Refuses merging without sections, widening of anything but sentences, and a context without tokens."""
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
            (f"{source.name}: ", *what, ", which have no sections to merge"),
            field="merge",
            remedy=(
                "build an index with `qrag index build INDEX PATHS --strategy tree` (or hierarchy) and ask that, "
                "or leave ",
                Arg("merge"),
                " out",
            ),
        )
    if options.num_around or search.levels is not None:
        other = "num_around" if options.num_around else "levels"
        raise UsageError(
            (Arg("merge"), ": does not work with ", Arg(other), "; use only one of the two"), field="merge"
        )
