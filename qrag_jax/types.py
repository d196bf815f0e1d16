"""Frozen types and protocols that all packages share. Imports no JAX."""

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
from qrag_jax.errors import not_installed as not_installed
from qrag_jax.markup import Html, card, escape, join, marked, quiet_part, table, text_part

Span = tuple[int, int]  # half-open character offsets (start, end) into Document.text

# Texts -> float32 [n, dim].
Embed = Callable[[Sequence[str]], np.ndarray]
# One text -> (float32 [num_tokens, dim], int64 [num_tokens, 2] half-open character offsets).
EmbedTokens = Callable[[str], tuple[np.ndarray, np.ndarray]]
# Text -> its number of tokens, without special tokens.
CountTokens = Callable[[str], int]

_MAX_SHOWN = 2_000  # characters of a document in a notebook


@runtime_checkable
class Counts(Protocol):
    """The numbers of texts and tokens that an encoder has read so far."""

    @property
    def num_texts(self) -> int:
        """Number of encoded rows."""
        ...

    @property
    def num_tokens(self) -> int:
        """Number of their tokens, special ones included."""
        ...

    @property
    def num_texts_cut(self) -> int:
        """Number of rows that were cut at the window."""
        ...


@dataclass(frozen=True)
class TextCounts:
    """Counts as numbers. Satisfies `Counts`."""

    num_texts: int = 0
    num_tokens: int = 0
    num_texts_cut: int = 0

    def plus(self, num_texts: int, num_tokens: int, num_texts_cut: int) -> "TextCounts":
        """These counts after more texts."""
        return TextCounts(self.num_texts + num_texts, self.num_tokens + num_tokens, self.num_texts_cut + num_texts_cut)


@runtime_checkable
class Reranker(Protocol):
    """Scores passages for a question by reading both together, as an encoder of each alone cannot.

    Attributes:
        name: what reads, as the user named it.
        weight: of its scores beside those of the search; None if passages are ordered by its scores alone.
        counts: passages and tokens read so far, and passages that were cut because they are too long.
        num_parameters: of the model; None if unknown.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def weight(self) -> float | None: ...  # noqa: D102

    @property
    def counts(self) -> Counts: ...  # noqa: D102

    @property
    def num_parameters(self) -> int | None: ...  # noqa: D102

    def __call__(
        self, question: str, passages: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """Scores, float64 [n], larger for a better passage; `progress` is called with (work done, work in all)."""
        ...


@runtime_checkable
class Encoder(Protocol):
    """An `Embed` with a fingerprint and counts; `models.make_embedder` makes one."""

    @property
    def fingerprint(self) -> str:
        """A hash of weights, shape, tokenizer and window; equal fingerprints mean equal vectors."""
        ...

    @property
    def counts(self) -> Counts:
        """The numbers of texts and tokens read so far."""
        ...

    def __call__(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Vectors of texts, float32 [n, dim]; `progress` is called with (texts done, texts in all)."""
        ...


@runtime_checkable
class KnowsWords(Protocol):
    """An encoder that tells which texts it does not know."""

    def unknown_shares(self, texts: Sequence[str]) -> np.ndarray:
        """The share of each text that the vocabulary does not know, from 0 to 1; float64 [n]."""
        ...


@runtime_checkable
class ReadsQuestions(Protocol):
    """An encoder that may embed questions in another way than documents, such as with a prompt of their own."""

    def questions(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Vectors of questions, float32 [n, dim]; `progress` is called with (texts done, texts in all)."""
        ...


@runtime_checkable
class ReadsTokens(Protocol):
    """An encoder that also gives a vector for every token, for late interaction (`search/late.py`)."""

    @property
    def token_dim(self) -> int:
        """Size of the vector of a token."""
        ...

    @property
    def counts(self) -> Counts:
        """The numbers of texts and tokens read so far."""
        ...

    def with_tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Vectors of documents, float32 [n, dim], and directions of their tokens, int8 [num_tokens, token_dim] each."""
        ...

    def question_tokens(self, text: str) -> np.ndarray:
        """Vectors of length 1 of the tokens of a question, float32 [num_tokens, token_dim]."""
        ...


def for_questions(embed: Embed) -> Embed:
    """Embeds questions: in the encoder's own way where it has one, else it is `embed` itself."""
    return embed.questions if isinstance(embed, ReadsQuestions) else embed


@dataclass(frozen=True)
class EncoderOptions:
    """How an encoder reads. None: as its makers mean it, by its files or its name (`models.load_encoder`).

    Attributes:
        query_prompt, document_prompt: text put before questions and documents; empty is none.
        dim: the first components of a vector that are kept, for encoders trained that way (Matryoshka).
        dtype: of matrix products; bfloat16 is faster where the processor has it, and moves cosines by up to 4e-3.
    """

    query_prompt: str | None = None
    document_prompt: str | None = None
    dim: int | None = None
    dtype: Literal["float32", "bfloat16"] | None = None

    def __post_init__(self) -> None:
        check_fields(self, positive=("dim",))

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that are set."""
        return tuple(name for name, value in vars(self).items() if value is not None)


AS_MADE = EncoderOptions()


@dataclass(frozen=True)
class Document:
    """A text with a stable id; `metadata` has what a reader knows about it (title, path, ...)."""

    id: str
    text: str
    metadata: Mapping[str, object] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """Shows its beginning in a notebook."""
        left = len(self.text) - _MAX_SHOWN
        more = quiet_part(f"and {left:,} more characters") if left > 0 else ""
        return card(self.id, text_part(self.text[:_MAX_SHOWN]), more)


@dataclass(frozen=True)
class Chunk:
    """A part of a document that is retrieved as one unit, with its exact place.

    Attributes:
        id: hash of document id, spans and level (`chunking/text/chunks.py:chunk_id`); equal texts have different ids.
        document_id: its document.
        spans: one span, or several if the chunk gathers related text; ordered, not overlapping, not empty.
        level: 0 is a whole document, 1 a part of it, 2 a part of a part.
        num_tokens: of its text (`chunking/text/chunks.py:chunk_text`), without special tokens.
    """

    id: str
    document_id: str
    spans: tuple[Span, ...]
    level: int
    num_tokens: int

    def _repr_html_(self) -> str:
        """Shows its place in a notebook; a chunk has no text of its own."""
        where = ", ".join(f"{start:,} to {end:,}" for start, end in self.spans)
        return card(self.document_id, quiet_part(f"characters {where}; level {self.level}, {self.num_tokens:,} tokens"))


@dataclass(frozen=True)
class Note:
    """A statement of one chunk about another, which helps to find the other; `(question answer)` in SqRAG.

    A note never changes the text of a document. It is stored separately and records where its parts come from.

    Attributes:
        asking: id of the chunk that it comes from: the one that asks, or that names the other.
        answering: id of the chunk that it belongs to, and into which it may be inserted.
        text: the text to embed and insert.
        source: its span in the asking chunk's document: what made the reader ask, or the sentence `text`.
        evidence: its span in the answering chunk's document.
        quote: the text of `evidence`, to check the note.
        reader: who wrote it: `mentions`, `scripted`, or the name of a language model.
        question, answer: from readers that ask; both are empty if `text` is the sentence at `source`, word for word. An
            answer without a question is a statement in the reader's words, equal to `text`.
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
        """True if it is a sentence of the document at `source`; otherwise it was read from `evidence`."""
        return not self.answer


@dataclass(frozen=True)
class ReadNotes:
    """The notes of a reader, in the order of their answering chunks, and what it left out.

    Attributes:
        notes: without repeats.
        left_out: number not written or not kept, by reason.
        is_complete: everything was read; if False, another reading may find more, for example after failed calls.
    """

    notes: tuple[Note, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    is_complete: bool = True


# Documents and all their chunks, in the order of a corpus -> notes.
NoteReader = Callable[[Sequence[Document], Sequence[Chunk]], ReadNotes]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a document; `str` gives `notes/key.md:12`, `report.pdf#page=3` or `manual.docx:12 of the text`.

    Attributes:
        document: id of the document: its path as given.
        start, end: half-open characters of `Document.text`.
        line: of `start`, from 1; CR LF, CR and LF end a line.
        page: of `start`, from 1; None if the document has no pages.
        converted: the kind of file (`docx`) whose text was made by a reader, so the file itself has no such lines; None
            if lines and characters are those of the file.
        page_label: the number that the page bears (`iv`), if that is not `page`; else None.
    """

    document: str
    start: int
    end: int
    line: int
    page: int | None = None
    converted: str | None = None
    page_label: str | None = None

    def __str__(self) -> str:
        if self.page is not None:
            return f"{self.document}#page={self.page}"
        return f"{self.document}:{self.line}{'' if self.converted is None else ' of the text'}"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a document, word for word.

    Attributes:
        text: `Document.text[place.start:place.end]`.
        place: its place.
        score: how well it answers (`search/sentences.py`); 0 if nothing was asked.
    """

    text: str
    place: Place
    score: float = 0.0


def marked_passage(text: str, spans: Sequence[Span], sentence: Sentence) -> Html:
    """The text of a passage (`chunking/text/chunks.py:chunk_text`) as HTML, its sentence marked if it is in a span.

    Args:
        text: that of the spans, with one character between two of them.
        spans: half-open characters of the document.
        sentence: of the same document.
    """
    place, before = sentence.place, 0
    for start, end in spans:
        if start <= place.start and place.end <= end:
            return marked(text, [(before + place.start - start, before + place.end - start)])
        before += end - start + 1
    return escape(text)


@dataclass(frozen=True, slots=True)
class NoteHit:
    """A note that led to a passage.

    Attributes:
        text: the note.
        reader: who wrote it, as in `Note`.
        source: where it comes from.
        evidence: the sentence of the passage that it belongs to.
        quote: the text of `evidence`.
        question, answer: from readers that ask.
    """

    text: str
    reader: str
    source: Place
    evidence: Place
    quote: str
    question: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A chunk that a run did not pick at a step, though its Q was among the highest there.

    Attributes:
        place: its place.
        text: of the chunk.
        score: its Q value at that step.
    """

    place: Place
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a retriever found.

    Attributes:
        rank: from 1, the best first; for a run, the order of retrieval.
        place: from the start of the first span to the end of the last one.
        spans: half-open characters of the document; several if the chunk gathers related text.
        text: of these spans (`chunking/text/chunks.py:chunk_text`).
        score: of the retriever, on its own scale; for a run, its Q value.
        sentence: the sentence of the passage that answers best, with its own place.
        notes: those that led to the passage.
        position: for a run: `rho` of the pick (Q-RAG, eq. 6).
        node: its number in the corpus that was searched; -1 if the retriever has no corpus.
        copies: where else the same text stands, white space aside: each is the place of `sentence` in a copy.
        left_out: what the reader of the document left out of its text: kind -> number.
        context: what the passage needs to be read, if it begins inside a table: the heading above the table and the
            names of its columns. It is not a part of `text`.
        runners_up: for a run: the chunks of the highest Q at this step beside the pick, the best first.
        stop_score: for a run: Q of STOP at this step; None if it could not stop here.
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
    copies: tuple[Place, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    context: str = ""
    runners_up: tuple[RunnerUp, ...] = ()
    stop_score: float | None = None

    def _repr_html_(self) -> str:
        """Shows the passage in a notebook, with its sentence marked."""
        parts = [quiet_part(f"in: {self.context}")] if self.context else []
        parts.append(text_part(marked_passage(self.text, self.spans, self.sentence)))
        parts += [quiet_part(f"also in {', '.join(map(str, self.copies))}")] if self.copies else []
        parts += [quiet_part(f"note from {note.source}: {note.text}") for note in self.notes]
        rows = [(f"{one.score:.3f}", one.text, str(one.place)) for one in self.runners_up]
        parts += [table(("Q", "not picked", "where"), rows)] if rows else []
        return card(f"{self.rank}. {self.sentence.place} ({self.score:.3g})", *parts)


class Hits(list[Hit]):
    """Passages, the best first: a list that a notebook shows."""

    def _repr_html_(self) -> str:
        return join(Html(hit._repr_html_()) for hit in self)


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages: an `Index`, files or a corpus opened by `open_index`, or a run over one."""

    def search(self, question: str, top_k: int | None = None) -> Sequence[Hit]:
        """The passages that best answer a question; at most `top_k`, or if None as many as the method ranks."""
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
    """One pick of a retriever.

    Attributes:
        chunk: index of the chunk in its context.
        q_value: its Q value.
        position: its `rho`.
        runners_up: (chunk, Q value) of the other chunks of the highest Q at this step, the best first.
        stop_q_value: Q of STOP at this step; None if the retriever could not stop here.
    """

    chunk: int
    q_value: float
    position: float
    runners_up: tuple[tuple[int, float], ...] = ()
    stop_q_value: float | None = None


@dataclass(frozen=True)
class Trajectory:
    """The picks for one question, in order of retrieval, and why the retriever stopped.

    Attributes:
        query_id: of the question.
        steps: the picks.
        stop_reason: `num_steps`, `threshold` or `learned_stop`.
        prevented: the pick that would have been next; None if the retriever made all its picks.
    """

    query_id: str
    steps: tuple[Step, ...]
    stop_reason: str
    prevented: Step | None = None

    def _repr_html_(self) -> str:
        """Shows the steps as a table in a notebook."""
        rows = []
        for number, step in enumerate(self.steps, start=1):
            others = ", ".join(f"{chunk} ({q_value:.3f})" for chunk, q_value in step.runners_up)
            stop = "" if step.stop_q_value is None else f"{step.stop_q_value:.3f}"
            rows.append((str(number), str(step.chunk), f"{step.q_value:.3f}", f"{step.position:.4g}", others, stop))
        names = ("step", "chunk", "Q", "position", "runners-up", "Q of STOP")
        return card(self.query_id or "picks", table(names, rows), quiet_part(f"ended by {self.stop_reason}"))


@dataclass(frozen=True)
class Cost:
    """The cost of a result.

    Attributes:
        seconds: wall time by stage.
        embedder_tokens: read by the encoder, special tokens included.
        flops: of the encoder's forward passes, by formula, without padding.
        index_bytes: size of the vectors of the index.
        prompt_tokens, completion_tokens: of a language model.
        dollars: by a price list; None without one.
        reranker_tokens: read by a reranker.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    embedder_tokens: int = 0
    flops: float = 0.0
    index_bytes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = None
    reranker_tokens: int = 0


@dataclass(frozen=True)
class Message:
    """One turn of a conversation with a language model."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Choice:
    """The answer is one of these strings."""

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.texts, tuple) or not all(isinstance(text, str) for text in self.texts):
            raise UsageError(f"grammar: Choice takes a tuple of strings, got {self.texts!r:.80}")


@dataclass(frozen=True)
class Regex:
    """The whole answer matches this pattern.

    A subset of Python's patterns, with `re.ASCII`: `models/grammar/regex.py` lists it.
    """

    pattern: str


@dataclass(frozen=True)
class JsonSchema:
    """The answer is JSON of a schema; made by `JsonSchema.of`.

    Attributes:
        text: the schema as JSON. `models/grammar/json_schema.py` lists the supported keywords. The fields of an answer
            have the order of `properties`.
    """

    text: str

    @classmethod
    def of(cls, schema: Mapping[str, object]) -> "JsonSchema":
        """Makes one from a schema as `json.loads` returns it.

        Raises:
            UsageError: it is not JSON.
        """
        try:
            return cls(json.dumps(schema, allow_nan=False, ensure_ascii=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"grammar: the JSON schema is not JSON ({error})") from error

    def __post_init__(self) -> None:
        try:
            json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"grammar: the JSON schema is not JSON ({error}): {self.text!r:.80}") from error


# The form of an answer.
Grammar = Choice | Regex | JsonSchema


@dataclass(frozen=True)
class Sampling:
    """How a language model answers.

    Attributes:
        max_tokens: most new tokens.
        temperature: 0 is greedy; above it, tokens are drawn from softmax(logits / temperature).
        top_k: draw among the k most likely tokens; 0 is all.
        top_p: draw among the fewest tokens whose probabilities reach this sum; 1 is all.
        seed: of the draws. In process, equal seed, prompt and model give equal answers; servers may differ.
        stop: strings that end the answer, and are not part of it.
        logprobs: report the log-probability of every new token.
        grammar: the form of an answer; None is any. An answer that ends by itself has this form. Near `max_tokens` only
            tokens on the way to its end are chosen. So an answer of all `max_tokens` ("length") has it too, unless the
            shortest possible answer is longer. llama.cpp and servers cut such an answer in the middle. A generator that
            cannot hold answers to a grammar refuses it (`TextGenerator`).
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
            raise UsageError("stop: an empty string would end every answer immediately; leave it out")
        if self.grammar is not None and self.stop:
            raise UsageError("stop: could cut an answer that must match a grammar; use only one of the two")


@dataclass(frozen=True)
class Generation:
    """One answer of a language model.

    Attributes:
        text: the answer; empty if there is an `error`.
        finish_reason: "stop", "length" (cut at `max_tokens`) or "error".
        prompt_tokens, completion_tokens: as the model counts them; for a failed call, the known cost.
        error: why there is no answer, else None. A failed call is never an empty answer.
        logprobs: natural logarithms of the probabilities of the new tokens, without temperature and grammar; None if
            not asked for or not reported.
        from_journal: the answer was stored by an earlier call and cost nothing now.
        answered_by: name of the model in the server's answer, which may differ from the requested name; None if there
            is none.
        answer_id: the server's id of the answer; None if there is none. Some servers repeat ids.
        is_fatal: every other call would fail with the same error, so no more are made.
        thinking: text that the model wrote before its answer and that is no part of it; None if there is none. Tokens
            and log-probabilities include it.
        is_empty: the model ended its answer without a text, and `error` says so; asked otherwise, it may give one.
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
    thinking: str | None = None
    is_empty: bool = False

    @property
    def is_failed(self) -> bool:
        """True if the call failed; False also for an empty answer, which measures score 0."""
        return self.error is not None and not self.is_empty


# Called with the position of a prompt and its answer when that is finished, in the thread that called `generate`.
Finished = Callable[[int, Generation], None]


@runtime_checkable
class TextGenerator(Protocol):
    """A language model: conversations -> one `Generation` each, in order; failures are in `Generation.error`.

    `model` names everything that an answer depends on besides messages and sampling: weights, server.

    A generator that supports a `Sampling.grammar` also has a method `takes_grammar(grammar) -> bool`, which
    `llm/calls.py:takes_grammar` calls; without it, no grammar is supported. A wrapper of a generator forwards the call.
    """

    @property
    def model(self) -> str:
        """The model that answers."""
        ...

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> Sequence[Generation]:
        """Answers every prompt.

        Args:
            prompts: conversations; may be empty.
            sampling: for all of them.
            finished: called once for each prompt when its answer is ready, in any order.
        """
        ...


def _silent(*_: object) -> None:
    """Ignores all arguments."""


@dataclass(frozen=True)
class Watch:
    """Callbacks of long work; a missing field ignores its events.

    Attributes:
        note: called once for each message about the work or its result; an argument in it is an `Arg`.
        doing: called with the current activity, if nothing can be counted.
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
