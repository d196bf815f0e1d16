"""Reads the answers of an OpenAI-compatible server strictly, and explains failed calls.

An answer is a text, complete or marked as cut, or an error. An error says in one line, without the key, what failed and
what to do.
"""

import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai

from qrag_jax.llm.server.http import AnswerTooLarge
from qrag_jax.types import Generation, Message

MAX_QUOTE = 300  # characters of a server's own words in an error
_MAX_TOKENS = 2**53  # of one call; a larger count is ignored, since a price times it may overflow
# Servers' names for the two ends of an answer; "stop" and "length" are those of the protocol.
_ENDS = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
}
# "gpt-4o" is answered by "gpt-4o-2024-08-06", older ones by "gpt-4-0613", others by "-001" or "-20241022".
_DATED = re.compile(r"-(\d{3,4}|\d{8}|\d{4}-\d\d-\d\d)")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one call.

    Attributes:
        generation: the answer or the error.
        is_counted: the server reported the tokens of the call, or gave no answer.
    """

    generation: Generation
    is_counted: bool = True


def failed(error: str, *, is_fatal: bool = False, tokens: tuple[int, int] = (0, 0)) -> Outcome:
    """A failed call, with the known tokens of its prompt and answer."""
    error = f"{error} (all other calls would fail too)" if is_fatal else error
    return Outcome(Generation("", "error", *tokens, error=error, is_fatal=is_fatal))


def read_answer(body: bytes, *, model: str, check_model: bool) -> Outcome:
    """Reads the body of a chat completion with status 200.

    A missing or impossible token count is 0, and `is_counted` is false. Lone surrogates in the text become U+FFFD.
    Log-probabilities are None if they are missing or not one finite number for each token.

    Args:
        model: name of the requested model.
        check_model: treat an answer of another model as an error.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return failed(
            f"the server's answer is not complete JSON ({len(body)} bytes: {quote(body)!r}); check that base_url is "
            "the address of the API (it usually ends in /v1) and that no proxy cuts or replaces answers"
        )
    if not isinstance(answer, dict):
        return failed(f"the server's answer is not a JSON object: {quote(body)!r}; check that base_url is the API's")
    counts = _counts(answer.get("usage"))
    tokens = counts or (0, 0)
    if answer.get("error"):
        return failed(f"the server reports an error as its answer: {quote(said(answer))!r}", tokens=tokens)
    if check_model and not is_model(answer.get("model"), model):
        answered = quote(shown(answer.get("model")))
        return failed(
            f"asked for model {model!r}, but {answered!r} answered; use the server's name for the model, or turn the "
            "check off (check_model=False, --any_model)",
            is_fatal=True,
            tokens=tokens,
        )
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return failed("the server's answer has no choices; check the server's log", tokens=tokens)
    outcome = _read_choice(choices[0], tokens, counts is not None)
    names = {"answered_by": _name(answer.get("model")), "answer_id": _name(answer.get("id"))}
    return replace(outcome, generation=replace(outcome.generation, **names))


def _read_choice(choice: Mapping[str, Any], tokens: tuple[int, int], is_counted: bool) -> Outcome:
    reason = choice.get("finish_reason")
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if reason == "content_filter":
        return failed("the server's content filter blocked the answer; change the prompt or the filter", tokens=tokens)
    if isinstance(message, dict) and message.get("refusal"):
        return failed(f"the model refuses to answer: {quote(shown(message['refusal']))!r}", tokens=tokens)
    end = _ENDS.get(reason) if isinstance(reason, str) else None
    if end is None:
        return failed(f"the answer ended in an unknown way: finish_reason {quote(shown(reason))!r}", tokens=tokens)
    if not isinstance(content, str) or (end == "length" and not content):
        return failed(
            f"the answer has no text (finish_reason {reason!r}); a model that thinks first needs a larger max_tokens",
            tokens=tokens,
        )
    logprobs = _logprobs(choice.get("logprobs"))
    return Outcome(Generation(_without_surrogates(content), end, *tokens, logprobs=logprobs), is_counted=is_counted)


def is_model(answered: object, asked: str) -> bool:
    """True if the name in an answer matches the requested model.

    It matches if it is the same, if one is the last part of the other's path, or if it is the requested name (without
    `-latest`) followed by a date or a version of three or four digits.
    """
    if not isinstance(answered, str):
        return False
    if answered == asked or answered.rpartition("/")[2] == asked or asked.rpartition("/")[2] == answered:
        return True
    asked = asked.removesuffix("-latest")
    return answered == asked or answered.startswith(asked) and _DATED.fullmatch(answered[len(asked) :]) is not None


def said(body: object) -> str:
    """The message in an error body, from one of the usual fields; else the whole body."""
    while isinstance(body, dict):  # a loop, since a hostile body may be too deep for recursion
        inner = next((body[name] for name in ("message", "detail", "error") if body.get(name)), None)
        if inner is None:
            break
        body = inner
    return body if isinstance(body, str) else shown(body, json.dumps)


def shown(value: object, write: Callable[[object], str] = str) -> str:
    """A JSON value as text, by `write`; a note if it is nested too deeply."""
    try:
        return write(value)
    except RecursionError:
        return "(nested too deeply)"


def num_repeated(prompts: Sequence[Sequence[Message]], answers: Sequence[Generation]) -> int:
    """The number of answers in a batch that repeat, with their id, the answer to another prompt.

    An id alone proves little: some servers give the same id to all answers, and Ollama draws from 999. A batch with a
    single id counts as 0, because equal short answers to different prompts are common.

    Args:
        answers: to the prompts, in order.
    """
    given: dict[tuple[str | None, str, int, int], set[tuple[Message, ...]]] = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        if answer.error is None and answer.answer_id:
            told = (answer.answer_id, answer.text, answer.prompt_tokens, answer.completion_tokens)
            given.setdefault(told, set()).add(tuple(prompt))
    if len({answer_id for answer_id, *_ in given}) < 2:
        return 0
    return sum(len(asked) - 1 for asked in given.values())


def quote(text: str | bytes) -> str:
    """The beginning of a text, on one line."""
    if isinstance(text, bytes):
        text = text[: 4 * MAX_QUOTE].decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "..."


def _name(told: object) -> str | None:
    """A name from a server, shortened; None if there is none."""
    return quote(_without_surrogates(told)) if isinstance(told, str) and told else None


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _counts(usage: object) -> tuple[int, int] | None:
    """Tokens of the prompt and the answer; None unless the server reports both."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is not int or type(completion) is not int:
        return None
    if not (0 <= prompt <= _MAX_TOKENS and 0 <= completion <= _MAX_TOKENS):
        return None
    return prompt, completion


def _logprobs(told: object) -> tuple[float, ...] | None:
    tokens = told.get("content") if isinstance(told, dict) else None
    if not isinstance(tokens, list):
        return None
    values = [token.get("logprob") if isinstance(token, dict) else None for token in tokens]
    # Not `isfinite`: an int that no float can hold raises there.
    numbers = [float(x) for x in values if isinstance(x, int | float) and abs(x) <= sys.float_info.max]
    return tuple(numbers) if len(numbers) == len(values) else None


# The transport's names for a host that was not reached. The client passes its exceptions on as the cause; the library
# below it may change.
_UNREACHED = ("ConnectError", "ConnectTimeout")
_WINDOW = ("context length", "context_length", "context size", "context_size", "context window", "too long")


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
    if status in (400, 413, 422) and any(word in shown(error.body).lower() for word in _WINDOW):
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
    told = f", which asks you to wait for {quote(wait)} s" if wait else ""
    return failed(f"{start}: the server's rate limit{told}; lower the concurrency, or try again later")


def _times(attempts: Sequence[str]) -> str:
    return f"{len(attempts)} attempt" if len(attempts) == 1 else f"{len(attempts)} attempts"
