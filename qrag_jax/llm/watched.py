"""A language model that tells of each answer as it comes, such as to a progress bar."""

from collections.abc import Callable, Sequence

from qrag_jax.llm.calls import AroundGenerator, Hearing, ask_some, keep
from qrag_jax.types import Finished, Generation, Message, Sampling, TextGenerator

# (answers that are there, prompts of the batch, the last of these answers: None when the batch begins)
Told = Callable[[int, int, Generation | None], None]


class WatchedGenerator(AroundGenerator):
    """A language model that tells how far each batch is. Satisfies `types.TextGenerator`; changes no answer."""

    def __init__(self, generator: TextGenerator, told: Told) -> None:
        """Wraps a model.

        Args:
            generator: of the answers; with its journal, so that answers from there are told as such.
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
        answers: dict[int, Generation] = {}

        def hear(place: int, generation: Generation) -> None:
            answers[place] = generation
            if finished is not None:
                finished(place, generation)
            self._told(len(answers), len(prompts), generation)

        def keep_only(place: int, generation: Generation) -> None:
            keep(finished, place, generation)

        if prompts:
            self._told(0, len(prompts), None)
        tell = Hearing(hear, keep_only)
        ask_some(self.generator, prompts, range(len(prompts)), sampling=sampling, tell=tell)
        return [answers[place] for place in range(len(prompts))]
