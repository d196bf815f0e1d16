"""Fills a context with ranked nodes of any level: a node's text if it fits, else its best leaves.

Nodes are taken best first while their texts fit the budget. The first that does not fit is replaced by as many of its
best leaves as fit, and ends the context. Leaves of one node are one passage, with several spans if there are gaps, so
the prompt's text around a passage is counted once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.text.tables import context_of, join_context
from qrag_jax.search.context.pack import Budget, Context, Passage, last_passage, make_context, make_passage
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.types import InputError, Span


@dataclass(frozen=True, eq=False)
class LevelRanked(Ranked):
    """Nodes of any level, with the score of each leaf of the corpus.

    Attributes:
        leaf_scores: in the order of `Corpus.leaves`, on one scale; larger is better.
    """

    leaf_scores: Float[np.ndarray, " leaves"]


def fill_levels(corpus: Corpus, ranked: Ranked, budget: Budget) -> Context:
    """Takes the best nodes until one does not fit, and from that one its best leaves.

    Leaves are taken by `LevelRanked.leaf_scores`, ties in document order, until one does not fit. If nothing was taken
    yet, leaves that are too large alone are skipped. Without these scores leaves come in document order. Text of a
    better node is not repeated. Passages have no notes.

    Args:
        corpus: with trees.
        ranked: its nodes, best first.
        budget: most tokens; never exceeded.

    Returns:
        The passages in document order; each has score, rank and id of the ranked node.

    Raises:
        InputError: the corpus has no trees, a node does not exist, or no leaf of the best node fits.
        UsageError: the budget cuts and has no `count`.
    """
    if not corpus.trees:
        raise InputError(
            "corpus: its documents have no trees; cut it with strategy levels, or fill it with `fill_context`"
        )
    candidates = ranked.ids[: budget.max_passages]
    given = np.zeros(len(corpus.leaves), bool)
    taken: list[Passage] = []
    num_left_out, used = 0, 0
    for rank, node in enumerate(candidates.tolist(), start=1):
        leaves = _leaves_under(corpus, node)
        leaves = leaves[~given[leaves]]
        if not len(leaves):  # better nodes contain all of it
            continue
        whole = _passage(corpus, node, leaves, rank, ranked, budget)
        room = budget.max_tokens - used - budget.overhead
        if whole.num_tokens > room:
            taken += _best_leaves(corpus, node, leaves, rank, ranked, budget, used)
            last = len(taken) and taken[-1].rank == rank
            num_left_out = len(candidates) - rank + (not last)
            break
        given[leaves] = True
        taken.append(whole)
        used += whole.num_tokens + budget.overhead
    return make_context(corpus, taken, budget, num_left_out)


def _leaves_under(corpus: Corpus, node: int) -> Int[np.ndarray, " n"]:
    """Positions in `corpus.leaves` of the leaves under a node, or of the node itself."""
    tree, number = corpus.tree_of(node)
    first, stop = tree.leaf_range(number)
    root = int(np.searchsorted(corpus.leaves, node - number))
    return np.arange(root + first, root + stop)


def _best_leaves(
    corpus: Corpus,
    node: int,
    leaves: Int[np.ndarray, " n"],
    rank: int,
    ranked: Ranked,
    budget: Budget,
    used: int,
) -> list[Passage]:
    """The best leaves of a node that fit the rest of the budget, as one passage; empty if none fits."""
    room = budget.max_tokens - used - budget.overhead
    scores = ranked.leaf_scores[leaves] if isinstance(ranked, LevelRanked) else np.zeros(len(leaves))
    chosen: list[int] = []
    found: Passage | None = None
    least: Passage | None = None  # the smallest leaf that does not fit alone
    for leaf in leaves[np.argsort(-scores, kind="stable")].tolist():
        passage = _passage(corpus, node, np.sort(np.array([*chosen, leaf])), rank, ranked, budget)
        if passage.num_tokens <= room:
            chosen.append(leaf)
            found = passage
        elif found is not None:
            break
        elif budget.cut_last or used:
            return last_passage(passage, budget, used)
        elif least is None or passage.num_tokens < least.num_tokens:
            least = passage
    if found is not None:
        return [found]
    assert least is not None  # no leaf fits
    return last_passage(least, budget, used)


def _passage(
    corpus: Corpus, node: int, leaves: Int[np.ndarray, " n"], rank: int, ranked: Ranked, budget: Budget
) -> Passage:
    """The passage of some leaves of a node, in document order; for all leaves it is the node itself."""
    score = float(ranked.scores[rank - 1])
    if len(leaves) == len(_leaves_under(corpus, node)):
        return make_passage(corpus, node, rank, score, budget)
    own = corpus.leaves[leaves]
    document = corpus.by_id[corpus.nodes[node].document_id]
    spans = _joined(leaves, [corpus.nodes[leaf].spans[0] for leaf in own.tolist()])
    text = chunk_text(document.text, spans)
    context = context_of(document.text, spans) if budget.heads else ""
    full = join_context(context, text)
    num_tokens = int(corpus.num_tokens[own].sum()) if budget.count is None else budget.tokens(full)
    return Passage(0, document.id, spans, text, num_tokens, score, rank, node, context=context)


def _joined(leaves: Int[np.ndarray, " n"], spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans of leaves in order; neighbours are joined, because only blank space is between them."""
    found: list[Span] = []
    for place, (start, end) in enumerate(spans):
        if place and leaves[place] == leaves[place - 1] + 1:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return tuple(found)
