import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.names import RETRIEVERS
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.corpus import Corpus, embed_corpus
from qrag_jax.search.hybrid import Ranked, fuse, make_single_step, rank_bm25, rank_dense, rank_hybrid, rank_words
from qrag_jax.types import Chunk, Document, InputError, UsageError

TEXTS = ["the red door", "a blue key", "the key of the red door", "nothing here", "a blue key"]
WORDS = ["red", "door", "blue", "key", "nothing"]


def embed(texts):
    """One component a word."""
    return np.array([[text.split().count(word) for word in WORDS] for text in texts], np.float32).reshape(-1, 5)


def ranked(ids, scores=None):
    scores = -np.arange(len(ids)) if scores is None else scores
    return Ranked(np.array(ids, np.int64), np.array(scores, np.float64))


def corpus_of(texts, embedder=embed):
    """A document and a node each."""
    documents = tuple(Document(str(i), text) for i, text in enumerate(texts))
    nodes = tuple(Chunk(str(i), str(i), ((0, len(text)),), 1, 1) for i, text in enumerate(texts))
    corpus = Corpus(documents, nodes)
    return corpus if embedder is None else embed_corpus(corpus, embedder)


CORPUS = corpus_of(TEXTS)


def test_dense_by_hand():
    found = rank_dense("key", CORPUS, embed)
    assert found.ids.tolist() == [1, 4, 2, 0, 3]
    np.testing.assert_allclose(found.scores, [2**-0.5, 2**-0.5, 3**-0.5, 0, 0], atol=1e-7)
    assert rank_dense("key", CORPUS, embed, 2).ids.tolist() == [1, 4]


@examples(30)
@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 5))
def test_dense_is_every_cosine_sorted(seed, size, dim):
    rng = np.random.default_rng(seed)
    table = rng.integers(-2, 3, (size + 1, dim)).astype(np.float32)  # many ties, some zeros
    corpus = corpus_of([str(i) for i in range(size)], lambda texts: table[1:])
    found = rank_dense("q", corpus, lambda texts: table[:1])
    slow = []
    for row in table[1:].astype(float):
        lengths = np.sqrt((row**2).sum() * (table[0].astype(float) ** 2).sum())
        slow.append(float(row @ table[0]) / lengths if lengths else 0.0)
    np.testing.assert_allclose(found.scores, np.sort(slow)[::-1], atol=1e-6)
    np.testing.assert_allclose([slow[i] for i in found.ids.tolist()], found.scores, atol=1e-6)
    assert sorted(found.ids.tolist()) == list(range(size))


def test_a_question_alone_is_embedded_and_words_are_counted_once(monkeypatch):
    calls, counted = [], []
    monkeypatch.setattr("qrag_jax.search.corpus.Bm25Index", lambda texts: counted.append(texts) or Bm25Index(texts))

    def noted(texts):
        calls.append(list(texts))
        return embed(texts)

    corpus = corpus_of(TEXTS, noted)
    retrieve = make_single_step("hybrid", noted)
    for question in ("red key", "blue door", "red key"):
        assert len(retrieve(question, corpus, 3)) == 3
    assert calls == [TEXTS, ["red key"], ["blue door"], ["red key"]] and len(counted) == 1


def test_bm25_is_the_index_without_what_matches_no_word():
    corpus = corpus_of(TEXTS, None)
    found = rank_bm25("red key", corpus)
    assert found.ids.tolist() == [2, 0, 1, 4]
    np.testing.assert_allclose(found.scores, Bm25Index(TEXTS).scores("red key")[found.ids], atol=1e-9)
    assert rank_bm25("red key", corpus, 1).ids.tolist() == [2] and len(rank_bm25("green", corpus)) == 0


def test_fusion_by_hand():
    """The third ranking does not know chunk 2, and ties 0 with 1 on its first rank."""
    found = fuse([ranked([0, 1, 2]), ranked([2, 0, 1]), ranked([1, 0], [5.0, 5.0])])
    assert found.ids.tolist() == [0, 1, 2]
    by_hand = [1 / 61 + 1 / 62 + 1 / 61, 1 / 62 + 1 / 63 + 1 / 61, 1 / 63 + 1 / 61]
    np.testing.assert_allclose(found.scores, by_hand, atol=1e-12)


def test_a_constant_of_zero_is_the_sum_of_reciprocal_ranks():
    assert fuse([ranked([3, 1])], 0.0).scores.tolist() == [1.0, 0.5]


def test_nothing_fused_is_nothing():
    assert len(fuse([])) == len(fuse([ranked([]), ranked([])])) == 0


@examples(50)
@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4), st.permutations(range(6)))
def test_fusion_is_a_loop_and_does_not_depend_on_the_numbering(scores, order):
    """Scores with many ties; renumbered chunks get the same fused scores."""

    def rankings(columns):
        orders = [np.argsort(-np.array(row), kind="stable") for row in columns]
        return [ranked(order.tolist(), np.array(row, float)[order]) for order, row in zip(orders, columns, strict=True)]

    slow = {c: sum(1 / (60 + 1 + sum(other > row[c] for other in row)) for row in scores) for c in range(6)}
    found = fuse(rankings(scores))
    np.testing.assert_allclose(found.scores, [slow[c] for c in found.ids.tolist()], atol=1e-12)
    assert (np.diff(found.scores) <= 0).all() and sorted(found.ids.tolist()) == list(range(6))
    moved = fuse(rankings([[row[c] for c in order] for row in scores]))
    back = dict(zip([order[c] for c in moved.ids.tolist()], moved.scores.tolist(), strict=True))
    assert back == dict(zip(found.ids.tolist(), found.scores.tolist(), strict=True))


def test_hybrid_by_hand():
    """Three texts of two words each, so no length counts: b stands in two of them, a in one, z in none."""
    corpus = corpus_of(["a b", "b c", "c d"], lambda texts: np.array([[3, 4], [0, 2], [1, 0]], np.float32))
    found = rank_hybrid("a b z", corpus, lambda texts: np.array([[0, 5]], np.float32), weight=0.25)
    b, a, z = np.log([1 + 1.5 / 2.5, 1 + 2.5 / 1.5, 1 + 3.5 / 0.5])
    words = np.array([(a + b) / 2.5, b / 2.5, 0]) / (a + b + z)  # tf 1, k1 1.5
    wanted = 0.75 * np.array([0.8, 1.0, 0.0]) + 0.25 * words
    assert found.ids.tolist() == [1, 0, 2]
    np.testing.assert_allclose(found.scores, wanted[[1, 0, 2]], atol=1e-8)
    assert rank_hybrid("a b z", corpus, lambda texts: np.array([[0, 5]], np.float32), 1, 0.25).ids.tolist() == [1]


@examples(30)
@given(st.integers(0, 1000), st.floats(0, 1))
def test_hybrid_is_dense_at_0_words_at_1_and_between_them_grows_with_both(seed, weight):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 6))) for _ in range(8)]
    corpus, question = corpus_of([*texts, texts[0]]), " ".join(rng.choice([*WORDS, "moon"], 3))
    dense, words = rank_dense(question, corpus, embed), rank_bm25(question, corpus)
    alone, last = rank_hybrid(question, corpus, embed, weight=0.0), rank_hybrid(question, corpus, embed, weight=1.0)
    assert alone.ids.tolist() == dense.ids.tolist() and alone.scores.tolist() == dense.scores.tolist()
    assert last.ids.tolist()[: len(words)] == words.ids.tolist() and (last.scores[len(words) :] == 0).all()

    def by_node(ranked):
        return np.array([dict(zip(ranked.ids.tolist(), ranked.scores, strict=True)).get(i, 0.0) for i in range(9)])

    near, shared, both = by_node(dense), by_node(words), by_node(rank_hybrid(question, corpus, embed, weight=weight))
    above = (near[:, None] >= near) & (shared[:, None] >= shared)
    assert (both[:, None] - both)[above].min() >= -1e-8 and np.abs(both).max() <= 1 + 1e-6
    assert both[0] == both[8]  # equal texts


@pytest.mark.parametrize(
    ("asked", "near"),
    [("v2.3.1", ["v1.3.2", "v2.3.10"]), ("B61", ["B16", "B6"]), ("ERR_17", ["ERR_71"]), ("maxTokens", ["maxChars"])],
)
def test_an_exact_identifier_is_before_near_misses_that_mean_more(asked, near):
    texts = [f"The {name} of the service was the first to change." for name in near] + [f"{asked} mends the clock."]
    question = f"What did the change of {asked} bring?"
    vectors = {question: [4, 0], texts[-1]: [1, 4]} | dict.fromkeys(texts[:-1], [2, 4])

    def told(some):
        return np.array([vectors.get(text, [0, 4]) for text in some], np.float32)

    assert rank_hybrid(question, corpus_of([*texts, "The mole.", "A crane."], told), told).ids[0] == len(near)


def test_a_question_without_words_is_searched_by_meaning():
    corpus = corpus_of(TEXTS, lambda texts: np.eye(5, dtype=np.float32))
    found = rank_hybrid("?!", corpus, lambda texts: np.eye(5, dtype=np.float32)[3:4], weight=0.25)
    assert found.ids.tolist() == [3, 0, 1, 2, 4] and found.scores.tolist() == [0.75, 0, 0, 0, 0]


def test_by_name():
    question = "blue door"
    dense, words = rank_dense(question, CORPUS, embed), rank_bm25(question, CORPUS)
    wanted = {"dense": dense, "single_step": dense, "bm25": words, "hybrid": rank_hybrid(question, CORPUS, embed)}
    for name in RETRIEVERS:
        retrieve = make_single_step(name, embed)
        found, first = retrieve(question, CORPUS, None), retrieve(question, CORPUS, 2)
        assert found.ids.tolist() == wanted[name].ids.tolist() and first.ids.tolist() == found.ids.tolist()[:2]
        np.testing.assert_array_equal(found.scores, wanted[name].scores)
    assert make_single_step("bm25")(question, CORPUS, None).ids.tolist() == words.ids.tolist()


@pytest.mark.parametrize("name", RETRIEVERS)
@pytest.mark.parametrize("top_k", [0, -1])
def test_fewer_than_one_node_cannot_be_asked_for(name, top_k):
    with pytest.raises(UsageError, match=f"top_k={top_k}: give at least 1"):
        make_single_step(name, embed)("blue door", CORPUS, top_k)


def test_hybrid_also_finds_what_only_one_of_both_finds():
    """No word in common with chunk 3, whose vector is the question's."""
    corpus = corpus_of(TEXTS, lambda texts: np.array([[float(i == 3), 1] for i in range(5)], np.float32))
    found = make_single_step("hybrid", lambda texts: np.array([[1, 0]], np.float32))("green key", corpus, None)
    assert set(found.ids.tolist()[:2]) <= {1, 2, 3, 4} and 3 in found.ids.tolist()


def test_texts_without_direction_and_lone_surrogates():
    corpus = corpus_of(["green", "key \ud800"])
    assert rank_dense("key", corpus, embed).ids.tolist() == [1, 0]
    assert rank_bm25("key \ud800", corpus).ids.tolist() == [1]


def test_refusals():
    with pytest.raises(UsageError, match="retriever hybrid: needs an embedder"):
        make_single_step("hybrid")
    with pytest.raises(UsageError, match="retriever 'nearest': choose one of hybrid, dense, bm25"):
        make_single_step("nearest", embed)
    with pytest.raises(InputError, match="corpus: has no vectors; build it with an encoder, or search it by words"):
        rank_dense("key", corpus_of(TEXTS, None), embed)
    with pytest.raises(InputError, match="its vector has 2 components, those of the corpus have 5"):
        rank_dense("key", CORPUS, lambda texts: np.ones((1, 2), np.float32))
    with pytest.raises(InputError, match=r"embedder: gave \(2, 5\) for 1 texts"):
        rank_dense("key", CORPUS, lambda texts: np.ones((2, 5), np.float32))
    for weight, top_k in itertools.product((-0.1, 1.1, np.nan), (None, 1)):
        with pytest.raises(UsageError, match="weight .*: must be a share from 0 to 1"):
            rank_hybrid("key", CORPUS, embed, top_k, weight)
    for constant in (-1.0, np.inf, np.nan):
        with pytest.raises(UsageError, match="constant .*: must be finite and at least 0"):
            fuse([ranked([0])], constant)


def test_scores_that_are_equal_when_rounded_go_by_the_order_of_the_corpus():
    class Words(Bm25Index):
        def scores(self, question, among=None):
            return np.array([0.0, 1.0, 1.0 + 1e-12])

    document = Document("d", "one two three")
    chunks = [Chunk(str(start), "d", ((start, start + 3),), 0, 1) for start in (0, 4, 8)]
    corpus = Corpus((document,), tuple(chunks), None)
    for top_k, expected in ((1, [1]), (2, [1, 2]), (3, [1, 2]), (None, [1, 2])):
        assert rank_words("x", corpus, Words(["a"]), top_k).ids.tolist() == expected
