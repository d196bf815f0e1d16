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
BESIDE = frozenset({"beside"})  # a store with its own copy of the vectors, which writers keep up to date
TREE_OF_TEXT = TREE | {"text"}  # and it needs only the text

_STRATEGIES = "qrag_jax.chunking.strategies"
CHUNKERS: Registry[Any] = Registry(
    "strategy",
    (
        Entry(
            "fixed", f"{_STRATEGIES}.fixed:KIND",
            "consecutive sentences, by number of sentences, chunks or tokens (sentences_per_chunk, num_chunks, "
            "num_tokens, overlap, overlap_tokens)",
            STUDY,
        ),
        Entry(
            "recursive", f"{_STRATEGIES}.recursive:KIND",
            "at paragraphs; a part that is too long at lines, then sentences, then words (num_tokens)",
            STUDY,
        ),
        Entry(
            "breakpoint", f"{_STRATEGIES}.breakpoints:KIND",
            "where the meaning changes between two sentences (threshold, value, window)",
            VECTORS,
        ),
        Entry(
            "linkage", f"{_STRATEGIES}.clusters:LINKAGE",
            "joins sentences that are close in position and meaning, closest first, up to a size; a chunk may have "
            "several spans (num_clusters, max_sentences, lambda_, stop_distance)",
            VECTORS,
        ),
        Entry(
            "dbscan", f"{_STRATEGIES}.clusters:DBSCAN",
            "clusters sentences that are dense in position and meaning; a chunk may have several spans (eps, "
            "min_samples, lambda_, noise)",
            VECTORS,
        ),
        Entry(
            "late", f"{_STRATEGIES}.late:KIND",
            "consecutive sentences; --vectors writes a vector for each chunk, computed with the text around it "
            "(num_tokens, window_tokens, overlap_tokens)",
            STUDY,
        ),
        Entry(
            "headings", f"{_STRATEGIES}.headings:KIND", "the sections and subsections of Markdown (max_level)",
            frozenset({"blocks"}),
        ),
        Entry("document", f"{_STRATEGIES}.fixed:DOCUMENT", "the whole file; only --max_tokens cuts it"),
        Entry(
            "hierarchy", f"{_STRATEGIES}.hierarchy:KIND",
            "the leaves of a tree of sections from --points: small sections are joined with the next ones while the "
            "level does not fall, sections deeper than --level_cap are joined with their surroundings, and the rest is "
            "cut to --max_tokens, or 256 tokens (points, level_cap, merge_tokens); --tree writes the trees",
            TREE | {"points"},
        ),
        Entry(
            "levels", f"{_STRATEGIES}.level_leaves:KIND",
            "the leaves of a tree with named levels: sections and subsections from --points, paragraphs, sentences; "
            "with --sizes, nested spans of N tokens (points, sizes); --tree writes the trees",
            TREE | {"points", "levels"},
        ),
    ),
)  # fmt: skip

_BOUNDARIES = "qrag_jax.annotate.boundary_sources"
BOUNDARY_SOURCES: Registry[Callable[[Any], Any]] = Registry(
    "points",
    (
        Entry("none", f"{_BOUNDARIES}:none", "no boundaries"),
        Entry(
            "headings", f"{_BOUNDARIES}:headings", "Markdown headings: the right boundaries, if the text has them",
            TREE_OF_TEXT,
        ),
        Entry(
            "rule", f"{_BOUNDARIES}:rule",
            "lines that look like headings: at most 12 words, without punctuation at the end", TREE_OF_TEXT,
        ),
        Entry("paragraphs", f"{_BOUNDARIES}:paragraphs", "the beginning of every paragraph", TREE_OF_TEXT),
        Entry("equal", f"{_BOUNDARIES}:equal", "one boundary after every --equal_length sentences"),
        Entry(
            "breakpoint", f"{_BOUNDARIES}:breakpoint",
            "where the meaning changes between two sentences, as in strategy breakpoint of `qrag chunk`",
        ),
        Entry(
            "linkage", f"{_BOUNDARIES}:linkage",
            "between groups of sentences that are close in position and meaning, as in strategy linkage",
        ),
        Entry(
            "tagger", f"{_BOUNDARIES}:tagger",
            "by a tagger of `qrag train tagger` (--tagger), or the tagger in this package, which was trained on papers "
            "and articles; on other kinds of text it may be no better than breakpoint",
            TREE,
        ),
        Entry("llm", f"{_BOUNDARIES}:llm", "by a language model that reads sentences, see below", TREE | LLM),
        Entry("lumber", f"{_BOUNDARIES}:lumber", "by a language model that reads paragraphs, see below", TREE | LLM),
    ),
)  # fmt: skip

NOTE_READERS: Registry[Any] = Registry(
    "reader",
    (
        Entry(
            "mentions", "qrag_jax.annotate.note_readers:by_mentions",
            "a sentence that names the topic of another chunk is a note of that chunk", frozenset({"index"}),
        ),
        Entry("scripted", "qrag_jax.annotate.note_readers:by_script", "asks and answers about facts of bAbI stories"),
        Entry(
            "llm", "qrag_jax.annotate.note_readers:by_questions",
            "asks for questions about every chunk, and asks each chunk the nearest ones", LLM | {"index"},
        ),
        Entry(
            "propositions", "qrag_jax.annotate.note_readers:by_propositions",
            "splits each chunk into statements, which become notes of that same chunk", LLM,
        ),
    ),
)  # fmt: skip

FILE_READERS: Registry[Any] = Registry(
    "kind of file",
    (
        Entry("pdf", "qrag_jax.documents.readers.pdf:KIND", "page by page; lines named in the outline are headings"),
        Entry("html", "qrag_jax.documents.readers.html:KIND", "all that a browser shows of a page but navigation"),
        Entry("docx", "qrag_jax.documents.readers.office:DOCX", "headings, lists, tables and notes, by their styles"),
        Entry("epub", "qrag_jax.documents.readers.epub:KIND", "chapters in reading order"),
        Entry("odt", "qrag_jax.documents.readers.office:ODT", "headings, lists, tables and notes, by their styles"),
        Entry("eml", "qrag_jax.documents.readers.mail:KIND", "subject, sender, date and the text, once"),
        Entry("ipynb", "qrag_jax.documents.readers.notebook:KIND", "Markdown and code cells in order"),
        Entry("srt", "qrag_jax.documents.readers.subtitles:KIND", "cues joined to sentences, with times"),
        Entry("csv", "qrag_jax.documents.readers.table:KIND", "each row a paragraph of `head: value` lines"),
        Entry("tsv", "qrag_jax.documents.readers.table:TABS", "as csv, with tabs between the cells"),
        Entry("json", "qrag_jax.documents.readers.json_records:KIND", "`name: value` lines of all or the named fields"),
        Entry("jsonl", "qrag_jax.documents.readers.json_records:LINES", "as json, each line a paragraph"),
    ),
)

LLMS: Registry[Callable[[Any], Any]] = Registry(
    "llm",
    (
        Entry("local", "qrag_jax.llm.config:make_local", "a model in this process"),
        Entry("openai", "qrag_jax.llm.config:make_openai", "a server with the OpenAI API"),
        Entry("scripted", "qrag_jax.llm.config:make_scripted", "answers from a file, for tests"),
    ),
)

LEARNERS: Registry[Any] = Registry(
    "learner",
    (
        Entry("retriever", "qrag_jax.service.training:RETRIEVER", "finds the passages that together answer a question"),
        Entry("tagger", "qrag_jax.service.learners:TAGGER", "finds sections in documents without headings"),
        Entry(
            "compressor",
            "qrag_jax.service.learners:COMPRESSOR",
            "computes the vector of a section from the vectors of its sentences",
        ),
        Entry(
            "reranker",
            "qrag_jax.service.learners:RERANKER",
            "reads question and passage together, for --rerank",
        ),
        Entry("sft", "qrag_jax.service.decoders:SFT", "a language model that imitates answers"),
        Entry("grpo", "qrag_jax.service.decoders:GRPO", "a language model that learns from rewards of its answers"),
        Entry(
            "stitch",
            "qrag_jax.service.decoders:STITCH",
            "a language model that learns from rewards, and imitates where they do not help",
        ),
        Entry("router", "qrag_jax.service.learners:ROUTER", "chooses the levels of documents to search for a question"),
    ),
)

REWARDS: Registry[Callable[[Any], Any]] = Registry(
    "reward",
    (
        Entry("at_completion", "qrag_jax.qrag.rewards:at_completion", "once, at the step that completes the gold set"),
        Entry("at_end", "qrag_jax.qrag.rewards:at_end", "at the last step, if the gold set is complete", STOP),
    ),
)

_DECODER_REWARDS = "qrag_jax.train.decoder.rewards"
DECODER_REWARDS: Registry[Callable[[Any], Any]] = Registry(
    "rewards",
    (
        Entry("label_alignment", f"{_DECODER_REWARDS}:label_alignment", "share of the ends of a plan that are right"),
        Entry("exact_plan", f"{_DECODER_REWARDS}:exact_plan", "1 if all ends are right"),
        Entry("evidence_recall", f"{_DECODER_REWARDS}:evidence_recall", "of the context of the planned levels"),
        Entry("answer_em", f"{_DECODER_REWARDS}:answer_em", "exact match of an answer from that context", LLM),
        Entry("answer_f1", f"{_DECODER_REWARDS}:answer_f1", "token F1 of an answer from that context", LLM),
        Entry("answer_judge", f"{_DECODER_REWARDS}:answer_judge", "1 if a judge calls that answer correct", LLM),
        Entry("answer_gain", f"{_DECODER_REWARDS}:answer_gain", "surprise at the answer that it takes away", LLM),
        Entry("cost", f"{_DECODER_REWARDS}:cost", "minus the cost of the plan"),
        Entry("length", f"{_DECODER_REWARDS}:length", "minus the tokens of a trace beyond its limit"),
        Entry("format", f"{_DECODER_REWARDS}:format_", "1 if the plan parses and its trace is within its limit"),
    ),
)

STORES: Registry[Callable[[Any], Any]] = Registry(
    "store",
    (
        Entry(
            "sqlite", "qrag_jax.index.store_writer:no_store",
            "compares all vectors of the index exactly, in this process",
        ),
        Entry(
            "milvus", "qrag_jax.index.stores.milvus:open_milvus", "a Milvus server compares them exactly (--uri)",
            BESIDE | {"server"},
        ),
    ),
)  # fmt: skip

_CORPORA = "qrag_jax.data.corpora"
TASKS: Registry[Callable[..., Any]] = Registry(
    "kind",
    (
        Entry("beir", f"{_CORPORA}.beir:read_beir", "a BEIR folder; questions chooses the qrels", QUESTIONS | SHORT),
        Entry("cranfield", f"{_CORPORA}.cranfield:read_cranfield", "abstracts on aerodynamics", SHORT),
        Entry("chroma", f"{_CORPORA}.chroma:read_chroma", "exact spans in five corpora"),
        Entry("squad", f"{_CORPORA}.squad:read_squad", "paragraphs joined to articles"),
        Entry("multirc", f"{_CORPORA}.multirc:read_multirc", "evidence sentences of paragraphs"),
        Entry("scisumm", f"{_CORPORA}.scisumm:read_scisumm", "the text that citations of papers refer to"),
        Entry(
            "conditionalqa", f"{_CORPORA}.conditionalqa:read_conditionalqa",
            "elements of web pages; questions chooses the file", QUESTIONS,
        ),
        Entry("financebench", f"{_CORPORA}.financebench:read_financebench", "evidence in filings"),
        Entry(
            "headings", f"{_CORPORA}.heading_questions:read_headings",
            "sections by their titles; questions chooses the documents", QUESTIONS,
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


# What a search of an index compares first.
VectorsName = Literal["float32", "float16", "int8"]

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

# Learning.
CompressorKind = Literal["mlp", "attention", "both"]
COMPRESSOR_KINDS: tuple[CompressorKind, ...] = get_args(CompressorKind)
CompressorLoss = Literal["distance", "ranking"]
COMPRESSOR_LOSSES: tuple[CompressorLoss, ...] = get_args(CompressorLoss)
COMPRESSOR_TARGETS = ("windows", "lead", "summary")
DecoderMethod = Literal["sft", "grpo", "stitch"]
DECODER_METHODS: tuple[DecoderMethod, ...] = get_args(DecoderMethod)
FeaturesName = Literal["vectors", "profiles"]  # of a router
RouterMethod = Literal["regression", "classifier"]
ROUTER_METHODS: tuple[RouterMethod, ...] = get_args(RouterMethod)
FEATURES: tuple[FeaturesName, ...] = get_args(FeaturesName)

# Measuring.
METHODS = ("trained", "untrained", "single_step", "bm25", "reranked")
POOL_METHODS = ("trained", "untrained", "hybrid", "single_step", "bm25")  # over many documents
PROTOCOLS = ("fixed", "threshold", "stop", "oracle")
ANSWER_MEASURES = ("em", "f1", "contains", "rouge_l", "babilong", "claims", "judge")
MULTIHOP_SETS = ("hotpot", "2wiki", "musique")
FillName = Literal["plain", "widen", "merge"]
FILLS: tuple[FillName, ...] = get_args(FillName)

# Building an index.
BuildEngine = Literal["processes", "ray"]
BUILD_ENGINES: tuple[BuildEngine, ...] = get_args(BuildEngine)

# Engines of local language models.
Engine = Literal["jax", "llamacpp"]
ENGINES: tuple[Engine, ...] = get_args(Engine)

PLANS = ("each", "all", "dev", "router", "classifier", "bound")  # of the levels of a study; and planner:RUN
