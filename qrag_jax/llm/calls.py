"""What every generator that wraps another one does: ask it for some prompts, and hear of each answer once.

Defaults that both the code of language models and the help of the command line quote. Imports nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from qrag_jax.types import Finished, Generation, Grammar, InputError, Message, Sampling, TextGenerator

CONCURRENCY = 4  # calls to a server at a time
DEADLINE = 120.0  # seconds of a call with its retries
OPENAI_KEY_NAME = "OPENAI_API_KEY"  # environment variable with the key, for OpenAI's own hosts
OWN_KEY_NAME = "QRAG_API_KEY"  # for all others: nobody's OpenAI key goes to another host unasked
ANSWER_TOKENS = 256  # most tokens of an answer with citations
SHORT_ANSWER_TOKENS = 32  # of an answer that is scored
# How a server of the OpenAI protocol is told of a grammar.
GRAMMAR_FIELDS = ("response_format", "structured_outputs", "guided")

_UNASKED = "not asked, since another call failed: "


@dataclass(frozen=True)
class Hearing:
    """A `Finished` that can also keep an answer without telling anybody of it.

    A generator that is broken off (Ctrl-C, an exception in `finished`) hands answers that were there already, and were
    not heard, to `keep`: they are paid for. What a wrapper stores and counts is done in both.

    Attributes:
        hear: keeps an answer and tells of it.
        keep: keeps it only; may be called again for an answer that was heard in part, and must not count it twice.
    """

    hear: Finished
    keep: Finished

    def __call__(self, place: int, generation: Generation) -> None:
        """Hears of an answer."""
        self.hear(place, generation)


def takes_grammar(generator: TextGenerator, grammar: Grammar) -> bool:
    """True if a generator holds its answers to this grammar; see `types.TextGenerator`."""
    asked = getattr(generator, "takes_grammar", None)
    return asked is not None and bool(asked(grammar))


class AroundGenerator:
    """What a language model around another says of itself: that which the inner one says."""

    generator: TextGenerator

    @property
    def model(self) -> str:
        """Which model answers."""
        return self.generator.model

    def takes_grammar(self, grammar: Grammar) -> bool:
        """True if the model holds its answers to this grammar."""
        return takes_grammar(self.generator, grammar)


def keep(finished: Finished | None, place: int, generation: Generation) -> None:
    """Hands an answer of a batch that is broken off to whoever keeps answers; a plain function is not called."""
    if isinstance(finished, Hearing):
        finished.keep(place, generation)


def ask_some(
    generator: TextGenerator,
    prompts: Sequence[Sequence[Message]],
    places: Sequence[int],
    *,
    sampling: Sampling,
    tell: Callable[[int, Generation], None],
) -> None:
    """Asks a model for the prompts at `places`.

    Args:
        generator: of the answers; one that never calls `finished` is heard when it returns.
        places: in it, of those to ask for; the model is not called for none.
        tell: called once a place, with the place in the batch and the answer, as soon as that is there; a `Hearing`
            also keeps what it is not told of.
    """
    told: set[int] = set()

    def check(number: int, generation: Generation) -> None:
        if not 0 <= number < len(places):
            raise InputError(f"generator: an answer {number} to {len(places)} prompts: mend the generator")
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
    hearing = Hearing(hear, keep_only)
    generations = generator.generate([prompts[place] for place in places], sampling=sampling, finished=hearing)
    if len(generations) != len(places):
        plural = "" if len(places) == 1 else "s"
        raise InputError(f"generator: {len(generations)} answers to {len(places)} prompt{plural}: mend the generator")
    for number, generation in enumerate(generations):
        hear(number, generation)


def ask_all(
    generator: TextGenerator,
    prompts: Sequence[Sequence[Message]],
    *,
    sampling: Sampling,
    tell: Callable[[int, Generation], None] | None = None,
) -> list[Generation]:
    """Asks a model for all prompts, and gives the answers in order; as `ask_some`.

    Raises:
        InputError: the model breaks its contract.
    """
    answers: dict[int, Generation] = {}

    def hear(place: int, generation: Generation) -> None:
        answers[place] = generation
        if tell is not None:
            tell(place, generation)

    ask_some(generator, prompts, range(len(prompts)), sampling=sampling, tell=Hearing(hear, partial(keep, tell)))
    return [answers[place] for place in range(len(prompts))]


def not_asked(answers: Iterable[Generation]) -> Generation | None:
    """The answer of all calls that need not be made any more; None where these answers speak against none.

    A wrapper that asks in rounds looks here between them: one call may have shown that all would fail alike, as the
    last of its round even.
    """
    fatal = next((answer for answer in answers if answer.is_fatal), None)
    return None if fatal is None else unasked(fatal)


def unasked(failed: Generation) -> Generation:
    """The answer of a call that is not made: `failed`, a fatal one or one that was not made either, says why."""
    return Generation("", "error", error=_UNASKED + str(failed.error).removeprefix(_UNASKED), is_fatal=True)


def _check_generation(generation: Generation) -> None:
    """Refuses an answer that is half a failure: `finish_reason` "error" without `error`, or the other way round."""
    if (generation.error is None) == (generation.finish_reason == "error"):
        raise InputError(
            f"generator: finish_reason {generation.finish_reason!r} with error {generation.error!r}: a failed call has "
            "both, an answer neither: mend the generator"
        )
