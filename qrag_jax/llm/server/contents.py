"""The text and the thinking of a server's message; an answer that came in events although it was asked for whole."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Fields in which servers send the thinking; a server may repeat it in a second one.
_THINKING_FIELDS = (
    "reasoning_content", "reasoning", "thinking", "thought", "thoughts", "reasoning_details", "thinking_blocks",
)  # fmt: skip
_THINKING = re.compile("think|thought|reason", re.IGNORECASE)  # in the type of a part
_TEXT_KINDS = ("text", "output_text")
_TEXT_FIELDS = ("text", "thinking", "reasoning", "content", "summary", "value")  # of a part
_MAX_DEPTH = 4  # of parts in parts
_EVENT_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":")


@dataclass(frozen=True)
class Content:
    """The content of a message.

    Attributes:
        text, thinking: empty if there is none.
        refusal: the words of a model that refuses.
        other: the type of a part that is no text.
    """

    text: str
    thinking: str
    refusal: object = None
    other: str | None = None


def read_content(message: Mapping[str, Any]) -> Content:
    """Reads a message whose content is a text, or a list of parts."""
    content = message.get("content")
    texts, thoughts, others = [], [], []
    refusal = message.get("refusal")
    for part in content if isinstance(content, list) else [content]:
        own = part if isinstance(part, dict) else {}
        kind = str(own.get("type") or "text")
        if own.get("thought") is True or _THINKING.search(kind):
            thoughts.append(_text(part))
        elif kind in _TEXT_KINDS:
            texts.append(_text(part))
        elif kind == "refusal":
            refusal = refusal or own.get("refusal") or "no reason given"
        else:
            others.append(kind)
    told = next((said for name in _THINKING_FIELDS if (said := _text(message.get(name)))), "")
    return Content("".join(texts), told or "".join(thoughts), refusal, others[0] if others else None)


def join_events(body: bytes) -> dict[str, Any] | None:
    """The whole answer in a stream of events (`data: {...}`); None if the body is something else.

    Raises:
        ValueError, RecursionError: an event is not complete JSON.
    """
    if not body.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(_EVENT_STARTS):
        return None
    answer: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    message: dict[str, list[Any]] = {}  # field -> its pieces
    for line in body.splitlines():
        data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
        chunk = json.loads(data) if data and data != b"[DONE]" else {}
        if not isinstance(chunk, dict):
            raise ValueError("an event is not an object")
        answer |= {name: value for name, value in chunk.items() if value is not None}
        choices = chunk.get("choices")
        for one in choices if isinstance(choices, list) else []:
            if isinstance(one, dict) and one.get("index") in (None, 0):
                choice |= {name: value for name, value in one.items() if value}
                delta = one.get("delta") or one.get("message")
                for name, said in delta.items() if isinstance(delta, dict) else ():
                    message.setdefault(name, []).extend(said if isinstance(said, list) else [said] if said else [])
    return answer | ({"choices": [choice | {"message": message}]} if choice or message else {})


def _text(value: object, depth: int = 0) -> str:
    """The text of a content, a part or a list of parts; empty if it has none."""
    if isinstance(value, dict):
        value = next((value[name] for name in _TEXT_FIELDS if value.get(name)), "")
    if isinstance(value, list | dict) and depth < _MAX_DEPTH:
        return "".join(_text(one, depth + 1) for one in (value if isinstance(value, list) else [value]))
    return value if isinstance(value, str) else ""
