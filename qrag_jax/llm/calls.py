"""Helpers for generators that wrap another one: ask it for some prompts, and receive each answer once.

Also contains defaults that the command line's help quotes. Imports nothing heavy.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from qrag_jax.types import Finished, Generation, Grammar, InputError, Message, Sampling, TextGenerator

CONCURRENCY = 4  # calls to a server at the same time
DEADLINE = 120.0  # seconds of a call with its retries
OPENAI_KEY_NAME = "OPENAI_API_KEY"  # environment variable with the key, for OpenAI's own hosts
OWN_KEY_NAME = "QRAG_API_KEY"  # for all other hosts, so no OpenAI key is sent to them by accident
ANSWER_TOKENS = 256  # most tokens of an answer with citations
SHORT_ANSWER_TOKENS = 32  # of an answer that is scored
# The request field that sends a grammar to a server with the OpenAI API.
GRAMMAR_FIELDS = ("response_format", "structured_outputs", "guided")

Writing = Callable[[int, str], None]  # (position of a prompt, the text of its answer so far)
_UNASKED = "not asked, since another call failed: "


@dataclass(frozen=True)
class Hearing:
    """A `Finished` callback that can also store an answer without reporting it.

    If a generator is interrupted (Ctrl-C, an exception in `finished`), it passes answers that have arrived but were not
    reported to `keep`, because they are paid for. A wrapper stores and counts an answer in both callbacks.

    Attributes:
        hear: stores an answer and reports it.
        keep: stores it only. May be called again for an answer that was reported in part; must not count it twice.
        write: called with the text of an answer so far, without thinking, while it is written; in any thread. Not
            every generator can tell. The answer at the end may differ from this text.
    """

    hear: Finished
    keep: Finished
    write: Writing | None = None

    def __call__(self, place: int, generation: Generation) -> None:
        """Stores and reports an answer."""
        self.hear(place, generation)


def takes_grammar(generator: TextGenerator, grammar: Grammar) -> bool:
    """True if a generator restricts its answers to this grammar; see `types.TextGenerator`."""
    asked = getattr(generator, "takes_grammar", None)
    return asked is not None and bool(asked(grammar))


class AroundGenerator:
    """Base class of generators that wrap another one; passes on its model name and grammar support."""

    generator: TextGenerator

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.generator.model

    def takes_grammar(self, grammar: Grammar) -> bool:
        """True if the model restricts its answers to this grammar."""
        return takes_grammar(self.generator, grammar)


def keep(finished: Finished | None, place: int, generation: Generation) -> None:
    """Passes an answer of an interrupted batch to the `keep` of a `Hearing`; a plain function is not called."""
    if isinstance(finished, Hearing):
        finished.keep(place, generation)


def writing_of(finished: Finished | None) -> Writing | None:
    """The `write` of a `Hearing`; None for anything else."""
    return finished.write if isinstance(finished, Hearing) else None


def ask_some(
    generator: TextGenerator,
    prompts: Sequence[Sequence[Message]],
    places: Sequence[int],
    *,
    sampling: Sampling,
    tell: Callable[[int, Generation], None],
) -> None:
    """Asks a model the prompts at `places`.

    Args:
        generator: gives the answers. If it never calls `finished`, its answers are reported when it returns.
        prompts: of the whole batch.
        places: indices of the prompts to ask; if there are none, the model is not called.
        tell: called once for each place, with the place and the answer, as soon as the answer arrives. A `Hearing` also
            stores answers that are not reported.

    Raises:
        InputError: the generator breaks its contract.
    """
    told: set[int] = set()

    def check(number: int, generation: Generation) -> None:
        if not 0 <= number < len(places):
            raise InputError(
                f"generator: reported answer {number}, but was given only {len(places)} prompts; fix the generator"
            )
        _check_generation(generation)

    def hear(number: int, generation: Generation) -> None:
        if number in told:
            return
        check(number, generation)
        told.add(number)
        tell(places[number], generation)

    def keep_only(number: int, generation: Generation) -> None:
        check(number, generation)
        keep(tell, places[number], generation)

    if not places:
        return
    write = writing_of(tell)
    hearing = Hearing(hear, keep_only, write and (lambda number, text: write(places[number], text)))
    generations = generator.generate([prompts[place] for place in places], sampling=sampling, finished=hearing)
    if len(generations) != len(places):
        plural = "" if len(places) == 1 else "s"
        raise InputError(f"generator: {len(generations)} answers to {len(places)} prompt{plural}; fix the generator")
    for number, generation in enumerate(generations):
        hear(number, generation)


def ask_all(
    generator: TextGenerator,
    prompts: Sequence[Sequence[Message]],
    *,
    sampling: Sampling,
    tell: Callable[[int, Generation], None] | None = None,
    write: Writing | None = None,
) -> list[Generation]:
    """Asks a model all prompts and returns the answers in order; otherwise as `ask_some`.

    Args:
        write: as in `Hearing`; None is that of `tell`.

    Raises:
        InputError: the generator breaks its contract.
    """
    answers: dict[int, Generation] = {}

    def hear(place: int, generation: Generation) -> None:
        answers[place] = generation
        if tell is not None:
            tell(place, generation)

    ask_some(
        generator,
        prompts,
        range(len(prompts)),
        sampling=sampling,
        tell=Hearing(hear, partial(keep, tell), write or writing_of(tell)),
    )
    return [answers[place] for place in range(len(prompts))]


def not_asked(answers: Iterable[Generation]) -> Generation | None:
    """The answer for all remaining calls if one of these answers was a fatal error, else None.

    A wrapper that asks in rounds checks this between them: one call may have shown that all others would fail too.
    """
    fatal = next((answer for answer in answers if answer.is_fatal), None)
    return None if fatal is None else unasked(fatal)


def unasked(failed: Generation) -> Generation:
    """The answer of a call that is not made, with the reason from `failed`: a fatal error, or another call not made."""
    return Generation("", "error", error=_UNASKED + str(failed.error).removeprefix(_UNASKED), is_fatal=True)


def _check_generation(generation: Generation) -> None:
    """Refuses an answer with `finish_reason` "error" but no `error`, or the reverse."""
    if (generation.error is None) == (generation.finish_reason == "error"):
        raise InputError(
            f"generator: finish_reason {generation.finish_reason!r} with error {generation.error!r}; a failed call has "
            "an error and finish_reason 'error', an answer has neither; fix the generator"
        )
