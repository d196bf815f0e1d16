"""Search at the levels that a planner names for each question, and what it took: for contexts of nodes of any level.

search = PlannedSearch(load_level_index("levels.index", method), method.embed, constant(LevelRange(1, 3)))
fill = partial(fill_levels, budget=Budget(2_000))
found = find_passages("Who has the key?", search.index.corpus, search.retrieve, fill=fill)
search.last                                                     # the range, vectors compared, tokens read for them
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.search.corpus import Corpus, check_fingerprint, embed_texts
from qrag_jax.search.levels.level_context import LevelRanked
from qrag_jax.search.levels.level_search import LevelIndex, document_heads
from qrag_jax.search.levels.planners import Planner
from qrag_jax.types import Embed, Encoder, UsageError


@dataclass(frozen=True)
class Planned:
    """What was searched for a question.

    Attributes:
        levels: the range.
        num_vectors: that ranked the nodes; those of leaves, scored besides for parts that are cut, do not count.
        built_tokens: that the encoder had to read for these.
    """

    levels: LevelRange
    num_vectors: int
    built_tokens: int


class PlannedSearch:
    """An index of levels and what names the levels for a question.

    Attributes:
        index: that is searched.
        last: what was searched for the last question; None before the first.
    """

    last: Planned | None

    def __init__(
        self,
        index: LevelIndex,
        embed: Embed,
        planner: Planner,
        *,
        weight: float = 0.0,
        heads: Sequence[str] | None = None,
    ) -> None:
        """Computes nothing.

        Args:
            planner: (questions, heads of the documents) -> the range of each.
            weight: of the words, as of `LevelIndex.rank`.
            heads: of the documents; None is `document_heads`, at the first question.
        """
        if isinstance(embed, Encoder):
            check_fingerprint(index.corpus, embed.fingerprint, "the question's")
        self.index, self.last = index, None
        self._embed, self._planner, self._weight, self._heads = embed, planner, weight, heads

    def retrieve(self, question: str, corpus: Corpus, top_k: int | None) -> LevelRanked:
        """The best nodes of the planned levels, with the scores of all leaves; a `Retrieve`."""
        if corpus is not self.index.corpus:
            raise UsageError("corpus: is not the one that the index of levels is of; make an index of it")
        if self._heads is None:
            self._heads = document_heads(corpus)
        (levels,) = self._planner([question], self._heads)
        vector = embed_texts(self._embed, [question])[0]
        ranked = self.index.rank(question, vector, levels, top_k, weight=self._weight)
        self.last = Planned(levels, self.index.num_vectors(levels), self.index.built_tokens(levels))
        return LevelRanked(ranked.ids, ranked.scores, self.index.leaf_scores(vector))
