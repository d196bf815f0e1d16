"""One cell of the table of faults: a server that misbehaves at one prompt of a batch, and what became of the batch."""

import json
import logging
import os
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from unittest import mock

from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.server.http import BoundedClient
from qrag_jax.llm.server.openai import OpenAIGenerator
from qrag_jax.types import Generation, Sampling
from support import bad_server
from support.bad_server import MODEL, free_port, numbered_prompts, serve_badly

KEY_NAME = "TEST_SERVER_KEY"
CANARY = "sk-canary-93b1f0a7c6"
NUM_PROMPTS = 6
POSITIONS = (0, 2, NUM_PROMPTS - 1)
CONCURRENCIES = (1, 4)
LONG = 60.0  # a deadline that nothing reaches


@dataclass(frozen=True)
class Cell:
    """What was seen.

    Attributes:
        generations: of the batch.
        attempts: most of one call, counted where they leave the client, or by the server where it saw more.
        allowed: attempts of a call.
        seconds: longest time of a call, from its first attempt to its end.
        deadline: of a call, seconds.
        waited: seconds between the first two attempts of the prompt with the fault; None where there was one.
        finished: places to which the server sent a whole answer.
        kept: places that a second run took from the journal.
        asked_again: places that the second run asked a server for, which is a good one.
        resumed: all answers of the second run.
        heard: what `finished` was told of, and whether in the calling thread.
        num_wrong: failed calls that look like an answer, or the other way round.
        sinks: all that was logged, journalled, said or shown; `CANARY` must not be in it.
    """

    generations: list[Generation]
    attempts: int
    allowed: int
    seconds: float
    deadline: float
    waited: float | None
    finished: set[int]
    kept: set[int]
    asked_again: set[int]
    resumed: list[Generation]
    heard: list[tuple[int, bool]]
    num_wrong: int
    sinks: bytes

    @property
    def errors(self):
        """By place."""
        return {place: answer.error for place, answer in enumerate(self.generations) if answer.error is not None}


def run_cell(fault, position, concurrency, folder, *, max_retries=1, slow_deadline=1.0):
    """Runs the batch against the bad server, through a journal, then again against a good one at the same address."""
    deadline = slow_deadline if fault.is_slow else LONG
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    generator = OpenAIGenerator(
        MODEL, url, key_name=KEY_NAME, concurrency=concurrency, deadline=deadline, max_retries=max_retries
    )
    journaled = JournaledGenerator(generator, Journal(folder / "journal.sqlite"))
    ask = partial(journaled.generate, numbered_prompts(NUM_PROMPTS), sampling=Sampling())
    heard, ends = [], {}
    caller = threading.get_ident()

    def finished(place, _):
        ends[place] = time.monotonic()
        heard.append((place, threading.get_ident() == caller))

    with mock.patch.dict(os.environ, {KEY_NAME: CANARY}), _logged() as lines:
        with _sent() as sent:
            if fault.misbehave is bad_server.go_down and position == 0:
                answered, served, generations = set(), {}, list(ask(finished=finished))
            else:
                with serve_badly(fault.misbehave, position, fault.times, port) as server:
                    generations = list(ask(finished=finished))
                    served = server.attempts()
                    answered = set(server.answered) | ({position} if fault.ends in ("answer", "length") else set())
        with serve_badly(port=port) as server:
            resumed = list(ask())
    starts = sent.get(position, [])
    shown = [repr(generator), repr(vars(generator)), repr(generations), journaled.model, *lines]
    shown += [json.dumps([asdict(generation) for generation in generations])]
    files = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    return Cell(
        generations=generations,
        attempts=max([*map(len, sent.values()), *served.values()]),
        allowed=max_retries + 1,
        seconds=max(ends[place] - times[0] for place, times in sent.items()),
        deadline=deadline,
        waited=starts[1] - starts[0] if len(starts) > 1 else None,
        finished=answered,
        kept={place for place, answer in enumerate(resumed) if answer.from_journal},
        asked_again={request.place for request in server.requests},
        resumed=resumed,
        heard=heard,
        num_wrong=sum(_is_wrong(place, answer) for place, answer in enumerate(generations)),
        sinks=b"\n".join([*files, *(text.encode() for text in shown)]),
    )


def _is_wrong(place, answer):
    """A failed call must not look like an answer, an answer must be the one to this prompt."""
    if answer.error is not None:
        return bool(answer.text) or answer.finish_reason != "error" or not answer.error
    return answer.text != f"Answer {place}." or answer.finish_reason not in ("stop", "length")


@contextmanager
def _logged():
    """All that anybody logs, at every level."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(f"{record.name} {record.getMessage()} {record.exc_text or ''} {record.args!r}")

    root, handler = logging.getLogger(), Keep()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@contextmanager
def _sent():
    """Times of the attempts of each prompt, where they leave the client: a server that is down sees none."""
    times: dict[int, list[float]] = {}
    send = BoundedClient.send

    async def noting(self, request, **options):
        place = int(re.search(rb"Question (\d+)", request.content)[1])
        times.setdefault(place, []).append(time.monotonic())
        return await send(self, request, **options)

    with mock.patch.object(BoundedClient, "send", noting):
        yield times
