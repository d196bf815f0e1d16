"""Documents whose headings say where sections begin: what finds these is scored, and questions are made of them.

The work of `qrag boundaries` and `qrag hicbench`.
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
from qrag_jax.models.encoder.sources import find_folder
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.names import BOUNDARY_SOURCES, View
from qrag_jax.types import InputError

_REMOVED: View = "removed"


@dataclass(frozen=True)
class ScoreRequest:
    """Sources of boundaries to score, and the documents to score them on.

    Attributes:
        paths: as of `read_headed`.
        methods: of `names.BOUNDARY_SOURCES`.
        view: what is seen of the headings; beside another one that of `removed` is scored too.
        seed: of the intervals.
    """

    paths: tuple[str, ...]
    methods: tuple[str, ...]
    view: View = _REMOVED
    seed: int = 0


@dataclass(frozen=True)
class BoundaryRow:
    """One method on one view of documents.

    Attributes:
        f1_l1, f1_l2: micro F1 over documents of points of levels 1 and 2, sentence and level both right.
        f1_any, low, high: of all points whatever their level, with its 95% interval over documents.
        pk, window_diff: means over documents, 0 is best.
        seconds: to find the points of all documents, embedding included.
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
    """Questions to make of documents.

    Attributes:
        paths: as of `read_headed`.
        out: folder to write, empty or not there.
        llm: who writes and proves them.
        config: how many, and what is kept of them.
        view: of the headings: kept or plain.
        max_documents: the first ones; None takes all.
        encoder: whose tokenizer counts where the language model does not.
    """

    paths: tuple[str, ...]
    out: Path
    llm: LlmConfig
    config: HiCBenchConfig
    view: View = "plain"
    max_documents: int | None = None
    encoder: str = "minilm"


def score_sources(request: ScoreRequest, tools: PointTools) -> list[BoundaryRow]:
    """A row for each method and view."""
    sources, documents = _load(request, tools)
    return [
        _row(name, view, source, its, request.seed)
        for name, source in sources.items()
        for view, its in documents.items()
    ]


def estimate_sources(request: ScoreRequest, tools: PointTools) -> Iterator[tuple[View, Estimated]]:
    """The estimates of the sources that ask a language model, on each view; the tools ask nothing."""
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
    """Writes questions with dense evidence, and the documents that they are asked of, into a folder.

    Args:
        progress: told of every answer of the language model.
        told: what was built of how many documents, before it is written or found to be nothing.

    Raises:
        InputError: no question is kept, and nothing is written.
    """
    with new_folder(request.out, "hicbench") as new:  # first of all: a place that cannot be written is told at once
        documents = read_headed(request.paths, request.view)[: request.max_documents]
        generator = make_generator(request.llm)
        count = generator.count or TextTokenizer.from_file(find_folder(request.encoder) / "tokenizer.json").count
        built = build_hicbench(documents, generator, count, request.config, progress=progress)
        if told is not None:
            told(built, len(documents))
        if not built.questions:
            reason = "no question is kept: try more documents, or a larger model; nothing is written"
            raise InputError(reason, file=request.out)
        write_hicbench(new, built, documents)
    return built
