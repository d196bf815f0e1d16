"""Caches finished calls of a language model for later batches and other processes."""

import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, fields, replace

from qrag_jax.llm.calls import AroundGenerator, Hearing, ask_some, not_asked, writing_of
from qrag_jax.llm.journal.journal_file import Journal, Session
from qrag_jax.types import Finished, Generation, Message, Sampling, TextGenerator, UsageError

_PAUSES = (0.02, 1.0)  # first and longest pause in seconds between two checks for answers of other processes
_PATIENCE = 60.0  # seconds of waiting for other processes before a warning
# By name: `asdict` walks and copies the values, which took two thirds of the time of a cached answer.
_MESSAGE, _SAMPLING = (tuple(field.name for field in fields(kind)) for kind in (Message, Sampling))
_CANONICAL = json.JSONEncoder(sort_keys=True, allow_nan=False)
# (journal, key) of the calls in progress in the current batches of this thread.
_in_flight: ContextVar[frozenset[tuple[str, str]]] = ContextVar("_in_flight", default=frozenset())


class JournaledGenerator(AroundGenerator):
    """A language model with a journal: finished calls are stored there and not repeated.

    Failed calls are not stored. Equal calls of a batch are made once, also when sampling; use another `Sampling.seed`
    for another sample. If another process is making a call, this one finishes the rest of its batch, then waits for
    that answer as long as the other process lives.

    An interrupted batch (Ctrl-C, an exception in `finished`) stores all answers that have arrived, reported or not.

    `finished` may ask the same journal other prompts, or a prompt of its batch that is answered. A prompt that is still
    in progress is refused, because it would wait for itself. `finished` must not wait for another thread that does so.
    """

    def __init__(self, generator: TextGenerator, journal: Journal, *, claim_size: int = 64) -> None:
        """Wraps a model.

        Args:
            generator: makes the calls that are not in the journal.
            journal: stores the answers.
            claim_size: calls to claim and make together. Processes with the same batch share it in parts of this size.

        Raises:
            UsageError: `claim_size` below 1.
        """
        if claim_size < 1:
            raise UsageError(f"claim_size {claim_size}: must be at least 1")
        self.generator, self._journal, self._claim_size = generator, journal, claim_size

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Answers every prompt, in order. Each answer is stored before it is reported.

        Raises:
            InputError: the journal is damaged or cannot be written, or the generator breaks its contract. Stored
                answers remain.
            UsageError: `finished` asks a prompt that is in progress in its own batch.
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
                        ask_some(
                            self.generator,
                            prompts,
                            first,
                            sampling=sampling,
                            tell=Hearing(hear, store, writing_of(finished)),
                        )
        return [answers[place] for place in range(len(prompts))]

    def _held_above(self, keys: Sequence[str]) -> frozenset[str]:
        """The keys that an outer batch has claimed, if this call is inside its `finished`."""
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
    """SHA-256, hexadecimal, of everything that an answer depends on, as canonical JSON: model, messages, sampling.

    A grammar is part of the key only if there is one, so keys from before grammars existed stay valid.
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
    """Yields results of `Session.claim` until every key is done; waits if other processes are making the rest."""
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
                "the callback `finished` asked a prompt that its own batch is still running, and would wait forever; "
                "ask it after that batch"
            )
        else:
            time.sleep(pause)
            if waited < _PATIENCE <= waited + pause:
                _warn_of_waiting(session, len(waiting))
            waited, pause = waited + pause, min(2 * pause, longest)


def _warn_of_waiting(session: Session, num_waiting: int) -> None:
    warnings.warn(
        f"{session.path}: waiting for {num_waiting} answers from other processes. If such a process was suspended "
        f"(Ctrl-Z), continue or end it (each has a file {session.path}.owner-*)",
        UserWarning,
        stacklevel=4,
    )
