"""Copies of a passage: the same text in several places, which a search shows once."""

from dataclasses import replace

from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked, Retrieve, SomeRanked

_MORE = 4  # nodes ranked for each one wanted, so that few copies need no second ranking
_MORE_AGAIN = 16  # times as many in the next one


def rank_distinct(retrieve: Retrieve, question: str, corpus: Corpus, top_k: int | None) -> Ranked:
    """The best nodes with different texts; while copies fill the ranking, it is made again with more nodes.

    Args:
        retrieve: ranks the nodes.
        top_k: most nodes; None is as many as the method ranks.
    """
    most = None if top_k is None else _MORE * top_k
    while True:
        ranked = retrieve(question, corpus, most)
        found = without_copies(ranked, corpus, top_k)
        if most is None or len(ranked) < most or (len(found) == top_k and ranked.scores[-1] < found.scores[-1]):
            return found
        most *= _MORE_AGAIN


def without_copies(ranked: SomeRanked, corpus: Corpus, top_k: int | None = None) -> SomeRanked:
    """The first `top_k` nodes whose text, white space aside, is not that of a better node; `copies` has the others.

    Looks at no node that is worse than all of these, because copies mostly have equal scores.
    """
    first: dict[int, int] = {}
    copies: dict[int, list[int]] = {}
    kept: list[int] = []
    for place, node in enumerate(ranked.ids.tolist()):
        is_full = len(kept) == top_k
        if is_full and ranked.scores[place] < ranked.scores[kept[-1]]:
            break
        best = first.setdefault(corpus.copy_key(node), node)
        if best != node:
            copies.setdefault(best, []).append(node)
        elif not is_full:
            kept.append(place)
    return replace(ranked, ids=ranked.ids[kept], scores=ranked.scores[kept], copies=copies)
