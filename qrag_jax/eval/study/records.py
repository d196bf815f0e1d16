"""What a study finds: chunks found for every question, rows of the table, paired comparisons."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from qrag_jax.types import Cost, Span

Part = Literal["dev", "test"]


@dataclass(frozen=True)
class Hit:
    """A chunk that was found: its place, tokens, and the cosine of its vector with the question's."""

    chunk_id: str
    document_id: str
    spans: tuple[Span, ...]
    num_tokens: int
    score: float


@dataclass(frozen=True)
class Found:
    """The chunks that were found for a question, best first, at most the largest k."""

    question_id: str
    hits: tuple[Hit, ...]


@dataclass(frozen=True)
class CellResult:
    """One config of a strategy on the dev or test part of a task.

    Attributes:
        task, strategy, number, part: which config (from 0) of which strategy on what.
        num_documents, num_chunks: that were searched.
        mean_tokens, most_tokens: of a chunk.
        share_beyond_window: of the chunks that are longer than the encoder's window.
        cost: of chunking and embedding these documents, as if nothing else had run (`costs.py`).
        found: in the order of the part's questions.
        recall: "FILL@BUDGET" -> evidence recall of each question (`cells/contexts.py`), likewise; of the test part.
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
    found: tuple[Found, ...]
    recall: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyRow:
    """One strategy on the test part of one task; with budgets a row for each budget and fill, equal in all else.

    Attributes:
        number: which of its configs, from 0.
        config: what of it differs from the defaults, as `field=value, ...`.
        was_chosen: by dev questions; False where there were too few and the first config is reported.
        dev_score: mean over ks of the dev F1 that it was chosen by; None where it was not.
        n: questions.
        scores: measure@k -> mean over questions, all of `scores.py`.
        low, high: 95% interval of the headline, f1@report_k.
        context_tokens: mean tokens of the report_k chunks together.
        budget, fill: tokens of the contexts that `erec` is about, and how they were filled; None without budgets, of
            tasks of documents, and of the fills that a strategy cannot have.
        erec, erec_low, erec_high: mean evidence recall of those contexts (`measures/evidence_recall.py`) and its 95%
            interval; likewise.
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
class StudyComparison:
    """Mean of `strategy - baseline` over the same questions of a task, one measure.

    With a budget and a fill it is the mean of `fill - plain` of one strategy, measure "erec", and `baseline` is plain.

    `low`, `high`: 95% bootstrap interval; `p_value`: sign-flip permutation test; `p_holm`: corrected for all
    comparisons of this measure in the study.
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


@dataclass(frozen=True)
class StudyResult:
    """All of a study; `questions` holds one JSON-ready object a task, strategy and test question."""

    report_k: int
    ks: tuple[int, ...]
    baseline: str
    rows: tuple[StudyRow, ...]
    comparisons: tuple[StudyComparison, ...]
    questions: tuple[Mapping[str, object], ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()  # what a reader of the table should know: questions left out, too few for dev
