"""Why a call to a server failed, and what to do about it, in one line that holds no key."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import openai

from qrag_jax.llm.server.answers import Outcome, failed, quote, said, shown
from qrag_jax.llm.server.http import AnswerTooLarge

# How the transport calls a host that was not reached. The client hands its exceptions on as the cause; which library
# it sends through is its own affair.
_UNREACHED = ("ConnectError", "ConnectTimeout")
_WINDOW = ("context length", "context_length", "context size", "context_size", "context window", "too long")


@dataclass(frozen=True)
class Asked:
    """Who was asked, for messages."""

    model: str
    base_url: str
    key_name: str
    has_key: bool
    deadline: float


def explain_timeout(asked: Asked, attempts: Sequence[str]) -> Outcome:
    """The deadline of a call has passed."""
    last = f", the last one: {attempts[-1]}" if attempts else ""
    return failed(
        f"no answer within the deadline of {asked.deadline:g} s ({_times(attempts)}{last}): raise the deadline, lower "
        "the concurrency or max_tokens, or see whether the server hangs"
    )


def explain(error: openai.OpenAIError, asked: Asked, attempts: Sequence[str]) -> Outcome:
    """Why the client gave up.

    Args:
        error: of the client, after its last attempt.
    """
    if isinstance(error, AnswerTooLarge):
        return failed(f"the server's answer is too large: {error} (max_answer_bytes): lower max_tokens, or raise it")
    if isinstance(error, openai.APIStatusError):
        return _explain_status(error, asked, attempts)
    cause = error.__cause__
    name = type(cause).__name__
    detail = f"{name} {quote(str(cause))}".rstrip() if cause is not None else quote(str(error))
    if name in _UNREACHED:
        return failed(
            f"no connection to {asked.base_url} ({_times(attempts)}; {detail}): start the server, or mend base_url",
            is_fatal=True,
        )
    return failed(
        f"the connection to {asked.base_url} broke off ({_times(attempts)}; {detail}): see the server's log; a proxy "
        "between may cut long answers"
    )


def explain_other(error: Exception, asked: Asked, attempts: Sequence[str]) -> Outcome:
    """Something that nobody foresaw came out of a call, or out of what reads its answer."""
    places = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
    return failed(
        f"the call to {asked.base_url} failed as no call should ({_times(attempts)}; {type(error).__name__}{place}: "
        f"{quote(str(error))}): see what the server sent; the other calls went on"
    )


def _explain_status(error: openai.APIStatusError, asked: Asked, attempts: Sequence[str]) -> Outcome:
    status = error.status_code
    words = quote(said(error.body)) if error.body else "no reason told"
    start = f"HTTP {status} ({_times(attempts)}): {words!r}"
    if status == 401:
        # Without the server's words: they often repeat the key, or a part of it.
        key = "refuses the key in" if asked.has_key else "wants a key, and there is none in"
        return failed(f"HTTP 401: the server {key} the environment variable {asked.key_name}: set it", is_fatal=True)
    if status == 404:
        return failed(
            f"{start}: no model {asked.model!r} at {asked.base_url}, or no such path: GET {asked.base_url}/models "
            "lists them; base_url mostly ends in /v1",
            is_fatal=True,
        )
    if 300 <= status < 400:
        place = quote(error.response.headers.get("location", "another address"))
        return failed(f"HTTP {status}: the server sends callers to {place!r}: give that as base_url", is_fatal=True)
    if status == 429:
        return _explain_limit(error, start)
    if status in (400, 413, 422) and any(word in shown(error.body).lower() for word in _WINDOW):
        return failed(f"the prompt is longer than the model's window: {start}: hand over fewer tokens, none were cut")
    if status == 403:
        return failed(f"{start}: this key may not do that")
    if status in (408, 409) or status >= 500:
        return failed(f"{start}: the server failed or is too busy: see its log, lower the concurrency")
    return failed(f"{start}: the server refuses this call")


def _explain_limit(error: openai.APIStatusError, start: str) -> Outcome:
    """429: too many requests, or nothing left to pay with."""
    if error.code == "insufficient_quota":
        return failed(f"{start}: the account has nothing left", is_fatal=True)
    wait = error.response.headers.get("retry-after")
    told = f", it asks to wait for {quote(wait)} s" if wait else ""
    return failed(f"{start}: the server's limit{told}: lower the concurrency, or ask later")


def _times(attempts: Sequence[str]) -> str:
    return f"{len(attempts)} attempt" if len(attempts) == 1 else f"{len(attempts)} attempts"
