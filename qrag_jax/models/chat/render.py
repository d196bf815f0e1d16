"""Conversations as the text that a decoder was trained to continue: the model's own chat template, kept at bay."""

from collections.abc import Sequence

from qrag_jax.models.chat.sandbox import render_template
from qrag_jax.types import InputError, Message

ROLES = ("system", "user", "assistant")
_BREAK = "\u200b"  # zero width space


def render_chat(
    template: str,
    messages: Sequence[Message],
    special_tokens: Sequence[str],
    *,
    other_tokens: Sequence[str] = (),
    bos_token: str | None = None,
    eos_token: str | None = None,
) -> str:
    """The prompt of a conversation, with the opening of the answer; to be encoded with special tokens read as such.

    The template sees what it sees in Hugging Face's libraries: `messages` as dicts of role and content, `tools` and
    `documents` as None, the two tokens, `raise_exception`. It is a stranger's program, so it runs in a sandbox with
    caps on time, steps and size, and without a clock: the same conversation always gives the same prompt.

    Special tokens that stand in the contents are made plain text (`defuse`), so that a document cannot end its turn and
    speak as another role.

    Args:
        messages: at least one; the roles of `Message`.
        special_tokens: texts that the tokenizer would read as special tokens.
        other_tokens: texts that it would read as one token each and that mark no turn, such as `<think>`. They are left
            in what the model itself has said, and everywhere if they are of one character: those are letters.
        bos_token, eos_token: which of them open and end a text.
    """
    if not messages:
        raise InputError("a conversation without messages: give at least one")
    for message in messages:
        if message.role not in ROLES:
            raise InputError(f"role {message.role!r}: known are {', '.join(ROLES)}")
    others = [token for token in other_tokens if len(token) > 1 and _BREAK not in token]
    marks = {role: (*special_tokens, *(() if role == "assistant" else others)) for role in ROLES}
    values = {
        "messages": [{"role": each.role, "content": defuse(each.content, marks[each.role])} for each in messages],
        "tools": None,
        "documents": None,
        "bos_token": bos_token or "",
        "eos_token": eos_token or "",
        "add_generation_prompt": True,
    }
    return render_template(template, values, "chat template")


def defuse(text: str, special_tokens: Sequence[str]) -> str:
    """Writes special tokens in a text with a zero width space after their first character: they look the same.

    Tokens of white space are left: they are no marks of a turn. A text without special tokens is returned unchanged.
    """
    # The longest first: breaking a short one that is a part of it would leave less to look for, not more.
    for token in sorted((token for token in special_tokens if token.strip()), key=len, reverse=True):
        if token not in text:
            continue
        if len(token) == 1 or _BREAK in token:
            raise InputError(f"text: contains {token!r}, which this model reads as a special token: change the text")
        text = text.replace(token, token[0] + _BREAK + token[1:])
    if any(token in text for token in special_tokens if token.strip()):
        return defuse(text, special_tokens)
    return text
