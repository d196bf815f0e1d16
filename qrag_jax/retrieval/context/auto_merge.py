"""Whole sections in place of their retrieved leaves, while a budget holds: Auto-Merge (HiChunk, Algorithm 2).

Leaves are taken best first. After each, the tree is climbed: a parent p takes the place of all that is retrieved under
it where all of these hold, len() being tokens, N what is retrieved, T the budget and T_used what of it N takes:

    (1) siblings    |N and children(p)| >= 2
    (2) share       sum of len(n), n in N and children(p)  >=  theta * (1 + T_used / T) * len(p)
    (3) room        len(p) - sum of len(n), n in N under p at any depth  <=  T - T_used

T_used counts after the leaf was added, so with theta = 1/3 the share that is asked for goes from 1/3 to 2/3 as the
budget fills. What a prompt writes around a passage (`Budget.overhead`) counts in (3) and in T_used; a parent that
takes the place of several passages gives it back.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qrag_jax.retrieval.context.fill import (
    Budget,
    Context,
    Order,
    Passage,
    cut_passage,
    last_passage,
    make_context,
    make_passage,
)
from qrag_jax.retrieval.corpus.corpus import Corpus
from qrag_jax.retrieval.index.hybrid import Ranked
from qrag_jax.types import InputError, UsageError


@dataclass(frozen=True)
class MergeRules:
    """Which conditions of the module count, and in which order passages stand.

    Attributes:
        siblings: condition (1).
        share: condition (2).
        room: condition (3). Without it a section that is too large is taken all the same and cut at the budget, so that
            leaves near its end may be lost: for measuring what (3) is worth.
        theta: of condition (2), in [0, 1]: what is asked for at an empty context; twice as much at a full one.
        order: of the passages: of the corpus, or best first, a section standing where its best leaf stood.

    Raises:
        UsageError: theta is out of range.
    """

    siblings: bool = True
    share: bool = True
    room: bool = True
    theta: float = 1 / 3
    order: Order = "document"

    def __post_init__(self) -> None:
        if not 0 <= self.theta <= 1:
            raise UsageError(f"theta {self.theta}: a share of a section's tokens, from 0 to 1")


def merge_context(corpus: Corpus, ranked: Ranked, budget: Budget, rules: MergeRules | None = None) -> Context:
    """Takes the best leaves until one does not fit, and sections in place of their leaves where the rules allow it.

    A leaf that a section holds already is skipped and costs nothing. No passage holds another, so no character is there
    twice, and all leaves that were taken are in some passage. Tokens of a node are counted once. Takes time in
    proportion to leaves times depth. Passages have no notes.

    Args:
        corpus: with trees.
        ranked: its leaves, best first.
        budget: how much may be taken; it is never exceeded.
        rules: None is all three conditions with theta 1/3.

    Returns:
        The passages; of a section score and rank are those of the best leaf under it.

    Raises:
        InputError: the corpus has no trees, a ranked node is no leaf of one, or the best leaf alone is larger than the
            budget.
    """
    check_trees(corpus)
    rules, retrieved = rules or MergeRules(), _Retrieved(corpus, budget)
    candidates = ranked.ids.tolist()[: budget.max_passages]
    last: list[Passage] = []
    for rank, leaf in enumerate(candidates, start=1):
        _check_leaf(corpus, leaf)
        if retrieved.covers(leaf):
            continue
        if retrieved.used + retrieved.cost(leaf) > budget.max_tokens:
            score = float(ranked.scores[rank - 1])
            passage = make_passage(corpus, leaf, rank, score, budget, retrieved.tokens(leaf))
            last = last_passage(passage, budget, retrieved.used)
            break
        retrieved.add(leaf, rank)
        node = leaf
        while (parent := retrieved.parent(node)) is not None and _allowed(retrieved, parent, rules):
            retrieved.merge(parent)
            node = parent
    passages = [
        make_passage(corpus, node, rank, float(ranked.scores[rank - 1]), budget, retrieved.tokens(node))
        for node, rank in retrieved.ranks.items()
    ]
    passages = _within(passages, budget, retrieved.used)
    num_left_out = _num_outside(corpus, candidates, [passage.node for passage in (*passages, *last)])
    return make_context(corpus, [*passages, *last], budget, num_left_out, rules.order)


def check_trees(corpus: Corpus) -> None:
    """Refuses a corpus whose documents have no trees.

    Raises:
        InputError: it has none.
    """
    if not corpus.trees:
        raise InputError(
            "corpus: its documents have no trees to merge passages by: keep them as trees of their sections (`qrag "
            "index build INDEX PATHS --strategy tree`, or `tree_corpus`), or do not merge"
        )


class _Retrieved:
    """The nodes that are retrieved, none under another; of all others as much as was looked at.

    Attributes:
        used: tokens of all of them, with what is written around each.
        ranks: of each the rank of the best leaf under it.
    """

    def __init__(self, corpus: Corpus, budget: Budget) -> None:
        self.used = 0
        self.ranks: dict[int, int] = {}
        self.most = budget.max_tokens
        self._corpus, self._budget = corpus, budget
        self._tokens: dict[int, int] = {}
        self._parents: dict[int, int | None] = {}
        self._touched: dict[int, list[int]] = {}  # of each node the children that something is retrieved under
        self._under: dict[int, int] = {}  # of each node the cost of what is retrieved under it
        self._children: dict[int, tuple[int, int]] = {}  # of each node how many children are retrieved, their tokens

    def tokens(self, node: int) -> int:
        """Tokens of a node's text."""
        if node not in self._tokens:
            chunk, budget = self._corpus.nodes[node], self._budget
            own = budget.count is None
            self._tokens[node] = chunk.num_tokens if own else budget.tokens(self._corpus.texts[node])
        return self._tokens[node]

    def cost(self, node: int) -> int:
        """Tokens that it takes as a passage."""
        return self.tokens(node) + self._budget.overhead

    def parent(self, node: int) -> int | None:
        """None of a root."""
        if node not in self._parents:
            tree, number = self._corpus.tree_of(node)
            above = int(tree.parent[number])
            self._parents[node] = None if above < 0 else node - number + above
        return self._parents[node]

    def covers(self, node: int) -> bool:
        """Whether it, or a section around it, is retrieved."""
        return node in self.ranks or any(above in self.ranks for above in self._above(node))

    def under(self, node: int) -> int:
        """Tokens of what is retrieved under a node, at any depth, with what is written around each."""
        return self._under.get(node, 0)

    def children(self, node: int) -> tuple[int, int]:
        """How many of its direct children are retrieved, and their tokens."""
        return self._children.get(node, (0, 0))

    def add(self, leaf: int, rank: int) -> None:
        """Retrieves a leaf that nothing covers."""
        node = leaf
        while (above := self.parent(node)) is not None:
            self._touched.setdefault(above, []).append(node)
            if above in self._under:
                break
            self._under[above] = 0
            node = above
        self._put(leaf, rank, self.cost(leaf))

    def merge(self, parent: int) -> None:
        """Retrieves a section in the place of all that is retrieved under it."""
        best, below = None, self._touched.pop(parent)
        while below:
            node = below.pop()
            rank = self.ranks.pop(node, None)
            if rank is None:
                below += self._touched.pop(node)
            elif best is None or rank < best:
                best = rank
        assert best is not None  # something is touched only by what is retrieved under it
        self._put(parent, best, self.cost(parent) - self.under(parent))

    def _put(self, node: int, rank: int, change: int) -> None:
        self.ranks[node] = rank
        self.used += change
        for above in self._above(node):
            self._under[above] += change
        if (parent := self.parent(node)) is not None:
            number, tokens = self.children(parent)
            self._children[parent] = number + 1, tokens + self.tokens(node)

    def _above(self, node: int) -> Iterator[int]:
        while (parent := self.parent(node)) is not None:
            yield (node := parent)


def _allowed(retrieved: _Retrieved, parent: int, rules: MergeRules) -> bool:
    """Whether a section may take the place of what is retrieved under it: the conditions of the module."""
    used, most = retrieved.used, retrieved.most
    if used >= most:
        return False
    number, tokens = retrieved.children(parent)
    if rules.siblings and number < 2:
        return False
    if rules.room and retrieved.cost(parent) - retrieved.under(parent) > most - used:
        return False
    return not rules.share or tokens >= rules.theta * (1 + used / most) * retrieved.tokens(parent)


def _within(passages: list[Passage], budget: Budget, used: int) -> list[Passage]:
    """The passages with the one cut that was taken without regard to the room; it alone goes beyond the budget."""
    if used <= budget.max_tokens:
        return passages
    *others, last = passages  # nothing is taken behind it
    cut = cut_passage(last, budget, last.num_tokens - (used - budget.max_tokens))
    return others if cut is None else [*others, cut]


def _check_leaf(corpus: Corpus, node: int) -> None:
    tree, number = corpus.tree_of(node)
    if number + 1 < len(tree) and int(tree.parent[number + 1]) == number:  # in preorder its first child
        raise InputError(f"node {node} of {tree.document_id}: holds other nodes: rank leaves alone (`Corpus.leaves`)")


def _num_outside(corpus: Corpus, candidates: list[int], nodes: list[int]) -> int:
    """How many of the candidates lie in none of the nodes."""
    inside = np.zeros(len(corpus), bool)
    for node in nodes:
        tree, number = corpus.tree_of(node)
        first, stop = tree.leaf_range(number)
        inside[node - number + tree.leaves[first:stop]] = True
    return int((~inside[np.array(candidates, np.int64)]).sum())
