"""The size limit of chunks: no chunk has more tokens than asked for, whatever a strategy proposes.

A group over the limit is cut between its spans, then a long span between sentences, words and finally characters. A
group that is too small is joined with a neighbour.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from qrag_jax.chunking.size.packing import capped, cut_sentences, cut_words, longest, pack_spans, run_counter
from qrag_jax.chunking.text.chunks import Group, SplitSentences, count_spans
from qrag_jax.chunking.text.spans import join_spans
from qrag_jax.types import CountTokens, InputError, Span, UsageError


def check_budget(max_tokens: int | None, min_tokens: int | None) -> None:
    """Refuses size limits that no chunk can keep."""
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"max_tokens {max_tokens}: give at least 1")
    if min_tokens is not None and min_tokens < 1:
        raise UsageError(f"min_tokens {min_tokens}: give at least 1, or leave it out for no minimum")
    if max_tokens is not None and min_tokens is not None and min_tokens > max_tokens:
        raise UsageError(f"min_tokens {min_tokens} is above max_tokens {max_tokens}; give a smaller one")


def fit_groups(
    text: str, groups: Sequence[Group], max_tokens: int, count: CountTokens, split: SplitSentences
) -> list[Group]:
    """Groups of at most `max_tokens` tokens, in the given order; a group that fits is unchanged.

    Overlapping groups may be cut into parts without new text: a part inside another one of the same level is left out.

    Args:
        max_tokens: most tokens of a chunk.
        split: span that is too long -> its sentences.
    """
    count = capped(count, max_tokens)
    fitted: list[Group] = []
    for group in groups:
        parts = list(_fit_spans(text, group.spans, max_tokens, count, split))
        level = group.level if len(parts) == 1 else max(1, group.level)  # a part of a document is not a document
        fitted += [Group(spans, level) for spans in parts]
    return _without_covered(text, fitted)


def _fit_spans(
    text: str, spans: tuple[Span, ...], max_tokens: int, count: CountTokens, split: SplitSentences
) -> Iterator[tuple[Span, ...]]:
    """The parts of one group, cut as `fit_groups` says."""
    if run_counter(text, spans, count, max_tokens)(0, len(spans)) <= max_tokens:
        yield spans
        return
    for part in pack_spans(text, spans, max_tokens, count, (cut_sentences(split), cut_words)):
        if count_spans(text, part, count) <= max_tokens:
            yield part
        else:
            yield from ((piece,) for piece in _characters(text, part[0], max_tokens, count))


def _characters(text: str, word: Span, max_tokens: int, count: CountTokens) -> Iterator[Span]:
    """A word in pieces of as many characters as fit; the size of each is the guess for the next."""
    start, end = word
    size = max_tokens
    while start < end:
        size = longest(lambda n, at=start: count(text[at : at + n]) <= max_tokens, end - start, size)
        if not size:
            raise InputError(
                f"character {start}: {text[start]!r} has {count(text[start])} tokens, but max_tokens is {max_tokens}; "
                "raise it"
            )
        yield start, start + size
        start += size


def _without_covered(text: str, groups: list[Group]) -> list[Group]:
    """Leaves out every group of one span that is inside another one of its level, or equals an earlier one."""
    joined = [join_spans(text, group.spans) for group in groups]
    single = [i for i, spans in enumerate(joined) if len(spans) == 1]
    covered: set[int] = set()
    reached = {group.level: -1 for group in groups}
    for i in sorted(single, key=lambda i: (joined[i][0][0], -joined[i][0][1])):
        level, end = groups[i].level, joined[i][0][1]
        if end <= reached[level]:
            covered.add(i)
        reached[level] = max(reached[level], end)
    return [group for i, group in enumerate(groups) if i not in covered]


def merge_small(
    text: str, groups: Sequence[Group], min_tokens: int, max_tokens: int | None, count: CountTokens
) -> list[Group]:
    """Joins groups below `min_tokens` with the next ones until they reach it, else with the previous one.

    Only neighbours of the same level are joined, and only if the maximum allows it; otherwise a group stays small.
    Groups that share whole spans keep one copy; groups that share a part of a span are not joined.
    """
    merged: list[Group] = []
    first = small = 0
    while first < len(groups):
        small = longest(
            lambda n, at=first: _may_join(text, groups[at : at + n], min_tokens - 1, count), len(groups) - first, small
        )
        members = groups[first : first + small + 1]  # the last one makes them large enough, if there is one
        while len(members) > 1 and not _may_join(text, members, max_tokens, count):
            members = members[:-1]
        first += len(members)
        group = _union(members)
        is_small = count_spans(text, group.spans, count) < min_tokens
        if merged and is_small and _may_join(text, [merged[-1], group], max_tokens, count):
            merged[-1] = _union([merged[-1], group])
        else:
            merged.append(group)
    return merged


def _union(groups: Sequence[Group]) -> Group:
    return Group(tuple(sorted(set(chain.from_iterable(group.spans for group in groups)))), groups[0].level)


def _may_join(text: str, groups: Sequence[Group], num_tokens: int | None, count: CountTokens) -> bool:
    """True if groups can be one chunk with at most `num_tokens` tokens."""
    spans = _union(groups).spans
    if len({group.level for group in groups}) > 1:
        return False
    if any(left[1] > right[0] for left, right in zip(spans, spans[1:], strict=False)):
        return False
    return num_tokens is None or count_spans(text, spans, count) <= num_tokens
