"""One cell of the table of faults: a server that misbehaves at one prompt of a batch, and what became of the batch."""

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from unittest import mock

import bad_server
from bad_server import MODEL, altered, free_port, good_answer, numbered_prompts, serve_badly, status

from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.server.http import BoundedClient
from qrag_jax.llm.server.openai import OpenAIGenerator
from qrag_jax.types import Generation, Sampling

KEY_NAME = "TEST_SERVER_KEY"
CANARY = "sk-canary-93b1f0a7c6"
NUM_PROMPTS = 6
POSITIONS = (0, 2, NUM_PROMPTS - 1)
CONCURRENCIES = (1, 4)
LONG = 60.0  # a deadline that nothing reaches


@dataclass(frozen=True)
class Fault:
    """A way to misbehave, and what has to come of it.

    Attributes:
        name: for the table.
        misbehave: see `bad_server`.
        times: attempts of the prompt to which it happens.
        ends: "answer", "length", or words of the error.
        attempts: of the prompt; None is all that are allowed.
        is_fatal: the rest of the batch is not asked.
        is_slow: it lasts until the deadline.
        waits: seconds that the server asked to wait.
    """

    name: str
    misbehave: Callable
    ends: str
    times: float = float("inf")
    attempts: int | None = 1
    is_fatal: bool = False
    is_slow: bool = False
    waits: float = 0.0


def _choice(**values):
    return altered(lambda answer: answer["choices"][0].update(values))


_TRUNCATED = json.dumps(good_answer(0)).encode()[:-40]
_HUGE = json.dumps({**good_answer(0), "padding": "x" * 10_000_000}).encode()

FAULTS = (
    Fault("server down", bad_server.go_down, "no connection to", attempts=None, is_fatal=True),
    Fault("401", status(401, "Incorrect API key"), "TEST_SERVER_KEY", is_fatal=True),
    Fault("404 model", status(404, "no such model"), "no model 'tiny-model'", is_fatal=True),
    Fault("408 once", status(408, "too slow"), "answer", times=1, attempts=2),
    Fault(
        "429 once, Retry-After: 1",
        status(429, "too many", {"Retry-After": "1"}),
        "answer",
        times=1,
        attempts=2,
        waits=1.0,
    ),
    Fault("429 once, no Retry-After", status(429, "too many"), "answer", times=1, attempts=2),
    Fault("429 forever", status(429, "too many"), "HTTP 429", attempts=None),
    Fault("429, Retry-After: 100", status(429, "too many", {"Retry-After": "100"}), "HTTP 429", is_slow=True),
    Fault("429, Retry-After: 3600", status(429, "too many", {"Retry-After": "3600"}), "wait for 3600 s"),
    Fault("500", status(500, "worker died"), "HTTP 500", attempts=None),
    Fault("reset in mid-body", bad_server.reset, "broke off", attempts=None),
    Fault("stall", bad_server.stall, "deadline", is_slow=True),
    Fault("a byte now and then", bad_server.trickle, "deadline", is_slow=True),
    Fault("surplus answer", bad_server.surplus, "answer"),
    Fault("late surplus answer", bad_server.late_surplus, "answer"),
    Fault("odd header", bad_server.odd_header, "answer"),
    Fault("Content-Length too small", bad_server.wrong_length(-40), "no whole JSON"),
    Fault("Content-Length too large", bad_server.wrong_length(40), "broke off", attempts=None),
    Fault("deep JSON", bad_server.body(b"[" * 100_000), "no whole JSON"),
    Fault("HTML for JSON", bad_server.body(b"<html>Welcome</html>", "text/html"), "no whole JSON"),
    Fault("truncated JSON", bad_server.body(_TRUNCATED), "no whole JSON"),
    Fault("empty choices", altered(lambda answer: answer.update(choices=[])), "no choices"),
    Fault("finish_reason length", _choice(finish_reason="length"), "length"),
    Fault("content filter", _choice(finish_reason="content_filter"), "content filter"),
    Fault("a 10 MB answer", bad_server.body(_HUGE), "too large"),
    Fault("wrong model", altered(lambda answer: answer.update(model="other")), "answered by 'other'", is_fatal=True),
    Fault(
        "prompt beyond the window",
        status(400, "This model's maximum context length is 2048 tokens", code="context_length_exceeded"),
        "longer than the model's window",
    ),
)


@dataclass(frozen=True)
class Cell:
    """What was seen.

    Attributes:
        generations: of the batch.
        attempts: most of one call, counted where they leave the client.
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
                answered, generations = set(), list(ask(finished=finished))
            else:
                with serve_badly(fault.misbehave, position, fault.times, port) as server:
                    generations = list(ask(finished=finished))
                    answered = set(server.answered) | ({position} if fault.ends in ("answer", "length") else set())
        with serve_badly(port=port) as server:
            resumed = list(ask())
    starts = sent.get(position, [])
    shown = [repr(generator), repr(vars(generator)), repr(generations), journaled.model, *lines]
    shown += [json.dumps([asdict(generation) for generation in generations])]
    files = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    return Cell(
        generations=generations,
        attempts=max(len(times) for times in sent.values()),
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
