"""Late chunking: embed first, cut afterwards, so the vector of a chunk depends on the text around it.

The document is read in overlapping windows. The vector of a chunk is the mean of the token vectors in its spans, as in
"Late Chunking" (Guenther et al. 2024). Only one window's token vectors are in memory at a time, so a novel needs
memory only for the vectors of its chunks.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qrag_jax.chunking.size.packing import longest_run
from qrag_jax.chunking.strategies.fixed import FixedConfig, make_fixed
from qrag_jax.chunking.strategies.kind import ChunkerKind, ChunkTools, default_tokens
from qrag_jax.chunking.text.chunks import Strategy
from qrag_jax.chunking.text.spans import join_spans, readable
from qrag_jax.types import CountTokens, EmbedTokens, InputError, Span, UsageError, check_fields
from qrag_jax.unit_rows import unit_rows

_NUM_SPECIAL = 2  # [CLS] and [SEP] of a window
# Windows begin and end at words; longer runs may be cut, as for text without spaces.
_WORD = re.compile(r"\S{1,32}")


@dataclass(frozen=True)
class LateConfig:
    """Chunks of whole sentences, and the windows in which their document is embedded.

    Attributes:
        num_tokens: whole sentences up to this many tokens are a chunk; a larger sentence is a chunk alone. None is
            `max_tokens` of the chunker, else 256.
        window_tokens: tokens of a window, [CLS] and [SEP] included; at most `TextEmbedder.window`.
        overlap_tokens: most tokens that a window repeats of the one before, counted word by word. A token has at least
            about half of them between itself and the border of its window.
    """

    num_tokens: int | None = None
    window_tokens: int = 256
    overlap_tokens: int = 64


@dataclass(frozen=True)
class Window:
    """A part of a text that is embedded at once.

    Attributes:
        start, end: half-open character offsets.
        after, until: tokens that end in (after, until] are taken from this window; these ranges of all windows are
            adjacent.
    """

    start: int
    end: int
    after: int
    until: int


def make_late(config: LateConfig, count: CountTokens) -> Strategy:
    """The chunks of late chunking; `late_vectors` makes their vectors."""
    check_fields(config, "late", positive=("num_tokens",))
    _check_windows(config.window_tokens, config.overlap_tokens)
    return make_fixed(FixedConfig(num_tokens=config.num_tokens), count)


def late_vectors(
    text: str,
    spans_of_chunks: Sequence[Sequence[Span]],
    embed_tokens: EmbedTokens,
    count: CountTokens,
    window_tokens: int = 256,
    overlap_tokens: int = 64,
    normalise: bool = True,
) -> np.ndarray:
    """Vectors of chunks, pooled from the token vectors of the whole text.

        v_chunk = mean of v_token over the tokens that share a character with one of the chunk's spans

    A token in two windows is taken from the one where it is farther from the border, whole words together. A chunk
    without any token (only characters that the tokenizer drops) gets a vector of zeros, which is equally near to all
    questions.

    Args:
        text: of the whole document; lone surrogates are read as U+FFFD.
        spans_of_chunks: for each chunk its spans, as in `Chunk.spans`; chunks may overlap.
        embed_tokens: window -> token vectors and character offsets; called once for each window that contains a chunk.
        count: text -> its tokens by the tokenizer of `embed_tokens`, without special tokens.
        window_tokens, overlap_tokens: as in `LateConfig`.
        normalise: scale to length 1.

    Returns:
        float32 [n, dim].
    """
    text = readable(text)
    chunks, spans = _flat_spans(text, spans_of_chunks)
    ends_so_far = np.maximum.accumulate(spans[:, 1])
    sums = np.zeros((len(spans_of_chunks), _dim_of(embed_tokens)))
    sizes = np.zeros(len(spans_of_chunks), np.int64)
    for window in find_windows(text, count, window_tokens, overlap_tokens):
        begin, end = np.searchsorted(ends_so_far, window.start, "right"), np.searchsorted(spans[:, 0], window.end)
        if begin < end:
            vectors, offsets = _read(text, window, embed_tokens, sums.shape[1])
            near = chunks[begin:end]
            first, last = _tokens_of_spans(offsets, near, spans[begin:end])
            before = np.concatenate([np.zeros((1, vectors.shape[1])), np.cumsum(vectors, axis=0, dtype=np.float64)])
            np.add.at(sums, near, before[last] - before[first])
            np.add.at(sizes, near, last - first)
    sums /= np.maximum(sizes, 1)[:, None]
    if normalise:
        sums = unit_rows(sums)
    return sums.astype(np.float32)


def find_windows(text: str, count: CountTokens, window_tokens: int, overlap_tokens: int) -> list[Window]:
    """Windows over a text that begin and end at words, overlap as asked for, and are as long as fits.

    Every character that is not white space is in one; each window begins and ends later than the one before.

    Args:
        text: any string that `count` can read.
        count: text -> its tokens, without special tokens.
        window_tokens, overlap_tokens: as in `LateConfig`.
    """
    _check_windows(window_tokens, overlap_tokens)
    most = window_tokens - _NUM_SPECIAL
    words, sums = _words(text, most, count)

    def tokens(first: int, end: int) -> int:
        return count(text[words[first][0] : words[end - 1][1]])

    windows: list[Window] = []
    first, after = 0, 0
    last = longest_run(tokens, 0, most, sums) if words else 0
    while last < len(words):
        least = max(sums[last] - overlap_tokens, sums[last + 1] - most)
        begin = max(first + 1, bisect_left(sums, least))
        # Words that fit by their sum may have more tokens together.
        while (end := begin + longest_run(tokens, begin, most, sums)) <= last:
            begin += 1
        middle = max(begin, bisect_left(sums, (sums[begin] + sums[last]) / 2))
        until = words[middle - 1][1]
        windows.append(Window(words[first][0], words[last - 1][1], after, until))
        first, last, after = begin, end, until
    if words:
        windows.append(Window(words[first][0], words[last - 1][1], after, len(text)))
    return windows


def _check_windows(window_tokens: int, overlap_tokens: int) -> None:
    most = window_tokens - _NUM_SPECIAL
    if most < 1:
        raise UsageError(f"late.window_tokens {window_tokens}: give at least 3 ([CLS], one token of text, [SEP])")
    if not 0 <= overlap_tokens < most:
        raise UsageError(
            f"late.overlap_tokens {overlap_tokens}: give 0 to {most - 1}, less than the window of {window_tokens} "
            "without [CLS] and [SEP]"
        )


def _words(text: str, most: int, count: CountTokens) -> tuple[list[Span], list[int]]:
    """Words of at most `most` tokens each, and the sum of the tokens of the words before each, counted one by one."""
    known: dict[str, int] = {}
    words: list[Span] = []
    sums = [0]
    waiting = [match.span() for match in reversed(list(_WORD.finditer(text)))]
    while waiting:
        start, end = waiting.pop()
        word = text[start:end]
        if word not in known:
            known[word] = count(word)
        if known[word] <= most:
            words.append((start, end))
            sums.append(sums[-1] + known[word])
        elif end == start + 1:
            raise InputError(
                f"character {start}: {word!r} has {known[word]} tokens, but a window has room for {most}; raise "
                "late.window_tokens"
            )
        else:
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]
    return words, sums


def _flat_spans(text: str, spans_of_chunks: Sequence[Sequence[Span]]) -> tuple[np.ndarray, np.ndarray]:
    """Chunk numbers int64 [m] and spans int64 [m, 2] of all chunks, ordered by the starts of the spans."""
    rows = []
    for number, spans in enumerate(spans_of_chunks):
        if not len(spans):
            raise InputError(f"chunk {number}: has no span; give at least one")
        for start, end in spans:
            if not 0 <= start < end <= len(text):
                raise InputError(f"chunk {number}: span ({start}, {end}) is not in the text of {len(text)} characters")
        rows += [(start, end, number) for start, end in join_spans(text, sorted(spans))]
    table = np.array(sorted(rows), np.int64).reshape(-1, 3)
    return table[:, 2], table[:, :2]


def _dim_of(embed_tokens: EmbedTokens) -> int:
    """Size of a vector, from those of an empty text."""
    shape = np.shape(embed_tokens("")[0])
    if len(shape) != 2:
        raise InputError(f"embedder: token vectors of an empty text have shape {list(shape)}, expected [0, dim]")
    return shape[1]


def _read(text: str, window: Window, embed_tokens: EmbedTokens, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and offsets into `text` of the tokens that are taken from a window, checked."""
    found, places = embed_tokens(text[window.start : window.end])
    vectors, offsets = np.asarray(found), np.asarray(places)
    where = f"embedder: characters {window.start} to {window.end}"
    if vectors.ndim != 2 or vectors.shape[1] != dim or offsets.shape != (len(vectors), 2):
        raise InputError(
            f"{where}: token vectors have shape {list(vectors.shape)} and offsets {list(offsets.shape)}, expected "
            f"[n, {dim}] and [n, 2]"
        )
    if not np.isfinite(vectors).all():
        raise InputError(f"{where}: a token vector is not finite; fix the embedder")
    size = window.end - window.start
    if len(offsets) and (offsets.min() < 0 or offsets.max() > size or (offsets[:, 0] > offsets[:, 1]).any()):
        raise InputError(f"{where}: token offsets are not half-open spans of its {size} characters; fix the embedder")
    if (np.diff(offsets, axis=0) < 0).any():
        raise InputError(f"{where}: tokens are not in the order of the text; fix the embedder")
    offsets = offsets + window.start
    taken = (offsets[:, 1] > offsets[:, 0]) & (offsets[:, 1] > window.after) & (offsets[:, 1] <= window.until)
    return vectors[taken], offsets[taken]


def _tokens_of_spans(offsets: np.ndarray, chunks: np.ndarray, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each span the first token that shares a character with it and one after the last, int64 [m] each.

    A token across two spans of a chunk belongs only to the first of them.
    """
    first = np.searchsorted(offsets[:, 1], spans[:, 0], "right")
    last = np.searchsorted(offsets[:, 0], spans[:, 1])
    order = np.argsort(chunks, kind="stable")
    before, after = order[:-1], order[1:]
    again = chunks[before] == chunks[after]
    first[after[again]] = np.maximum(first[after[again]], last[before[again]])
    return first, np.maximum(first, last)


def _make(config: LateConfig, tools: ChunkTools) -> Strategy:
    if config.num_tokens is None:
        config = replace(config, num_tokens=tools.max_tokens)
    return make_late(config, tools.count)


KIND = ChunkerKind(LateConfig, _make, default_tokens=default_tokens)
