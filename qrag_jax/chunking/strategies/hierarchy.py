"""Trees from boundaries: found sections, small ones joined, deep ones capped, long ones cut to a size."""

from dataclasses import dataclass

from qrag_jax.chunking.strategies.kind import BuildTree, ChunkTools, tree_kind
from qrag_jax.chunking.text.blocks import join_heading_units, make_block_splitter
from qrag_jax.chunking.text.chunks import DEFAULT_NUM_TOKENS, SentenceText, SplitSentences
from qrag_jax.chunking.tree.boundaries import (
    PredictPoints,
    heading_points,
    paragraph_points,
    predict_checked,
    rule_points,
)
from qrag_jax.chunking.tree.build import cap_levels, merge_runs, refine_leaves, tree_from_points
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.names import BOUNDARY_SOURCES, PointsName
from qrag_jax.types import CountTokens, UsageError, check_fields

OWN_POINTS: dict[str, PredictPoints] = {  # sources that need only the text
    "headings": heading_points,
    "rule": rule_points,
    "paragraphs": paragraph_points,
}


@dataclass(frozen=True)
class HierarchyConfig:
    """How boundaries become a tree.

    Attributes:
        points: the source of boundaries: `headings` of Markdown; `rule`, short lines that look like headings;
            `paragraphs`; `tagger`, `llm` and `lumber` are models that you pass.
        level_cap: the deepest level; deeper parts join the part around them. Parts that are cut for their size are one
            level deeper. None is no cap.
        merge_tokens: neighbouring parts whose levels do not fall are joined if together they have at most this many
            tokens. 0 joins none; None is the most tokens of a leaf.
    """

    points: PointsName = "headings"
    level_cap: int | None = None
    merge_tokens: int | None = None


def hierarchy_tree(
    text: SentenceText,
    document_id: str,
    predict: PredictPoints,
    config: HierarchyConfig,
    num_tokens: int,
    count: CountTokens,
    split: SplitSentences,
) -> ChunkTree:
    """The tree of a text from the boundaries that a source finds.

    The steps: find boundaries; join small parts (`tree/build.py:merge_runs`); make the tree; cap its levels
    (`cap_levels`); cut leaves to the size (`refine_leaves`), Markdown first between blocks, items and rows.

    Args:
        text: of the document, by `blocks.make_unit_splitter`.
        config: how parts are joined and capped.
        num_tokens: most tokens of a leaf.
    """
    (points,) = predict_checked(predict, [text], [document_id])
    merge_tokens = num_tokens if config.merge_tokens is None else config.merge_tokens
    if merge_tokens:
        points = merge_runs(text, points, merge_tokens, count)
    tree = tree_from_points(text, points, document_id)
    if config.level_cap is not None:
        tree = cap_levels(tree, config.level_cap)
    return refine_leaves(tree, join_heading_units(text), num_tokens, count, make_block_splitter(split))


def points_source(config: HierarchyConfig, predict: PredictPoints | None) -> PredictPoints:
    """The source that a config names: the one passed, else one of `OWN_POINTS`."""
    check_hierarchy(config)
    return source_of("hierarchy.points", config.points, predict)


def source_of(field: str, points: str, predict: PredictPoints | None) -> PredictPoints:
    """A source of boundaries by its name: the one passed, else one of `OWN_POINTS`.

    Args:
        field: of the config that names it, for errors.
        predict: a model that finds boundaries.
    """
    check_points_name(field, points)
    if predict is not None:
        return predict
    if points not in OWN_POINTS:
        raise UsageError(
            f"{field} {points}: needs a model, as `qrag chunk --points {points}` loads; give one as `predict`, or "
            f"choose {', '.join(OWN_POINTS)}"
        )
    return OWN_POINTS[points]


def check_points_name(field: str, points: str) -> None:
    """Refuses an unknown name of a source."""
    if points not in (names := BOUNDARY_SOURCES.choices("tree")):
        raise UsageError(f"{field} {points!r}: choose one of {', '.join(names)}")


def check_hierarchy(config: HierarchyConfig) -> None:
    """Refuses a config that cannot give a tree."""
    check_points_name("hierarchy.points", config.points)
    check_fields(config, "hierarchy", positive=("level_cap",), at_least={"merge_tokens": 0})


def _tree(config: HierarchyConfig, tools: ChunkTools) -> BuildTree:
    predict, num_tokens = points_source(config, tools.predict), tools.max_tokens or DEFAULT_NUM_TOKENS
    return lambda text, name: hierarchy_tree(text, name, predict, config, num_tokens, tools.count, tools.split)


KIND = tree_kind(HierarchyConfig, _tree, lambda config: config.points)
