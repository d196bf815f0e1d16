from dataclasses import replace

import numpy as np
import pytest
from support.passages import corpus_of, count, documents, lines_corpus, split_lines
from support.study import Counts
from support.word_corpora import TEXTS, WordEncoder, make_tree

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.search.corpus import Corpus, MadeBy, build_corpus, check_place, embed_corpus, tree_corpus
from qrag_jax.search.hits import make_hits
from qrag_jax.search.hybrid import rank_bm25, rank_dense
from qrag_jax.types import Chunk, Cost, Document, InputError


def test_by_hand():
    encoder, seen = WordEncoder(), []
    config = ChunkConfig(max_tokens=3)
    corpus = build_corpus(
        documents(*TEXTS), split_lines, encoder, chunking=config, encoder="w", progress=lambda *x: seen.append(x)
    )
    assert corpus.texts == ("one two", "three", "four", "five six seven")
    assert [corpus.texts[node] for node in corpus.nodes_of("b.txt")] == ["four", "five six seven"]
    assert list(corpus.nodes_of("z.txt")) == [] and corpus.by_id["a.txt"].text == TEXTS[0] and len(corpus) == 4
    assert corpus.vectors.sum(axis=1).tolist() == [2, 1, 1, 2] and corpus.leaves.tolist() == [0, 1, 2, 3]
    assert corpus.made_by == MadeBy(config, "w", "words")
    assert (corpus.cost.embedder_tokens, corpus.cost.index_bytes, corpus.num_beyond_window) == (6, 4 * 7 * 4, 1)
    assert set(corpus.cost.seconds) == {"chunk", "embed"} and encoder.calls == [list(corpus.texts)]
    assert seen == [(len(TEXTS[0]), sum(map(len, TEXTS))), (sum(map(len, TEXTS)),) * 2]


def test_sentences_that_a_strategy_embeds_are_paid_for_and_are_no_nodes_beyond_the_window():
    encoder = WordEncoder()

    def chunk(document):
        encoder(["one two three"])
        return split_lines(document)

    corpus = build_corpus(documents(*TEXTS), chunk, encoder)
    assert (corpus.cost.embedder_tokens, corpus.num_beyond_window) == (6 + 2 * 2, 1)


def test_a_corpus_without_vectors_says_what_its_sentences_cost():
    encoder, config = WordEncoder(), ChunkConfig("breakpoint")
    chunker = make_chunker(config, count, encoder)
    words = build_corpus(documents("one two. three four. five six."), chunker, sentence_embed=encoder)
    read = encoder.num_tokens
    assert words.vectors is None and words.cost.embedder_tokens == read > 0
    whole = build_corpus(documents("one two. three four. five six."), chunker, encoder)
    assert whole.cost.embedder_tokens == encoder.num_tokens - read


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((3, 2)), r"gave \(3, 2\) for 4 texts"),
        (np.zeros(4), r"gave \(4,\) for 4 texts"),
        (np.zeros((4, 0)), r"gave \(4, 0\) for 4 texts"),
        ([[0.0], [0.0], [0.0], [0.0, 1.0]], "no array of numbers for 4 texts"),
        (None, r"gave \(\) for 4 texts"),
        ([["a"], ["b"], ["c"], ["d"]], "no array of numbers"),
        (np.array([[0.0], [np.nan], [0], [0]]), "vector of 'three' is not finite"),
        (np.array([[1e300], [0], [0], [0]]), "vector of 'one two' is not finite"),
    ],
)
def test_an_embedder_that_gives_something_else_than_vectors_is_named(given, message):
    with pytest.raises(InputError, match=f"embedder: .*{message}"):
        build_corpus(documents(*TEXTS), split_lines, lambda texts: given)


def test_counts_of_numpy_are_numbers():
    class Counting(WordEncoder):
        @property
        def counts(self):
            return Counts(*map(np.int64, (self.num_texts, self.num_tokens, self.num_texts_cut)))

    corpus = build_corpus(documents(*TEXTS), split_lines, Counting())
    assert type(corpus.cost.embedder_tokens) is int and type(corpus.num_beyond_window) is int


def test_vectors_are_as_given_and_of_length_1_for_cosines():
    corpus = build_corpus(documents(*TEXTS), split_lines, WordEncoder())
    np.testing.assert_allclose(np.linalg.norm(corpus.unit_vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(corpus.vectors[0], [1, 1, 0, 0, 0, 0, 0])
    unit = replace(corpus, vectors=np.array(corpus.unit_vectors))
    assert np.shares_memory(unit.unit_vectors, unit.vectors)  # not divided again: the last bits would change
    nothing = replace(corpus, vectors=np.zeros((4, 7), np.float32))
    assert not nothing.unit_vectors.any()
    for scale in (1e-24, 1e20):  # squares of neither are float32 numbers
        scaled = replace(corpus, vectors=corpus.vectors * np.float32(scale))
        np.testing.assert_allclose(scaled.unit_vectors, corpus.unit_vectors, rtol=1e-6)
    with pytest.raises(ValueError, match="read-only"):
        corpus.vectors[0] = 0


def test_the_same_cut_by_another_encoder():
    plain = lines_corpus(*TEXTS)
    assert plain.vectors is None and plain.made_by == MadeBy() and plain.cost.embedder_tokens == 0
    corpus = embed_corpus(plain, lambda texts: np.ones((len(texts), 2), np.float32))
    assert corpus.nodes is plain.nodes and corpus.made_by.fingerprint == "" and corpus.vectors.shape == (4, 2)
    plain = replace(plain, cost=Cost({"chunk": 1.5}, embedder_tokens=7))
    again = embed_corpus(plain, WordEncoder())
    assert again.cost.seconds["chunk"] == 1.5 and again.cost.embedder_tokens == 7 + 6


def test_lone_surrogates_reach_no_encoder():
    seen = []
    build_corpus(documents("x \ud800"), split_lines, lambda texts: seen.append(texts) or np.ones((1, 2), np.float32))
    assert seen == [["x \ufffd"]]


def test_of_trees_every_node_has_a_vector_and_leaves_are_found():
    corpus = embed_corpus(tree_corpus(documents(TEXTS[0]), [make_tree()], count), WordEncoder())
    assert corpus.texts == ("one two\nthree", "one two", "three") and corpus.vectors.shape == (3, 7)
    assert [(node.level, node.num_tokens) for node in corpus.nodes] == [(0, 3), (1, 2), (1, 1)]
    assert corpus.leaves.tolist() == [1, 2] and corpus.unit_vectors.shape == (2, 7)
    assert rank_bm25("three", corpus).ids.tolist() == [2]
    assert rank_dense("two", corpus, WordEncoder()).ids.tolist() == [1, 2]
    tree, node = corpus.tree_of(2)
    assert tree == make_tree() and (node, tree.span(node)) == (2, (8, 13))


def test_nodes_of_a_second_tree_are_counted_from_its_first():
    corpus = tree_corpus(documents(TEXTS[0], TEXTS[0]), [make_tree(), make_tree("b.txt")], count)
    assert corpus.leaves.tolist() == [1, 2, 4, 5] and list(corpus.nodes_of("b.txt")) == [3, 4, 5]
    tree, node = corpus.tree_of(4)
    assert (tree.document_id, node) == ("b.txt", 1)


def test_vectors_of_another_encoder_are_refused_before_a_search():
    corpus = build_corpus(documents(*TEXTS), split_lines, WordEncoder(), encoder="minilm")
    other = WordEncoder("other words")
    with pytest.raises(InputError, match=r"made by encoder minilm \(words\), but the question has another one"):
        rank_dense("one", corpus, other)
    assert other.calls == []


def chunk(start=0, end=1, name="a.txt"):
    return Chunk("i", name, ((start, end),), 1, 1)


def test_nodes_that_do_not_stand_where_they_say_are_refused():
    two = documents(*TEXTS)
    for found, nodes, message in [
        (two, [], "no chunk to search; give at least one"),
        (two, [chunk(name="z.txt")], "passage of 'z.txt': there is no such document"),
        (two, [chunk(end=15)], r"a.txt: passage at \[\(0, 15\)\]: not in its 14 characters; fix the chunker"),
        (two, [chunk(name="b.txt"), chunk()], "node 1: its document 'a.txt' comes before 'b.txt'"),
        ([two[0], two[0]], [chunk()], "document 'a.txt': its id occurs twice"),
    ]:
        with pytest.raises(InputError, match=message):
            corpus_of(found, nodes)
    for spans in [((0, 99),), ((-1, 2),), ((3, 3),), ((4, 2),), ((4, 6), (0, 2)), ()]:
        with pytest.raises(InputError, match=r"a.txt: passage at .*: not in its 14 characters; fix the chunker"):
            check_place(two[0], "a.txt", spans)


def test_vectors_and_trees_that_are_not_those_of_the_nodes_are_refused():
    corpus = lines_corpus(*TEXTS)
    for vectors, message in [
        (np.ones((3, 2), np.float32), r"vectors float32 \[3, 2\]: expected float32 \[4, dim\]"),
        (np.ones((4, 2)), "vectors float64"),
        (np.array([[1], [2], [np.inf], [3]], np.float32), "vector of node 2: not finite; fix the encoder"),
    ]:
        with pytest.raises(InputError, match=message):
            replace(corpus, vectors=vectors)
    with pytest.raises(InputError, match=r"node 0: not in the 4 nodes and 0 trees"):
        corpus.tree_of(0)
    trees = tree_corpus(documents(TEXTS[0]), [make_tree()], count)
    with pytest.raises(InputError, match="a.txt: its nodes are not those of its tree"):
        Corpus(trees.documents, trees.nodes[1:], trees=trees.trees)
    with pytest.raises(InputError, match="1 trees for 2 documents"):
        tree_corpus(documents(*TEXTS), [make_tree()], count)
    with pytest.raises(InputError, match="document_id"):
        tree_corpus([Document("z", TEXTS[0])], [make_tree()], count)


TABLE = "# Fees\n\n| berth | fee |\n|---|---|\n| red | one |\n| blue | two |\n"


def test_a_node_inside_a_table_is_embedded_and_searched_with_the_head_of_the_table():
    encoder = WordEncoder()
    corpus = build_corpus(documents(TABLE, "blue rain"), split_lines, encoder)
    row = "| blue | two |\nFees\n| berth | fee |"  # the encoder cuts off the end of a text, so the longer part is last
    assert corpus.texts[4] == "| blue | two |" and corpus.full_texts[4] == row and row in encoder.calls[-1]
    whole = "Fees\n| berth | fee |"
    assert corpus.contexts == ("", "Fees", whole, whole, whole, "")
    assert rank_bm25("two berth", corpus).ids[0] == 4
    hit = make_hits("two berth", corpus, rank_bm25("two berth", corpus))[0]
    assert (hit.context, hit.text) == ("Fees\n| berth | fee |", "| blue | two |")
