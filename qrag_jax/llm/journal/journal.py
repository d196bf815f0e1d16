"""Finished calls of a language model are not made again, whoever asks: this batch, the next one, another process."""

import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, fields, replace

from qrag_jax.llm.calls import AroundGenerator, Hearing, ask_some, not_asked
from qrag_jax.llm.journal.journal_file import Journal, Session
from qrag_jax.types import Finished, Generation, Message, Sampling, TextGenerator, UsageError

_PAUSES = (0.02, 1.0)  # seconds between two looks for answers of other processes: the first, the longest
_PATIENCE = 60.0  # seconds of waiting for other processes before it is said
# By name: `asdict` walks and copies what these hold, which was two thirds of the time of an answer of the journal.
_MESSAGE, _SAMPLING = (tuple(field.name for field in fields(kind)) for kind in (Message, Sampling))
_CANONICAL = json.JSONEncoder(sort_keys=True, allow_nan=False)
# (journal, key) of what the batches that this thread is in the middle of have in flight.
_in_flight: ContextVar[frozenset[tuple[str, str]]] = ContextVar("_in_flight", default=frozenset())


class JournaledGenerator(AroundGenerator):
    """A language model whose finished calls are kept in a journal and not made again.

    Failed calls are not kept: they are made again when they are asked for again. Equal calls of a batch are made once,
    also where the answer is drawn: another draw is another `Sampling.seed`. Where another process has a call in flight,
    this one does the rest of its batch and then waits for that answer, as long as that process lives.

    A batch that is broken off (Ctrl-C, an exception in `finished`) keeps every answer that was there, told or not.

    `finished` may ask the same journal for other prompts, or for one of its batch that is answered. For one that is
    still in flight it would wait for itself, and is refused; `finished` must not wait for another thread that does so.
    """

    def __init__(self, generator: TextGenerator, journal: Journal, *, claim_size: int = 64) -> None:
        """Wraps a model.

        Args:
            generator: of the answers that the journal does not have.
            journal: of the answers.
            claim_size: calls that are claimed and made at a time; processes with the same batch share it in such parts.

        Raises:
            UsageError: `claim_size` below 1.
        """
        if claim_size < 1:
            raise UsageError(f"claim_size {claim_size}: at least 1 call at a time")
        self.generator, self._journal, self._claim_size = generator, journal, claim_size

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Answers every prompt, in order; an answer is stored before it is reported.

        Raises:
            InputError: the journal is damaged or cannot be written, or the generator breaks its contract. What was
                stored stays.
            UsageError: `finished` asks for a prompt that the batch which called it has in flight.
        """
        keys = [call_key(self.model, prompt, sampling) for prompt in prompts]
        places: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        answers: dict[int, Generation] = {}

        def tell(key: str, generation: Generation) -> None:
            for place in places[key]:
                answers[place] = generation
                if finished is not None:
                    finished(place, generation)
                generation = replace(generation, from_journal=True)  # equal prompts were paid for once

        with self._journal.session() as session:

            def store(place: int, generation: Generation) -> None:
                if generation.error is None:
                    session.keep(keys[place], generation)
                else:
                    session.release(keys[place])

            def hear(place: int, generation: Generation) -> None:
                store(place, generation)
                tell(keys[place], generation)

            for known, claimed in _rounds(session, list(places), self._claim_size, self._held_above(keys)):
                for key, generation in known.items():
                    tell(key, generation)
                first = [places[key][0] for key in claimed]
                if stopped := not_asked(answers.values()):  # nor would these be
                    for place in first:
                        hear(place, stopped)
                else:
                    with self._holding(claimed):
                        ask_some(self.generator, prompts, first, sampling=sampling, tell=Hearing(hear, store))
        return [answers[place] for place in range(len(prompts))]

    def _held_above(self, keys: Sequence[str]) -> frozenset[str]:
        """Those of the keys that a batch has claimed in whose `finished` we are."""
        held, path = _in_flight.get(), str(self._journal.path)
        return frozenset(key for key in keys if (path, key) in held)

    @contextmanager
    def _holding(self, claimed: Sequence[str]) -> Iterator[None]:
        path = str(self._journal.path)
        token = _in_flight.set(_in_flight.get() | {(path, key) for key in claimed})
        try:
            yield
        finally:
            _in_flight.reset(token)


def call_key(model: str, prompt: Sequence[Message], sampling: Sampling) -> str:
    """sha256, hexadecimal, of all that an answer depends on, as canonical JSON: model, messages, sampling.

    A grammar is part of the key where there is one: keys from before there were grammars stay as they are.
    """
    values = {name: getattr(sampling, name) for name in _SAMPLING}
    if (grammar := values.pop("grammar")) is not None:
        values["grammar"] = {type(grammar).__name__: asdict(grammar)}
    values |= {"temperature": float(sampling.temperature), "top_p": float(sampling.top_p)}
    messages = [{name: getattr(message, name) for name in _MESSAGE} for message in prompt]
    call = {"model": model, "messages": messages, "sampling": values}
    return hashlib.sha256(_CANONICAL.encode(call).encode()).hexdigest()


def _rounds(
    session: Session, waiting: list[str], most: int, held_above: frozenset[str]
) -> Iterator[tuple[dict[str, Generation], list[str]]]:
    """What `Session.claim` gives, until every key was in it; waits where all that is left is in flight elsewhere."""
    pause, longest = _PAUSES
    waited = 0.0
    while waiting:
        known, claimed = session.claim(waiting, most)
        if known or claimed:
            waited = 0.0
            yield known, claimed
            done = known.keys() | set(claimed)
            waiting = [key for key in waiting if key not in done]
            pause = _PAUSES[0]
        elif not held_above.isdisjoint(waiting):
            raise UsageError(
                "finished: asks for a prompt that its own batch has in flight, whose answer it would wait for without "
                "end: ask after that batch"
            )
        else:
            time.sleep(pause)
            if waited < _PATIENCE <= waited + pause:
                _warn_of_waiting(session, len(waiting))
            waited, pause = waited + pause, min(2 * pause, longest)


def _warn_of_waiting(session: Session, num_waiting: int) -> None:
    warnings.warn(
        f"{session.path}: {num_waiting} answers are in flight in other processes, and this one waits for them. One "
        f"that was stopped (Ctrl-Z) keeps its claims: let it go on, or end it ({session.path}.owner-* name one each)",
        UserWarning,
        stacklevel=4,
    )
