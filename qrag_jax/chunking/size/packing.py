"""Filling chunks with spans: as many as have at most so many tokens together, and what is too large taken apart.

Tokens are counted on the text that a chunk will have, never added up: a tokenizer may count two parts together as more,
or less, than it counts them apart. Sums only say where the search for a border starts.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from qrag_jax.chunking.text.chunks import SplitSentences, count_spans
from qrag_jax.chunking.text.spans import join_spans
from qrag_jax.types import CountTokens, Span

# Text and one of its spans -> the smaller parts of that span: ordered, disjoint, all that is not blank in one of them.
Cut = Callable[[str, Span], list[Span]]
# (first, end): half-open numbers of spans, not empty -> tokens of those spans as one chunk.
CountRun = Callable[[int, int], int]

_WORD = re.compile(r"\S+")
_LONG_TOKEN = 32  # characters; text has 2 to 6 a token


def longest(fits: Callable[[int], bool], limit: int, guess: int) -> int:
    """A size in [0, limit] that fits while the next one does not: the largest one, where a part of what fits fits too.

    Found in steps of 1, 2, 4, ... from `guess`, then by halving, so a good guess costs two calls. Size 0 always fits.
    A tokenizer need not be monotone (WordPiece counts a word of 101 letters as one unknown token); the size given back
    was tried all the same.

    Args:
        fits: tells of a size in [1, limit] whether it fits.
        guess: where to start; any number.
    """
    if limit < 1:
        return 0
    size, step = min(max(guess, 1), limit), 1
    if fits(size):
        low = size
        while low + step <= limit and fits(low + step):
            low, step = low + step, 2 * step
        high = min(low + step, limit + 1)
    else:
        high = size
        while high - step >= 1 and not fits(high - step):
            high, step = high - step, 2 * step
        low = max(high - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def pack_spans(
    text: str, spans: Sequence[Span], num_tokens: int, count: CountTokens, cuts: Sequence[Cut] = ()
) -> Iterator[tuple[Span, ...]]:
    """Fills chunks in order, each with as many whole spans as `num_tokens` holds.

    A span that is larger alone is taken apart by the first of `cuts` that makes it smaller. Its parts fill chunks of
    their own in the same way, cut on by that one and those after it: they are never mixed with what lies before or
    after the span. What no cut makes smaller stays whole.
    """
    yield from _pack(text, spans, num_tokens, capped(count, num_tokens), cuts)


def _pack(
    text: str, spans: Sequence[Span], num_tokens: int, count: CountTokens, cuts: Sequence[Cut]
) -> Iterator[tuple[Span, ...]]:
    tokens = run_counter(text, spans, count)
    sums = list(accumulate((count(text[start:end]) for start, end in spans), initial=0))
    first = 0
    while first < len(spans):
        run = longest_run(tokens, first, num_tokens, sums)
        parts, finer = ([], ()) if run else _cut(text, spans[first], cuts)
        if parts:
            yield from _pack(text, parts, num_tokens, count, finer)
        else:
            yield tuple(spans[first : first + max(run, 1)])
        first += max(run, 1)


def _cut(text: str, span: Span, cuts: Sequence[Cut]) -> tuple[list[Span], Sequence[Cut]]:
    """Smaller parts of a span and the cuts that go on with them; nothing if it cannot be cut."""
    for i, cut in enumerate(cuts):
        parts = cut(text, span)
        if parts != [span]:
            return parts, cuts[i:]
    return [], ()


def capped(count: CountTokens, num_tokens: int) -> CountTokens:
    """The same counts up to `num_tokens`; of a long text with more, those of a beginning that alone has more.

    So a whole novel, or a word of 10 MB, is not read to learn that it does not fit in a chunk. Of a tokenizer that has
    more tokens for a beginning than for the whole, a long text may be said not to fit although it does.
    """
    return partial(_count_capped, count, num_tokens)


def _count_capped(count: CountTokens, num_tokens: int, text: str) -> int:
    size = _LONG_TOKEN * num_tokens
    while size < len(text):
        found = count(text[:size])
        if found > num_tokens:
            return found
        size *= 8
    return count(text)


def run_counter(text: str, spans: Sequence[Span], count: CountTokens) -> CountRun:
    """Tokens of a run of `spans` as one chunk, each time counted on its text."""
    if len(join_spans(text, spans)) == 1:  # nothing lies between them, nor then in any run of them
        return lambda first, end: count(text[spans[first][0] : spans[end - 1][1]])
    return lambda first, end: count_spans(text, spans[first:end], count)


def longest_run(tokens: CountRun, first: int, num_tokens: int, sums: Sequence[int]) -> int:
    """How many spans from number `first` on have at most `num_tokens` tokens together; 0 if not even that one.

    Args:
        tokens: of a run of spans, as one chunk.
        first: where the run begins, below the number of spans.
        sums: int [number of spans + 1]: adds up the tokens of the spans before each, every one counted alone.
    """
    guess = bisect_right(sums, sums[first] + num_tokens) - 1 - first
    return longest(lambda size: tokens(first, first + size) <= num_tokens, len(sums) - 1 - first, guess)


def cut_sentences(split: SplitSentences) -> Cut:
    """A cut of a span into its sentences."""
    return lambda text, span: [(span[0] + start, span[0] + end) for start, end in split(text[span[0] : span[1]])]


def cut_words(text: str, span: Span) -> list[Span]:
    """The words of a span: what stands between white space."""
    return [match.span() for match in _WORD.finditer(text, *span)]
