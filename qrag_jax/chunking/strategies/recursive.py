"""Chunks along a text's own borders, coarsest first: paragraphs, lines, sentences, words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from qrag_jax.chunking.size.packing import Cut, cut_sentences, cut_words, pack_spans
from qrag_jax.chunking.strategies.kind import ChunkerKind, ChunkTools, default_tokens
from qrag_jax.chunking.text.chunks import DEFAULT_NUM_TOKENS, Group, SentenceText, SplitSentences, Strategy
from qrag_jax.chunking.text.sentences import BLANK_LINE, LINE_BORDER
from qrag_jax.chunking.text.spans import strip_span
from qrag_jax.chunking.text.tables import join_in_rows
from qrag_jax.types import CountTokens, Span, check_fields


@dataclass(frozen=True)
class RecursiveConfig:
    """The size of chunks.

    Attributes:
        num_tokens: most tokens of a chunk; a single word may have more. None is `max_tokens` of the chunker, else 256.
    """

    num_tokens: int | None = None


def make_recursive(config: RecursiveConfig, count: CountTokens, split: SplitSentences) -> Strategy:
    """Chunks that are runs of whole paragraphs, or parts of one that is too long.

    The text is cut at blank lines. Neighbouring paragraphs fill a chunk while they fit together. A paragraph that is
    too long is cut into lines, which fill separate chunks in the same way; a line that is too long is cut into
    sentences, and a sentence into words. So a chunk never mixes a part of a paragraph with text outside it, and the
    same is true for lines and sentences. Every word is in one chunk. A table and the heading directly above it are one
    paragraph; a row of it counts as a line.
    """
    check_fields(config, "recursive", positive=("num_tokens",))
    num_tokens = config.num_tokens or DEFAULT_NUM_TOKENS
    cuts: tuple[Cut, ...] = (_cut_lines, cut_sentences(split), cut_words)

    def recursive(text: SentenceText) -> list[Group]:
        pieces = list(_between(BLANK_LINE, text.text, (0, len(text.text))))
        paragraphs = join_in_rows(text.text, pieces, titles=True)
        return [Group(spans) for spans in pack_spans(text.text, paragraphs, num_tokens, count, cuts)]

    return recursive


def _cut_lines(text: str, span: Span) -> list[Span]:
    return join_in_rows(text, list(_between(LINE_BORDER, text, span)))


def _between(border: re.Pattern[str], text: str, span: Span) -> Iterator[Span]:
    """Text between borders inside `span`, without outer white space; blank pieces are left out."""
    start, end = span
    for stop, after in [*(match.span() for match in border.finditer(text, start, end)), (end, end)]:
        piece = strip_span(text, start, stop)
        if piece:
            yield piece
        start = after


def _make(config: RecursiveConfig, tools: ChunkTools) -> Strategy:
    if config.num_tokens is None:
        config = replace(config, num_tokens=tools.max_tokens)
    return make_recursive(config, tools.count, tools.split)


KIND = ChunkerKind(RecursiveConfig, _make, default_tokens=default_tokens)
