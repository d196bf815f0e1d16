"""How readers ask a language model about chunks: their texts between marks, failures counted, costs added up.
An `Estimate` says how much that takes at most, before anything is asked.
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
    Sampling,
    TextGenerator,
)

_TOKENS_A_MESSAGE = 8  # that chat templates put around a message, about


@dataclass(frozen=True)
class Estimate:
    """At most so much, as long as no answer has to be asked for again; answers of a journal make it less.

    Attributes:
        num_calls: of the language model.
        prompt_tokens: of all prompts, as they are paid for.
        new_prompt_tokens: without the beginnings that prompts have in common, which a model that keeps them reads once.
        completion_tokens: if every answer is as long as it may be; most are far shorter.
    """

    num_calls: int = 0
    prompt_tokens: int = 0
    new_prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def dollars(self, prices: Prices) -> float:
        """By the prices of the language model."""
        return dollars(Cost(prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens), prices)

    def seconds(self, read: float, write: float) -> float:
        """Of a model that reads and writes so many tokens a second (`qrag llm bench`), and keeps beginnings."""
        return self.new_prompt_tokens / read + self.completion_tokens / write


def prompt_tokens(prompt: Sequence[Message], count: CountTokens) -> int:
    """Tokens of a conversation: of its texts, and about those of the chat template."""
    return sum(count(message.content) + _TOKENS_A_MESSAGE for message in prompt)


# Why there is nothing of a call.
CALL_FAILED = "call failed"
UNREADABLE = "answer not readable"
_MARK = "chunk"  # one mark for all chunks that do not hold it, so that prompts begin alike up to the chunk
_AT_ONCE = 2048  # prompts that are held: each has the text of its chunk in it
_ERRORS_KEPT = 5

# (stage, prompts done, of, the last answer), as of `cli.progress.Progress.answered`.
Progressed = Callable[[str, int, int, Generation | None], None]


@dataclass(frozen=True)
class Reading:
    """What reading the notes of some chunks took.

    Attributes:
        num_chunks: that were read.
        num_questions: different ones that they ask; 0 of statements.
        num_pairs: of chunk and question that were to be answered; likewise.
        num_notes: that were kept.
        num_calls: made now.
        num_from_journal: answers that were paid for earlier.
        num_failed: prompts whose call failed.
        prompt_tokens, completion_tokens: of the calls made now, failed ones among them.
        errors: the first few different reasons why a prompt has no answer.
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
    """The cost and outcome of one prompt: every answer is paid for, and the last one counts.

    Args:
        error: why the prompt has no answer; None where it has one.
    """
    paid = [answer for answer in answers if not answer.from_journal]
    return Reading(
        num_calls=len(paid),
        num_from_journal=len(answers) - len(paid),
        num_failed=int(answers[-1].error is not None),
        prompt_tokens=sum(answer.prompt_tokens for answer in paid),
        completion_tokens=sum(answer.completion_tokens for answer in paid),
        errors=() if error is None else (error,),
    )


class Estimated(Exception):
    """Raised in place of asking a language model, where only the estimate is wanted.

    Attributes:
        name: of what would ask it.
        estimate: what that takes at most.
    """

    def __init__(self, name: str, estimate: Estimate) -> None:
        super().__init__(name, estimate)
        self.name, self.estimate = name, estimate


@runtime_checkable
class AnswerForm(Protocol):
    """The form of an answer: a grammar of it, and what reads it."""

    @property
    def grammar(self) -> Grammar:
        """What a model is held to that takes grammars."""
        ...

    def read(self, text: str) -> Any:
        """The value of an answer; raises InputError, with a reason that the model can be told, where there is none."""
        ...


@dataclass(frozen=True)
class Form:
    """The form of an answer in JSON.

    Attributes:
        wanted: what a model is held to that takes grammars.
        readable: what is read from one that does not: nothing that can be used has to be paid for twice.
    """

    wanted: Schema
    readable: Schema

    @property
    def grammar(self) -> Grammar:
        """That of `wanted`."""
        return schema_grammar(self.wanted)

    def read(self, text: str) -> Any:
        """The value of an answer, as `parse_json` by `readable`."""
        return parse_json(text, self.readable)


@dataclass(frozen=True)
class ChunkText:
    """A chunk, the text of its document, and what it says."""

    chunk: Chunk
    document: str
    text: str


@dataclass
class Desk:
    """Where a reader asks its model, and what became of that.

    Attributes:
        generator: of the answers.
        sampling: of all calls, but for their `max_tokens`.
        max_asks: calls a prompt, at most (`ask_structured`).
        again: the message that asks again.
        progress: told of every prompt that is settled.
        left_out: what is no note, by reason.
        reading: what the calls took so far.
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
        """The number of answers that are no note, by reason; reasons that did not occur are left out."""
        return {reason: number for reason, number in self.left_out.items() if number}

    def kept(self, found: Iterable[Note | str]) -> Iterator[Note]:
        """The notes among these; in place of one that is none stands the reason, which is counted."""
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
        """The value of every answer, in order; None where there is none, which is counted in `left_out`.

        Args:
            stage: what `progress` is told.
            prompts: conversations; made as they are needed, and asked `_AT_ONCE` at a time.
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
        """As `ask`, what became of every prompt, also where every call has failed."""
        waiting, done, stopped = iter(prompts), 0, None
        while part := list(islice(waiting, _AT_ONCE)):
            if stopped is None:
                found = self._ask(part, form, max_tokens, partial(self._hear, stage, done, num_prompts))
                stopped = not_asked(outcome.generations[-1] for outcome in found)
            else:  # a call has shown that all would fail alike
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
    """The texts of chunks; lone surrogates as U+FFFD, one character for one."""
    by_id = {document.id: document.text for document in documents}
    found = []
    for place, chunk in enumerate(chunks):
        text = by_id.get(chunk.document_id)
        if text is None:
            raise InputError(f"chunk {place}: of {chunk.document_id!r}, which is not among the documents; give it too")
        found.append(ChunkText(chunk, text, readable(chunk_text(text, chunk.spans))))
    return found


def chunk_prompt(template: PromptTemplate, text: str, **values: str) -> tuple[Message, ...]:
    """The conversation about a chunk, which stands as data between marks ($mark, $passage) in front of all else."""
    mark, passage = fence([text], _MARK, beside=list(values.values()))
    return template.fill(mark=mark, passage=passage, **values)
