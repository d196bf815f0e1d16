"""Candidates of a reranker, their new order, and what follows them."""

import numpy as np
import pytest

from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.rerank import RerankOptions, candidates, rank_enough, rerank
from qrag_jax.types import Chunk, Document, Reranker, TextCounts, UsageError

TEXTS = ("aa bb cc", "dd ee", "ff gg")  # of three documents; every word is a node: 0 1 2 | 3 4 | 5 6
RANKED = Ranked(np.array([1, 0, 4, 2, 6, 3, 5]), np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]), copies={4: [5]})


class Scores:
    """Scores passages by a table; satisfies `types.Reranker`."""

    name, num_parameters = "table", None

    def __init__(self, weight=0.5, **table):
        self.weight, self.counts, self.table, self.asked = weight, TextCounts(), table, []

    def __call__(self, question, passages, progress=None):
        self.asked.append((question, list(passages)))
        self.counts = self.counts.plus(len(passages), 3 * len(passages), 1)
        return np.array([self.table[passage] for passage in passages])


@pytest.fixture(scope="module")
def corpus():
    documents = tuple(Document(str(number), text) for number, text in enumerate(TEXTS))
    spans = [(number, start) for number, text in enumerate(TEXTS) for start in range(0, len(text), 3)]
    nodes = tuple(Chunk(f"{number}:{start}", str(number), ((start, start + 2),), 1, 1) for number, start in spans)
    return Corpus(documents, nodes)


def test_candidates_are_the_best_passages_of_the_best_files(corpus):
    assert candidates(corpus, RANKED, RerankOptions("m")).tolist() == [0, 2, 4]
    assert candidates(corpus, RANKED, RerankOptions("m", files=2)).tolist() == [0, 2]
    assert candidates(corpus, RANKED, RerankOptions("m", passages=4)).tolist() == [0, 1, 2, 3]


def test_scores_are_added_and_the_others_follow_below(corpus):
    reranker = Scores(bb=-4.0, ee=-1.0, gg=-2.0)
    assert isinstance(reranker, Reranker)
    found, told = rerank("why?", corpus, RANKED, reranker, RerankOptions("m"), by_words=False)
    assert reranker.asked == [("why?", ["bb", "ee", "gg"])]
    assert found.ids.tolist() == [4, 6, 1, 0, 2, 3, 5] and found.copies == RANKED.copies
    # .7 - 1 / 2, .5 - 2 / 2, .9 - 4 / 2; then .8, .6, .4, .3, all less 1.9
    np.testing.assert_allclose(found.scores, [0.2, -0.5, -1.1, -1.1, -1.3, -1.5, -1.6])
    assert told.scores == {1: -4.0, 4: -1.0, 6: -2.0} and told.weight == 0.5
    assert (told.name, told.num_tokens, told.num_cut) == ("table", 9, 1)


def test_without_a_weight_the_reranker_alone_orders(corpus):
    table = {"bb": 1.0, "ee": 3.0, "gg": 3.0}
    found, _ = rerank("why?", corpus, RANKED, Scores(None, **table), RerankOptions("m"), by_words=False)
    assert found.ids.tolist() == [4, 6, 1, 0, 2, 3, 5]  # equal scores keep their order
    np.testing.assert_allclose(found.scores, [3, 3, 1, 0.8, 0.6, 0.4, 0.3])
    by_words, told = rerank("why?", corpus, RANKED, Scores(0.5, **table), RerankOptions("m"), by_words=True)
    assert told.weight is None and by_words.ids.tolist() == found.ids.tolist()
    weighed, told = rerank("why?", corpus, RANKED, Scores(None, **table), RerankOptions("m", weight=0.0), by_words=True)
    assert told.weight == 0 and weighed.ids.tolist() == [1, 4, 6, 0, 2, 3, 5]


def test_nothing_found_is_not_read(corpus):
    nothing, reranker = RANKED.first(0), Scores()
    found, told = rerank("why?", corpus, nothing, reranker, RerankOptions("m"), by_words=True)
    assert len(found) == 0 and not told.scores and not reranker.asked


def test_a_ranking_is_made_again_until_it_has_the_files():
    documents = (Document("long", "a " * 40), Document("short", "b "))
    nodes = tuple(Chunk(f"{at}", "long", ((at, at + 1),), 1, 1) for at in range(0, 80, 2))
    corpus = Corpus(documents, (*nodes, Chunk("b", "short", ((0, 1),), 1, 1)))
    every, asked = Ranked(np.arange(41), -np.arange(41.0)), []

    def rank(most):
        asked.append(most)
        return every.first(most)

    assert len(rank_enough(rank, corpus, 1, RerankOptions("m", files=2))) == 41 and asked == [16, 128]
    asked.clear()
    assert len(rank_enough(rank, corpus, 20, RerankOptions("m", passages=3))) == 20 and asked == [20]
    asked.clear()
    assert len(rank_enough(rank, corpus, None, RerankOptions("m"))) == 41 and asked == [None]


def test_options_are_checked():
    for wrong in ({"files": 0}, {"passages": 0}, {"weight": -1.0}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            RerankOptions("m", **wrong)
