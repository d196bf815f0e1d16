"""Profiles of scores: numbers worked out by hand from a ranking, and names in their order."""

import numpy as np
from support.level_documents import NAMES, embed, tiny_index

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.profiles import profile_names, score_profiles

QUESTION = "Do Whales sing opera 9 times?"


def profile(index, question=QUESTION):
    (row,) = score_profiles(index, [question], embed([question]))
    return dict(zip(profile_names(NAMES), row.tolist(), strict=True))


def test_numbers_of_a_level_are_those_of_its_ranking():
    index, name = tiny_index(), NAMES[3]
    found, ranked = profile(index), index.rank(QUESTION, embed([QUESTION])[0], LevelRange(3, 3), 10)
    scores = ranked.scores
    assert len(ranked) == 10
    assert found[f"{name}.best"] == scores[0]
    assert np.isclose(found[f"{name}.mean"], sum(scores[:5]) / 5)
    assert np.isclose(found[f"{name}.gap_2"], scores[0] - scores[1])
    assert np.isclose(found[f"{name}.gap_10"], scores[0] - scores[9])
    assert found[f"{name}.spread"] == 0.2


def test_the_question_is_told_by_its_words():
    found = profile(tiny_index())
    assert np.isclose(found["words"], np.log(7))
    assert np.isclose(found["capitals"], 2 / 6)
    assert found["digits"] == 1
    assert profile(tiny_index(), "whales")["digits"] == 0


def test_best_nodes_that_lie_in_each_other_overlap():
    found = profile(tiny_index())
    assert found["agree"] == 1  # all in one document: the only one that says it
    assert [found[f"overlap.{coarse}.{fine}"] for coarse, fine in zip(NAMES, NAMES[1:], strict=False)] == [1, 1, 1]


class Fixed(LevelIndex):
    """An index whose best node of each level is given."""

    def __init__(self, index, best):
        self.corpus, self.best, self.names = index.corpus, best, ("a", "b")

    def rank(self, question, vector, levels, top_k=None, **_):
        node = self.best[levels.least]
        return Ranked(np.array([node]), np.array([0.5]))


def test_best_nodes_of_other_places_do_not_overlap_and_of_other_documents_do_not_agree():
    index = tiny_index()
    first, last = index.corpus.nodes_of("sea")[0], index.corpus.nodes_of("sky")[-1]
    (row,) = score_profiles(Fixed(index, [first, last]), ["why"], np.ones((1, 9), np.float32))
    found = dict(zip(profile_names(("a", "b")), row.tolist(), strict=True))
    assert found["overlap.a.b"] == 0 and found["agree"] == 0
    assert found["a.gap_10"] == 0 and found["a.mean"] == 0.5  # one node alone stands for those that are missing


def test_no_question_has_no_row():
    assert score_profiles(tiny_index(), [], np.zeros((0, 9), np.float32)).shape == (0, len(profile_names(NAMES)))
