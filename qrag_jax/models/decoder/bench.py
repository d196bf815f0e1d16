"""How quickly a decoder reads prompts and writes answers on this machine.

A round reads one prompt of random tokens a row and writes answers of a set length, through the same steps as any
answer; no token ends one. Rounds of all batch sizes take turns, after one of each that does not count: it compiles.
"""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from qrag_jax.models.decoder.generation import Decoding
from qrag_jax.models.decoder.memory import cache_bytes
from qrag_jax.models.decoder.scheduling import cache_size
from qrag_jax.models.decoder.steps import compiled_steps
from qrag_jax.types import Sampling, UsageError, check_fields

ROWS = (1, 8)


@dataclass(frozen=True)
class Work:
    """The work of a round: `rows` prompts of `prompt_tokens` together, and `answer_tokens` for each."""

    rows: int
    prompt_tokens: int
    answer_tokens: int

    def __post_init__(self) -> None:
        check_fields(self, at_least={"answer_tokens": 2})  # the first comes with the prompt

    @property
    def size(self) -> int:
        """Slots of the cache of a row."""
        return cache_size(self.prompt_tokens, self.answer_tokens)


@dataclass(frozen=True)
class Round:
    """Seconds of one round: reading prompts, with the first token of each answer, and writing the others."""

    read: float
    write: float

    @property
    def seconds(self) -> float:
        """Seconds of both."""
        return self.read + self.write


@dataclass(frozen=True)
class Speed:
    """Rounds of one kind.

    Attributes:
        work: of each.
        first: the round that compiles, or loads compiled programs.
        rounds: those that count.
    """

    work: Work
    first: Round
    rounds: tuple[Round, ...]

    @property
    def read(self) -> tuple[float, ...]:
        """Tokens of prompts a second, of all rows together, one a round."""
        return tuple(self.work.rows * self.work.prompt_tokens / one.read for one in self.rounds)

    @property
    def write(self) -> tuple[float, ...]:
        """Tokens of answers a second, of all rows together, one a round."""
        return tuple(self.work.rows * (self.work.answer_tokens - 1) / one.write for one in self.rounds)

    @property
    def seconds(self) -> float:
        """The median round."""
        return statistics.median(one.seconds for one in self.rounds)

    @property
    def compile_seconds(self) -> float:
        """The additional seconds of the first round."""
        return max(0.0, self.first.seconds - self.seconds)

    def seconds_of(self, num_prompts: int) -> float:
        """The seconds of N prompts at this speed, with the same batch size."""
        return self.seconds * num_prompts / self.work.rows


def measure_speeds(
    decoding: Decoding,
    works: Sequence[Work],
    *,
    num_rounds: int = 3,
    progress: Callable[[int, int], None] | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> list[Speed]:
    """Measures rounds of every kind in turns.

    Args:
        decoding: the decoder; its batch size is at least the rows of every kind.
        num_rounds: that count, of each kind.
        progress: called with (rounds done, of), including the warm-up.
        now: clock in seconds.
    """
    if num_rounds < 1:
        raise UsageError(f"num_rounds {num_rounds}: at least 1")
    for work in works:
        _check(decoding, work)
    rounds: list[list[Round]] = [[] for _ in works]
    endless, tell = _endless(decoding), progress or (lambda done, of: None)
    of = len(works) * (num_rounds + 1)
    tell(0, of)
    for number in range(num_rounds + 1):
        for place, work in enumerate(works):
            rng = np.random.default_rng([number, place])  # no prompt twice: nothing is known of it before
            prompts = rng.integers(0, decoding._config.vocab_size, (work.rows, work.prompt_tokens)).tolist()
            rounds[place].append(_round(endless, prompts, work, now))
            tell(number * len(works) + place + 1, of)
    return [Speed(work, own[0], tuple(own[1:])) for work, own in zip(works, rounds, strict=True)]


def _check(decoding: Decoding, work: Work) -> None:
    tokens = work.prompt_tokens + work.answer_tokens
    if tokens > decoding.window:
        raise UsageError(
            f"prompt_tokens {work.prompt_tokens} and answer_tokens {work.answer_tokens}: together {tokens:,}, and the "
            f"model's window is {decoding.window:,}"
        )
    cache = cache_bytes(decoding._config, work.rows, work.size, decoding._dtype)
    if work.rows > decoding.batch_size or (work.rows > 1 and cache > decoding._cache_bytes):
        raise UsageError(
            f"rows {work.rows}: prompts of {work.prompt_tokens} tokens run in smaller batches: at most "
            f"{decoding.batch_size} rows, and {decoding._cache_bytes / 1e9:.1f} GB of cache, of which these take "
            f"{cache / 1e9:.1f}"
        )


def _endless(decoding: Decoding) -> Decoding:
    """The same decoder, whose answers no token ends."""
    endless = copy.copy(decoding)
    endless._ends = frozenset()
    endless._steps = compiled_steps(decoding._config, decoding._dtype, (), decoding._mesh)
    return endless


def _round(decoding: Decoding, prompts: list[list[int]], work: Work, now: Callable[[], float]) -> Round:
    began = now()
    with _writing(decoding, now) as seconds:
        decoding.generate_ids(prompts, Sampling(max_tokens=work.answer_tokens))
    write = sum(seconds)
    return Round(now() - began - write, write)


@contextmanager
def _writing(decoding: Decoding, now: Callable[[], float]) -> Iterator[list[float]]:
    """Notes the seconds of every step of writing; `decoding` is ours alone."""
    steps, seconds = decoding._steps, []

    def decode(*args: Any) -> Any:
        began = now()
        done = jax.block_until_ready(steps.decode(*args))
        seconds.append(now() - began)
        return done

    decoding._steps = steps._replace(decode=decode)
    try:
        yield seconds
    finally:
        decoding._steps = steps
