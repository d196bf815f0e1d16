"""Ranked nodes of any level as a context: by hand, beside a slow reading, and what every context keeps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import count, documents, lines_corpus, ranked, split_lines
from support.tiers import examples
from support.trees import cases

from qrag_jax.chunking.text.chunks import SentenceText, chunk_text
from qrag_jax.chunking.tree.build import tree_from_points
from qrag_jax.search.citations import make_citation
from qrag_jax.search.context.pack import Budget, fill_context
from qrag_jax.search.corpus import tree_corpus
from qrag_jax.search.levels.level_context import LevelRanked, fill_levels
from qrag_jax.types import InputError


def pointed_corpus(*texts_and_points):
    """Trees whose leaves are the lines of a text."""
    found, trees = documents(*(text for text, _ in texts_and_points)), []
    for document, (_, points) in zip(found, texts_and_points, strict=True):
        lines = tuple(chunk.spans[0] for chunk in split_lines(document))
        trees.append(tree_from_points(SentenceText(document.text, lines), points, document.id))
    return tree_corpus(found, trees, count)


# a.txt: root 0, section 1 (leaves 2, 3, 4: 2, 3, 1 words), section 5 (leaves 6, 7: 4, 2); b.txt: root 8, leaves 9, 10.
TWO = pointed_corpus(
    ("a b\nc d e\nf\ng h i j\nk l\n", [(0, 1), (0, 2), (1, 2), (2, 2), (3, 1), (3, 2), (4, 2)]),
    ("m n\no\n", [(0, 1), (1, 1)]),
)
SCORES = (0.1, 0.9, 0.8, 0.3, 0.7, 0.2, 0.4)  # of leaves 2, 3, 4, 6, 7, 9, 10


def filled(ids, most, scores=SCORES, corpus=TWO, overhead=0, **budget):
    plain = ranked(*ids, scores=np.linspace(1, 0, len(ids)))
    found = plain if scores is None else LevelRanked(plain.ids, plain.scores, np.array(scores))
    return fill_levels(corpus, found, Budget(most, count, overhead, **budget))


def texts(context):
    return [passage.text for passage in context.passages]


def test_nodes_that_fit_are_given_whole_in_document_order():
    context = filled([8, 1], 9)
    assert texts(context) == ["a b\nc d e\nf", "m n\no"]
    assert [(p.node, p.rank, p.score) for p in context.passages] == [(1, 2, 0.0), (8, 1, 1.0)]
    assert (context.num_tokens, context.num_left_out) == (9, 0)


def test_what_does_not_fit_is_given_by_its_best_leaves_and_ends_the_context():
    """Of 8 tokens node 8 leaves 5: of section 1 the leaves with scores .9 and .8, which are neighbours."""
    context = filled([8, 1, 5], 8)
    assert texts(context) == ["c d e\nf", "m n\no"]
    assert context.passages[0].spans == ((4, 11),) and context.passages[0].node == 1
    assert (context.num_tokens, context.num_left_out) == (7, 1)


def test_leaves_that_are_no_neighbours_are_one_passage_of_several_spans():
    context = filled([1], 4, scores=(0.9, 0.1, 0.8, 0, 0, 0, 0), overhead=1)
    assert texts(context) == ["a b\nf"] and context.passages[0].spans == ((0, 3), (10, 11))
    assert context.num_tokens == 4


def test_leaves_without_scores_come_in_document_order():
    assert texts(filled([0], 5, scores=None)) == ["a b\nc d e"]


def test_the_first_leaves_that_are_too_large_are_passed_over():
    assert texts(filled([1], 2)) == ["f"]
    assert texts(filled([1], 2, scores=(0.8, 0.9, 0.1, 0, 0, 0, 0))) == ["a b"]


def test_no_character_is_given_twice():
    assert texts(filled([4, 1], 6)) == ["a b\nc d e", "f"]
    context = filled([1, 3, 0], 20)
    assert texts(context) == ["a b\nc d e\nf", "g h i j\nk l"] and context.num_left_out == 0


def test_a_leaf_that_does_not_fit_ends_the_context():
    context = filled([9, 6, 10], 4)
    assert texts(context) == ["m n"] and context.num_left_out == 2


def test_the_last_node_is_cut_where_the_budget_says_so():
    context = filled([8, 1], 5, cut_last=True)
    assert texts(context) == ["c d", "m n\no"] and context.num_tokens == 5


def test_most_passages():
    context = filled([9, 10, 2], 20, max_passages=2)
    assert texts(context) == ["m n", "o"] and context.num_left_out == 0


def test_without_a_count_nodes_have_the_tokens_that_they_were_counted_with():
    plain = ranked(1)
    context = fill_levels(TWO, LevelRanked(plain.ids, plain.scores, np.array(SCORES)), Budget(5))
    assert texts(context) == ["c d e\nf"] and context.num_tokens == 4


def test_refusals():
    with pytest.raises(
        InputError,
        match="the best passage has 3 tokens, including citation marks, but the context has room for only 2; allow",
    ):
        filled([1], 2, overhead=2)  # its smallest leaf has one
    with pytest.raises(InputError, match=r"node 99: not in the 11 nodes and 2 trees"):
        filled([99], 2)
    with pytest.raises(InputError, match="its documents have no trees; cut it with strategy levels"):
        fill_levels(lines_corpus("a b\nc"), ranked(0), Budget(9))


def test_of_leaves_it_is_the_context_of_any_ranking():
    plain = ranked(6, 3, 10)
    assert fill_levels(TWO, plain, Budget(20, count)) == fill_context(TWO, plain, Budget(20, count))


def test_the_best_of_a_ranking_keep_their_scores():
    found = LevelRanked(np.array([1, 5]), np.array([1.0, 0.5]), np.array(SCORES)).first(1)
    assert len(found) == 1 and found.leaf_scores.tolist() == list(SCORES)


@given(cases(), st.randoms(use_true_random=False), st.integers(1, 12), st.integers(0, 2))
@examples(60)
def test_every_context_holds_to_its_budget(case, chance, most, overhead):
    document, tree = case
    document = type(document)(document.id, document.text.replace("\ud800", "x"))
    corpus = tree_corpus([document], [tree], len)
    ids = chance.sample(range(len(tree)), chance.randint(1, len(tree)))
    scores = np.array([chance.random() for _ in tree.leaves])
    found = LevelRanked(np.array(ids), np.linspace(1, 0, len(ids)), scores)
    budget = Budget(most, len, overhead)
    try:
        context = fill_levels(corpus, found, budget)
    except InputError:
        leaves = tree.leaves[slice(*tree.leaf_range(ids[0]))]
        assert min(len(corpus.texts[leaf]) for leaf in leaves.tolist()) + overhead > most
        return
    assert context.num_tokens == sum(len(p.text) + overhead for p in context.passages) <= most
    given_twice: list[int] = []
    for passage in context.passages:
        make_citation(passage, {document.id: document})
        assert passage.text == chunk_text(document.text, passage.spans)
        given_twice += [at for span in passage.spans for at in range(*span)]
    assert len(given_twice) == len(set(given_twice))
    assert given_twice == sorted(given_twice) or any(len(p.spans) > 1 for p in context.passages)
    assert 0 <= context.num_left_out < len(ids)
