"""Requests to a server with the OpenAI API, and which of their fields a server refuses by its own words."""

import json
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import openai

from qrag_jax.llm.server.answers import said, shown
from qrag_jax.types import Choice, Grammar, JsonSchema, Message, Regex, Sampling

SYSTEM = "system"  # stands for the role in a set of refused fields
LIMITS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
# Refused field -> how the request changes, in the words of the warning.
CHANGES = {
    "max_tokens": "it is sent as max_completion_tokens",
    "max_completion_tokens": "it is sent as max_tokens",
    SYSTEM: "the system message is sent at the beginning of the first message of the user",
    "temperature": "it is left out, so the server draws answers at its own temperature; they may differ from call to "
    "call, and a journal keeps the first one as the answer at the temperature that you asked for",
    "top_p": "it is left out, so answers are drawn with the server's own value",
    "seed": "it is left out, so answers may differ from call to call; a journal keeps the first one",
    "stop": "it is left out, and answers are cut here",
    "logprobs": "it is left out, so answers have no log-probabilities",
}
OF_GRAMMARS = "it is left out, so answers may have another form; they are only parsed"
# Statuses of a refused field; some servers report an error of their chat template as 500.
_STATUSES = (400, 422, 500, 501)
# Beside the name of a field: it is not taken at all, or not with this value.
_REFUSES = re.compile(
    r"unsupported|n[o'\u2019]t (?:currently )?support|only [^.]{0,40}(?:support|allow)|unrecogni[sz]ed|unknown"
    r"|unexpected|extra (?:field|input|param)|not (?:permit|allow|available|accept|implemented|enabled|compatible"
    r"|a valid|exist|take)|unavailable|incompatible|invalid (?:param|field|arg|role|request param)|deprecated"
    r"|only enabled|cannot (?:be used|both)|must (?:alternate|be (?:['\"`]?user|default|one of|1\b))|input should be"
)
# A field is named by itself, or as here.
_NAMED = {
    SYSTEM: r"system\W{0,2}\s?(?:role|message|prompt|instruction)|role\W{0,4}system|developer instruction"
    r"|roles? must|only ['\"`]?user|messages\W{0,3}\d+\W{0,6}role",
    "response_format": r"response_format|json_schema|structured.outputs?",
}
WINDOW = ("context length", "context_length", "context size", "context_size", "context window", "too long")


def make_request(
    model: str,
    messages: Sequence[Message],
    sampling: Sampling,
    *,
    limit: str,
    grammar_field: str | None,
    refused: Set[str] = frozenset(),
) -> dict[str, Any]:
    """The parameters of a call.

    Args:
        limit: name of the field for the most tokens of an answer, of `LIMITS`.
        grammar_field: as in `OpenAIGenerator`.
        refused: fields that the server does not take.
    """
    if SYSTEM in refused:
        messages = _without_system(messages)
    request: dict[str, Any] = {
        "model": model,
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        LIMITS[limit] if limit in refused else limit: sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.temperature > 0:
        request |= {"top_p": sampling.top_p, "seed": sampling.seed}
    if sampling.stop:
        request["stop"] = list(sampling.stop)
    if sampling.logprobs:
        request["logprobs"] = True
    if sampling.grammar is not None:
        request |= _told(sampling.grammar, grammar_field)
    return {name: value for name, value in request.items() if name in LIMITS or name not in refused}


def refused_fields(error: openai.APIStatusError, request: Mapping[str, Any], refused: Set[str]) -> list[str]:
    """The fields of a request that the server's own error refuses and that can be changed; mostly one or none.

    Args:
        request: that the server refused.
        refused: fields that were refused before. Of the two names of the limit, only one is changed.
    """
    if error.status_code not in _STATUSES:
        return []
    words, param, code = (text.lower() for text in _words(error))
    if any(word in f"{words} {code}" for word in WINDOW):
        return []
    named = named_fields(param, request) or named_fields(words, request)
    if {"temperature", "top_p"} <= set(named) and "both" in words:
        named.remove("temperature")
    is_refused = _REFUSES.search(f"{words} {code.replace('_', ' ')}") is not None
    return [
        name
        for name in named
        if (is_refused or LIMITS.get(name, "?") in words or (name == "temperature" and not request[name]))
        and not (name in LIMITS and refused & LIMITS.keys())
    ]


def named_fields(words: str, request: Mapping[str, Any]) -> list[str]:
    """The fields of a request that an error names, which `make_request` can change; `SYSTEM` for the role."""
    own = [name for name in request if name not in ("model", "messages")]
    if any(message["role"] == SYSTEM for message in request["messages"]):
        own.append(SYSTEM)
    return [name for name in own if re.search(_NAMED.get(name, rf"(?<!\w){name}(?!\w)"), words)]


def _words(error: openai.APIStatusError) -> tuple[str, str, str]:
    """The message of an error, the parameter that it is about, and its code; without values, which are the user's."""
    body = error.body if isinstance(error.body, dict) else {}
    detail = body.get("detail")
    rows = [one for one in detail if isinstance(one, dict)] if isinstance(detail, list) else []
    words = " ".join(f"{shown(one.get('loc'))} {shown(one.get('msg'))}" for one in rows) or said(error.body)
    return words, shown(error.param or ""), shown(error.code or "")


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """The conversation with its system messages at the beginning of the first message of the user."""
    texts = [message.content for message in messages if message.role == SYSTEM]
    others = [message for message in messages if message.role != SYSTEM]
    place = next((place for place, message in enumerate(others) if message.role == "user"), len(others))
    merged = Message("user", "\n\n".join([*texts, *(message.content for message in others[place : place + 1])]))
    return [*others[:place], merged, *others[place + 1 :]] if texts else others


def _told(grammar: Grammar, field: str | None) -> dict[str, Any]:
    """The request fields that send a grammar."""
    match grammar:
        case JsonSchema(text):
            kind, value = "json", json.loads(text)
        case Regex(pattern):
            kind, value = "regex", pattern
        case Choice(texts):
            kind, value = "choice", list(texts)
    if field == "response_format":
        return {field: {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": value}}}
    return {f"guided_{kind}": value} if field == "guided" else {"structured_outputs": {kind: value}}
