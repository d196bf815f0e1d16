"""Search among the nodes of a range of levels: masks, best children, overlaps, vectors made when asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import count
from support.tiers import examples
from support.trees import cases, int64

from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges, full_range
from qrag_jax.chunking.tree.parent_vectors import Parents, fill_parents, mean_of_children
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.search.answer import find_passages
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.corpus import MadeBy, embed_corpus, tree_corpus
from qrag_jax.search.levels.level_search import LevelIndex, document_heads
from qrag_jax.search.levels.planners import Plans, constant, rank_levels
from qrag_jax.types import Document, InputError, UsageError
from qrag_jax.unit_rows import unit_rows

WORDS = "red blue key door rain sun".split()
NAMES = ("document", "section", "sentence")
BEST, MEAN = Parents("best_child"), Parents("mean", of_children=mean_of_children)
# Of each document two sections, of two sentences each, but the last one has one.
TEXTS = ("red door.  blue key.\n\nrain rain.  sun.", "sun sun.  red key.\n\nblue door.")
SPANS = (  # start, end, level, parent, leaves
    (
        [0, 0, 0, 11, 22, 22, 34],
        [38, 20, 9, 20, 38, 32, 38],
        [0, 1, 2, 2, 1, 2, 2],
        [-1, 0, 1, 1, 0, 4, 4],
        [2, 3, 5, 6],
    ),
    ([0, 0, 0, 10, 20], [30, 18, 8, 18, 30], [0, 1, 2, 2, 1], [-1, 0, 1, 1, 0], [2, 3, 4]),
)


def embed(texts):
    """One component a word."""
    return np.array([[text.replace(".", "").split().count(word) for word in WORDS] for text in texts], np.float32)


def made_corpus():
    documents = [Document(name, text) for name, text in zip("ab", TEXTS, strict=True)]
    trees = [ChunkTree(name, *(int64(*values) for values in spans)) for name, spans in zip("ab", SPANS, strict=True)]
    return embed_corpus(tree_corpus(documents, trees, count), embed)


CORPUS = made_corpus()
ASKED = embed(["red key"])[0]


def ranked(index, levels, top_k=None, question="red key", **more):
    return index.rank(question, embed([question])[0], LevelRange(*levels), top_k, **more)


def case_corpus(case, seed, dim=3):
    """The random tree of a case and a second document, with vectors of small whole numbers: ties and zeros."""
    document, tree = case
    one = ChunkTree("one", int64(0), int64(3), int64(0), int64(-1), int64(0))
    corpus = tree_corpus([document, Document("one", "end")], [tree, one], lambda text: len(text) % 4)
    rng = np.random.default_rng(seed)
    table = rng.integers(-1, 2, (len(corpus), dim)).astype(np.float32)
    return embed_corpus(corpus, lambda texts: table), rng.integers(-1, 2, dim).astype(np.float32)


def descends(corpus, node, other):
    """True if a node lies in another one, read from the parents."""
    (tree, inner), (around, outer) = corpus.tree_of(node), corpus.tree_of(other)
    return tree is around and inner != outer and outer in tree.ancestors(inner)


def test_nodes_and_scores_by_hand():
    index = LevelIndex(CORPUS, NAMES, BEST)
    assert index.nodes(LevelRange(0, 0)).tolist() == [0, 7]
    assert index.nodes(LevelRange(1, 1)).tolist() == [1, 4, 8, 11]
    assert index.nodes(LevelRange(2, 2)).tolist() == [2, 3, 5, 6, 9, 10, 11]
    found = ranked(index, (2, 2))
    assert found.ids.tolist() == [10, 2, 3, 5, 6, 9, 11]
    np.testing.assert_allclose(found.scores, [1, 0.5, 0.5, 0, 0, 0, 0], atol=1e-6)
    found = ranked(index, (1, 1))  # the best sentence of each section
    assert found.ids.tolist() == [8, 1, 4, 11]
    np.testing.assert_allclose(found.scores, [1, 0.5, 0, 0], atol=1e-6)
    assert ranked(index, (0, 0)).ids.tolist() == [7, 0]
    assert ranked(index, (0, 2)).ids.tolist() == ranked(index, (2, 2)).ids.tolist()  # equal: the finer one stays
    np.testing.assert_allclose(index.leaf_scores(ASKED), [0.5, 0.5, 0, 0, 0, 1, 0], atol=1e-6)


def test_means_by_hand():
    index = LevelIndex(CORPUS, NAMES, MEAN)
    found = ranked(index, (0, 1))
    # section 8: (1 / 2)(sun + (red + key) / sqrt 2) at length 1 -> cos = 1 / sqrt 2; section 1 has all four words
    assert found.ids.tolist() == [1, 8, 4, 11]
    np.testing.assert_allclose(found.scores[:2], [2**-0.5, 2**-0.5], atol=1e-6)
    assert ranked(index, (0, 2), 3).ids.tolist() == [10, 1, 5]  # 8 holds 10, 1 holds 2 and 3, 4 ties with 5


def test_vectors_are_made_when_a_range_asks_and_kept():
    calls = []

    def counted(vectors, num_tokens, parent):
        calls.append(int(parent.max()) + 1)
        return mean_of_children(vectors, num_tokens, parent)

    index = LevelIndex(CORPUS, NAMES, Parents("mean", of_children=counted))
    ranked(index, (2, 2))
    assert calls == []
    ranked(index, (1, 1))
    assert calls == [3]  # sections with children, of both documents at once
    ranked(index, (0, 2))
    assert calls == [3, 2]  # the documents, of their sections
    ranked(index, (0, 1))
    assert calls == [3, 2]


def test_texts_are_embedded_for_asked_nodes_alone():
    seen = []

    def of_texts(texts):
        seen.append(list(texts))
        return embed(texts)

    index = LevelIndex(CORPUS, NAMES, Parents("direct", of_texts=of_texts, most_tokens=3))
    ranked(index, (2, 2))
    assert ranked(index, (1, 1), documents=["b"]).ids.tolist() == [8, 11]
    ranked(index, (1, 1))
    assert seen == [[CORPUS.texts[8]], [CORPUS.texts[1], CORPUS.texts[4]]]
    assert index.built_tokens(LevelRange(2, 2)) == index.built_tokens(LevelRange(1, 1)) + 3 - 1
    # sections of 4, 3, 4 and, a leaf, 2 tokens, of which at most 3 are read
    assert index.built_tokens(LevelRange(1, 1)) == 3 + 3 + 3 + 2


def test_vectors_that_the_corpus_has_are_used_only_if_it_is_said():
    one = ranked(LevelIndex(CORPUS, NAMES, MEAN), (0, 0))
    given = LevelIndex(CORPUS, NAMES, MEAN, has_parents=True)  # those of the texts, here
    direct = ranked(LevelIndex(CORPUS, NAMES, Parents("direct", of_texts=embed)), (0, 0))
    assert ranked(given, (0, 0)).scores.tolist() == direct.scores.tolist() != one.scores.tolist()


def test_what_a_range_costs():
    best, mean = LevelIndex(CORPUS, NAMES, BEST), LevelIndex(CORPUS, NAMES, MEAN)
    vectors = [(index.num_vectors(LevelRange(1, 1)), index.num_vectors(LevelRange(2, 2))) for index in (best, mean)]
    assert vectors == [(7, 7), (4, 7)]
    assert {index.built_tokens(levels) for index in (best, mean) for levels in all_ranges(NAMES)} == {13}


@given(cases(), st.integers(0, 999), st.integers(1, 4), st.sampled_from([BEST, MEAN]), st.sampled_from([0.0, 0.5]))
@examples(60)
def test_a_mask_before_the_best_are_taken_is_a_search_in_the_subset(case, seed, num_levels, parents, weight):
    corpus, asked = case_corpus(case, seed)
    names = tuple(map(str, range(num_levels)))
    index = LevelIndex(corpus, names, parents)
    for levels in all_ranges(names):
        whole = index.rank("a bc", asked, levels, weight=weight)
        assert set(whole.ids.tolist()) <= set(index.nodes(levels).tolist())
        assert (np.diff(whole.scores) <= 0).all()
        for k in (1, 2, 5):
            assert index.rank("a bc", asked, levels, k, weight=weight).ids.tolist() == whole.ids[:k].tolist()
        inside = index.rank("a bc", asked, levels, documents=["one"]).ids.tolist()
        assert inside == [len(corpus) - 1]


@given(cases(), st.integers(0, 999))
@examples(60)
def test_best_child_is_brute_force(case, seed):
    corpus, asked = case_corpus(case, seed)
    index = LevelIndex(corpus, NAMES, BEST)
    unit = unit_rows(corpus.vectors).astype(np.float64) @ unit_rows(asked[None])[0].astype(np.float64)
    for levels in all_ranges(NAMES):
        found = index.rank("", asked, levels)
        for node, score in zip(found.ids.tolist(), found.scores.tolist(), strict=True):
            under = [leaf for leaf in corpus.leaves.tolist() if leaf == node or descends(corpus, leaf, node)]
            assert score == pytest.approx(max(unit[under]), abs=1e-6)


@given(cases(), st.integers(0, 999), st.integers(1, 4))
@examples(60)
def test_of_nodes_that_overlap_the_better_one_stays(case, seed, num_levels):
    corpus, asked = case_corpus(case, seed)
    names = tuple(map(str, range(num_levels)))
    index = LevelIndex(corpus, names, MEAN)
    levels = full_range(names)
    unit, parts = unit_rows(corpus.vectors), [slice(0, len(corpus) - 1), slice(len(corpus) - 1, None)]
    filled = [
        fill_parents(tree, unit[part], corpus.num_tokens[part], mean_of_children)
        for tree, part in zip(corpus.trees, parts, strict=True)
    ]
    vectors = np.concatenate(filled)
    scores = np.round(vectors.astype(np.float64) @ unit_rows(asked[None])[0].astype(np.float64), 9)
    level = [corpus.nodes[node].level for node in range(len(corpus))]
    kept = []
    for node in sorted(index.nodes(levels).tolist(), key=lambda node: (-scores[node], -level[node], node)):
        if not any(descends(corpus, node, other) or descends(corpus, other, node) for other in kept):
            kept.append(node)
    found = index.rank("", asked, levels)
    assert found.ids.tolist() == kept
    np.testing.assert_allclose(found.scores, scores[kept], atol=1e-6)


def test_words_alone_and_both_together():
    index = LevelIndex(CORPUS, NAMES, BEST)
    sections = index.nodes(LevelRange(1, 1))
    words = Bm25Index([CORPUS.texts[node] for node in sections.tolist()])  # statistics of the candidates
    by_words = words.shares("red key")
    found = ranked(index, (1, 1), weight=1.0)
    assert found.ids.tolist() == sections[np.argsort(-np.round(by_words, 9), kind="stable")].tolist()
    np.testing.assert_allclose(found.scores, np.sort(by_words)[::-1], atol=1e-9)
    plain, both = ranked(index, (1, 1)), ranked(index, (1, 1), weight=0.25)
    meant = dict(zip(plain.ids.tolist(), plain.scores.tolist(), strict=True))
    said = dict(zip(sections.tolist(), by_words.tolist(), strict=True))
    expected = [0.75 * meant[node] + 0.25 * said[node] for node in both.ids.tolist()]
    np.testing.assert_allclose(both.scores, expected, atol=1e-8)
    assert ranked(index, (1, 1), question="zebra", weight=1.0).scores.tolist() == [0.0] * 4


def test_a_part_gets_a_share_of_what_is_around_it():
    spans = [0, 0, 0, 2, 4], [6, 4, 2, 4, 6], [0, 1, 2, 2, 1], [-1, 0, 1, 1, 0], [2, 3, 4]
    cosines = np.array([1, 0.6, 0, 0.8, 0.8])
    table = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)
    tree = ChunkTree("d", *(int64(*values) for values in spans))
    corpus = embed_corpus(tree_corpus([Document("d", "abcdef")], [tree], len), lambda texts: table)
    index, asked = LevelIndex(corpus, NAMES, Parents("windows"), has_parents=True), np.array([1, 0], np.float32)
    found = index.rank("", asked, LevelRange(2, 2), smooth=0.25)
    assert found.ids.tolist() == [4, 3, 2]
    section = 0.75 * 0.6 + 0.25 * 1  # .7
    expected = [0.75 * 0.8 + 0.25 * 1, 0.75 * 0.8 + 0.25 * section, 0.75 * 0 + 0.25 * section]
    np.testing.assert_allclose(found.scores, expected, atol=1e-6)
    np.testing.assert_allclose(index.rank("", asked, LevelRange(0, 0), smooth=0.9).scores, [1], atol=1e-6)


@given(cases(), st.integers(0, 999), st.sampled_from([BEST, MEAN]), st.sampled_from([0.0, 0.3, 0.8]))
@examples(60)
def test_smoothed_scores_are_those_of_a_slow_reading(case, seed, parents, share):
    corpus, asked = case_corpus(case, seed)
    index = LevelIndex(corpus, NAMES, parents)
    own = index._scores(np.arange(len(corpus)), unit_rows(asked[None])[0])  # itself tested above

    def smoothed(node):
        tree, place = corpus.tree_of(node)
        above = int(tree.parent[place])
        return own[node] if above < 0 else (1 - share) * own[node] + share * smoothed(node - place + above)

    for levels in all_ranges(NAMES):
        found = index.rank("", asked, levels, smooth=share)
        np.testing.assert_allclose(found.scores, [smoothed(node) for node in found.ids.tolist()], atol=1e-6)
        if not share:
            assert found.ids.tolist() == index.rank("", asked, levels).ids.tolist()


def test_documents_that_are_not_there_are_searched_for_everywhere_and_counted():
    index = LevelIndex(CORPUS, NAMES, BEST)
    assert ranked(index, (1, 1), documents=["b", "c"]).ids.tolist() == [8, 11] and not index.num_fallbacks
    assert ranked(index, (1, 1), documents=["c"]).ids.tolist() == ranked(index, (0, 2)).ids.tolist()
    assert index.num_fallbacks == 1


def test_one_parent_of_ten_thousand_children_and_children_without_direction():
    size = 10_000
    starts = np.arange(size)
    tree = ChunkTree(
        "long",
        np.concatenate([[0], starts]),
        np.concatenate([[size], starts + 1]),
        np.concatenate([[0], np.full(size, 2)]),
        np.concatenate([[-1], np.zeros(size, np.int64)]),
        starts + 1,
    )
    table = np.zeros((size + 1, 2), np.float32)
    table[-1] = 3, 4
    corpus = embed_corpus(tree_corpus([Document("long", "x" * size)], [tree], len), lambda texts: table)
    asked = np.array([1, 0], np.float32)
    for parents in (BEST, MEAN):
        found = LevelIndex(corpus, NAMES, parents).rank("", asked, LevelRange(0, 0))
        assert found.ids.tolist() == [0]
        np.testing.assert_allclose(found.scores, [0.6], atol=1e-6)
    nothing = embed_corpus(corpus, lambda texts: np.zeros((size + 1, 2), np.float32))
    for parents in (BEST, MEAN):
        found = LevelIndex(nothing, NAMES, parents).rank("", asked, LevelRange(0, 2), 2)
        assert (found.ids.tolist(), found.scores.tolist()) == ([1, 2], [0, 0])


def test_what_is_refused():
    index = LevelIndex(CORPUS, NAMES, BEST)
    with pytest.raises(UsageError, match="levels 1 to 3: there are only 3"):
        ranked(index, (1, 3))
    with pytest.raises(UsageError, match="top_k=0: give at least 1"):
        ranked(index, (1, 1), 0)
    with pytest.raises(UsageError, match="weight 1.5: must be a share"):
        ranked(index, (1, 1), weight=1.5)
    for share in (1.0, -0.1, np.nan):
        with pytest.raises(UsageError, match="must be at least 0 and below 1"):
            ranked(index, (1, 1), smooth=share)
    with pytest.raises(InputError, match="its vector has 2 components, those of the corpus have 6; use the encoder"):
        index.rank("q", np.ones(2, np.float32), LevelRange(1, 1))
    for lost in (np.nan, np.inf):
        with pytest.raises(
            InputError, match="question: its vector has a component that is not finite; fix the encoder"
        ):
            index.rank("q", np.full(6, lost, np.float32), LevelRange(1, 1))
    with pytest.raises(UsageError, match="parents compressor: no function makes their vectors"):
        LevelIndex(CORPUS, NAMES, Parents("compressor"))
    bare = tree_corpus(CORPUS.documents, CORPUS.trees, count)
    with pytest.raises(InputError, match="corpus: has no vectors"):
        LevelIndex(bare, NAMES, BEST)
    with pytest.raises(InputError, match="b: node 0: document_id is not that of the document, 'a'"):
        tree_corpus(CORPUS.documents, CORPUS.trees[::-1], count)
    flat = embed_corpus(type(CORPUS)(CORPUS.documents, tuple(CORPUS.nodes[i] for i in CORPUS.leaves)), embed)
    with pytest.raises(InputError, match="corpus: has no trees, so no levels"):
        LevelIndex(flat, NAMES, BEST)


def test_a_plan_of_each_question():
    asked = []

    def plan(questions, heads):
        asked.append((list(questions), list(heads)))
        return Plans([LevelRange(1, 1) if "red" in question else LevelRange(2, 2) for question in questions])

    index = LevelIndex(CORPUS, NAMES, BEST)
    heads = document_heads(CORPUS)
    assert rank_levels(index, "red key", embed, plan, 2, heads=heads)[0].ids.tolist() == [8, 1]
    assert rank_levels(index, "key", embed, plan, 2)[0].ids.tolist() == [3, 10]
    assert asked == [(["red key"], list(TEXTS)), (["key"], [])]
    fixed = constant(LevelRange(1, 1))
    found = find_passages("red key", CORPUS, lambda *_: rank_levels(index, "red key", embed, fixed)[0])
    assert [passage.node for passage in found.context.passages] == [1, 4, 8, 11]
    with pytest.raises(UsageError, match="there are only 3"):
        rank_levels(index, "key", embed, constant(LevelRange(1, 7)))
    with pytest.raises(UsageError, match="weight -1"):
        rank_levels(index, "key", embed, fixed, weight=-1.0)


def test_heads_are_whole_leaves_up_to_a_size():
    assert document_heads(CORPUS) == TEXTS
    assert document_heads(CORPUS, 4) == ("red door.  blue key.", "sun sun.  red key.")
    assert document_heads(CORPUS, 1) == ("red door.", "sun sun.")


def test_vectors_of_another_encoder_are_refused():
    from support.word_corpora import WordEncoder

    known = type(CORPUS)(CORPUS.documents, CORPUS.nodes, CORPUS.vectors, MadeBy(None, "a", "one"), trees=CORPUS.trees)
    with pytest.raises(InputError, match="its vectors were made by encoder a"):
        rank_levels(LevelIndex(known, NAMES, BEST), "key", WordEncoder("other"), constant(LevelRange(1, 1)))
