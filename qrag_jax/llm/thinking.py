"""Separates the thinking of a language model from its answer. Every generator uses `answer_of`.

Thinking is what stands between tags (`<think>`, nested or repeated), at the beginning of a text also before a closing
tag without an opening one (the chat template wrote that), and in the channels of harmony. Tags in code or inside a
sentence are text: an answer may be about them.
"""

import re
from dataclasses import dataclass, replace

from qrag_jax.types import Generation

_NAMES = "think(?:ing)?|thoughts?|reason(?:ing)?|reflection|scratchpad"
_OPENS = (
    rf"<(?:\w+:)?(?:{_NAMES})(?:\s[^<>]*)?>|\[THINK\]|<\|begin_of_thought\|>|<\|START_THINKING\|>|\u25c1think\u25b7"
    r"|<\|channel>(?:thought|analysis)"
)
_ENDS = (
    rf"</(?:\w+:)?(?:{_NAMES})\s*>|\[/THINK\]|<\|end_of_thought\|>|<\|END_THINKING\|>|\u25c1/think\u25b7|<channel\|>"
)
_TAG = re.compile(rf"(?P<open>{_OPENS})|(?P<end>{_ENDS})", re.IGNORECASE)
_TAG_OR_CODE = re.compile(rf"```[\s\S]*?```|`[^`\n]+`|{_TAG.pattern}", re.IGNORECASE)
_BLANK = re.compile(r"[\s\ufeff\u200b-\u200f\u2060]*")
# Marks around the answer itself; they are removed only behind thinking.
_WRAPPED = re.compile(
    r"<\|?(?:answer|response|begin_of_solution|START_RESPONSE)\|?>(.*?)"
    r"(?:<(?:/answer|/response|\|end_of_solution\||\|END_RESPONSE\|)>)?",
    re.DOTALL | re.IGNORECASE,
)
# Harmony: `<|start|>assistant<|channel|>analysis<|message|>...<|end|>`, then the same with the channel `final`.
_MESSAGE = re.compile(
    r"(?:<\|start\|>[^<]*)?(?:<\|channel\|>(?P<channel>[^<]*))?(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
_MESSAGE_END = re.compile(r"<\|(?:end|return|call)\|>")
_HARMONY = re.compile(r"<\|(?:start|channel|message|constrain|end|return|call)\|>")
# Harmony as it is after its marks were dropped; the headings that Granite writes.
_HEADED = re.compile(
    r"analysis(?P<harmony>.*?)assistant\n?final|Here is my thought process:(?P<granite>.*?)Here is my response:",
    re.DOTALL,
)
_HEADED_BEGUN = re.compile(r"analysis[A-Z]")
# Before a closing tag that is a word of a sentence; a line end follows only thinking.
_SENTENCE = re.compile(r"[\w,;:][ \t]$|[\"'\u2018-\u201f\u00ab(]$")
# Before a block between two sentences; not the mark of a list.
_BETWEEN = re.compile(r"(?:[\n\r]|[^\W\d][.!?]|[\])\u3011][.!?]?)[ \t]*$")


@dataclass(frozen=True)
class Separated:
    """A text of a model in its parts.

    Attributes:
        text: the answer; empty if the model was still thinking.
        thinking: None if there is none.
        is_open: the thinking has no end, so there is no answer.
    """

    text: str
    thinking: str | None
    is_open: bool = False


def answer_of(said: Generation) -> Generation:
    """The answer of a model without its thinking; an error if nothing remains.

    Args:
        said: with the text as the model wrote it, and as `thinking` the part that a server has already separated.
    """
    if said.error is not None:
        return said
    parts = separate(said.text)
    thinking = _joined([said.thinking or "", parts.thinking or ""])
    if not _BLANK.fullmatch(parts.text):
        return replace(said, text=parts.text, thinking=thinking)
    error = _why_none(said.finish_reason, thinking is not None, parts.is_open)
    is_empty = said.finish_reason == "stop"
    return replace(
        said, text="", finish_reason="error", thinking=thinking, logprobs=None, error=error, is_empty=is_empty
    )


def empty_answer(said: Generation) -> Generation:
    """An empty answer in place of the error of a model that ended without a text: a measure scores it 0."""
    return replace(said, error=None, finish_reason="stop", is_empty=False) if said.is_empty else said


def separate(text: str) -> Separated:
    """Separates the thinking of a text, in linear time. A text without thinking stays as it is."""
    start = _skip_blank(text, 0)
    if (parts := _of_channels(text, start)) is not None:
        return parts
    if headed := _HEADED.match(text, start):
        return Separated(text[headed.end() :].strip(), _joined([headed[headed.lastgroup or 0]]))
    if _HEADED_BEGUN.match(text, start):
        return Separated("", _joined([text[start:]]), is_open=True)
    return _of_tags(text, start)


def is_mark(token: str) -> bool:
    """True if this text of a token separates thinking, so a decoder must not drop it as a special token."""
    return (_TAG.fullmatch(token) or _HARMONY.fullmatch(token)) is not None


def opened_by(prompt: str) -> str:
    """The tag of thinking that a rendered prompt opens at its end, so the answer begins inside it; else empty."""
    last = prompt.rstrip()[-40:]
    return next((tag[0] for tag in _TAG.finditer(last) if tag["open"] and tag.end() == len(last)), "")


def _of_tags(text: str, start: int) -> Separated:
    """Takes leading blocks. `num_ends` closing tags may still come without an opening one: of nested blocks, or one."""
    thoughts: list[str] = []
    begin, num_ends, tags = start, 1, _TAG_OR_CODE
    while True:
        inner, tag = begin, _TAG.match(text, begin)
        if tag is not None and tag["open"]:
            inner = tag.end()
            ended, num_ends = _first_end(tags, text, inner)
            if ended is None and tags is not _TAG:  # the end may stand in code that the thinking never closed
                tags = _TAG
                ended, num_ends = _first_end(tags, text, inner)
            if ended is None:
                return Separated("", _joined([*thoughts, text[inner:]]), is_open=True)
        else:
            ended, num_open = _first_end(_TAG_OR_CODE, text, begin) if num_ends else (None, 0)
            if ended is None or num_open or _is_in_sentence(text, ended):
                break
            num_ends -= 1
        thoughts.append(text[inner : ended.start()])
        begin = _skip_blank(text, ended.end())
    answer, later = _without_blocks(text[begin if thoughts else 0 :])
    wrapped = _WRAPPED.fullmatch(answer.rstrip()) if thoughts else None
    return Separated(answer if wrapped is None else wrapped[1].strip(), _joined(thoughts + later))


def _without_blocks(text: str) -> tuple[str, list[str]]:
    """An answer without blocks of thinking between its sentences, and these blocks; the last one may have no end."""
    kept, thoughts, done = [], [], 0
    for tag in _TAG_OR_CODE.finditer(text):
        if not tag["open"] or tag.start() < done or not _BETWEEN.search(text[max(0, tag.start() - 4) : tag.start()]):
            continue
        ended, _ = _first_end(_TAG_OR_CODE, text, tag.end())
        kept.append(text[done : tag.start()])
        thoughts.append(text[tag.end() : ended.start() if ended else len(text)])
        done = ended.end() if ended else len(text)
    return ("".join([*kept, text[done:]]).strip(), thoughts) if thoughts else (text, [])


def _first_end(tags: re.Pattern[str], text: str, start: int) -> tuple[re.Match[str] | None, int]:
    """The first closing tag, and the number of opening tags before it."""
    num_open = 0
    for tag in tags.finditer(text, start):
        if tag["end"]:
            return tag, num_open
        num_open += tag["open"] is not None
    return None, num_open


def _is_in_sentence(text: str, tag: re.Match[str]) -> bool:
    before, after = text[max(0, tag.start() - 2) : tag.start()], text[tag.end() : tag.end() + 1]
    return _SENTENCE.search(before) is not None and after not in ("", "\n", "\r")


def _of_channels(text: str, start: int) -> Separated | None:
    """The parts of a text in harmony's channels; None if it has none at its beginning."""
    heads = list(_MESSAGE.finditer(text, start))
    before = text[start : heads[0].start()] if heads else ""
    ended = _MESSAGE_END.search(before)  # the prompt opened the first channel
    if not heads or (before and (ended is None or before[ended.end() :].strip())):
        begun = _HARMONY.match(text, start)
        return Separated("", _joined([text[begun.end() :]]), is_open=True) if begun else None
    thoughts, finals = [_MESSAGE_END.sub("", before)], []
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, last in zip(heads, ends, strict=True):
        said = text[head.end() : last]
        if (end := _MESSAGE_END.search(said)) is not None:
            said = said[: end.start()]
        is_final = (head["channel"] or "final").split()[:1] == ["final"]
        (finals if is_final else thoughts).append(said)
    return Separated("".join(finals).strip(), _joined(thoughts), is_open=not finals)


def _why_none(finish_reason: str, has_thought: bool, is_open: bool) -> str:
    if finish_reason == "length":
        cut = "while the model was still thinking" if has_thought or is_open else "before it had any text"
        return f"the answer was cut {cut}; allow more tokens with a larger --max_answer_tokens (Sampling.max_tokens)"
    if has_thought or is_open:
        return (
            f"the model only thought, and its answer is empty (finish_reason {finish_reason!r}); ask again, or turn "
            "its thinking off"
        )
    return f"the answer is empty (finish_reason {finish_reason!r}); check the model's chat template, or ask otherwise"


def _joined(thoughts: list[str]) -> str | None:
    """The thoughts that are not blank, each once; None if there is none."""
    return "\n\n".join(dict.fromkeys(filter(None, (thought.strip() for thought in thoughts)))) or None


def _skip_blank(text: str, start: int) -> int:
    blank = _BLANK.match(text, start)
    return blank.end() if blank else start
