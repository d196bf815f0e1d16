"""Structured answers of a language model: parsed strictly, repaired once, asked again with the reason, or failed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from qrag_jax.llm.calls import ask_some, takes_grammar
from qrag_jax.llm.json_answers import mend_json
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.types import Generation, Grammar, InputError, Message, Sampling, TextGenerator, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Structured(Generic[T]):
    """The outcome of one question that needs an answer in a given form.

    Attributes:
        value: parsed from the answer; None if there is an error.
        error: why there is no value; None if there is one. A failed call is never an empty value.
        num_asks: number of times the model was asked.
        was_repaired: the value was parsed from a repaired answer (`json_answers.mend_json`).
        generations: all answers of the model, in order.
    """

    value: T | None
    error: str | None
    num_asks: int
    was_repaired: bool
    generations: tuple[Generation, ...]


def ask_structured(
    generator: TextGenerator,
    prompts: Sequence[Sequence[Message]],
    parse: Callable[[str], T],
    *,
    sampling: Sampling,
    max_asks: int = 2,
    finished: Callable[[int, Structured[T]], None] | None = None,
    again: PromptTemplate | None = None,
    grammar: Grammar | None = None,
) -> list[Structured[T]]:
    """Asks every question until its answer can be parsed, at most `max_asks` times.

    An answer is parsed, then repaired and parsed again. An answer that was cut at `max_tokens` is not repaired, because
    the missing part is unknown. If both fail, the model is asked again with its answer and the reason, also after an
    empty answer. A failed call is not asked again; the generator does the retries.

    Args:
        generator: gives the answers.
        prompts: conversations.
        parse: parses an answer, such as `functools.partial(json_answers.parse_json, schema=...)`; raises `InputError`
            with a reason for the model.
        sampling: of all calls.
        max_asks: most calls for a prompt.
        finished: called with the place of a prompt and its outcome, as soon as it is known.
        again: the message that asks again, with the single place `$reason`; the default is built in.
        grammar: of answers that `parse` accepts, such as `json_answers.schema_grammar(schema)`. It is used if the
            generator supports it, and `sampling` has neither stop texts nor a grammar. Answers are parsed in any case.

    Returns:
        One outcome for each prompt, in order.

    Raises:
        UsageError: `max_asks` below 1.
        InputError: the generator breaks its contract, or `again` has other places.
    """
    if max_asks < 1:
        raise UsageError(f"max_asks {max_asks}: must be at least 1")
    again = load_prompt("again") if again is None else again
    again.fill(reason="")  # a wrong template is found before the model is paid
    if grammar is not None and sampling.grammar is None and not sampling.stop and takes_grammar(generator, grammar):
        sampling = replace(sampling, grammar=grammar)
    batch = _Batch([tuple(prompt) for prompt in prompts], parse, sampling, max_asks, finished, again)
    while waiting := [place for place in range(len(prompts)) if place not in batch.outcomes]:
        ask_some(generator, batch.conversations, waiting, sampling=sampling, tell=batch.hear)
    return [batch.outcomes[place] for place in range(len(prompts))]


@dataclass
class _Batch(Generic[T]):
    """Conversations that grow by an answer and a reason until each has an outcome."""

    conversations: list[tuple[Message, ...]]
    parse: Callable[[str], T]
    sampling: Sampling
    max_asks: int
    finished: Callable[[int, Structured[T]], None] | None
    again: PromptTemplate
    outcomes: dict[int, Structured[T]] = field(default_factory=dict)
    answers: dict[int, tuple[Generation, ...]] = field(default_factory=dict)

    def hear(self, place: int, generation: Generation) -> None:
        """Records the outcome of a prompt, or prepares it to be asked again."""
        answers = (*self.answers.get(place, ()), generation)
        self.answers[place] = answers
        if generation.is_failed:
            self._settle(place, Structured(None, generation.error, len(answers), False, answers))
            return
        value, reason, was_repaired = self._read(generation)
        if reason is None:
            self._settle(place, Structured(value, None, len(answers), was_repaired, answers))
        elif len(answers) == self.max_asks:
            error = f"no answer of {len(answers)} could be used; the last one: {reason}"
            self._settle(place, Structured(None, error, len(answers), False, answers))
        else:
            said = Message("assistant", generation.text.strip() or "(nothing)")  # servers refuse empty messages
            self.conversations[place] = (*self.conversations[place], said, *self.again.fill(reason=reason))

    def _settle(self, place: int, outcome: Structured[T]) -> None:
        self.outcomes[place] = outcome
        if self.finished is not None:
            self.finished(place, outcome)

    def _read(self, generation: Generation) -> tuple[T | None, str | None, bool]:
        """(value, reason why there is none, whether the answer was repaired)."""
        try:
            return self.parse(generation.text), None, False
        except InputError as error:
            reason = str(error)
        if generation.finish_reason == "length":
            return None, f"it was cut after {self.sampling.max_tokens} tokens, be shorter ({reason})", False
        mended = mend_json(generation.text)
        if mended == generation.text:
            return None, reason, False
        try:
            return self.parse(mended), None, True
        except InputError as error:
            return None, str(error), False
