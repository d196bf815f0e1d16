"""The results of a study: chunks found for every question, rows of the table, paired comparisons."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from qrag_jax.types import Cost, Span

Part = Literal["dev", "test"]
FEWEST_DOCUMENTS = 10  # a bootstrap over fewer says next to nothing


@dataclass(frozen=True)
class FoundChunk:
    """A chunk that was found: its place, tokens, and the cosine of its vector with the question's."""

    chunk_id: str
    document_id: str
    spans: tuple[Span, ...]
    num_tokens: int
    score: float


@dataclass(frozen=True)
class FoundChunks:
    """The chunks that were found for a question, best first, at most the largest k."""

    question_id: str
    hits: tuple[FoundChunk, ...]


@dataclass(frozen=True)
class CellResult:
    """One config of a strategy on the dev or test part of a task.

    Attributes:
        task, strategy, number, part: which config (from 0) of which strategy on what.
        num_documents, num_chunks: that were searched.
        mean_tokens, most_tokens: of a chunk.
        share_beyond_window: of the chunks that are longer than the encoder's window.
        cost: of chunking and embedding these documents, as if nothing else had run (`costs.py`), and the tokens that a
            reranker read for the questions.
        found: in the order of the part's questions.
        recall: "FILL@BUDGET" -> evidence recall of each question of the test part (`cells/filled_contexts.py`).
        num_reranked_cut: how often a reranker read only the beginning of a chunk.
    """

    task: str
    strategy: str
    number: int
    part: Part
    num_documents: int
    num_chunks: int
    mean_tokens: float
    most_tokens: int
    share_beyond_window: float
    cost: Cost
    found: tuple[FoundChunks, ...]
    recall: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    num_reranked_cut: int = 0


@dataclass(frozen=True)
class StudyRow:
    """One strategy on the test part of one task; with budgets a row for each budget and fill, equal in all else.

    Attributes:
        number: which of its configs, from 0.
        config: values that differ from the defaults, as `field=value, ...`.
        was_chosen: by dev questions; False where there were too few and the first config is reported.
        dev_score: mean over ks of the dev F1 that it was chosen by; None where it was not.
        n: questions.
        scores: measure@k -> mean over questions, all of `question_scores.py`.
        low, high: 95% interval of the headline, f1@report_k.
        context_tokens: mean tokens of the report_k chunks together.
        budget, fill: tokens of the contexts of `erec`, and how they were filled; None without budgets, for tasks of
            documents, and for fills that a strategy cannot have.
        erec, erec_low, erec_high: mean evidence recall of those contexts (`measures/evidence_recall.py`) and its 95%
            interval; None as `budget`.
    """

    task: str
    kind: str
    strategy: str
    number: int
    config: str
    was_chosen: bool
    dev_score: float | None
    n: int
    scores: Mapping[str, float]
    low: float
    high: float
    context_tokens: float
    num_documents: int
    num_chunks: int
    mean_tokens: float
    most_tokens: int
    share_beyond_window: float
    cost: Cost
    budget: int | None = None
    fill: str | None = None
    erec: float | None = None
    erec_low: float | None = None
    erec_high: float | None = None


@dataclass(frozen=True)
class LevelCell:
    """The results of every range of levels on the dev or test part of a task, for one config and one kind of parents.

    Ranges are those of `all_ranges(names)`, in this order.

    Attributes:
        task, strategy, number, part: as of `CellResult`.
        parents: as the study names it.
        names: of the levels, the coarsest first.
        num_documents: that were searched.
        built_tokens, num_vectors: of each range (`search/levels/level_search.py:LevelIndex`).
        recall: evidence recall of [question][range][budget].
        sent: tokens of the contexts, in the same shape.
        profiles: of every question (`search/levels/profiles.py`).
        cost: of the trees and of all vectors.
    """

    task: str
    strategy: str
    number: int
    part: Part
    parents: str
    names: tuple[str, ...]
    num_documents: int
    built_tokens: tuple[int, ...]
    num_vectors: tuple[int, ...]
    recall: tuple[tuple[tuple[float, ...], ...], ...]
    sent: tuple[tuple[tuple[int, ...], ...], ...]
    profiles: tuple[tuple[float, ...], ...]
    cost: Cost


@dataclass(frozen=True)
class LevelRow:
    """Contexts of one plan, way of parents and budget on the test part of a task.

    Attributes:
        task, kind, strategy, number, config, num_documents, n: as of `StudyRow`.
        plan: of `StudyConfig.levels`.
        level_min, level_max: names of the coarsest and the finest level that any question searches.
        parents: of `StudyConfig.parents`.
        budget: tokens of a context.
        erec, erec_low, erec_high: as of `StudyRow`.
        num_vectors: that a search between these levels compares with the question's.
        built_tokens: that the encoder reads for these levels.
        sent_tokens: of a context, mean.
        scores: `plan_cost`, the mean of `search/levels/planners.py:plan_cost`; of `router` also `share_routed`, of the
            questions that leave the fallback.
        cost: of the vectors of these levels: what all took, by the share of the tokens that are built.
        was_chosen: by dev questions.
    """

    task: str
    kind: str
    strategy: str
    number: int
    config: str
    num_documents: int
    n: int
    plan: str
    level_min: str
    level_max: str
    parents: str
    budget: int
    erec: float
    erec_low: float
    erec_high: float
    num_vectors: int
    built_tokens: int
    sent_tokens: float
    scores: Mapping[str, float]
    cost: Cost
    was_chosen: bool = False


@dataclass(frozen=True)
class StudyComparison:
    """Mean of `strategy - baseline` over the same questions of a task, one measure.

    With a budget and a fill it is the mean of `fill - plain` of one strategy, measure "erec", and `baseline` is plain.

    Questions about one document are not independent. Where each question of a task is about one document, and there are
    at least `FEWEST_DOCUMENTS` of these, documents are resampled and their signs flipped as well; else `num_groups` and
    the ends and p by document are None.

    Attributes:
        low, high: 95% bootstrap interval over questions.
        p_value: sign-flip permutation test over questions.
        p_holm: corrected for all comparisons of this measure in the study.
        low_by_document, high_by_document, p_by_document: the same over documents.
        p_holm_by_document: corrected for all comparisons of this measure: `p_by_document` where there is one, else
            `p_value`.
        num_groups: documents that the questions are about.
    """

    task: str
    strategy: str
    baseline: str
    measure: str
    difference: float
    low: float
    high: float
    p_value: float
    p_holm: float
    n: int
    budget: int | None = None
    fill: str | None = None
    low_by_document: float | None = None
    high_by_document: float | None = None
    p_by_document: float | None = None
    p_holm_by_document: float | None = None
    num_groups: int | None = None


@dataclass(frozen=True)
class Page:
    """A further table of the report, for each task; a line of `qrag_jax.names` names it.

    Attributes:
        heading: of a task.
        table: (result, task) -> heading and lines, empty where the task has none.
        num_text_columns: the columns before the numbers.
        note: text below all tables, if any.
    """

    heading: Callable[[str], str]
    table: Callable[["StudyResult", str], list[list[str]]]
    num_text_columns: int
    note: Callable[["StudyResult"], str | None] = lambda _: None


@dataclass(frozen=True)
class StudyResult:
    """All of a study; `questions` holds one JSON-ready object a task, strategy and test question."""

    report_k: int
    ks: tuple[int, ...]
    baseline: str
    rows: tuple[StudyRow, ...]
    comparisons: tuple[StudyComparison, ...]
    questions: tuple[Mapping[str, object], ...] = field(default=(), repr=False)
    levels: tuple[LevelRow, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader of the table should know: questions left out, too few for dev
