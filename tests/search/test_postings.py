"""Words as arrays have the postings, and so the scores, of words that are counted in memory."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.postings import StoredWords, WordArrays, WordPart, count_words, join_words

WORDS = ["red", "door", "maxTokens", "v2.3", "don't", "e-mail", "Straße", "北京", "", "the the", "the"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), min_size=1, max_size=9)
QUESTION = "the red maxTokens of v2.3, Strasse e-mail door nowhere"


def part(arrays, places):
    def read(name, first, last):
        return getattr(arrays, name)[first:last]

    return WordPart(arrays.words, arrays.bounds, read, np.asarray(places))


def same(stored, texts):
    oracle = Bm25Index(texts)
    assert np.array_equal(stored.scores(QUESTION), oracle.scores(QUESTION))
    assert np.array_equal(stored.shares(QUESTION), oracle.shares(QUESTION))
    among = np.arange(len(texts))[::-2]
    assert np.array_equal(stored.scores(QUESTION, among), oracle.scores(QUESTION, among))
    assert stored.words_of(QUESTION, 2) == oracle.words_of(QUESTION, 2)


def test_by_hand():
    arrays = count_words(["red door", "door door", "key"])
    stored = StoredWords([part(arrays, [0, 1, 2])], arrays.lengths)
    texts, counts = stored.find("door")
    assert texts.tolist() == [0, 1] and counts.tolist() == [1, 2]
    assert "red" in stored and "blue" not in stored and len(stored.find("blue")[0]) == 0
    assert arrays.lengths.tolist() == [2, 2, 1] and arrays.counts.dtype == np.uint8


@examples(60)
@given(TEXTS, TEXTS, st.randoms(use_true_random=False))
def test_parts_in_any_order_score_as_one(first, second, random):
    both = [*first, *second]
    places = list(range(len(both)))
    random.shuffle(places)
    texts = [both[places.index(place)] for place in range(len(both))]
    arrays = [count_words(some) for some in (first, second)]
    parts = [part(arrays[0], places[: len(first)]), part(arrays[1], places[len(first) :])]
    lengths = np.zeros(len(both), np.int64)
    lengths[places] = np.concatenate([one.lengths for one in arrays])
    same(Bm25Index(StoredWords(parts, lengths)), texts)


@examples(60)
@given(TEXTS, TEXTS, st.data())
def test_joined_arrays_are_those_of_the_kept_texts(first, second, data):
    kept = [np.array(sorted(data.draw(st.sets(st.integers(0, len(texts) - 1)))), np.int64) for texts in (first, second)]
    joined = join_words([count_words(first), count_words(second)], kept)
    texts = [texts[number] for texts, some in zip((first, second), kept, strict=True) for number in some.tolist()]
    expected = count_words(texts)
    for field in WordArrays.__dataclass_fields__:
        assert np.array_equal(getattr(joined, field), getattr(expected, field)), field


@examples(60)
@given(TEXTS, st.data())
def test_a_text_in_two_parts_has_the_words_of_both(texts, data):
    notes = [data.draw(st.sampled_from(["", " (the red key)", " (北京)", " (maxTokens)"])) for _ in texts]
    parts = [count_words(texts), count_words(notes)]
    places = range(len(texts))
    stored = StoredWords([part(one, places) for one in parts], parts[0].lengths + parts[1].lengths)
    same(Bm25Index(stored), [text + note for text, note in zip(texts, notes, strict=True)])


def test_texts_that_are_gone_have_no_postings():
    arrays = count_words(["red door", "red", "door"])
    stored = StoredWords([part(arrays, [0, -1, 1])], arrays.lengths[[0, 2]])
    same(Bm25Index(stored), ["red door", "door"])


def test_postings_increase_where_the_texts_of_a_part_do_not():
    arrays = count_words(["key lamp", "key key", "hall"])
    read = lambda name, first, last: getattr(arrays, name)[first:last]  # noqa: E731
    part = WordPart(arrays.words, arrays.bounds, read, np.array([3, 1, 0]))
    other = WordPart(arrays.words, arrays.bounds, read, np.array([1, -1, 2]))
    texts, counts = StoredWords([part, other], np.array([1, 4, 1, 2])).find("key")
    assert (texts.tolist(), counts.tolist()) == ([1, 3], [3, 1])
