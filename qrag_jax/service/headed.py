"""Scores sources of boundaries, and builds questions, from documents whose headings give the sections.

Used by `qrag boundaries` and `qrag hicbench`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.annotate.ask_chunks import Estimated, Progressed
from qrag_jax.annotate.boundary_sources import PointTools, make_source
from qrag_jax.annotate.hicbench import Built, HiCBenchConfig, build_hicbench, write_hicbench
from qrag_jax.chunking.tree.boundaries import PredictPoints, predict_checked
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.files.new_folder import new_folder
from qrag_jax.llm.config import LlmConfig, make_generator
from qrag_jax.measures.boundary_scores import Judged, score_points
from qrag_jax.models.encoder.sources import load_tokenizer
from qrag_jax.names import BOUNDARY_SOURCES, View
from qrag_jax.types import InputError

_REMOVED: View = "removed"


@dataclass(frozen=True)
class ScoreRequest:
    """Sources of boundaries to score, and the documents to score them on.

    Attributes:
        paths: as in `read_headed`.
        methods: of `names.BOUNDARY_SOURCES`.
        view: how much of the headings the methods see; `removed` is always scored too.
        seed: of the intervals.
    """

    paths: tuple[str, ...]
    methods: tuple[str, ...]
    view: View = _REMOVED
    seed: int = 0


@dataclass(frozen=True)
class BoundaryRow:
    """The scores of one method on one view of documents.

    Attributes:
        f1_l1, f1_l2: micro F1 over documents of boundaries of levels 1 and 2; sentence and level must match.
        f1_any, low, high: micro F1 of all boundaries at any level, with its 95% interval over documents.
        pk, window_diff: means over documents; 0 is best.
        seconds: time to find the boundaries of all documents, including embedding.
    """

    method: str
    view: View
    f1_l1: float
    f1_l2: float
    f1_any: float
    low: float
    high: float
    pk: float
    window_diff: float
    n_documents: int
    n_points: int
    seconds: float


@dataclass(frozen=True)
class BenchmarkRequest:
    """Questions to build from documents.

    Attributes:
        paths: as in `read_headed`.
        out: folder to write; empty or new.
        llm: language model that writes and checks the questions.
        config: how many questions to try, and which to keep.
        view: of the headings: kept or plain.
        max_documents: use only the first N; None uses all.
        encoder: its tokenizer counts if the language model cannot.
    """

    paths: tuple[str, ...]
    out: Path
    llm: LlmConfig
    config: HiCBenchConfig
    view: View = "plain"
    max_documents: int | None = None
    encoder: str = "minilm"


def score_sources(request: ScoreRequest, tools: PointTools) -> list[BoundaryRow]:
    """Scores each method on each view, one row each."""
    sources, documents = _load(request, tools)
    return [
        _row(name, view, source, its, request.seed)
        for name, source in sources.items()
        for view, its in documents.items()
    ]


def estimate_sources(request: ScoreRequest, tools: PointTools) -> Iterator[tuple[View, Estimated]]:
    """Estimates the cost of each source that calls a language model, on each view. The tools must ask nothing."""
    sources, documents = _load(request, tools)
    for name in (name for name in sources if name in BOUNDARY_SOURCES.choices("llm")):
        for view, its in documents.items():
            try:
                sources[name]([one.text for one in its])
            except Estimated as estimated:
                yield view, estimated


def _load(
    request: ScoreRequest, tools: PointTools
) -> tuple[dict[str, PredictPoints], dict[View, list[HeadedDocument]]]:
    sources = {name: make_source(name, tools) for name in request.methods}
    views: tuple[View, ...] = (request.view,) if request.view == _REMOVED else (request.view, _REMOVED)
    return sources, {view: read_headed(request.paths, view) for view in views}


def _row(
    method: str, view: View, predict: PredictPoints, documents: Sequence[HeadedDocument], seed: int
) -> BoundaryRow:
    begin = time.perf_counter()
    found = predict_checked(predict, [one.text for one in documents], [one.id for one in documents])
    seconds = time.perf_counter() - begin
    judged = [Judged(len(one.text), one.points, its) for one, its in zip(documents, found, strict=True)]
    score = score_points(judged, seed=seed)
    f1 = score.f1_any
    return BoundaryRow(
        method, view, score.f1[1], score.f1[2], f1.mean, f1.low, f1.high, score.pk, score.window_diff,
        len(documents), score.n_points, seconds,
    )  # fmt: skip


def build_benchmark(
    request: BenchmarkRequest, progress: Progressed | None = None, told: Callable[[Built, int], None] | None = None
) -> Built:
    """Writes questions with dense evidence, and their documents, into a folder.

    Args:
        progress: called for every answer of the language model.
        told: called with the result and the number of documents, before anything is written.

    Raises:
        InputError: no question is kept; nothing is written.
    """
    with new_folder(request.out, "hicbench") as new:  # first, to report a folder that cannot be written before the work
        documents = read_headed(request.paths, request.view)[: request.max_documents]
        generator = make_generator(request.llm)
        count = generator.count or load_tokenizer(request.encoder).count
        built = build_hicbench(documents, generator, count, request.config, progress=progress)
        if told is not None:
            told(built, len(documents))
        if not built.questions:
            reason = "no question is kept and nothing is written; try more documents, or a larger model"
            raise InputError(reason, file=request.out)
        write_hicbench(new, built, documents)
    return built
