"""Chunks of a fixed size in sentences, tokens, or a share of the document, with overlap. The baseline of studies."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from qrag_jax.chunking.size.packing import CountRun, capped, longest, longest_run, run_counter
from qrag_jax.chunking.strategies.kind import ChunkerKind, ChunkTools
from qrag_jax.chunking.text.chunks import DEFAULT_NUM_TOKENS, Group, SentenceText, Strategy, groups_of
from qrag_jax.types import CountTokens, UsageError, check_fields


@dataclass(frozen=True)
class FixedConfig:
    """At most one of three sizes (default: `max_tokens` of the chunker, else 256 tokens), and the overlap of chunks.

    Attributes:
        sentences_per_chunk: sentences of a chunk; the last one may have fewer.
        num_chunks: a chunk has the sentences of the document divided by this, rounded down. The rest becomes further
            chunks, so there may be more than this number. The paper's hyper-parameter (Appendix B), as in its authors'
            code.
        num_tokens: whole sentences up to this many tokens; a larger sentence is a chunk alone.
        overlap: number of sentences that a chunk repeats from the one before. With `num_chunks`, at most one less than
            a chunk has; with `num_tokens`, fewer if the next sentence would not fit.
        overlap_tokens: the overlap in tokens, for `num_tokens`: as many whole sentences as fit.
    """

    sentences_per_chunk: int | None = None
    num_chunks: int | None = None
    num_tokens: int | None = None
    overlap: int = 0
    overlap_tokens: int = 0


def make_fixed(config: FixedConfig, count: CountTokens) -> Strategy:
    """Chunks of consecutive sentences; every sentence is in one, and no chunk is inside another.

    Args:
        count: text -> its tokens; called only for sizes in tokens.
    """
    _check(config)
    if config.sentences_per_chunk is None and config.num_chunks is None:
        return lambda text: groups_of(text, _by_tokens(text, config, count))
    return lambda text: groups_of(text, _by_sentences(len(text), config))


def _make(config: FixedConfig, tools: ChunkTools) -> Strategy:
    return make_fixed(config if _is_sized(config) else replace(config, num_tokens=tools.max_tokens), tools.count)


def _is_sized(config: FixedConfig) -> bool:
    return any(size is not None for size in (config.sentences_per_chunk, config.num_chunks, config.num_tokens))


def _check(config: FixedConfig) -> None:
    """Refuses sizes that `make_fixed` cannot use."""
    names = ("sentences_per_chunk", "num_chunks", "num_tokens")
    given = [f"{name} {getattr(config, name)}" for name in names if getattr(config, name) is not None]
    if len(given) > 1:
        raise UsageError(f"fixed: {' and '.join(given)}: choose only one size")
    check_fields(config, "fixed", positive=names, at_least={"overlap": 0, "overlap_tokens": 0})
    if config.overlap and config.overlap_tokens:
        raise UsageError(
            f"fixed.overlap {config.overlap} and fixed.overlap_tokens {config.overlap_tokens}: choose only one"
        )
    if config.sentences_per_chunk is not None and config.overlap >= config.sentences_per_chunk:
        raise UsageError(
            f"fixed.overlap {config.overlap}: must be below sentences_per_chunk {config.sentences_per_chunk}"
        )
    if config.overlap_tokens and (config.sentences_per_chunk is not None or config.num_chunks is not None):
        raise UsageError(
            f"fixed.overlap_tokens {config.overlap_tokens}: works with num_tokens; use overlap with {given[0]}"
        )
    num_tokens = config.num_tokens or DEFAULT_NUM_TOKENS
    if config.overlap_tokens >= num_tokens:
        raise UsageError(f"fixed.overlap_tokens {config.overlap_tokens}: must be below num_tokens {num_tokens}")


def _by_sentences(num_sentences: int, config: FixedConfig) -> list[range]:
    """Sentence numbers of each chunk.

        starts = range(0, num_sentences - overlap, n_per - overlap)

    A chunk starts only if it has new sentences after those that it repeats. A document with at most `overlap` sentences
    would have no chunk by this rule; it becomes one chunk.
    """
    n_per, overlap = config.sentences_per_chunk, config.overlap
    if n_per is None:
        n_per = max(num_sentences // (config.num_chunks or 1), 1)
        overlap = min(overlap, n_per - 1)
    starts = range(0, max(num_sentences - overlap, 1), n_per - overlap)
    return [range(start, min(start + n_per, num_sentences)) for start in starts]


def _by_tokens(text: SentenceText, config: FixedConfig, count: CountTokens) -> Iterator[range]:
    """Sentence numbers of each chunk: as many as fit; the next chunk starts at the first repeated sentence."""
    num_tokens = config.num_tokens or DEFAULT_NUM_TOKENS
    count = capped(count, num_tokens)
    tokens = run_counter(text.text, text.sentences, count, num_tokens)
    sums = list(accumulate(map(count, text.texts()), initial=0))
    first = repeated = 0
    while first < len(text):
        # The repeated ones and one more fit; longest_run may miss that if more text has fewer tokens.
        run = max(longest_run(tokens, first, num_tokens, sums), repeated + 1)
        yield range(first, first + run)
        if first + run == len(text):
            return
        repeated = _repeated(first, first + run, config, tokens, sums)
        first += run - repeated


def _repeated(first: int, end: int, config: FixedConfig, tokens: CountRun, sums: list[int]) -> int:
    """The number of sentences before number `end` that are repeated after the chunk that began at `first`.

    At most one less than the chunk has, so the next one starts later; and few enough that sentence `end` fits, so it
    also ends later.
    """
    num_tokens, overlap_tokens = config.num_tokens or DEFAULT_NUM_TOKENS, config.overlap_tokens
    most, guess = min(config.overlap, end - first - 1), config.overlap
    if overlap_tokens:
        most, guess = end - first - 1, end - bisect_left(sums, sums[end] - overlap_tokens)
    return longest(
        lambda size: (
            (not overlap_tokens or tokens(end - size, end) <= overlap_tokens)
            and tokens(end - size, end + 1) <= num_tokens
        ),
        most,
        guess,
    )


def _default_tokens(config: FixedConfig) -> int | None:
    return None if _is_sized(config) else DEFAULT_NUM_TOKENS


KIND = ChunkerKind(FixedConfig, _make, default_tokens=_default_tokens)
DOCUMENT = ChunkerKind(None, lambda _, tools: lambda text: [Group(text.sentences, level=0)])
