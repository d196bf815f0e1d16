"""All names that configs, flags and functions accept: registries for kinds of things, types for closed sets.

To add a thing of a kind, write a module with it and a line here; the module is imported at first use.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

from qrag_jax.registry import Entry, Registry

VECTORS = frozenset({"vectors"})  # it compares vectors of sentences
STUDY = frozenset({"study"})  # by default a study compares it, with chunks of 128 and 64 tokens
STOP = frozenset({"stop"})  # STOP can be learned from it: a complete set is rewarded when the episode ends
QUESTIONS = frozenset({"questions"})  # of tasks of a study: you can choose which questions to read
SHORT = frozenset({"short"})  # its documents may be joined to long ones
LLM = frozenset({"llm"})  # it asks a language model
TREE = frozenset({"tree"})  # a strategy that makes trees, or a source of boundaries for one
TREE_OF_TEXT = TREE | {"text"}  # and it needs only the text

_STRATEGIES = "qrag_jax.chunking.strategies"
CHUNKERS: Registry[Any] = Registry(
    "strategy",
    (
        Entry(
            "fixed", f"{_STRATEGIES}.fixed:KIND",
            "sentences in a row, so many a chunk or as many as some tokens hold (sentences_per_chunk, num_chunks, "
            "num_tokens, overlap, overlap_tokens)",
            STUDY,
        ),
        Entry(
            "recursive", f"{_STRATEGIES}.recursive:KIND",
            "at paragraphs; at lines, sentences and words where a part is too long (num_tokens)",
            STUDY,
        ),
        Entry(
            "breakpoint", f"{_STRATEGIES}.breakpoints:KIND",
            "where the next sentence means something else than the one before (threshold, value, window)",
            VECTORS,
        ),
        Entry(
            "linkage", f"{_STRATEGIES}.clusters:LINKAGE",
            "sentences that are near in text and meaning, nearest first, up to a size; a chunk may have several spans "
            "(num_clusters, max_sentences, lambda_, stop_distance)",
            VECTORS,
        ),
        Entry(
            "dbscan", f"{_STRATEGIES}.clusters:DBSCAN",
            "sentences that are dense in text and meaning; several spans too (eps, min_samples, lambda_, noise)",
            VECTORS,
        ),
        Entry(
            "late", f"{_STRATEGIES}.late:KIND",
            "sentences in a row; --vectors writes a vector of each chunk that knows the text around it (num_tokens, "
            "window_tokens, overlap_tokens)",
            STUDY,
        ),
        Entry(
            "headings", f"{_STRATEGIES}.headings:KIND", "the sections and subsections of Markdown (max_level)",
            frozenset({"blocks"}),
        ),
        Entry("document", f"{_STRATEGIES}.fixed:DOCUMENT", "the whole file, so that --max_tokens alone cuts it"),
        Entry(
            "hierarchy", f"{_STRATEGIES}.hierarchy:KIND",
            "the leaves of a tree of parts that --points finds: small parts joined as long as their levels do not "
            "fall, those deeper than --level_cap joined with what is around them, the rest cut to --max_tokens, or 256 "
            "tokens (points, level_cap, merge_tokens); --tree writes the trees",
            TREE | {"points"},
        ),
        Entry(
            "levels", f"{_STRATEGIES}.level_leaves:KIND",
            "the leaves of a tree whose levels have names: sections and subsections that --points finds, paragraphs, "
            "sentences; or, with --sizes, spans of so many tokens within each other (points, sizes); --tree writes it",
            TREE | {"points", "levels"},
        ),
    ),
)  # fmt: skip

_BOUNDARIES = "qrag_jax.annotate.boundary_sources"
BOUNDARY_SOURCES: Registry[Callable[[Any], Any]] = Registry(
    "points",
    (
        Entry("none", f"{_BOUNDARIES}:none", "no point at all"),
        Entry(
            "headings", f"{_BOUNDARIES}:headings", "the headings of Markdown: what is right, where they are kept",
            TREE_OF_TEXT,
        ),
        Entry(
            "rule", f"{_BOUNDARIES}:rule", "lines that look like headings: at most 12 words, no closing mark",
            TREE_OF_TEXT,
        ),
        Entry("paragraphs", f"{_BOUNDARIES}:paragraphs", "every start of a paragraph", TREE_OF_TEXT),
        Entry("equal", f"{_BOUNDARIES}:equal", "a point after every --equal_length sentences"),
        Entry(
            "breakpoint", f"{_BOUNDARIES}:breakpoint",
            "where the next sentence means something else than the one before, as strategy breakpoint of `qrag chunk`",
        ),
        Entry(
            "linkage", f"{_BOUNDARIES}:linkage",
            "where sentences that are near in text and meaning end, as strategy linkage",
        ),
        Entry(
            "tagger", f"{_BOUNDARIES}:tagger",
            "where a tagger of `qrag train tagger` (--tagger), or the one that comes with this package, says so: that "
            "was trained on papers and articles, and on another kind of text it need not be above breakpoint",
            TREE,
        ),
        Entry("llm", f"{_BOUNDARIES}:llm", "a language model, see below", TREE | LLM),
        Entry("lumber", f"{_BOUNDARIES}:lumber", "a language model that is shown paragraphs, see below", TREE | LLM),
    ),
)  # fmt: skip

NOTE_READERS: Registry[Any] = Registry(
    "reader",
    (
        Entry(
            "mentions", "qrag_jax.annotate.note_readers:by_mentions",
            "a sentence that names what another chunk is about is a note of that chunk", frozenset({"index"}),
        ),
        Entry("scripted", "qrag_jax.annotate.note_readers:by_script", "asks and answers about facts of bAbI stories"),
        Entry(
            "llm", "qrag_jax.annotate.note_readers:by_questions",
            "asks for questions of every chunk, and puts to each chunk those nearest to it", LLM | {"index"},
        ),
        Entry(
            "propositions", "qrag_jax.annotate.note_readers:by_propositions",
            "has each chunk taken apart into statements, which are notes of that chunk itself", LLM,
        ),
    ),
)  # fmt: skip

FILE_READERS: Registry[Any] = Registry(
    "kind of file",
    (
        Entry("pdf", "qrag_jax.documents.readers.pdf:KIND", "page by page; lines that the outline names are headings"),
        Entry("html", "qrag_jax.documents.readers.html:KIND", "the main part of a page, or all but its navigation"),
        Entry("docx", "qrag_jax.documents.readers.docx:KIND", "headings, lists, tables and notes by their styles"),
        Entry("epub", "qrag_jax.documents.readers.epub:KIND", "chapters in the order of reading"),
    ),
)

LLMS: Registry[Callable[[Any], Any]] = Registry(
    "llm",
    (
        Entry("local", "qrag_jax.llm.config:make_local", "a model in this process"),
        Entry("openai", "qrag_jax.llm.config:make_openai", "any server of that protocol"),
        Entry("scripted", "qrag_jax.llm.config:make_scripted", "answers that stand in a file, for tests"),
    ),
)

LEARNERS: Registry[Any] = Registry(
    "learner",
    (
        Entry("retriever", "qrag_jax.service.training:RETRIEVER", "which passages answer a question together (Q-RAG)"),
        Entry("tagger", "qrag_jax.service.learners:TAGGER", "where sections begin, for documents without headings"),
        Entry(
            "compressor",
            "qrag_jax.service.learners:COMPRESSOR",
            "one vector for a section, from those of its sentences",
        ),
        Entry("router", "qrag_jax.service.learners:ROUTER", "which levels of documents to search for a question"),
    ),
)

REWARDS: Registry[Callable[[Any], Any]] = Registry(
    "reward",
    (
        Entry("at_completion", "qrag_jax.qrag.rewards:at_completion", "once, at the step that completes the gold set"),
        Entry("at_end", "qrag_jax.qrag.rewards:at_end", "at the last step, where the set is complete", STOP),
    ),
)

STORES: Registry[Callable[[Any], Any]] = Registry(
    "store",
    (Entry("memory", "qrag_jax.search.dense:in_memory", "all vectors in memory, each compared exactly"),),
)

_CORPORA = "qrag_jax.data.corpora"
TASKS: Registry[Callable[..., Any]] = Registry(
    "kind",
    (
        Entry("beir", f"{_CORPORA}.beir:read_beir", "a folder of BEIR; questions says which qrels", QUESTIONS | SHORT),
        Entry("cranfield", f"{_CORPORA}.cranfield:read_cranfield", "abstracts on aerodynamics", SHORT),
        Entry("chroma", f"{_CORPORA}.chroma:read_chroma", "exact spans in five corpora"),
        Entry("squad", f"{_CORPORA}.squad:read_squad", "paragraphs joined to articles"),
        Entry("multirc", f"{_CORPORA}.multirc:read_multirc", "evidence sentences of paragraphs"),
        Entry("scisumm", f"{_CORPORA}.scisumm:read_scisumm", "what citations of papers refer to"),
        Entry(
            "conditionalqa", f"{_CORPORA}.conditionalqa:read_conditionalqa",
            "elements of pages; questions says which file", QUESTIONS,
        ),
        Entry("financebench", f"{_CORPORA}.financebench:read_financebench", "evidence in filings"),
        Entry(
            "headings", f"{_CORPORA}.heading_questions:read_headings",
            "sections by their titles; questions says whose documents", QUESTIONS,
        ),
        Entry(
            "files", f"{_CORPORA}.file_questions:read_with_problems", "your own documents and questions",
            QUESTIONS | {"files"},
        ),
    ),
)  # fmt: skip

PAGES: Registry[Any] = Registry(
    "page",
    (
        Entry("contexts", "qrag_jax.eval.study.results.study_tables:CONTEXTS", "evidence found in contexts, by tokens"),
        Entry("levels", "qrag_jax.eval.study.results.level_rows:LEVELS", "evidence found by levels, by tokens"),
    ),
)

INDEX_NOTES = ("none", *NOTE_READERS.choices("index"))  # who writes the notes of an index
if TYPE_CHECKING:  # checkers know no names of registries
    StrategyName = str
    PointsName = str
    NoteReaderName = str
    RewardName = str
    StoreName = str
    TaskKind = str
else:
    _OPEN = {
        "StrategyName": lambda: CHUNKERS.names,
        "PointsName": lambda: BOUNDARY_SOURCES.choices("tree"),
        "NoteReaderName": lambda: INDEX_NOTES,
        "RewardName": lambda: REWARDS.names,
        "StoreName": lambda: STORES.names,
        "TaskKind": lambda: TASKS.names,
    }

    def __getattr__(name: str) -> Any:
        """The type of an open set: the names that are there when a module first asks for it."""
        if name not in _OPEN:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return Literal[_OPEN[name]()]


# Cutting.
SplitterName = Literal["sentencex", "nltk", "spacy"]
SPLITTERS: tuple[SplitterName, ...] = get_args(SplitterName)
Threshold = Literal[
    "percentile", "standard_deviation", "interquartile", "gradient", "absolute", "absolute_gradient"
]  # fmt: skip
THRESHOLDS: tuple[Threshold, ...] = get_args(Threshold)
Noise = Literal["single", "chunk", "nearest"]  # of dbscan
NOISES: tuple[Noise, ...] = get_args(Noise)
View = Literal["kept", "plain", "removed"]  # of the headings of a document
VIEWS: tuple[View, ...] = get_args(View)

# Searching.
RetrieverName = Literal["hybrid", "dense", "bm25", "single_step"]  # the last is another name of `dense`
RETRIEVERS: tuple[RetrieverName, ...] = get_args(RetrieverName)
NoteMode = Literal["none", "best_of", "insert", "all", "random", "walk"]
NOTE_MODES: tuple[NoteMode, ...] = get_args(NoteMode)
ParentsName = Literal["best_child", "mean", "compressor", "direct", "windows", "summary"]
PARENTS: tuple[ParentsName, ...] = get_args(ParentsName)
PLANNERS = ("constant", "router", "llm")  # of the levels that a question searches

# Learning.
CompressorKind = Literal["mlp", "attention", "both"]
COMPRESSOR_KINDS: tuple[CompressorKind, ...] = get_args(CompressorKind)
CompressorLoss = Literal["distance", "ranking"]
COMPRESSOR_LOSSES: tuple[CompressorLoss, ...] = get_args(CompressorLoss)
COMPRESSOR_TARGETS = ("windows", "lead", "summary")
FeaturesName = Literal["vectors", "profiles"]  # of a router
FEATURES: tuple[FeaturesName, ...] = get_args(FeaturesName)

# Measuring.
METHODS = ("trained", "untrained", "single_step", "bm25")
PROTOCOLS = ("fixed", "threshold", "stop", "oracle")
ANSWER_MEASURES = ("em", "f1", "contains", "rouge_l", "babilong", "claims", "judge")
MULTIHOP_SETS = ("hotpot", "2wiki", "musique")
FillName = Literal["plain", "widen", "merge"]
FILLS: tuple[FillName, ...] = get_args(FillName)
PLANS = ("each", "all", "dev", "router", "bound")  # of the levels that a study searches; and router:RUN

# Language models: matrices of a local one as numbers, in blocks of 8 bits, or as in a GGUF file.
Storage = Literal["float32", "bfloat16", "int8", "file"]
STORAGES: tuple[Storage, ...] = get_args(Storage)
