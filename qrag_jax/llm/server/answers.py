"""What an OpenAI-compatible server answered, read strictly: a text that is whole or marked as cut, or an error.

Why a call to a server failed, and what to do about it, in one line that holds no key.
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
_MAX_TOKENS = 2**53  # of one call; a larger count is none, and a price times it might be no number
# What servers call the two ends of an answer; "stop" and "length" are the protocol's.
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
    """What became of one call.

    Attributes:
        generation: the answer or the error.
        is_counted: the server told how many tokens the call took, or it gave no answer.
    """

    generation: Generation
    is_counted: bool = True


def failed(error: str, *, is_fatal: bool = False, tokens: tuple[int, int] = (0, 0)) -> Outcome:
    """A call without an answer, and the tokens of the prompt and the answer that are known to be spent."""
    error = f"{error} (every other call would fail alike)" if is_fatal else error
    return Outcome(Generation("", "error", *tokens, error=error, is_fatal=is_fatal))


def read_answer(body: bytes, *, model: str, check_model: bool) -> Outcome:
    """Reads the body of a chat completion that came with status 200.

    A token count that the server does not tell, or that no call can have, is 0, which `is_counted` says. Lone
    surrogates in the text become U+FFFD. Log-probabilities that are not one finite number a token are None, as those
    that are not told.

    Args:
        check_model: an answer of another model is an error.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return failed(
            f"the server's answer is no whole JSON ({len(body)} bytes: {quote(body)!r}): see that base_url is the "
            "API's (it mostly ends in /v1) and that nothing between cuts or replaces answers"
        )
    if not isinstance(answer, dict):
        return failed(f"the server's answer is JSON, but no object: {quote(body)!r}: see that base_url is the API's")
    counts = _counts(answer.get("usage"))
    tokens = counts or (0, 0)
    if answer.get("error"):
        return failed(f"the server reports an error as its answer: {quote(said(answer))!r}", tokens=tokens)
    if check_model and not is_model(answer.get("model"), model):
        answered = quote(shown(answer.get("model")))
        return failed(
            f"asked for model {model!r}, answered by {answered!r}: name the model as the server does, or "
            "switch the check off (check_model=False, --any_model)",
            is_fatal=True,
            tokens=tokens,
        )
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return failed("the server's answer holds no choices: see the server's log", tokens=tokens)
    outcome = _read_choice(choices[0], tokens, counts is not None)
    names = {"answered_by": _name(answer.get("model")), "answer_id": _name(answer.get("id"))}
    return replace(outcome, generation=replace(outcome.generation, **names))


def _read_choice(choice: Mapping[str, Any], tokens: tuple[int, int], is_counted: bool) -> Outcome:
    reason = choice.get("finish_reason")
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if reason == "content_filter":
        return failed(
            "the server's content filter held the answer back: alter the prompt, or its filter", tokens=tokens
        )
    if isinstance(message, dict) and message.get("refusal"):
        return failed(f"the model refuses to answer: {quote(shown(message['refusal']))!r}", tokens=tokens)
    end = _ENDS.get(reason) if isinstance(reason, str) else None
    if end is None:
        return failed(f"the answer did not end as a text does: finish_reason {quote(shown(reason))!r}", tokens=tokens)
    if not isinstance(content, str) or (end == "length" and not content):
        return failed(
            f"the answer holds no text (finish_reason {reason!r}): a model that thinks first needs a larger max_tokens",
            tokens=tokens,
        )
    logprobs = _logprobs(choice.get("logprobs"))
    return Outcome(Generation(_without_surrogates(content), end, *tokens, logprobs=logprobs), is_counted=is_counted)


def is_model(answered: object, asked: str) -> bool:
    """Whether the name in an answer is that of the model that was asked for.

    The same name, the name with a date or a version of three or four digits after it (in place of `-latest`, where it
    ends in that), or one of them the last part of the other's path.
    """
    if not isinstance(answered, str):
        return False
    if answered == asked or answered.rpartition("/")[2] == asked or asked.rpartition("/")[2] == answered:
        return True
    asked = asked.removesuffix("-latest")
    return answered == asked or answered.startswith(asked) and _DATED.fullmatch(answered[len(asked) :]) is not None


def said(body: object) -> str:
    """The message in what a server sent with an error, in whichever of the usual places; else all of it."""
    while isinstance(body, dict):  # no recursion: a hostile server's may be deeper than that may go
        inner = next((body[name] for name in ("message", "detail", "error") if body.get(name)), None)
        if inner is None:
            break
        body = inner
    return body if isinstance(body, str) else shown(body, json.dumps)


def shown(value: object, write: Callable[[object], str] = str) -> str:
    """A value out of a JSON text, as `write` gives it; one that is nested too deeply for that is only called so."""
    try:
        return write(value)
    except RecursionError:
        return "(nested too deeply)"


def num_repeated(prompts: Sequence[Sequence[Message]], answers: Sequence[Generation]) -> int:
    """Answers of a batch that are, with their id, the answer to another prompt of it too.

    An id alone says little: some servers give one id to all answers, Ollama draws from 999. A batch with one id counts
    as 0 whatever it says: equal short answers to different prompts are common, and the id is evidence of nothing then.

    Args:
        answers: to them, in order.
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
    """The beginning of a text on one line."""
    if isinstance(text, bytes):
        text = text[: 4 * MAX_QUOTE].decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "..."


def _name(told: object) -> str | None:
    """A name that a server tells, shortened; None where it tells none."""
    return quote(_without_surrogates(told)) if isinstance(told, str) and told else None


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _counts(usage: object) -> tuple[int, int] | None:
    """Tokens of the prompt and the answer; None where a server does not tell both."""
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
