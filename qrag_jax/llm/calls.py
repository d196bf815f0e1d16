"""What every generator that wraps another one does: ask it for some prompts, and hear of each answer once."""

from collections.abc import Callable, Sequence

from qrag_jax.types import Generation, InputError, Message, Sampling, TextGenerator

# How the error of a call begins that was never made, because another one has shown that all would fail alike.
NOT_ASKED = "not asked"


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
        prompts: of a whole batch.
        places: in it, of those to ask for; the model is not called for none.
        sampling: of all of them.
        tell: called once a place, with the place in the batch and the answer, as soon as that is there.

    Raises:
        InputError: the model breaks its contract.
    """
    told: set[int] = set()

    def hear(number: int, generation: Generation) -> None:
        if number in told:
            return
        if not 0 <= number < len(places):
            raise InputError(f"generator: an answer {number} to {len(places)} prompts: mend the generator")
        check_generation(generation)
        told.add(number)
        tell(places[number], generation)

    if not places:
        return
    generations = generator.generate([prompts[place] for place in places], sampling=sampling, finished=hear)
    if len(generations) != len(places):
        raise InputError(f"generator: {len(generations)} answers to {len(places)} prompts: mend the generator")
    for number, generation in enumerate(generations):
        hear(number, generation)


def check_generation(generation: Generation) -> None:
    """Refuses an answer that is half a failure: `finish_reason` "error" without `error`, or the other way round.

    Raises:
        InputError: it is one.
    """
    if (generation.error is None) == (generation.finish_reason == "error"):
        raise InputError(
            f"generator: finish_reason {generation.finish_reason!r} with error {generation.error!r}: a failed call has "
            "both, an answer neither: mend the generator"
        )
