"""The record of a strategy in `qrag_jax.names.CHUNKERS`: its parameters, and the functions that use them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qrag_jax.chunking.text.chunks import DEFAULT_NUM_TOKENS, Group, SentenceText, SplitSentences, Strategy
from qrag_jax.chunking.tree.boundaries import PredictPoints
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import CountTokens, Embed

# (text, id of its document) -> its tree.
BuildTree = Callable[[SentenceText, str], ChunkTree]


@dataclass(frozen=True)
class ChunkTools:
    """Functions and sizes that strategies need besides their own parameters.

    Attributes:
        max_tokens: of a chunk, as asked for; None is no limit.
        count: text -> its tokens, for size limits.
        embed: texts -> vectors; for strategies with the tag "vectors".
        split: text -> sentences.
        predict: a source of boundaries passed by the caller.
    """

    max_tokens: int | None
    count: CountTokens
    embed: Embed
    split: SplitSentences
    predict: PredictPoints | None


@dataclass(frozen=True)
class ChunkerKind:
    """A strategy. Its module defines one, and a line of `qrag_jax.names` registers it with these tags.

    "vectors": it compares sentences by vectors. "tree": it makes trees. "levels": their levels have names. "study":
    studies compare it by default. "blocks": long text is first cut between items, rows and lines. "overlaps": a
    sentence may be in several chunks. "points": one of its parameters names a source of boundaries.

    Attributes:
        config: frozen dataclass of its parameters, a field of `ChunkConfig` under its name; None if it has none.
        make: (parameters, tools) -> the strategy; refuses parameters that are out of range.
        tree: (parameters, tools) -> a function that makes trees, whose leaves are its chunks.
        points: parameters -> name of their source of boundaries.
        levels: parameters -> names of the levels of its trees, the coarsest first.
        default_tokens: parameters -> most tokens of a chunk if `max_tokens` is None; None is no limit.
    """

    config: type | None
    make: Callable[[Any, ChunkTools], Strategy]
    tree: Callable[[Any, ChunkTools], BuildTree] | None = None
    points: Callable[[Any], str | None] = lambda _: None
    levels: Callable[[Any], tuple[str, ...]] = lambda _: ()
    default_tokens: Callable[[Any], int | None] = lambda _: None


def default_tokens(parameters: Any) -> int | None:
    """256 for parameters without `num_tokens`, which is then no limit but a size to fill."""
    return DEFAULT_NUM_TOKENS if parameters.num_tokens is None else None


def tree_kind(
    config: type,
    tree: Callable[[Any, ChunkTools], BuildTree],
    points: Callable[[Any], str | None],
    levels: Callable[[Any], tuple[str, ...]] = lambda _: (),
) -> ChunkerKind:
    """A strategy whose chunks are the leaves of its trees."""

    def make(parameters: Any, tools: ChunkTools) -> Strategy:
        build = tree(parameters, tools)

        def strategy(text: SentenceText) -> list[Group]:
            found = build(text, "text")
            return [Group((found.span(leaf),), int(found.level[leaf])) for leaf in found.leaves.tolist()]

        return strategy

    return ChunkerKind(config, make, tree, points, levels)
