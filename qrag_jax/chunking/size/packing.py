"""Fills chunks with as many spans as fit a number of tokens, and cuts spans that are too large.

Tokens are counted on the text of the whole chunk and never added up, because a tokenizer may count two parts together
differently from apart. Sums only tell where to start the search for a border.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from qrag_jax.chunking.text.chunks import SplitSentences, count_spans
from qrag_jax.chunking.text.spans import join_spans
from qrag_jax.chunking.text.tables import context_of, find_tables
from qrag_jax.types import CountTokens, Span

# (text, one of its spans) -> smaller parts of that span: ordered, disjoint, covering all that is not blank.
Cut = Callable[[str, Span], list[Span]]
# (first, end): half-open numbers of spans, not empty -> tokens of those spans as one chunk.
CountRun = Callable[[int, int], int]

_WORD = re.compile(r"\S+")
_LONG_TOKEN = 32  # characters; text has 2 to 6 for each token


def longest(fits: Callable[[int], bool], limit: int, guess: int) -> int:
    """A size in [0, limit] that fits while the next one does not; the largest one, if smaller sizes always fit.

    It is found in steps of 1, 2, 4, ... from `guess`, then by halving, so a good guess takes two calls. Size 0 always
    fits. A tokenizer need not be monotone (WordPiece counts a word of 101 letters as one unknown token), but the
    returned size was always tried.

    Args:
        fits: size in [1, limit] -> whether it fits.
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
    """Fills chunks in order, each with as many whole spans as fit `num_tokens`.

    If one span is too large, the first of `cuts` that makes it smaller cuts it. Its parts fill separate chunks in the
    same way, with that cut and those after it, and are not mixed with text before or after the span. A span that no
    cut makes smaller stays whole.
    """
    yield from _pack(text, spans, num_tokens, capped(count, num_tokens), cuts)


def _pack(
    text: str, spans: Sequence[Span], num_tokens: int, count: CountTokens, cuts: Sequence[Cut]
) -> Iterator[tuple[Span, ...]]:
    tokens = run_counter(text, spans, count, num_tokens)
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
    """Smaller parts of a span and the cuts for those; nothing if it cannot be cut."""
    for i, cut in enumerate(cuts):
        parts = cut(text, span)
        if parts != [span]:
            return parts, cuts[i:]
    return [], ()


def capped(count: CountTokens, num_tokens: int) -> CountTokens:
    """Counts up to `num_tokens`; for a longer text, it may return the count of a beginning that already has more.

    So a whole novel, or a word of 10 MB, is not read to learn that it does not fit in a chunk. If a tokenizer counts
    more tokens for a beginning than for the whole, a long text that fits may be rejected.
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


def run_counter(text: str, spans: Sequence[Span], count: CountTokens, num_tokens: int) -> CountRun:
    """Counts the tokens of a run of `spans` as one chunk, each time on its text.

    A run that begins inside a table counts with its context (`tables.context_of`), which takes at most half of
    `num_tokens`. A span alone counts without it, so a row stays whole if it fits.
    """
    if len(join_spans(text, spans)) == 1:  # no text is between them, so no run has a gap
        own: CountRun = lambda first, end: count(text[spans[first][0] : spans[end - 1][1]])  # noqa: E731
    else:
        own = lambda first, end: count_spans(text, spans[first:end], count)  # noqa: E731
    if not find_tables(text):
        return own

    def tokens(first: int, end: int) -> int:
        context = context_of(text, spans[first:end]) if end - first > 1 else ""
        return own(first, end) + (min(count(context), num_tokens // 2) if context else 0)

    return tokens


def longest_run(tokens: CountRun, first: int, num_tokens: int, sums: Sequence[int]) -> int:
    """The number of spans from `first` on that have at most `num_tokens` tokens together; 0 if even one is too large.

    Args:
        tokens: counts a run of spans as one chunk.
        first: start of the run, below the number of spans.
        sums: int [number of spans + 1]: sum of the tokens of the spans before each, every one counted alone.
    """
    guess = bisect_right(sums, sums[first] + num_tokens) - 1 - first
    return longest(lambda size: tokens(first, first + size) <= num_tokens, len(sums) - 1 - first, guess)


def cut_sentences(split: SplitSentences) -> Cut:
    """A cut of a span into its sentences."""
    return lambda text, span: [(span[0] + start, span[0] + end) for start, end in split(text[span[0] : span[1]])]


def cut_words(text: str, span: Span) -> list[Span]:
    """The words of a span: text between white space."""
    return [match.span() for match in _WORD.finditer(text, *span)]
