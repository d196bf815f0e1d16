"""Reads the answers of an OpenAI-compatible server strictly.

An answer is a text, complete or marked as cut, or an error that says in one line what failed and what to do.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qrag_jax.llm.server.contents import Content, join_events, read_content
from qrag_jax.llm.thinking import answer_of
from qrag_jax.types import Generation, Message

MAX_QUOTE = 300  # characters of a server's own words in an error
_MAX_TOKENS = 2**53  # of one call; a larger count is ignored, since a price times it may overflow
# Servers' names, in lower case, for the two ends of an answer; "stop" and "length" are those of the protocol.
_ENDS = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens"), "length"),
}
_FILTERED = ("content_filter", "safety", "recitation", "prohibited_content", "blocklist", "spii")
_TOOLS = ("tool_calls", "function_call", "tool_use")
# "gpt-4o" is answered by "gpt-4o-2024-08-06", older ones by "gpt-4-0613", others by "-001" or "-20241022"; a model by
# its numbers in another format, as "m-Q4_K_M" or "m:fp16".
_DATED = re.compile(r"-(\d{3,4}|\d{8}|\d{4}-\d\d-\d\d)")
_PACKED = re.compile(r"([-.:@](i?q\d\w*|b?f(p)?(16|32|8)\w*|int[48]|[48]-?bit|awq|gptq|gguf|mlx))+", re.IGNORECASE)
_ENDINGS = re.compile(r"(:latest|\.gguf)$", re.IGNORECASE)


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


def read_answer(body: bytes, *, model: str, check_model: bool, stop: Sequence[str] = ()) -> Outcome:
    """Reads the body of a chat completion with status 200, whole or in events.

    A missing or impossible token count is 0, and `is_counted` is false. Lone surrogates in the text become U+FFFD.
    Log-probabilities are None if they are missing or not one finite number for each token.

    Args:
        model: name of the requested model.
        check_model: treat an answer of another model as an error.
        stop: texts at which the answer ends, if the server was not told.
    """
    try:
        events = join_events(body)
        answer = json.loads(body) if events is None else events
    except (ValueError, RecursionError) as error:
        where = f"; byte {error.start} is not UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        return failed(
            f"the server's answer is not complete JSON ({len(body)} bytes{where}: {quote(body)!r}); check that "
            "base_url is the address of the API (it usually ends in /v1) and that no proxy cuts or replaces answers"
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
        return failed(f"the server's answer has no choices ({quote(body)!r}); check the server's log", tokens=tokens)
    outcome = _read_choice(choices[0], tokens, counts is not None, stop)
    names = {"answered_by": _name(answer.get("model")), "answer_id": _name(answer.get("id"))}
    return replace(outcome, generation=replace(outcome.generation, **names))


def _read_choice(choice: Mapping[str, Any], tokens: tuple[int, int], is_counted: bool, stop: Sequence[str]) -> Outcome:
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    content = read_content(message)
    reason = choice.get("finish_reason")
    if (error := _why_none(choice, message, content)) is not None:
        return failed(error, tokens=tokens)
    text, logprobs = _without_surrogates(content.text), _logprobs(choice.get("logprobs"))
    if places := [text.index(end) for end in stop if end in text]:
        text, logprobs, reason = text[: min(places)], None, "stop"
    thinking = _without_surrogates(content.thinking) or None
    answer = answer_of(Generation(text, _ENDS[str(reason).lower()], *tokens, logprobs=logprobs, thinking=thinking))
    return Outcome(answer, is_counted=is_counted or answer.error is not None)


def _why_none(choice: Mapping[str, Any], message: Mapping[str, Any], content: Content) -> str | None:
    """The reason why a choice has no answer that could be read; None if it has one."""
    reason = choice.get("finish_reason")
    name = reason.lower() if isinstance(reason, str) else ""
    if name in _FILTERED:
        return "the server's content filter blocked the answer; change the prompt or the filter"
    if content.refusal or name == "refusal":
        return f"the model refuses to answer: {quote(shown(content.refusal or 'no reason given'))!r}"
    if choice.get("error"):
        return f"the server reports an error as its answer: {quote(said(choice['error']))!r}"
    if name in _TOOLS or (message.get("tool_calls") and not content.text.strip()):
        return f"the model calls a tool, and was given none (finish_reason {reason!r}); turn tools off on the server"
    if content.other is not None:
        return f"the answer has a part of type {quote(content.other)!r}, which is no text"
    if reason is None:
        return "the answer may be cut, because the server does not say how it ended (finish_reason null)"
    if name not in _ENDS:
        return f"the answer ended in an unknown way: finish_reason {quote(shown(reason))!r}"
    return None


def is_model(answered: object, asked: str) -> bool:
    """True if the name in an answer matches the requested model.

    It matches if it is the same, if one is the end of the other's path, or if it is the requested name (without
    `-latest`) followed by a date, a version of three or four digits, or the format of its numbers (`-Q4_K_M`). The
    endings `:latest` and `.gguf` do not count.
    """
    if not isinstance(answered, str):
        return False
    answered, asked = (_ENDINGS.sub("", name.replace("\\", "/")) for name in (answered, asked))
    if answered == asked or answered.endswith(f"/{asked}") or asked.endswith(f"/{answered}"):
        return bool(answered)
    asked = asked.removesuffix("-latest")
    return any(
        name == asked
        or (name.startswith(asked) and any(kind.fullmatch(name, len(asked)) is not None for kind in (_DATED, _PACKED)))
        for name in (answered, answered.rpartition("/")[2])
    )


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
    prompt, completion = (
        int(number) if isinstance(number, float) and number.is_integer() else number
        for number in (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    )
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
