"""The record of a strategy in `qrag_jax.names.CHUNKERS`: its parameters, and the functions that cut by them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qrag_jax.chunking.text.chunks import Group, SentenceText, SplitSentences, Strategy
from qrag_jax.chunking.tree.boundaries import PredictPoints
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import CountTokens, Embed

# A text and the name of its document -> its tree.
BuildTree = Callable[[SentenceText, str], ChunkTree]


@dataclass(frozen=True)
class ChunkTools:
    """The functions and sizes that strategies need besides their own parameters.

    Attributes:
        max_tokens: of a chunk, as it was asked for; None is no limit.
        count: tokens of a text, as sizes count them.
        embed: texts -> vectors; of strategies with the tag "vectors".
        split: text -> sentences.
        predict: a source of points that was handed in.
    """

    max_tokens: int | None
    count: CountTokens
    embed: Embed
    split: SplitSentences
    predict: PredictPoints | None


@dataclass(frozen=True)
class ChunkerKind:
    """A strategy; its module ends with one, and a line of `qrag_jax.names` names it, with these tags.

    "vectors": it compares sentences by vectors. "tree": it makes trees. "levels": their levels have names. "study": a
    study that names no strategies compares it. "blocks": what is too long is cut between items, rows and lines first.
    "overlaps": a sentence may stand in several chunks. "points": a field of its parameters names a source of them.

    Attributes:
        config: frozen dataclass of its parameters, by its name a field of `ChunkConfig`; None: it has none.
        make: (parameters, tools) -> the strategy; refuses parameters that are out of range.
        tree: the same -> what makes trees, of which its chunks are the leaves.
        points: parameters -> name of the source of points that they ask for.
        levels: parameters -> names of the levels of its trees, the coarsest first.
    """

    config: type | None
    make: Callable[[Any, ChunkTools], Strategy]
    tree: Callable[[Any, ChunkTools], BuildTree] | None = None
    points: Callable[[Any], str | None] = lambda _: None
    levels: Callable[[Any], tuple[str, ...]] = lambda _: ()


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
