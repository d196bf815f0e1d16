"""Asks a language model about chunks: puts their texts between marks, counts failures, adds up costs.

An `Estimate` is an upper bound of the cost, before anything is asked.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import Any, Protocol, runtime_checkable

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.text.spans import readable
from qrag_jax.llm.calls import not_asked
from qrag_jax.llm.json_answers import Schema, parse_json, schema_grammar
from qrag_jax.llm.prices import Prices, dollars
from qrag_jax.llm.prompts import PromptTemplate, fence
from qrag_jax.llm.structured import Structured, ask_structured
from qrag_jax.types import (
    Chunk,
    Cost,
    CountTokens,
    Document,
    Generation,
    Grammar,
    InputError,
    Message,
    Note,
    Regex,
    Sampling,
    TextGenerator,
)

_TOKENS_A_MESSAGE = 8  # roughly what chat templates add to a message


@dataclass(frozen=True)
class Estimate:
    """An upper bound of the cost, without repeats of unreadable answers. Answers from a journal reduce it.

    Attributes:
        num_calls: of the language model.
        prompt_tokens: of all prompts, as they are paid for.
        new_prompt_tokens: without shared beginnings of prompts, which a model with a prefix cache reads once.
        completion_tokens: if every answer has its full length; most are far shorter.
    """

    num_calls: int = 0
    prompt_tokens: int = 0
    new_prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def dollars(self, prices: Prices) -> float:
        """The cost in dollars by the prices of the language model."""
        return dollars(Cost(prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens), prices)

    def seconds(self, read: float, write: float) -> float:
        """The time for a model with a prefix cache.

        Args:
            read, write: tokens per second that the model reads and writes.
        """
        return self.new_prompt_tokens / read + self.completion_tokens / write


def prompt_tokens(prompt: Sequence[Message], count: CountTokens) -> int:
    """Tokens of a conversation: those of its texts, plus an estimate for the chat template."""
    return sum(count(message.content) + _TOKENS_A_MESSAGE for message in prompt)


# Reasons why a call has no value.
CALL_FAILED = "call failed"
UNREADABLE = "answer not readable"
_MARK = "chunk"  # the same mark for all chunks without it, so prompts share their beginning up to the chunk
_AT_ONCE = 2048  # prompts in memory at a time; each contains the text of its chunk
_ERRORS_KEPT = 5

# (stage, prompts done, total, the last answer), as in `cli.progress.Progress.answered`.
Progressed = Callable[[str, int, int, Generation | None], None]


@dataclass(frozen=True)
class Reading:
    """The cost and result of calls to a language model.

    Attributes:
        num_chunks: chunks read.
        num_questions: distinct questions of the chunks; 0 for statements.
        num_pairs: pairs of chunk and question to answer; 0 for statements.
        num_notes: notes kept.
        num_calls: new calls.
        num_from_journal: answers from the journal.
        num_failed: prompts whose call failed.
        prompt_tokens, completion_tokens: of the new calls, including failed ones.
        errors: the first few distinct reasons why a prompt has no answer.
    """

    num_chunks: int = 0
    num_questions: int = 0
    num_pairs: int = 0
    num_notes: int = 0
    num_calls: int = 0
    num_from_journal: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    errors: tuple[str, ...] = ()

    def __add__(self, other: "Reading") -> "Reading":
        numbers = {name: value + getattr(other, name) for name, value in vars(self).items() if isinstance(value, int)}
        return Reading(**numbers, errors=tuple(dict.fromkeys((*self.errors, *other.errors)))[:_ERRORS_KEPT])


def reading_of(answers: Sequence[Generation], error: str | None) -> Reading:
    """The cost and outcome of one prompt. All answers are paid for; the last one decides the outcome.

    Args:
        answers: all answers to the prompt.
        error: why the prompt has no value; None if it has one.
    """
    paid = [answer for answer in answers if not answer.from_journal]
    return Reading(
        num_calls=len(paid),
        num_from_journal=len(answers) - len(paid),
        num_failed=int(answers[-1].is_failed),
        prompt_tokens=sum(answer.prompt_tokens for answer in paid),
        completion_tokens=sum(answer.completion_tokens for answer in paid),
        errors=() if error is None else (error,),
    )


class Estimated(Exception):
    """Raised instead of asking a language model, if only the estimate is requested.

    Attributes:
        name: of the reader or source that would ask it.
        estimate: the upper bound of its cost.
    """

    def __init__(self, name: str, estimate: Estimate) -> None:
        super().__init__(name, estimate)
        self.name, self.estimate = name, estimate


@runtime_checkable
class AnswerForm(Protocol):
    """The form of an answer: its grammar and its parser."""

    @property
    def grammar(self) -> Grammar:
        """The grammar for models that support grammars."""
        ...

    def read(self, text: str) -> Any:
        """Parses an answer.

        Raises:
            InputError: there is no value; the message is a reason for the model.
        """
        ...


@dataclass(frozen=True)
class Form:
    """The form of an answer in JSON.

    Attributes:
        wanted: schema of the grammar, for models that support grammars.
        readable: schema of the parser. It is more tolerant, so no usable answer is asked for again.
    """

    wanted: Schema
    readable: Schema

    @property
    def grammar(self) -> Grammar:
        """The grammar of `wanted`."""
        return schema_grammar(self.wanted)

    def read(self, text: str) -> Any:
        """Parses an answer by `readable`; see `parse_json`."""
        return parse_json(text, self.readable)


@dataclass(frozen=True)
class FreeForm:
    """Any text that is not empty."""

    @property
    def grammar(self) -> Grammar:
        """One line or more."""
        return Regex(r"[^\n](?:.|\n)*")

    def read(self, text: str) -> str:
        """The text without surrounding white space."""
        if not text.strip():
            raise InputError("it is empty")
        return text.strip()


@dataclass(frozen=True)
class ChunkText:
    """A chunk, the text of its document, and its own text."""

    chunk: Chunk
    document: str
    text: str


@dataclass
class Desk:
    """Asks a model for a reader, and records costs and failures.

    Attributes:
        generator: gives the answers.
        sampling: of all calls, except `max_tokens`.
        max_asks: most calls for a prompt (`ask_structured`).
        again: the message that asks again.
        progress: called for every finished prompt.
        left_out: number of answers that give no note, by reason.
        reading: the cost of the calls so far.
    """

    generator: TextGenerator
    sampling: Sampling
    max_asks: int
    again: PromptTemplate
    progress: Progressed | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    reading: Reading = field(default_factory=Reading)

    @property
    def reasons(self) -> dict[str, int]:
        """The number of answers that give no note, by reason, without reasons that did not occur."""
        return {reason: number for reason, number in self.left_out.items() if number}

    def kept(self, found: Iterable[Note | str]) -> Iterator[Note]:
        """The notes among these; counts the others, which are reasons."""
        for one in found:
            if isinstance(one, Note):
                yield one
            else:
                self.left_out[one] += 1

    def ask(
        self,
        stage: str,
        prompts: Iterable[Sequence[Message]],
        num_prompts: int,
        form: AnswerForm,
        max_tokens: int,
    ) -> Iterator[Any]:
        """The value of every answer, in order, or None; values that are None are counted in `left_out`.

        Args:
            stage: name for `progress`.
            prompts: conversations; taken as needed, and asked `_AT_ONCE` at a time.
            num_prompts: their number.
            form: of the answers.
            max_tokens: most tokens of an answer.

        Raises:
            InputError: all calls failed.
        """
        failed_before = self.reading.num_failed
        for place, outcome in enumerate(self.outcomes(stage, prompts, num_prompts, form, max_tokens), start=1):
            if place == num_prompts == self.reading.num_failed - failed_before:
                raise InputError(
                    f"{stage}: all {num_prompts:,} calls of the language model failed; the first one: "
                    f"{self.reading.errors[0]}"
                )
            yield outcome.value

    def outcomes(
        self,
        stage: str,
        prompts: Iterable[Sequence[Message]],
        num_prompts: int,
        form: AnswerForm,
        max_tokens: int,
    ) -> Iterator[Structured[Any]]:
        """The outcome of every prompt; as `ask`, but without an error if all calls failed."""
        waiting, done, stopped = iter(prompts), 0, None
        while part := list(islice(waiting, _AT_ONCE)):
            if stopped is None:
                found = self._ask(part, form, max_tokens, partial(self._hear, stage, done, num_prompts))
                stopped = not_asked(outcome.generations[-1] for outcome in found)
            else:  # a fatal error: all calls would fail
                found = [Structured(None, stopped.error, 0, False, (stopped,))] * len(part)
                self.left_out[CALL_FAILED] += len(part)
                self.reading += Reading(num_failed=len(part))
            done += len(part)
            yield from found

    def _ask(
        self,
        prompts: Sequence[Sequence[Message]],
        form: AnswerForm,
        max_tokens: int,
        hear: Callable[[int, Structured[Any]], None],
    ) -> list[Structured[Any]]:
        settled = count(1)
        return ask_structured(
            self.generator,
            prompts,
            form.read,
            sampling=replace(self.sampling, max_tokens=max_tokens),
            max_asks=self.max_asks,
            finished=lambda _, outcome: hear(next(settled), outcome),
            again=self.again,
            grammar=form.grammar,
        )

    def _hear(self, stage: str, done: int, of: int, number: int, outcome: Structured[Any]) -> None:
        reading = reading_of(outcome.generations, outcome.error)
        self.reading += reading
        if outcome.error is not None:
            self.left_out[CALL_FAILED if reading.num_failed else UNREADABLE] += 1
        if self.progress is not None:
            self.progress(stage, done + number, of, outcome.generations[-1])


def chunk_texts(documents: Sequence[Document], chunks: Sequence[Chunk]) -> list[ChunkText]:
    """The texts of chunks, with each lone surrogate replaced by U+FFFD.

    Raises:
        InputError: a chunk's document is not among the documents.
    """
    by_id = {document.id: document.text for document in documents}
    found = []
    for place, chunk in enumerate(chunks):
        text = by_id.get(chunk.document_id)
        if text is None:
            raise InputError(f"chunk {place}: its document {chunk.document_id!r} is missing; give it too")
        found.append(ChunkText(chunk, text, readable(chunk_text(text, chunk.spans))))
    return found


def chunk_prompt(template: PromptTemplate, text: str, **values: str) -> tuple[Message, ...]:
    """The conversation about a chunk. The chunk is between marks ($mark, $passage)."""
    mark, passage = fence([text], _MARK, beside=list(values.values()))
    return template.fill(mark=mark, passage=passage, **values)
