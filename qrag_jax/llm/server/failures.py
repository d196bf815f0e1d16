"""Explains failed calls in one line, without the key: what failed and what to do."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import openai

from qrag_jax.llm.server.answers import Outcome, failed, quote, said, shown
from qrag_jax.llm.server.http import AnswerTooLarge
from qrag_jax.llm.server.requests import WINDOW

# The transport's names for a host that was not reached. The client passes its exceptions on as the cause; the library
# below it may change.
_UNREACHED = ("ConnectError", "ConnectTimeout")


@dataclass(frozen=True)
class Asked:
    """The model and server of a call, for messages."""

    model: str
    base_url: str
    key_name: str
    has_key: bool
    deadline: float


def explain_timeout(asked: Asked, attempts: Sequence[str]) -> Outcome:
    """The outcome of a call whose deadline has passed."""
    last = f", the last one: {attempts[-1]}" if attempts else ""
    return failed(
        f"no answer within the deadline of {asked.deadline:g} s ({_times(attempts)}{last}); raise the deadline, lower "
        "the concurrency or max_tokens, or check whether the server hangs"
    )


def explain(error: openai.OpenAIError, asked: Asked, attempts: Sequence[str]) -> Outcome:
    """The outcome of a call that the client gave up.

    Args:
        error: of the client, after its last attempt.
    """
    if isinstance(error, AnswerTooLarge):
        return failed(f"the server's answer is too large: {error}; lower max_tokens, or raise max_answer_bytes")
    if isinstance(error, openai.APIStatusError):
        return _explain_status(error, asked, attempts)
    cause = error.__cause__
    name = type(cause).__name__
    detail = f"{name} {quote(str(cause))}".rstrip() if cause is not None else quote(str(error))
    if name in _UNREACHED:
        return failed(
            f"no connection to {asked.base_url} ({_times(attempts)}; {detail}); start the server, or correct base_url",
            is_fatal=True,
        )
    return failed(
        f"the connection to {asked.base_url} broke off ({_times(attempts)}; {detail}); check the server's log, or "
        "whether a proxy cuts long answers"
    )


def explain_other(error: Exception, asked: Asked, attempts: Sequence[str]) -> Outcome:
    """The outcome of a call that raised an unexpected exception."""
    places = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
    return failed(
        f"the call to {asked.base_url} failed unexpectedly ({_times(attempts)}; {type(error).__name__}{place}: "
        f"{quote(str(error))}); check what the server sent (other calls continued)"
    )


def _explain_status(error: openai.APIStatusError, asked: Asked, attempts: Sequence[str]) -> Outcome:
    status = error.status_code
    words = quote(said(error.body)) if error.body else "no reason given"
    start = f"HTTP {status} ({_times(attempts)}): {words!r}"
    if status == 401:
        # Without the server's message, which often repeats the key or a part of it.
        key = "refuses the key in" if asked.has_key else "needs a key, but there is none in"
        return failed(f"HTTP 401: the server {key} the environment variable {asked.key_name}; set it", is_fatal=True)
    if status == 404:
        return failed(
            f"{start}: no model {asked.model!r} at {asked.base_url}, or no such path; GET {asked.base_url}/models "
            "lists the models, and base_url usually ends in /v1",
            is_fatal=True,
        )
    if 300 <= status < 400:
        place = quote(error.response.headers.get("location", "another address"))
        return failed(f"HTTP {status}: the server redirects to {place!r}; give that as base_url", is_fatal=True)
    if status == 429:
        return _explain_limit(error, start)
    if status in (400, 413, 422) and any(word in shown(error.body).lower() for word in WINDOW):
        return failed(f"the prompt is longer than the model's window: {start}; send fewer tokens (nothing was cut)")
    if status == 403:
        return failed(f"{start}: the key has no permission for this call")
    if status in (408, 409) or status >= 500:
        return failed(f"{start}: the server failed or is too busy; check its log, or lower the concurrency")
    return failed(f"{start}: the server refuses this call")


def _explain_limit(error: openai.APIStatusError, start: str) -> Outcome:
    """Status 429: too many requests, or no credit left."""
    if error.code == "insufficient_quota":
        return failed(f"{start}: the account has no credit left", is_fatal=True)
    wait = error.response.headers.get("retry-after")
    told = f", which asks you to wait {f'for {wait} s' if wait.isdigit() else f'until {quote(wait)}'}" if wait else ""
    return failed(f"{start}: the server's rate limit{told}; lower the concurrency, or try again later")


def _times(attempts: Sequence[str]) -> str:
    return f"{len(attempts)} attempt" if len(attempts) == 1 else f"{len(attempts)} attempts"
