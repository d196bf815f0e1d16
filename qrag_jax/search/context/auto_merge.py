"""Replaces retrieved leaves by whole sections while a budget allows it: Auto-Merge (HiChunk, Algorithm 2).

Leaves are taken best first. After each, the search climbs the tree: a parent p replaces everything retrieved under it
if all of these conditions are true. len() counts tokens, N is what is retrieved, T the budget, T_used the tokens of N:

    (1) siblings    |N and children(p)| >= 2
    (2) share       sum of len(n), n in N and children(p)  >=  theta * (1 + T_used / T) * len(p)
    (3) room        len(p) - sum of len(n), n in N under p at any depth  <=  T - T_used

T_used counts after the leaf was added, so with theta = 1/3 the required share goes from 1/3 to 2/3 as the budget fills.
The tokens that a prompt adds around a passage (`Budget.overhead`) count in (3) and in T_used; a parent that replaces
several passages frees those of all but one.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from qrag_jax.search.context.pack import (
    Budget,
    Context,
    Order,
    Passage,
    cut_passage,
    last_passage,
    make_context,
    make_passage,
)
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.types import InputError, check_fields


@dataclass(frozen=True)
class MergeRules:
    """Which conditions of the module apply, and the order of passages.

    Attributes:
        siblings: condition (1).
        share: condition (2).
        room: condition (3). Without it a section that is too large is still taken and cut at the budget, which may lose
            leaves near its end; for measuring the effect of (3).
        theta: of condition (2), in [0, 1]: the required share at an empty context; it doubles at a full one.
        order: of the passages: as in the corpus, or best first, with a section in the place of its best leaf.

    Raises:
        UsageError: theta is out of range.
    """

    siblings: bool = True
    share: bool = True
    room: bool = True
    theta: float = 1 / 3
    order: Order = "document"

    def __post_init__(self) -> None:
        check_fields(self, shares=("theta",))


def merge_context(corpus: Corpus, ranked: Ranked, budget: Budget, rules: MergeRules | None = None) -> Context:
    """Takes the best leaves until one does not fit, and replaces them by sections where the rules allow it.

    A leaf in a section that was taken is skipped and costs nothing. No passage contains another, so no character is
    repeated, and every leaf taken is in some passage. Tokens of a node are counted once. Time is proportional to leaves
    times depth. Passages have no notes.

    Args:
        corpus: with trees.
        ranked: its leaves, best first.
        budget: most tokens; never exceeded.
        rules: None is all three conditions with theta 1/3.

    Returns:
        The passages; a section has the score and rank of the best leaf under it.

    Raises:
        InputError: the corpus has no trees, a ranked node is not a leaf, or the best leaf alone exceeds the budget.
    """
    check_trees(corpus)
    rules, retrieved = rules or MergeRules(), _Retrieved(corpus, budget)
    candidates = ranked.ids[: budget.max_passages]
    _check_leaves(corpus, candidates)
    last: list[Passage] = []
    places = zip(candidates.tolist(), corpus.numbers_of(candidates).tolist(), strict=True)
    for rank, (leaf, document) in enumerate(places, start=1):
        if retrieved.covered[leaf]:
            continue
        tree = retrieved.tree_of(leaf, document)
        if retrieved.used + tree.cost(leaf) > budget.max_tokens:
            score = float(ranked.scores[rank - 1])
            passage = make_passage(corpus, leaf, rank, score, budget, tree.tokens(leaf))
            last = last_passage(passage, budget, retrieved.used)
            retrieved.covered[leaf] = bool(last)
            break
        parent = retrieved.put(tree, leaf, rank)
        while parent >= 0 and _allowed(retrieved, tree, parent, rules):
            parent = retrieved.merge(tree, parent)
    nodes = (
        (tree, node, rank)
        for _, tree in sorted(retrieved.trees.items(), key=lambda item: item[0])
        for node, rank in tree.retrieved()
    )
    passages = [  # in document order, so most numbers are already right
        make_passage(corpus, node, rank, float(ranked.scores[rank - 1]), budget, tree.tokens(node), number)
        for number, (tree, node, rank) in enumerate(nodes, start=1)
    ]
    passages = [*_within(passages, budget, retrieved), *last]
    is_inside = np.frombuffer(retrieved.covered, bool)[candidates]
    return make_context(corpus, passages, budget, int((~is_inside).sum()), rules.order)


def check_trees(corpus: Corpus) -> None:
    """Refuses a corpus whose documents have no trees."""
    if not corpus.trees:
        raise InputError(
            "corpus: its documents have no trees to merge passages by; build the index with trees (`qrag index build "
            "INDEX PATHS --strategy tree`, or `tree_corpus`), or do not merge"
        )


class _Tree:
    """The retrieved nodes of one document. Nodes are those of the corpus; arrays use the numbers of its tree.

    The arrays are C arrays, because lists of numbers would take eight times as much of the processor's caches.

    Attributes:
        first: node of the corpus that is the root.
        parents: number of the parent of each node, -1 for the root.
        ranks: for a retrieved node, the rank of the best leaf under it; 0 for others.
        under: for each node, the cost of what is retrieved under it.
        num_children, share: for each node, the number of retrieved children, and their tokens.
    """

    __slots__ = ("_budget", "_corpus", "_tokens", "first", "num_children", "parents", "ranks", "share", "tree", "under")

    def __init__(self, corpus: Corpus, budget: Budget, node: int) -> None:
        self.tree, number = corpus.tree_of(node)
        self.first = node - number
        self.parents = array("i", self.tree.parent.astype(np.int32).tobytes())
        zeros = bytes(4 * len(self.tree))
        self.ranks, self.under, self.num_children, self.share = (array("i", zeros) for _ in range(4))
        self._corpus, self._budget = corpus, budget
        known = corpus.num_tokens[self.first : self.first + len(self.tree)].tobytes()
        self._tokens = array("i", known if budget.count is None else b"\xff" * len(zeros))  # -1: not counted yet

    def tokens(self, node: int) -> int:
        """Tokens of a node's text, counted at first use."""
        number = node - self.first
        if self._tokens[number] < 0:
            texts = self._corpus.full_texts if self._budget.heads else self._corpus.texts
            self._tokens[number] = self._budget.tokens(texts[node])
        return self._tokens[number]

    def cost(self, node: int) -> int:
        """Tokens of a node as a passage."""
        return self.tokens(node) + self._budget.overhead

    def stop(self, node: int) -> int:
        """One after the last node under a node; that last node is a leaf."""
        _, stop = self.tree.leaf_range(node - self.first)
        return self.first + int(self.tree.leaves[stop - 1]) + 1

    def retrieved(self) -> Iterator[tuple[int, int]]:
        """(node, rank) of the retrieved nodes."""
        return ((self.first + number, rank) for number, rank in enumerate(self.ranks) if rank)


class _Retrieved:
    """The retrieved nodes, none of them under another.

    Attributes:
        used: tokens of all of them, with those around each.
        most: limit of these tokens.
        covered: for each node of the corpus, 1 if it or a section around it is retrieved.
        trees: those used so far, by the number of their document.
        last: the node that was retrieved last.
    """

    def __init__(self, corpus: Corpus, budget: Budget) -> None:
        self.used, self.most, self.last = 0, budget.max_tokens, -1
        self.covered = bytearray(len(corpus))
        self.trees: dict[int, _Tree] = {}
        self._corpus, self._budget = corpus, budget

    def tree_of(self, node: int, document: int) -> _Tree:
        """The tree of a node of a document."""
        if document not in self.trees:
            self.trees[document] = _Tree(self._corpus, self._budget, node)
        return self.trees[document]

    def put(self, tree: _Tree, node: int, rank: int) -> int:
        """Retrieves a node and drops what is retrieved under it; returns its parent, -1 for a root."""
        number = node - tree.first
        change = tree.cost(node) - tree.under[number]
        self.used += change
        self.covered[node] = 1
        tree.ranks[number] = rank
        self.last = node
        parent = above = tree.parents[number]
        if parent < 0:
            return -1
        tree.num_children[parent] += 1
        tree.share[parent] += tree.tokens(node)
        while above >= 0:
            tree.under[above] += change
            above = tree.parents[above]
        return tree.first + parent

    def merge(self, tree: _Tree, parent: int) -> int:
        """Replaces everything retrieved under a section by the section; returns its parent, -1 for a root."""
        stop = tree.stop(parent)
        own = slice(parent - tree.first, stop - tree.first)
        best = min(rank for rank in tree.ranks[own] if rank)
        tree.ranks[own] = array("i", bytes(4 * (stop - parent)))
        self.covered[parent:stop] = b"\1" * (stop - parent)
        return self.put(tree, parent, best)


def _allowed(retrieved: _Retrieved, tree: _Tree, parent: int, rules: MergeRules) -> bool:
    """True if a section may replace what is retrieved under it: the conditions of the module."""
    used, most, number = retrieved.used, retrieved.most, parent - tree.first
    if used >= most or (rules.siblings and tree.num_children[number] < 2):
        return False
    if rules.room and tree.cost(parent) - tree.under[number] > most - used:
        return False
    return not rules.share or tree.share[number] >= rules.theta * (1 + used / most) * tree.tokens(parent)


def _within(passages: list[Passage], budget: Budget, retrieved: _Retrieved) -> list[Passage]:
    """The passages, with the section that ignored the room cut to what the others leave."""
    over = retrieved.used - budget.max_tokens
    if over <= 0:
        return passages
    others = [passage for passage in passages if passage.node != retrieved.last]
    (last,) = (passage for passage in passages if passage.node == retrieved.last)
    cut = cut_passage(last, budget, last.num_tokens - over)
    return others if cut is None else [*others, cut]


def _check_leaves(corpus: Corpus, nodes: Int[np.ndarray, " k"]) -> None:
    """Refuses nodes that cannot be merged."""
    outside = (nodes < 0) | (nodes >= len(corpus))
    if outside.any():
        corpus.tree_of(int(nodes[np.argmax(outside)]))  # raises
    leaves = corpus.leaves
    wrong = leaves[np.minimum(np.searchsorted(leaves, nodes), len(leaves) - 1)] != nodes
    if wrong.any():
        node = int(nodes[np.argmax(wrong)])
        name = corpus.nodes[node].document_id
        raise InputError(f"node {node} of {name}: has children; rank only leaves (`Corpus.leaves`)")
