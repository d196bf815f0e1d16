"""Search at the levels that a planner names for a question, and what it took: for contexts of nodes of any level.

ranked, planned = rank_levels(index, "Who has the key?", embed, constant(LevelRange(1, 3)))
context = fill_levels(index.corpus, ranked, Budget(2_000))
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.search.corpus import check_fingerprint, embed_texts
from qrag_jax.search.levels.level_context import LevelRanked
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.llm_planner import PlansReading
from qrag_jax.search.levels.planners import Planner
from qrag_jax.types import Embed, Encoder


@dataclass(frozen=True)
class Planned:
    """What was searched for a question.

    Attributes:
        levels: the range.
        num_vectors: that ranked the nodes; those of leaves, scored besides for parts that are cut, do not count.
        built_tokens: that the encoder had to read for these.
        reading: what a language model was asked for the plan, and why an answer did not count; None of others.
    """

    levels: LevelRange
    num_vectors: int
    built_tokens: int
    reading: PlansReading | None = None


def rank_levels(
    index: LevelIndex,
    question: str,
    embed: Embed,
    planner: Planner,
    top_k: int | None = None,
    *,
    weight: float = 0.0,
    heads: Sequence[str] = (),
) -> tuple[LevelRanked, Planned]:
    """The best nodes of the planned levels, with the scores of all leaves; and what was planned.

    Args:
        planner: (questions, heads of the documents) -> the range of each.
        top_k: most nodes; None: all that remain.
        weight: of the words, as of `LevelIndex.rank`.
        heads: of the documents (`document_heads`), for a planner that looks at them.

    Raises:
        InputError: the index has vectors of another encoder.
    """
    if isinstance(embed, Encoder):
        check_fingerprint(index.corpus, embed.fingerprint, "the question's")
    (levels,) = planner([question], heads)
    vector = embed_texts(embed, [question])[0]
    ranked = index.rank(question, vector, levels, top_k, weight=weight)
    planned = Planned(levels, index.num_vectors(levels), index.built_tokens(levels))
    return LevelRanked(ranked.ids, ranked.scores, index.leaf_scores(vector)), planned
