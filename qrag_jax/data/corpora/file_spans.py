"""Character offsets that a user wrote down: how they may look, and what they mean in a file."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from qrag_jax.data.files.places import search
from qrag_jax.data.files.rows import short
from qrag_jax.types import InputError, Span

SPAN_FIELDS = ("start", "end", "span", "spans")


def is_pair(value: object) -> bool:
    """Whether it is [start, end] and so one item of evidence, not a list of two."""
    return isinstance(value, list) and len(value) == 2 and all(_whole(number) is not None for number in value)


def item_spans(item: Mapping[str, object], field: str, where: str) -> Iterator[Span]:
    """Offsets of an item of evidence: of `start` and `end`, of `span`, and of `spans`, a list of such.

    A span is [start, end] or {"start": start, "end": end}, numbers like 3.0 included. Not compared with any file yet.
    """
    if item.get("start") is not None or item.get("end") is not None:
        yield _span([item.get("start"), item.get("end")], field, where)
    if item.get("span") is not None:
        yield _span(item["span"], field, where)
    spans = [] if item.get("spans") is None else item["spans"]
    if not isinstance(spans, list):
        raise InputError(f"{where}: {field}.spans must be a list of [start, end], got {short(spans)}")
    for pair in spans:
        yield _span(pair, field, where)


def _span(value: object, field: str, where: str) -> Span:
    """[start, end], or an object of these two."""
    pair = value
    if isinstance(pair, Mapping) and pair.keys() == {"start", "end"}:
        pair = [pair["start"], pair["end"]]
    if isinstance(pair, list) and len(pair) == 2:
        start, end = map(_whole, pair)
        if start is not None and end is not None:
            return start, end
    raise InputError(
        f"{where}: {field}: start and end must be whole numbers, got {short(value)}; expected [start, end] or "
        '{"start": int, "end": int}'
    )


def _whole(value: object) -> int | None:
    """A whole number, also one that a table wrote as 3.0; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def meant_spans(spans: Sequence[Span], text: str | None, file: str, content: str, where: str) -> Sequence[Span]:
    """The spans; where something else than `text` stands there, those that were meant.

    Tried in turn: the spans with every "\\r\\n" counted as one character, as most programs do; the only place of the
    text. White space is compared as one blank.

    Args:
        spans: of `item_spans`.
        text: what stands there, the texts of several spans after one another; None: not known.
        file: name of the file, and `content` its text.
        where: place of the item, for messages.
    """
    problem = _problem(spans, text, file, content)
    if problem is None:
        return spans
    if text is not None:
        counted = [(_with_returns(start, content), _with_returns(end, content)) for start, end in spans]
        if _problem(counted, text, file, content) is None:
            return counted
        found = search(text, {file: content})
        if len(found) == 1:
            return [found[0][1]]
    raise InputError(f"{where}: {problem}")


def _problem(spans: Sequence[Span], text: str | None, file: str, content: str) -> str | None:
    for start, end in spans:
        if not 0 <= start < end <= len(content):
            return f"[{start}, {end}) is not inside {file}, which has {len(content)} characters"
        if not content[start:end].strip():
            return f"[{start}, {end}) of {file} is blank; count characters from 0, `end` is after it"
    there = " ".join(" ".join(content[start:end] for start, end in spans).split())
    if text is None or there == " ".join(text.split()):
        return None
    return (
        f"at {list(spans)} {file} has {short(there)}, not {short(text)}, which is not there just once; offsets count "
        "characters (not bytes) of the file as it is, line ends of two characters too"
    )


def _with_returns(offset: int, content: str) -> int:
    """An offset into the text whose ends of lines are one character each, as an offset into the file's."""
    places = [match.start() - index for index, match in enumerate(re.finditer("\r\n", content))]
    return offset + bisect_left(places, offset)
