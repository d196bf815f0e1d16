"""Rough products leave out texts that cannot be among the first; the rest is what a full ranking begins with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.search.corpus import Corpus
from qrag_jax.search.dense import cosine_scores, may_be_best, rough_cosines, rough_error, search_vectors
from qrag_jax.search.hybrid import rank_dense, rank_hybrid
from qrag_jax.search.note_search import NotedCorpus, NoteSearch, rank_noted
from qrag_jax.types import Chunk, Document, Note
from qrag_jax.unit_rows import unit_rows

WORDS = ["red", "door", "blue", "key", "nothing", "ключ", "замок"]


class Knows:
    """Vectors by number of the text; words in Cyrillic are unknown."""

    def __init__(self, table, knows_all):
        self.table, self.knows_all = table, knows_all

    def __call__(self, texts, progress=None):
        return self.table[[int(text.split()[-1]) for text in texts]]

    def unknown_shares(self, texts):
        return np.array([float(not self.knows_all and not text.isascii()) for text in texts])


def drawn(seed, size, dim, knows_all):
    """A corpus in which many vectors are equal or differ in their last bits, notes of it, its encoder, a question."""
    rng = np.random.default_rng(seed)
    few = unit_rows(rng.normal(size=(3, dim)).astype(np.float32))
    table = few[rng.integers(0, 3, size + 1)]
    table[1:] *= 1 + rng.choice([0, 6e-8, -6e-8, 0.3], (size, dim), p=[0.5, 0.2, 0.2, 0.1])
    table = unit_rows(table.astype(np.float32))
    words = WORDS[:5] if rng.random() < 0.5 else WORDS
    texts = [f"{' '.join(rng.choice(words, 4))} {number}" for number in range(1, size + 1)]
    documents = tuple(Document(str(number), text) for number, text in enumerate(texts))
    nodes = tuple(Chunk(f"c{number}", str(number), ((0, len(text)),), 1, 4) for number, text in enumerate(texts))
    corpus = Corpus(documents, nodes, table[1:])
    notes, from_ = [], rng.integers(0, size, (2 * size, 2))
    for asking, answering in from_[from_[:, 0] != from_[:, 1]].tolist():
        source, evidence = ((0, len(texts[number])) for number in (asking, answering))
        notes.append(Note(f"c{asking}", f"c{answering}", texts[asking], source, evidence, texts[answering], "mentions"))
    vectors = table[1:][[int(note.asking[1:]) for note in notes]]
    noted = NotedCorpus(corpus, tuple(notes), vectors, vectors, np.ones(len(notes), np.int64))
    return noted, Knows(table, knows_all), f"{' '.join(rng.choice(WORDS[:5], 2))} 0"


@examples(60)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 50), st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_the_first_of_a_full_ranking(seed, size, top_k, weight, knows_all):
    noted, embed, question = drawn(seed, size, 16, knows_all)
    config = NoteSearch(words_weight=weight)
    pairs = [
        (rank_dense(question, noted.corpus, embed, top_k), rank_dense(question, noted.corpus, embed)),
        tuple(rank_hybrid(question, noted.corpus, embed, most, weight) for most in (top_k, None)),
        (rank_noted(question, noted, embed, config, top_k), rank_noted(question, noted, embed, config)),
    ]
    for found, full in pairs:
        assert found.ids.tolist() == full.ids[:top_k].tolist()
        assert found.scores.tolist() == full.scores[:top_k].tolist()
    for node in pairs[-1][0].ids.tolist():
        assert pairs[-1][0].notes_of(node) == pairs[-1][1].notes_of(node)


@pytest.mark.parametrize("dim", [1, 384, 4096])
def test_a_rough_product_is_as_near_as_it_says(dim):
    rng = np.random.default_rng(dim)
    vectors = unit_rows(rng.normal(size=(500, dim)).astype(np.float32))
    off = np.abs(rough_cosines(vectors[:20], vectors) - cosine_scores(vectors[:20], vectors)).max()
    assert off <= rough_error(dim)


def test_candidates_by_hand():
    rough = np.array([0.9, 0.5, 0.52, 0.1, 0.5])
    assert may_be_best(rough, 2, 0.005).tolist() == [0, 2]
    assert may_be_best(rough, 2, 0.01).tolist() == [0, 1, 2, 4]  # 0.5 may be 0.51, and 0.52 too
    assert may_be_best(rough, 9, 0.0).tolist() == [0, 1, 2, 3, 4]


def test_two_vectors_that_only_exact_products_tell_apart():
    question = np.full((1, 4), 0.5, np.float32)
    vectors = np.full((6, 4), 0.5, np.float32)
    vectors[4, 0] = np.nextafter(np.float32(0.5), np.float32(1))
    ((found, scores),) = search_vectors(question, vectors, 2)
    assert found.tolist() == [4, 0] and scores[0] > scores[1] == 1


def test_some_documents_with_their_notes():
    noted, *_ = drawn(3, 12, 4, True)
    some = noted.only(["1", "4", "7", "9"])
    assert [document.id for document in some.corpus.documents] == ["1", "4", "7", "9"]
    inside = [note for note in noted.notes if {note.asking, note.answering} <= {"c1", "c4", "c7", "c9"}]
    assert list(some.notes) == inside and inside
    places = [noted.notes.index(note) for note in inside]
    np.testing.assert_array_equal(some.vectors, noted.vectors[places])
