"""Wrappers of language models: one with a budget of tokens and dollars, one that reports progress."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import isfinite

from qrag_jax.llm.calls import AroundGenerator, Hearing, ask_all, ask_some, keep, not_asked, writing_of
from qrag_jax.types import Cost, Finished, Generation, Message, Sampling, TextGenerator, UsageError

_MILLION = 1e6
_MOST_AT_ONCE = 64  # calls started before their real cost is checked
# More tokens than chat templates add to a message, and before all messages (some begin with their own message).
_TOKENS_A_MESSAGE, _TOKENS_A_CALL = 16, 64


class BudgetedGenerator(AroundGenerator):
    """A language model that stops before it exceeds a budget, and counts its cost.

    A call starts only if its highest possible cost fits into the budget, together with the cost so far and the calls in
    progress. This bound is one token for each byte of its messages, some for the chat template, and all of
    `max_tokens`. So the budget holds as long as the model obeys `max_tokens` and reports its usage; a server reports
    nothing for an attempt that timed out. After the first call that does not fit, no call is made; their
    `Generation.error` begins with "budget". Put a journal around it, not inside it, because cached answers cost
    nothing.
    """

    def __init__(
        self,
        generator: TextGenerator,
        *,
        max_tokens: int | None = None,
        max_dollars: float | None = None,
        prompt_price: float | None = None,
        completion_price: float | None = None,
    ) -> None:
        """Wraps a model. Without a limit it only counts.

        Args:
            generator: gives the answers.
            max_tokens: of prompts and answers together; None is no limit.
            max_dollars: None is no limit.
            prompt_price, completion_price: dollars per million tokens; both or neither.

        Raises:
            UsageError: a limit or a price that is negative or not finite, a single price, or dollars without prices.
        """
        given = {
            "max_tokens": max_tokens,
            "max_dollars": max_dollars,
            "prompt_price": prompt_price,
            "completion_price": completion_price,
        }
        for name, value in given.items():
            if value is not None and not (isfinite(value) and value >= 0):
                raise UsageError(f"{name} {value}: must be a finite number, 0 or more")
        if (prompt_price is None) != (completion_price is None):
            raise UsageError("prompt_price and completion_price: give both or neither")
        if max_dollars is not None and prompt_price is None:
            raise UsageError("max_dollars: needs prompt_price and completion_price, in dollars per million tokens")
        self.generator, self._max_tokens, self._max_dollars = generator, max_tokens, max_dollars
        self._prices = None if prompt_price is None or completion_price is None else (prompt_price, completion_price)
        self._prompt_tokens = self._completion_tokens = 0
        self._stopped: str | None = None

    @property
    def cost(self) -> Cost:
        """The cost so far, including failed calls; dollars are None without prices."""
        tokens = (self._prompt_tokens, self._completion_tokens)
        return Cost(prompt_tokens=tokens[0], completion_tokens=tokens[1], dollars=self._dollars(*tokens))

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Answers every prompt, in order, until the budget is used up.

        Raises:
            InputError: the generator breaks its contract.
        """
        answers: dict[int, Generation] = {}

        def tell(place: int, generation: Generation) -> None:
            answers[place] = generation
            if finished is not None:
                finished(place, generation)

        counted: set[int] = set()

        def add(place: int, generation: Generation) -> None:
            if place not in counted and not generation.from_journal:
                self._prompt_tokens += generation.prompt_tokens
                self._completion_tokens += generation.completion_tokens
            counted.add(place)

        def hear(place: int, generation: Generation) -> None:
            add(place, generation)
            tell(place, generation)

        def keep_only(place: int, generation: Generation) -> None:
            add(place, generation)
            keep(finished, place, generation)

        bounds = [_max_prompt_tokens(prompt) for prompt in prompts]
        start = 0
        most = len(prompts) if self._max_tokens is self._max_dollars is None else _MOST_AT_ONCE
        stopped: Generation | None = None
        while stopped is None and (num_fitting := self._num_fitting(bounds[start : start + most], sampling.max_tokens)):
            places = range(start, start + num_fitting)
            ask_some(
                self.generator, prompts, places, sampling=sampling, tell=Hearing(hear, keep_only, writing_of(finished))
            )
            start += num_fitting
            stopped = not_asked(answers[place] for place in places)
        for place in range(start, len(prompts)):
            tell(place, stopped or Generation("", "error", error=self._stopped))
        return [answers[place] for place in range(len(prompts))]

    def _num_fitting(self, prompt_bounds: Sequence[int], max_tokens: int) -> int:
        """The number of these calls that can start together; stores the reason if it is not all."""
        prompt_tokens, completion_tokens = self._prompt_tokens, self._completion_tokens
        for number, bound in enumerate(prompt_bounds):
            prompt_tokens, completion_tokens = prompt_tokens + bound, completion_tokens + max_tokens
            if number == 0 and self._stopped is None:
                self._stopped = self._why_not(prompt_tokens, completion_tokens, bound + max_tokens)
            if self._stopped is not None or self._why_not(prompt_tokens, completion_tokens, 0) is not None:
                return number
        return len(prompt_bounds)

    def _why_not(self, prompt_tokens: int, completion_tokens: int, num_more: int) -> str | None:
        """The reason why these tokens exceed the budget; None if they fit."""
        spent, dollars = self.cost, self._dollars(prompt_tokens, completion_tokens)
        more = f"and the next call may take {num_more:,} tokens; raise the budget to continue"
        if self._max_tokens is not None and prompt_tokens + completion_tokens > self._max_tokens:
            num_spent = spent.prompt_tokens + spent.completion_tokens
            return f"budget of {self._max_tokens:,} tokens: {num_spent:,} are spent, {more}"
        if self._max_dollars is not None and dollars is not None and dollars > self._max_dollars:
            return f"budget of {self._max_dollars:g} dollars: {spent.dollars:g} are spent, {more}"
        return None

    def _dollars(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        if self._prices is None:
            return None
        return (prompt_tokens * self._prices[0] + completion_tokens * self._prices[1]) / _MILLION


def _max_prompt_tokens(prompt: Sequence[Message]) -> int:
    """An upper bound of a prompt's tokens: no tokenizer of bytes or larger pieces makes more tokens than bytes."""
    num_bytes = sum(len(message.content.encode("utf-8", "surrogatepass")) for message in prompt)
    return num_bytes + _TOKENS_A_MESSAGE * len(prompt) + _TOKENS_A_CALL


# (answers so far, prompts of the batch, the last answer: None when the batch begins)
Told = Callable[[int, int, Generation | None], None]


class WatchedGenerator(AroundGenerator):
    """A language model that reports the progress of each batch. Satisfies `types.TextGenerator`; changes no answer."""

    def __init__(self, generator: TextGenerator, told: Told) -> None:
        """Wraps a model.

        Args:
            generator: gives the answers; includes the journal, so cached answers are reported as such.
            told: called when a batch begins and after each answer, in the thread that called `generate`.
        """
        self.generator, self._told = generator, told

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Answers every prompt, in order.

        Raises:
            InputError: the generator breaks its contract.
        """
        numbers = count(1)

        def hear(place: int, generation: Generation) -> None:
            if finished is not None:
                finished(place, generation)
            self._told(next(numbers), len(prompts), generation)

        if prompts:
            self._told(0, len(prompts), None)
        tell = Hearing(hear, partial(keep, finished), writing_of(finished))
        return ask_all(self.generator, prompts, sampling=sampling, tell=tell)
