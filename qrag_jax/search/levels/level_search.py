"""Search among the nodes of all levels of documents; a range of levels says which nodes compete.

Candidates are the nodes that represent a level of the range (`chunking/tree/level_ranges.py:nodes_in`). Others are left
out before the best are taken. If candidates overlap, one contains the other: the better one stays, or the finer one of
equally good ones.

    score(leaf) = q . v_leaf
    score(parent) = max of score(leaf) over the leaves under it    (best_child)
                  = q . v_parent                                    (all other ways)

So with `best_child` the vector score of a parent is never better than its best leaf, and a parent is found only if the
range ends above that leaf. If words count too, a parent may be better by its words.

A share `smooth` gives a part the score of what is around it too, from the document down; a document has its own:

    smoothed(node) = (1 - smooth) * score(node) + smooth * smoothed(parent)
"""

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.tree.level_ranges import LevelRange, full_range, nodes_in
from qrag_jax.chunking.tree.parent_vectors import Parents, check_parents, fill_levels_above
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.corpus import Corpus, asked_vector, embed_texts
from qrag_jax.search.dense import cosine_scores
from qrag_jax.search.hybrid import Ranked, check_top_k, fused_with_words
from qrag_jax.types import InputError, UsageError
from qrag_jax.unit_rows import unit_rows

_HEAD_TOKENS = 1_000  # of a document that a planner reads


class LevelIndex:
    """A corpus of trees that can be searched at any range of levels.

    Vectors of parents are made when a range first needs them, and kept.

    Attributes:
        corpus: the corpus.
        names: of the levels, the coarsest first.
        parents: how parents get their vectors.
        num_fallbacks: number of searches whose documents did not exist, so all nodes of all documents were searched.
    """

    def __init__(self, corpus: Corpus, names: Sequence[str], parents: Parents, *, has_parents: bool = False):
        """Computes only the unit vectors of leaves.

        Args:
            corpus: with trees, and vectors of the leaves.
            names: of the levels of the trees.
            parents: how parents get vectors.
            has_parents: the corpus has vectors of parents made in that way; otherwise its vectors of parents are
                ignored.

        Raises:
            InputError: the corpus has no trees or no vectors.
            UsageError: the way is unknown, or its function is missing.
        """
        check_parents(parents.name)
        if not corpus.trees:
            raise InputError("corpus: has no trees, so no levels; cut it with strategy levels (tree_corpus)")
        if corpus.vectors is None:
            raise InputError("corpus: has no vectors; embed it (embed_corpus)")
        self.corpus, self.names, self.parents = corpus, tuple(names), parents
        self.num_fallbacks = 0
        self._parent, self._level, self._stop = _joined(corpus)
        self._is_leaf = self._stop == np.arange(1, len(corpus) + 1)
        if not (has_parents or parents.name == "best_child" or parents.of_children or parents.of_texts):
            raise UsageError(f"parents {parents.name}: no function makes their vectors; give of_children or of_texts")
        self._made: Bool[np.ndarray, " nodes"] = np.full(len(corpus), True) if has_parents else self._is_leaf.copy()
        self._vectors = np.where(self._made[:, None], unit_rows(corpus.vectors), 0).astype(np.float32)
        self._nodes: dict[LevelRange, np.ndarray] = {}
        self._words: dict[LevelRange, Bm25Index] = {}

    def nodes(self, levels: LevelRange) -> Int[np.ndarray, " M"]:
        """The candidates of a range, by node id of the corpus; together they cover every document.

        Raises:
            UsageError: the range exceeds the levels.
        """
        if levels not in self._nodes:
            trees = zip(np.flatnonzero(self._parent < 0).tolist(), self.corpus.trees, strict=True)
            found = [start + nodes_in(tree, levels, len(self.names)) for start, tree in trees]
            self._nodes[levels] = np.concatenate(found)
        return self._nodes[levels]

    def rank(
        self,
        question: str,
        vector: Float[np.ndarray, " dim"],
        levels: LevelRange,
        top_k: int | None = None,
        *,
        weight: float = 0.0,
        smooth: float = 0.0,
        documents: Collection[str] | None = None,
    ) -> Ranked:
        """Ranks the nodes of a range; no result contains another. Ties: the finer node first, then document order.

        Args:
            question: what is asked; used only if words count.
            vector: of the question, by the encoder of the corpus.
            levels: the range of the candidates.
            top_k: most nodes; None is all.
            weight: of the words, in [0, 1], as in `rank_hybrid`, with statistics of the candidates.
            smooth: share of the parent in a score, in [0, 1), as in the module.
            documents: ids of the documents to search; None is all. If none of them exists, all levels of all documents
                are searched, and `num_fallbacks` counts it.

        Raises:
            InputError: the vector is not finite, or has another size than those of the corpus.
            UsageError: `top_k` is below 1, the weight is out of range, or the range exceeds the levels.
        """
        check_top_k(top_k)
        check_smooth(smooth)
        asked = asked_vector(vector, self._vectors.shape[1])
        nodes, is_whole = self.nodes(levels), documents is None
        if documents is not None:
            wanted = np.array([document.id in documents for document in self.corpus.documents])
            nodes = nodes[wanted[self.corpus.numbers_of(nodes)]]
            if not len(nodes):
                self.num_fallbacks += 1
                levels, is_whole = full_range(self.names), True
                nodes = self.nodes(levels)
        scores = self._smoothed(nodes, asked, smooth)
        if weight:
            words = self._words_of(levels) if is_whole else self._count_words(nodes)
            scores = fused_with_words(scores, words, question, weight)
        order = np.lexsort((nodes, -self._level[nodes], -scores))
        kept = order[self._without_overlap(nodes[order], top_k)]
        return Ranked(nodes[kept], scores[kept])

    def leaf_scores(self, vector: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " leaves"]:
        """The cosine of every leaf and a question, in the order of `Corpus.leaves`.

        Raises:
            InputError: the vector is not finite, or has another size than those of the corpus.
        """
        return self._leaf_scores(asked_vector(vector, self._vectors.shape[1]))

    def num_vectors(self, levels: LevelRange) -> int:
        """The number of vectors that a search in a range compares: of candidates, or of the leaves under them."""
        return len(self._read(levels))

    def built_tokens(self, levels: LevelRange) -> int:
        """Tokens that the encoder reads to search a range: of candidates, or of the leaves under them.

        At most `Parents.most_tokens` of each text; special tokens are not counted.
        """
        nodes = self._read(levels) if self.parents.of_children is None else self.corpus.leaves
        num_tokens = self.corpus.num_tokens[nodes].astype(np.int64)
        if self.parents.most_tokens is not None:
            num_tokens = np.where(self._is_leaf[nodes], num_tokens, np.minimum(num_tokens, self.parents.most_tokens))
        return int(num_tokens.sum())

    def _read(self, levels: LevelRange) -> Int[np.ndarray, " _"]:
        """Nodes whose vectors are compared. For best_child all leaves: the nodes of a range cover all text."""
        nodes = self.nodes(levels)
        if self.parents.name == "best_child" and not self._is_leaf[nodes].all():
            return self.corpus.leaves
        return nodes

    def _smoothed(
        self, nodes: Int[np.ndarray, " M"], asked: Float[np.ndarray, " dim"], share: float
    ) -> Float[np.ndarray, " M"]:
        """`smoothed` of the module for some nodes."""
        scores = self._scores(nodes, asked)
        below = self._parent[nodes] >= 0
        if share and below.any():
            parents, place = np.unique(self._parent[nodes[below]], return_inverse=True)
            scores[below] = (1 - share) * scores[below] + share * self._smoothed(parents, asked, share)[place]
        return scores

    def _scores(self, nodes: Int[np.ndarray, " M"], asked: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " M"]:
        if self.parents.name != "best_child":
            self._make(nodes)
            return cosine_scores(asked[None], self._vectors[nodes])[0]
        leaves, scores = self.corpus.leaves, self._leaf_scores(asked)
        first, end = np.searchsorted(leaves, nodes), np.searchsorted(leaves, self._stop[nodes])
        borders = np.stack([first, end], axis=1).ravel()
        return np.maximum.reduceat(np.append(scores, -np.inf), borders)[::2]

    def _leaf_scores(self, asked: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " leaves"]:
        return cosine_scores(asked[None], self._vectors[self.corpus.leaves])[0]

    def _make(self, nodes: Int[np.ndarray, " M"]) -> None:
        """Makes the vectors of these nodes, if they are missing."""
        missing = nodes[~self._made[nodes]]
        if not len(missing):
            return
        if self.parents.of_texts is not None:
            texts = [self.corpus.full_texts[node] for node in missing.tolist()]
            self._vectors[missing] = unit_rows(embed_texts(self.parents.of_texts, texts))
            self._made[missing] = True
            return
        assert self.parents.of_children is not None  # the constructor has checked it
        wanted = ~self._made & (self._level >= self._level[missing].min())
        fill_levels_above(
            self._parent, self._level, self._vectors, self.corpus.num_tokens, self.parents.of_children, wanted
        )
        self._made |= wanted

    def _words_of(self, levels: LevelRange) -> Bm25Index:
        if levels not in self._words:
            self._words[levels] = self._count_words(self.nodes(levels))
        return self._words[levels]

    def _count_words(self, nodes: Int[np.ndarray, " M"]) -> Bm25Index:
        return Bm25Index([readable(self.corpus.full_texts[node]) for node in nodes.tolist()])

    def _without_overlap(self, ranked: Int[np.ndarray, " M"], top_k: int | None) -> Int[np.ndarray, " _"]:
        """Positions of the first `top_k` nodes that neither contain nor lie in a better one; in linear time."""
        most = len(ranked) if top_k is None else top_k
        in_order = np.sort(ranked)
        if (self._stop[in_order[:-1]] <= in_order[1:]).all():
            return np.arange(min(most, len(ranked)))
        inside, around = np.zeros(len(self._stop), bool), np.zeros(len(self._stop), bool)
        kept: list[int] = []
        for place, node in enumerate(ranked.tolist()):
            if len(kept) == most:
                break
            if inside[node] or around[node]:
                continue
            kept.append(place)
            inside[node : self._stop[node]] = True
            while node >= 0 and not around[node]:
                around[node] = True
                node = int(self._parent[node])
        return np.array(kept, np.int64)


def check_smooth(smooth: float) -> None:
    """Refuses what is no share; a share of 1 would give all parts of a document one score."""
    if not 0 <= smooth < 1:
        raise UsageError("must be at least 0 and below 1", field="smooth", value=smooth)


def document_heads(corpus: Corpus, num_tokens: int = _HEAD_TOKENS) -> tuple[str, ...]:
    """The beginning of each document: its leaves up to `num_tokens` tokens, and at least one leaf."""
    heads = []
    for document in corpus.documents:
        nodes = np.intersect1d(np.array(corpus.nodes_of(document.id)), corpus.leaves, assume_unique=True)
        fitting = int(np.searchsorted(np.cumsum(corpus.num_tokens[nodes]), num_tokens, side="right"))
        heads.append(document.text[: corpus.nodes[nodes[max(0, fitting - 1)]].spans[-1][1]])
    return tuple(heads)


def _joined(corpus: Corpus) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For all nodes of a corpus: parent (-1 for a root), level, and one after the last node under each."""
    starts = [corpus.nodes_of(document.id).start for document in corpus.documents]
    parent = [np.where(t.parent < 0, -1, t.parent + start) for t, start in zip(corpus.trees, starts, strict=True)]
    stop = [t.stops + start for t, start in zip(corpus.trees, starts, strict=True)]
    return np.concatenate(parent), np.concatenate([tree.level for tree in corpus.trees]), np.concatenate(stop)
