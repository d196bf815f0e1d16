"""Frozen nouns and protocols that every package shares. Imports no JAX."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from qrag_jax.errors import Arg as Arg
from qrag_jax.errors import InputError as InputError
from qrag_jax.errors import InputWarning as InputWarning
from qrag_jax.errors import Stopped as Stopped
from qrag_jax.errors import UsageError as UsageError
from qrag_jax.errors import Words
from qrag_jax.errors import check_fields as check_fields

Span = tuple[int, int]  # half-open character offsets (start, end) into Document.text

# Texts -> float32 [n, dim].
Embed = Callable[[Sequence[str]], np.ndarray]
# One text -> (float32 [num_tokens, dim], int64 [num_tokens, 2] half-open character offsets).
EmbedTokens = Callable[[str], tuple[np.ndarray, np.ndarray]]
# One text -> its number of tokens, special tokens not counted.
CountTokens = Callable[[str], int]


@runtime_checkable
class Counts(Protocol):
    """What an encoder has read so far."""

    @property
    def num_texts(self) -> int:
        """Rows that were encoded."""
        ...

    @property
    def num_tokens(self) -> int:
        """Their tokens, special ones counted."""
        ...

    @property
    def num_texts_cut(self) -> int:
        """Rows that lost tokens at the window."""
        ...


@runtime_checkable
class Encoder(Protocol):
    """An `Embed` that says what it is and what it has read; `models.make_embedder` makes one."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal vectors: a hash of weights, shape, tokenizer and window."""
        ...

    @property
    def counts(self) -> Counts:
        """What was read so far."""
        ...

    def __call__(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Vectors of texts, float32 [n, dim]; `progress` is called with (texts done, texts in all)."""
        ...


@dataclass(frozen=True)
class Document:
    """One text with a stable id; `metadata` holds what a reader knows of it (title, path, ...)."""

    id: str
    text: str
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Chunk:
    """A part of a document that is retrieved as one, and proves where it came from.

    Attributes:
        id: hash of document id, spans and level (`chunking/text/chunks.py:chunk_id`); equal texts have different ids.
        document_id: its document.
        spans: one span, or several of a chunk that gathers what belongs together; ordered, not overlapping, not empty.
        level: 0 is a whole document, 1 a part of it, 2 a part of a part.
        num_tokens: of its text (`chunking/text/chunks.py:chunk_text`), special tokens not counted.
    """

    id: str
    document_id: str
    spans: tuple[Span, ...]
    level: int
    num_tokens: int


@dataclass(frozen=True)
class Note:
    """What one chunk says about another one, so that the other is found by it; `(question answer)` in SqRAG.

    A note never changes the text of a document: it stands beside its chunk, and says where each part comes from.

    Attributes:
        asking: id of the chunk that it comes from: the one that asks, or that names the other.
        answering: id of the chunk that it belongs to, and is inserted into.
        text: what is embedded and inserted.
        source: where in the asking chunk's document it comes from: what made the reader ask, or the sentence that is
            `text` itself.
        evidence: where in the answering chunk's document it belongs.
        quote: the text of `evidence`, so that the note proves itself.
        reader: who wrote it: `mentions`, `scripted`, a language model's name.
        question, answer: of readers that ask; both empty where `text` is the sentence at `source`, word for word. An
            answer alone is a statement in the reader's own words, which is `text` too.
    """

    asking: str
    answering: str
    text: str
    source: Span
    evidence: Span
    quote: str
    reader: str
    question: str = ""
    answer: str = ""

    @property
    def is_verbatim(self) -> bool:
        """True if it is the document's own sentence, at `source`; else `evidence` is what it was read from."""
        return not self.answer


@dataclass(frozen=True)
class ReadNotes:
    """Notes of a reader, in the order of their answering chunks, and what it left out.

    Attributes:
        notes: none twice.
        left_out: how many it did not write or keep, by reason.
        is_complete: it could read all; else another reading may give more, as where calls of a language model failed.
    """

    notes: tuple[Note, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    is_complete: bool = True


# Documents and all their chunks, in the order of a corpus -> notes.
NoteReader = Callable[[Sequence[Document], Sequence[Chunk]], ReadNotes]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a document; `str` gives `notes/key.md:12` or `report.pdf#page=3`.

    Attributes:
        document: id of the document: its path as it was named.
        start, end: half-open characters of `Document.text`.
        line: of `start`, from 1; CR LF, CR and LF end a line.
        page: of `start`, from 1; None where the document has no pages.
    """

    document: str
    start: int
    end: int
    line: int
    page: int | None = None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}" if self.page is None else f"{self.document}#page={self.page}"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a document, word for word.

    Attributes:
        text: `Document.text[place.start:place.end]`.
        place: where it stands.
        score: how well it answers (`search/sentences.py`); 0 where nothing was asked.
    """

    text: str
    place: Place
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class NoteHit:
    """A note that led to a passage.

    Attributes:
        text: the note.
        reader: who wrote it, as in `Note`.
        source: where it comes from.
        evidence: the sentence of the passage that it belongs to.
        quote: the text of `evidence`.
        question, answer: of readers that ask.
    """

    text: str
    reader: str
    source: Place
    evidence: Place
    quote: str
    question: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a retriever found.

    Attributes:
        rank: from 1, the best first; of a run the order of retrieval.
        place: from the start of the first span to the end of the last one.
        spans: half-open characters of the document; several of a chunk that gathers what belongs together.
        text: of these spans (`chunking/text/chunks.py:chunk_text`).
        score: of the retriever, on its own scale; of a run its Q value.
        sentence: the sentence of the passage that answers best, with its own place.
        notes: those that led to the passage.
        position: of a run: `rho` of the pick (Q-RAG, eq. 6).
        node: its number in the corpus that was searched; -1 of a retriever without one.
    """

    rank: int
    place: Place
    spans: tuple[Span, ...]
    text: str
    score: float
    sentence: Sentence
    notes: tuple[NoteHit, ...] = ()
    position: float | None = None
    node: int = -1


@runtime_checkable
class Retriever(Protocol):
    """Whatever finds passages: an `Index`, files or a corpus that `open_index` opened, a run over one."""

    def search(self, question: str, top_k: int | None = None) -> Sequence[Hit]:
        """Passages that answer a question, the best first; at most `top_k`, None is as many as the method ranks."""
        ...


@dataclass(frozen=True)
class Example:
    """A question, its candidate chunks in document order, and the indices of the chunks that answer it."""

    query_id: str
    question: str
    chunks: tuple[str, ...]
    gold: tuple[int, ...]
    answer: str | None = None


@dataclass(frozen=True)
class Step:
    """One pick of a retriever: index of the chunk in its context, the Q value it was picked by, its position `rho`."""

    chunk: int
    q_value: float
    position: float


@dataclass(frozen=True)
class Trajectory:
    """The picks of one question, in order of retrieval, and why the retriever stopped."""

    query_id: str
    steps: tuple[Step, ...]
    stop_reason: str


@dataclass(frozen=True)
class Cost:
    """What a result cost.

    Attributes:
        seconds: wall time by stage.
        embedder_tokens: read by the encoder, special tokens counted.
        flops: of the encoder's forward passes, by formula, padding not counted.
        index_bytes: vectors of the index.
        prompt_tokens, completion_tokens: of a language model.
        dollars: by a price list; None without one.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    embedder_tokens: int = 0
    flops: float = 0.0
    index_bytes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = None


@dataclass(frozen=True)
class Message:
    """One turn of a conversation with a language model."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Choice:
    """The answer is one of these texts."""

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.texts, tuple) or not all(isinstance(text, str) for text in self.texts):
            raise UsageError(f"grammar: Choice takes a tuple of texts, got {self.texts!r:.80}")


@dataclass(frozen=True)
class Regex:
    """The answer matches this pattern from its beginning to its end.

    A subset of Python's patterns, with `re.ASCII`: `models/grammar/regex.py` lists it.
    """

    pattern: str


@dataclass(frozen=True)
class JsonSchema:
    """The answer is JSON of a schema; made by `JsonSchema.of`.

    Attributes:
        text: the schema as JSON. `models/grammar/json_schema.py` lists the keywords that are read. The order of
            `properties` is that of the fields.
    """

    text: str

    @classmethod
    def of(cls, schema: Mapping[str, object]) -> "JsonSchema":
        """From a schema as `json.loads` gives it.

        Raises:
            UsageError: it is no JSON.
        """
        try:
            return cls(json.dumps(schema, allow_nan=False, ensure_ascii=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"grammar: the JSON schema is no JSON ({error})") from error

    def __post_init__(self) -> None:
        try:
            json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"grammar: the JSON schema is no JSON ({error}): {self.text!r:.80}") from error


# What an answer may be.
Grammar = Choice | Regex | JsonSchema


@dataclass(frozen=True)
class Sampling:
    """How a language model answers.

    Attributes:
        max_tokens: most new tokens.
        temperature: 0 is greedy, above it tokens are drawn from softmax(logits / temperature).
        top_k: draw among the k most likely tokens; 0 is all.
        top_p: draw among the fewest tokens whose probabilities reach this sum; 1 is all.
        seed: of the draws. The same seed, prompt and model give the same answer in process; servers may not keep that.
        stop: texts that end the answer; they are no part of it.
        logprobs: report the log-probability of every new token.
        grammar: what an answer may be; None is anything. An answer that ends by itself is in the grammar. Where few
            tokens are left only those are chosen that still lead to its end, so an answer that takes all of
            `max_tokens`, "length", is in the grammar too, unless it had fewer than the shortest one takes. A generator
            that cannot do that refuses it (`TextGenerator`).
    """

    max_tokens: int = 400
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        within = {"temperature": "[0, inf)", "top_p": "(0, 1]"}
        check_fields(self, at_least={"max_tokens": 1, "top_k": 0}, within=within)
        if not all(self.stop):
            raise UsageError("stop: an empty text would end every answer at once: leave it out")
        if self.grammar is not None and self.stop:
            raise UsageError("stop: would cut an answer that a grammar wants whole: leave one of both out")


@dataclass(frozen=True)
class Generation:
    """One answer of a language model.

    Attributes:
        text: the answer; empty where `error` is not None.
        finish_reason: "stop", "length" (cut at `max_tokens`) or "error".
        prompt_tokens, completion_tokens: as the model counts them; those of a failed call are what is known to have
            been spent on it.
        error: why there is no answer; None where there is one. A failed call is never an empty answer.
        logprobs: natural logarithms of the probabilities of the new tokens, without temperature and grammar, one each;
            None where they were not asked for or the model does not tell them.
        from_journal: the call was paid for earlier, nothing was spent now.
        answered_by: the model's name that a server put into its answer, which need not be the one that was asked for
            to the letter; None where none was told.
        answer_id: the id that a server gave its answer; None likewise. Not every server's are unique.
        is_fatal: every other call would fail by the same error: none is made any more.
    """

    text: str
    finish_reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None
    logprobs: tuple[float, ...] | None = None
    from_journal: bool = False
    answered_by: str | None = None
    answer_id: str | None = None
    is_fatal: bool = False


# Told the place of a prompt and its answer as soon as that is finished, in the thread that called `generate`.
Finished = Callable[[int, Generation], None]


@runtime_checkable
class TextGenerator(Protocol):
    """A language model: conversations -> one `Generation` each, in order; failures are in `Generation.error`.

    `model` names all that an answer depends on besides the messages and the sampling: weights, server.

    One that holds answers to a `Sampling.grammar` also has a method `takes_grammar(grammar) -> bool`, which
    `llm/calls.py:takes_grammar` asks; one without it takes none. What wraps a generator hands the question on.
    """

    @property
    def model(self) -> str:
        """Which model answers."""
        ...

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> Sequence[Generation]:
        """Answers every prompt.

        Args:
            prompts: conversations; any number, none among them.
            sampling: of all of them.
            finished: called once a prompt, in any order, as soon as its answer is there.
        """
        ...


def _silent(*_: object) -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class Watch:
    """Listeners of long work; a field that is left out listens to nothing.

    Attributes:
        note: what should be known of the work or its result, once each; an argument in it is an `Arg`.
        doing: what is being done right now, where nothing can be counted.
        report: (stage, done, of, metrics).
        answered: (stage, done, of, the last answer of a language model).
    """

    note: Callable[[Words], None] = _silent
    doing: Callable[[str], None] = _silent
    report: Callable[[str, int, int, Mapping[str, float]], None] = _silent
    answered: Callable[[str, int, int, Generation | None], None] = _silent

    def stage(self, name: str) -> Callable[[int, int], None]:
        """A callback `(done, of)` that reports the stage `name`."""
        return lambda done, of: self.report(name, done, of, {})


NOBODY = Watch()
