"""Planners choose the levels of documents to search for a question; and the search at those levels.

    ranked, planned = rank_levels(index, "Who has the key?", embed, constant(LevelRange(1, 3)))
    context = fill_levels(index.corpus, ranked, Budget(2_000))

A planner gets questions and the beginnings of the documents, and names a range of levels for each question:

    constant   always the same range
    router     by the question's vector or a first cheap search (`router.py`; trained by `router_training.py`)
    llm        by a language model, as it is or trained to plan (`llm_planner.py`)

`planner_runs.py` loads those that were trained. Cost of a plan, in [0, 1] if no range costs more than the full one:

    cost = (tokens built for the range + tokens sent) / (tokens built for all levels + tokens sent then)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qrag_jax.annotate.ask_chunks import Reading
from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.search.corpus import check_fingerprint, embed_texts
from qrag_jax.search.hybrid import words_weight
from qrag_jax.search.levels.level_context import LevelRanked
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.types import Embed, Encoder, UsageError, for_questions

Tokens = int | float | np.ndarray


@dataclass(frozen=True)
class Plans:
    """The ranges that a planner chose, and the calls of a language model that it took.

    Attributes:
        ranges: of each question.
        reading: of the calls; nothing for a planner that asks no model.
        fallbacks: number of full ranges for lack of a plan, by reason.
    """

    ranges: Sequence[LevelRange]
    reading: Reading = Reading()
    fallbacks: Mapping[str, int] = field(default_factory=dict)


# (questions, heads of the documents: their first 1,000 tokens) -> the range of each question.
Planner = Callable[[Sequence[str], Sequence[str]], Plans]


@dataclass(frozen=True)
class Planned:
    """The levels searched for a question.

    Attributes:
        levels: the range.
        num_vectors: number of vectors that ranked the nodes, without those of leaves scored for parts that are cut.
        built_tokens: tokens that the encoder reads for these levels.
        plans: as the planner gave it, with its cost.
    """

    levels: LevelRange
    num_vectors: int
    built_tokens: int
    plans: Plans


def rank_levels(
    index: LevelIndex,
    question: str,
    embed: Embed,
    planner: Planner,
    top_k: int | None = None,
    *,
    weight: float = 0.0,
    smooth: float = 0.0,
    heads: Sequence[str] = (),
) -> tuple[LevelRanked, Planned]:
    """Ranks the nodes of the planned levels, with the scores of all leaves; also returns the plan.

    Args:
        planner: (questions, heads of the documents) -> the range of each.
        top_k: most nodes; None is all.
        weight, smooth: shares of the words and of parents, as in `LevelIndex.rank`.
        heads: of the documents (`document_heads`), for a planner that reads them.

    Raises:
        InputError: the vectors of the index come from another encoder.
    """
    if isinstance(embed, Encoder):
        check_fingerprint(index.corpus, embed.fingerprint, "the question")
    plans = planner([question], heads)
    (levels,) = plans.ranges
    vector = embed_texts(for_questions(embed), [question])[0]
    words = words_weight(question, embed, weight)
    ranked = index.rank(question, vector, levels, top_k, weight=words, smooth=smooth)
    read = LevelRange(0, levels.most) if smooth else levels
    planned = Planned(levels, index.num_vectors(read), index.built_tokens(read), plans)
    return LevelRanked(ranked.ids, ranked.scores, index.leaf_scores(vector)), planned


def check_levels(trained_on: Sequence[str], names: Sequence[str], planner: str, where: str = "the index") -> None:
    """Refuses a planner of other levels than those that are searched.

    Args:
        trained_on: names of the planner's levels.
        names: of the levels to search.
        planner, where: what the message calls the planner, and the place of the levels to search.
    """
    if tuple(trained_on) != tuple(names):
        raise UsageError(
            f"{planner}: trained on the levels {', '.join(trained_on)}, but {where} has {', '.join(names)}; train a "
            "planner on these (such as qrag train router), or build an index with those levels"
        )


def plan_cost(built: Tokens, sent: Tokens, full: Tokens) -> Tokens:
    """The cost of plans, see the module; 0 if the full range costs nothing."""
    return (built + sent) / np.where(full > 0, full, 1)


def constant(levels: LevelRange) -> Planner:
    """The planner that always names one range."""
    return lambda questions, heads: Plans([levels] * len(questions))
