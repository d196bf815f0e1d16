"""The config of a study: strategies, tasks and rules.

The strategies that a study compares where its config names none, and the config that fills them in.

254 tokens are the window of the embedded MiniLM (256) without the two special tokens: only whole documents are longer
than the encoder reads. The first config of each strategy makes chunks of about 128 tokens of prose, so strategies are
compared at about the same size if nothing can be chosen.
"""

from dataclasses import dataclass, field
from typing import Literal

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
from qrag_jax.chunking.strategies.clusters import DbscanConfig, LinkageConfig
from qrag_jax.names import CHUNKERS, FILLS, PLANS, TASKS, FillName, SplitterName, TaskKind
from qrag_jax.types import check_fields

PARENT_WAYS = ("best_child", "mean", "direct", "windows")  # and compressor:RUN
MAX_CONFIGS = 6  # of a strategy: more tries on dev would find more luck


@dataclass(frozen=True)
class TaskConfig:
    """One set of documents and questions.

    Attributes:
        kind: who reads it: a BEIR folder, a data set by name, or `files`, the user's own.
        path: file or folder; below `StudyConfig.data` unless absolute.
        questions: of `files`: JSON Lines of questions; of `beir`: which qrels (test, dev, ...), "test" when empty; of
            `conditionalqa`: which file (dev, train), "dev" when empty; of `headings`: whose documents (wikitext2,
            scisumm), Markdown when empty.
        stitch_sentences: of `beir` and `cranfield`: documents are joined in random order until they have about N
            sentences; None joins none.
        num_documents: size of a sample of documents, with the questions that any of them answers; None takes all.
        num_questions: size of a sample of questions; None takes all.
        split: `documents`: dev questions are about other documents than test questions, and search those only;
            `questions`: dev and test search the same corpus.
        scope: a question searches the whole `corpus`, or only the chunks of its relevant `document`, which takes a task
            of evidence.
        encoding: of the documents of `files`, by any name that Python knows; all else is UTF-8.
    """

    kind: TaskKind
    path: str
    questions: str = ""
    stitch_sentences: int | None = None
    num_documents: int | None = None
    num_questions: int | None = None
    split: Literal["documents", "questions"] = "questions"
    scope: Literal["corpus", "document"] = "corpus"
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        check_fields(self, positive=("stitch_sentences", "num_documents", "num_questions"))
        if self.kind == "files" and not self.questions:
            raise ValueError("questions: a task of files needs a .jsonl of questions")
        if self.stitch_sentences is not None and self.kind not in TASKS.choices("short"):
            short = " and ".join(TASKS.choices("short"))
            raise ValueError(f"stitch_sentences: kind {self.kind} has long documents; this works only with {short}")
        if self.questions and self.kind not in TASKS.choices("questions"):
            raise ValueError(f"questions {self.questions}: kind {self.kind} has its own; leave this field out")
        if self.encoding != "utf-8" and self.kind != "files":
            raise ValueError(f"encoding {self.encoding}: kind {self.kind} is always UTF-8; leave this field out")


@dataclass(frozen=True)
class StudyConfig:
    """A study; `configs/study/` has some.

    Attributes:
        tasks: by name.
        strategies: by name, the configs (at most `MAX_CONFIGS`) of which dev questions choose one; the first is taken
            where there are too few of these.
        baseline: the strategy that all others are compared with.
        data: folder that the paths of tasks are relative to.
        model: encoder: minilm, a folder or a hub id.
        window: most tokens that the encoder reads at once, special tokens counted, at least 3; None is the encoder's
            own.
        ks: numbers of chunks that are looked at.
        report_k: the k of the headline, one of `ks`.
        dev_share: of the questions (or documents) that choose configs.
        min_dev_questions: with fewer on dev nothing is chosen: all questions are reported, with each first config.
        prices: YAML file of prices, `llm/prices.py`; empty: no dollars.
        splitter, language: of sentences.
        seed: of samples, stitching, splits and resampling.
        budgets: tokens of contexts whose evidence recall is measured (`cells/filled_contexts.py`), increasing; of tasks
            with evidence. Empty: none is.
        fills: how contexts are filled: `plain` (the best chunks), `widen` (each with its neighbours), `merge`
            (sections instead of their chunks).
        levels: plans whose contexts are measured at the budgets, over the levels of strategy `levels`: `each` (every
            level alone), `all` (the full range), `dev` (the range that is best on dev questions), `router` (trained on
            these), `classifier` (likewise), `planner:RUN` (a run that learned to plan), `bound` (the best level of
            each question). Empty: none.
        parents: how parents get their vectors there: best_child, mean, direct, windows, or compressor:RUN; with
            `levels` at least one.
        rerank: reranker of the nearest chunks of every question, as `load_reranker` takes it; not with `budgets`.
            Empty: none.
    """

    tasks: dict[str, TaskConfig] = field(default_factory=dict)
    strategies: dict[str, tuple[ChunkConfig, ...]] = field(default_factory=dict)
    baseline: str = "fixed"
    data: str = ""
    model: str = "minilm"
    window: int | None = None
    ks: tuple[int, ...] = (1, 3, 5, 10)
    report_k: int = 5
    dev_share: float = 0.34
    min_dev_questions: int = 10
    prices: str = ""
    splitter: SplitterName = "sentencex"
    language: str = "en"
    seed: int = 0
    budgets: tuple[int, ...] = ()
    fills: tuple[FillName, ...] = ("plain",)
    levels: tuple[str, ...] = ()
    parents: tuple[str, ...] = ("best_child",)
    rerank: str = ""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks: name at least one")
        if self.baseline not in self.strategies:
            names = ", ".join(self.strategies) or "(none)"
            raise ValueError(f"baseline {self.baseline!r}: one of the strategies {names}")
        for name, configs in self.strategies.items():
            if not 1 <= len(configs) <= MAX_CONFIGS:
                raise ValueError(f"strategies.{name}: {len(configs)} configs: give 1 to {MAX_CONFIGS}")
        for field_name in ("tasks", "strategies"):
            for name in getattr(self, field_name):
                if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
                    raise ValueError(f"{field_name}: name {name!r}: letters, digits, - and _ only, as it names files")
        if not self.ks or min(self.ks) < 1 or list(self.ks) != sorted(set(self.ks)):
            raise ValueError(f"ks {list(self.ks)}: positive numbers, increasing")
        if self.report_k not in self.ks:
            raise ValueError(f"report_k {self.report_k}: one of ks {list(self.ks)}")
        if any(budget < 1 for budget in self.budgets) or list(self.budgets) != sorted(set(self.budgets)):
            raise ValueError(f"budgets {list(self.budgets)}: numbers of tokens, at least 1, increasing")
        if not self.fills or len(set(self.fills)) != len(self.fills):
            raise ValueError(f"fills {list(self.fills)}: at least one of {', '.join(FILLS)}, each once")
        if self.rerank and self.budgets:
            raise ValueError(
                f"rerank {self.rerank}: contexts of budgets are filled without it; leave one of the two out"
            )
        _check_plans(self.levels, self.parents, self.budgets)
        least = {"seed": 0, "min_dev_questions": 0, "window": 3}
        check_fields(self, at_least=least, within={"dev_share": "(0, 1)"})


def _check_plans(levels: tuple[str, ...], parents: tuple[str, ...], budgets: tuple[int, ...]) -> None:
    if levels and not budgets:
        raise ValueError(f"levels {list(levels)}: are measured in contexts: give budgets too")
    for name, given, known, run in (
        ("levels", levels, PLANS, "planner"),
        ("parents", parents, PARENT_WAYS, "compressor"),
    ):
        if len(set(given)) != len(given) or (name == "parents" and not given):
            raise ValueError(f"{name} {list(given)}: at least one, each once")
        for one in given:
            kind, _, path = one.partition(":")
            if one not in known and not (kind == run and path):
                raise ValueError(f"{name} {one!r}: choose from {', '.join(known)}, {run}:RUN")


MAX_TOKENS = 254  # of a chunk: MiniLM's window without [CLS] and [SEP]


def _both_sizes(strategy: str) -> tuple[ChunkConfig, ...]:
    return ChunkConfig(strategy, 128), ChunkConfig(strategy, 64)


def _breakpoint(percentile: float, max_tokens: int) -> ChunkConfig:
    return ChunkConfig("breakpoint", max_tokens, breakpoint=BreakpointConfig("percentile", percentile))


def _linkage(max_sentences: int, max_tokens: int) -> ChunkConfig:
    return ChunkConfig("linkage", max_tokens, linkage=LinkageConfig(max_sentences=max_sentences))


def _dbscan(eps: float, max_tokens: int) -> ChunkConfig:
    return ChunkConfig("dbscan", max_tokens, dbscan=DbscanConfig(eps=eps))


# A middle size and a small one for every strategy, as F1 of a few evidence sentences falls with the size of chunks; no
# more, as each config is a pass over the corpus. Prose has about 22 tokens a sentence: of five sentences a break is at
# the 80th percentile, six in a cluster are 130 tokens.
DEFAULT_STRATEGIES: dict[str, tuple[ChunkConfig, ...]] = {
    "fixed": _both_sizes("fixed"),
    "recursive": _both_sizes("recursive"),
    "breakpoint": (_breakpoint(80.0, MAX_TOKENS), _breakpoint(60.0, 64)),
    "clustering": (_linkage(6, MAX_TOKENS), _linkage(3, 64), _dbscan(0.25, 64)),
    "late": _both_sizes("late"),
    "headings": (ChunkConfig("headings", 128, min_tokens=32), ChunkConfig("headings", 64, min_tokens=16)),
    "document": (ChunkConfig("document"),),
}
for _name in CHUNKERS.choices("study"):
    DEFAULT_STRATEGIES.setdefault(_name, _both_sizes(_name))


@dataclass(frozen=True)
class DefaultStudy(StudyConfig):
    """`StudyConfig` with default strategies, for configs and command lines that name tasks only.

    A config that names strategies replaces all of these, never some.
    """

    strategies: dict[str, tuple[ChunkConfig, ...]] = field(default_factory=lambda: dict(DEFAULT_STRATEGIES))
