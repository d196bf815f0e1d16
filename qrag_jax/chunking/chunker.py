"""Cuts documents into chunks by any strategy: sentences, groups of them, the size limit, ids and token counts."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from qrag_jax.chunking.size.budget import check_budget, fit_groups, merge_small
from qrag_jax.chunking.strategies.headings import heading_tree
from qrag_jax.chunking.strategies.kind import ChunkerKind, ChunkTools
from qrag_jax.chunking.text.blocks import find_blocks, make_block_splitter, make_unit_splitter
from qrag_jax.chunking.text.chunks import (
    DEFAULT_NUM_TOKENS,
    SentenceText,
    SplitSentences,
    Strategy,
    check_sentences,
    make_chunk,
)
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.text.tables import make_row_splitter
from qrag_jax.chunking.tree.boundaries import PredictPoints, no_points
from qrag_jax.chunking.tree.build import refine_leaves
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.names import CHUNKERS, PointsName, StrategyName
from qrag_jax.types import Chunk, CountTokens, Document, Embed, InputError, UsageError

if TYPE_CHECKING:
    from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
    from qrag_jax.chunking.strategies.clusters import DbscanConfig, LinkageConfig
    from qrag_jax.chunking.strategies.fixed import FixedConfig
    from qrag_jax.chunking.strategies.headings import HeadingsConfig
    from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
    from qrag_jax.chunking.strategies.late import LateConfig
    from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
    from qrag_jax.chunking.strategies.recursive import RecursiveConfig

_LONG_WORD = re.compile(r"\S{100}(?=\S)")
_MAX_REMEMBERED = 4_096  # characters of a text whose count is kept: sentences and chunks, not whole documents
Chunker = Callable[[Document], list[Chunk]]


@dataclass(frozen=True)
class _Sizes:
    """How documents are cut: a strategy, the sizes that all strategies keep, and the parameters of each strategy.

    Attributes:
        strategy: its name; only its parameters are used.
        max_tokens: most tokens of a chunk. None is 256 for a strategy that fills chunks with tokens and has no size of
            its own, and no limit for the others.
        min_tokens: smaller chunks are joined with a neighbour if `max_tokens` allows it; None joins none.

    Raises:
        UsageError: a size or a parameter of the strategy is out of range.
    """

    strategy: StrategyName = "fixed"
    max_tokens: int | None = None
    min_tokens: int | None = None

    def __post_init__(self) -> None:
        check_budget(self.max_tokens, self.min_tokens)
        make_strategy(cast(ChunkConfig, self), len, _never, predict=no_points)  # raises for bad parameters


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class ChunkConfig(_Sizes):
        """How documents are cut: strategy, sizes, parameters of strategies; docs/reference/chunking.md lists them."""

        fixed: FixedConfig = FixedConfig()
        recursive: RecursiveConfig = RecursiveConfig()
        breakpoint: BreakpointConfig = BreakpointConfig()
        linkage: LinkageConfig = LinkageConfig()
        dbscan: DbscanConfig = DbscanConfig()
        late: LateConfig = LateConfig()
        headings: HeadingsConfig = HeadingsConfig()
        hierarchy: HierarchyConfig = HierarchyConfig()
        levels: LevelsConfig = LevelsConfig()

else:
    _PARTS = {name: part for name in CHUNKERS if (part := CHUNKERS.load(name).config) is not None}
    ChunkConfig = make_dataclass(
        "ChunkConfig",
        [(name, part, field(default_factory=part)) for name, part in _PARTS.items()],
        bases=(_Sizes,),
        namespace={"__module__": __name__, "__doc__": _Sizes.__doc__},
        frozen=True,
    )


def make_chunker(
    config: ChunkConfig,
    count: CountTokens,
    embed: Embed | None = None,
    split: SplitSentences = split_sentences,
    predict: PredictPoints | None = None,
) -> Chunker:
    """Makes a function from a document to its chunks, ordered by their starts.

    Args:
        config: strategy and sizes.
        count: text -> its tokens; all counts come from it. It gets lone surrogates as U+FFFD. For sizes, a word of more
            than 100 characters counts as if it were cut there.
        embed: texts -> vectors; needed by `breakpoint`, `linkage` and `dbscan`.
        split: text -> sentences.
        predict: for `hierarchy` and `levels`: finds boundaries instead of the source in the config.

    Raises:
        UsageError: the strategy needs an embedder, or a model that finds boundaries.
    """
    cut = make_block_splitter(split) if config.strategy in CHUNKERS.choices("blocks") else split
    known: dict[str, int] = {}  # counts of one document: strategy, budget and chunks need the same ones
    count = _checked(count)
    size = _size_of(count, known)
    strategy = make_strategy(config, size, None if embed is None else _readable_all(embed), split, predict)
    make_sentences = make_unit_splitter if config.strategy in CHUNKERS.choices("tree") else make_row_splitter
    sentences = make_sentences(split)
    most = config.max_tokens or _kind(config).default_tokens(_part(config))
    most_joined = config.max_tokens if config.min_tokens and most and config.min_tokens > most else most

    def chunk(document: Document) -> list[Chunk]:
        """Cuts one document.

        Raises:
            InputError: the document is blank, one character exceeds the size limit, or `split` or `embed` returned an
                impossible result.
        """
        try:
            text = SentenceText(document.text, tuple(sentences(document.text)))
            check_sentences(text)
            groups = strategy(text)
            if most is not None:
                groups = fit_groups(document.text, groups, most, size, cut)
            if config.min_tokens is not None:
                groups = merge_small(document.text, groups, config.min_tokens, most_joined, size)
            chunks = [make_chunk(document, group.spans, group.level, count) for group in groups]
        except InputError as error:
            raise error.at(document.id) from error
        finally:
            known.clear()
        return sorted(chunks, key=lambda chunk: (chunk.spans[0][0], chunk.level, chunk.spans))

    return chunk


def make_tree_builder(
    config: ChunkConfig,
    count: CountTokens,
    split: SplitSentences = split_sentences,
    predict: PredictPoints | None = None,
) -> Callable[[Document], ChunkTree]:
    """Makes a function from a document to its tree of sections, their paragraphs, lists, tables and fences, and parts.

    A leaf over `max_tokens` (256 if not given) is cut as strategy `headings` cuts. For strategy `hierarchy`, the tree
    has the boundaries that its source finds; for `levels`, the levels of its names or sizes.

    Args:
        config: only `max_tokens` and `headings` are used, or `hierarchy` or `levels` for those strategies.
        count: as in `make_chunker`.
        split: text -> sentences.
        predict: as in `make_chunker`.

    Raises:
        UsageError: `min_tokens` is set, or a model that finds boundaries is missing.
    """
    if config.min_tokens is not None:
        raise UsageError(f"min_tokens {config.min_tokens}: has no effect on trees; leave it out")
    known: dict[str, int] = {}
    size, cut = _size_of(_checked(count), known), make_block_splitter(split)
    num_tokens = config.max_tokens or DEFAULT_NUM_TOKENS
    own = _kind(config).tree
    build_own = None if own is None else own(_part(config), _tools(config, size, None, split, predict))
    units = make_unit_splitter(split)

    def build(document: Document) -> ChunkTree:
        """Makes the tree of one document.

        Raises:
            InputError: as for the chunks of `make_chunker`.
        """
        try:
            if build_own is not None:
                return build_own(SentenceText(document.text, tuple(units(document.text))), document.id)
            text = SentenceText(document.text, tuple((block.start, block.end) for block in find_blocks(document.text)))
            tree = heading_tree(text, document.id, config.headings, paragraphs=True)
            return refine_leaves(tree, text, num_tokens, size, cut)
        finally:
            known.clear()

    return build


def level_names(config: ChunkConfig) -> tuple[str, ...]:
    """Names of the levels of a strategy's trees, the coarsest first; empty if they have none."""
    return _kind(config).levels(_part(config))


def points_of(config: ChunkConfig) -> PointsName | None:
    """The source of boundaries that a strategy uses; None if it uses none."""
    return _kind(config).points(_part(config))


def make_strategy(
    config: ChunkConfig,
    count: CountTokens,
    embed: Embed | None,
    split: SplitSentences = split_sentences,
    predict: PredictPoints | None = None,
) -> Strategy:
    """The strategy that a config names, before size limits are enforced; see `make_chunker`.

    A strategy that fills chunks with tokens fills them to `max_tokens` if it has no size of its own.
    """
    if embed is None and config.strategy in CHUNKERS.choices("vectors"):
        raise UsageError(
            f"strategy {config.strategy}: needs an embedder; give `embed`", field="strategy", value=config.strategy
        )
    return _kind(config).make(_part(config), _tools(config, count, embed, split, predict))


def _kind(config: ChunkConfig) -> ChunkerKind:
    return CHUNKERS.load(config.strategy)


def _part(config: ChunkConfig) -> Any:
    """The parameters of the chosen strategy."""
    return getattr(config, config.strategy, None)


def _tools(
    config: ChunkConfig, count: CountTokens, embed: Embed | None, split: SplitSentences, predict: PredictPoints | None
) -> ChunkTools:
    return ChunkTools(config.max_tokens, count, embed or _never, split, predict)


def _never(texts: Sequence[str]) -> np.ndarray:
    raise AssertionError("a config embeds nothing")


def _readable_all(embed: Embed) -> Embed:
    return lambda texts: embed([readable(text) for text in texts])


def _checked(count: CountTokens) -> CountTokens:
    """Checks that a token counter returns whole numbers."""

    def counted(text: str) -> int:
        found = count(readable(text))
        if found != found or int(found) != found or found < 0:
            raise InputError(f"token counter: {found} tokens in {text[:40]!r}; return a whole number, 0 or more")
        return int(found)

    return counted


def _size_of(count: CountTokens, known: dict[str, int]) -> CountTokens:
    """Tokens for size limits: a word counts at least as much as its pieces of 100 characters.

    WordPiece counts a longer word as one unknown token, so text without spaces would seem to have almost no tokens.
    """

    def size(text: str) -> int:
        if text in known:
            return known[text]
        found = count(text)
        if _LONG_WORD.search(text):
            found = max(found, count(_LONG_WORD.sub(r"\g<0> ", text)))
        if len(text) <= _MAX_REMEMBERED:
            known[text] = found
        return found

    return size
