"""Trees whose levels have names, and their leaves as chunks: sections down to sentences, or spans of given sizes."""

from dataclasses import dataclass

from qrag_jax.chunking.strategies.hierarchy import source_of
from qrag_jax.chunking.strategies.kind import BuildTree, ChunkTools, tree_kind
from qrag_jax.chunking.text.chunks import DEFAULT_NUM_TOKENS, SentenceText, SplitSentences
from qrag_jax.chunking.tree.boundaries import PredictPoints, no_points
from qrag_jax.chunking.tree.build import refine_leaves
from qrag_jax.chunking.tree.level_ranges import NAMES, size_names
from qrag_jax.chunking.tree.level_trees import check_sizes, named_tree, size_tree
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.names import PointsName
from qrag_jax.types import CountTokens


@dataclass(frozen=True)
class LevelsConfig:
    """The levels of a tree.

    Attributes:
        points: source of the boundaries of sections and subsections, as in `HierarchyConfig`; ignored with `sizes`.
        sizes: most tokens of a span at each level, decreasing (`tree/level_ranges.py:SIZES`); empty: document, section,
            subsection, paragraph, sentence.
    """

    points: PointsName = "headings"
    sizes: tuple[int, ...] = ()


def level_tree(
    text: SentenceText,
    document_id: str,
    predict: PredictPoints,
    config: LevelsConfig,
    num_tokens: int | None,
    count: CountTokens,
    split: SplitSentences,
) -> ChunkTree:
    """The tree of a text with the levels of a config: `named_tree`, or `size_tree` if the config has sizes.

    Args:
        text: of the document, by `blocks.make_unit_splitter`.
        num_tokens: most tokens of a leaf; None is 256, or the smallest size.
    """
    if not config.sizes:
        return named_tree(text, document_id, predict, num_tokens or DEFAULT_NUM_TOKENS, count, split)
    tree = size_tree(text, document_id, config.sizes, count, split)
    return tree if num_tokens is None else refine_leaves(tree, text, num_tokens, count, split)


def levels_source(config: LevelsConfig, predict: PredictPoints | None) -> PredictPoints:
    """The source of boundaries that a config names, as `points_source`; none with sizes."""
    check_sizes(config.sizes)
    if config.sizes:
        return no_points
    return source_of("levels.points", config.points, predict)


def _tree(config: LevelsConfig, tools: ChunkTools) -> BuildTree:
    source = levels_source(config, tools.predict)
    return lambda text, name: level_tree(text, name, source, config, tools.max_tokens, tools.count, tools.split)


KIND = tree_kind(
    LevelsConfig,
    _tree,
    points=lambda config: None if config.sizes else config.points,
    levels=lambda config: size_names(config.sizes) if config.sizes else NAMES,
)
