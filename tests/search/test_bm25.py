import math
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.chunking.text import words as word_module
from qrag_jax.chunking.text.words import bm25_tokens, plain_tokens
from qrag_jax.search import bm25
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.types import InputError

TEXTS = (
    "Mary took the milk.",
    "The cat sat.",
    "Mary went to the garden, Mary did.",
    "...",
    "John left the milk there.",
)


def word(number):
    """A word without digits, which are tokens of their own."""
    return f"w{chr(97 + number // 26)}{chr(97 + number % 26)}"


def random_texts(rng, n, num_words=40):
    words = [word(i) for i in range(num_words)]
    return [
        " ".join(rng.choice(words, size=rng.integers(0, 12), p=rng.dirichlet(np.ones(num_words)))) for _ in range(n)
    ]


def library_scores(texts, question):
    """Scores of a bm25s index built over exactly these texts (float32)."""
    import bm25s  # here, not above: importing it starts a JAX back end

    corpus = [bm25_tokens(text) for text in texts]
    index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    index.index(corpus, show_progress=False)
    known = [word for word in bm25_tokens(question) if word in index.vocab_dict]
    return index.get_scores(known) if known else np.zeros(len(texts), np.float32)


def loop_scores(texts, question, k1=1.5, b=0.75):
    """The formula of the module, written as loops."""
    corpus = [bm25_tokens(text) for text in texts]
    mean_length = sum(map(len, corpus)) / len(corpus)
    scores = []
    for words in corpus:
        score = 0.0
        for word in bm25_tokens(question):
            if word in words:
                num_with = sum(word in other for other in corpus)
                rarity = math.log(1 + (len(corpus) - num_with + 0.5) / (num_with + 0.5))
                count = words.count(word)
                score += rarity * count / (count + k1 * (1 - b + b * len(words) / mean_length))
        scores.append(score)
    return scores


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Mary's 2 cats, a DOG!", ["mary", "s", "2", "cats", "a", "dog"]),
        ("In 1984: 3.5 km, snake_case", ["in", "1984", "3", "5", "km", "snake", "case"]),
        ("我们在2024年", ["我", "们", "在", "2024", "年"]),
        ("ひらカナ漢字 word", ["ひ", "ら", "カ", "ナ", "漢", "字", "word"]),
        ("도서관에서", ["도", "서", "관", "에", "서"]),
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs are no letters: \w+ would cut the words apart
        ("ที่นี่", ["ที่", "นี่"]),
        ("cafe\u0301 caf\u00e9 STRASSE straße ＡＢＣ", ["café", "café", "strasse", "strasse", "abc"]),
        ("Ёлка и ёж", ["ёлка", "и", "ёж"]),
        ("\u4e00\u5b57 \U00020000", ["一", "字", "\U00020000"]),
        ("... --- !", []),
        ("", []),
    ],
)
def test_plain_tokens_by_hand(text, tokens):
    assert plain_tokens(text) == tokens


_CHARACTERS = st.sampled_from("aZ9é_ -'’“\u0301漢कि\u0130ßﬁＡ٣²Ⅻ\u200dที่") | st.characters()


@examples(200)
@given(st.text(_CHARACTERS, max_size=12))
def test_the_quick_ways_find_the_same_tokens(text):
    folded = unicodedata.normalize("NFKC", text).casefold()
    assert plain_tokens(text) == word_module._token_pattern().findall(folded)


def test_scores_by_hand():
    # Three texts of lengths 2, 1, 3, mean 2. "milk" is in two of them: idf = ln(1 + 1.5 / 2.5) = ln 1.6.
    scores = Bm25Index(["milk here", "nothing", "milk milk there"]).scores("milk")
    damping = [1.5, 1.5 * (0.25 + 0.75 * 1.5)]  # k1 * (1 - b + b * |c| / 2) at lengths 2 and 3
    expected = [math.log(1.6) / (1 + damping[0]), 0, math.log(1.6) * 2 / (2 + damping[1])]
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_scores_equal_the_loop():
    rng = np.random.default_rng(0)
    texts = random_texts(rng, 40)
    for question in random_texts(rng, 10):
        np.testing.assert_allclose(Bm25Index(texts).scores(question), loop_scores(texts, question), atol=1e-12)


def test_whole_pool_equals_the_library():
    rng = np.random.default_rng(1)
    texts = random_texts(rng, 80)
    index = Bm25Index(texts)
    for question in [*random_texts(rng, 10), "wab wab wac", "unknown words", ""]:
        np.testing.assert_allclose(index.scores(question), library_scores(texts, question), atol=2e-6)


def test_context_equals_a_library_index_over_that_context():
    rng = np.random.default_rng(2)
    texts = random_texts(rng, 200)
    index = Bm25Index(texts)
    for question in random_texts(rng, 12):
        context = rng.integers(0, len(texts), size=50).astype(np.int32)  # repeats happen
        expected = library_scores([texts[i] for i in context], question)
        np.testing.assert_allclose(index.scores(question, context), expected, atol=2e-6)
        best, scores = index.top_k(question, 5, context)
        np.testing.assert_allclose(scores, np.sort(expected)[::-1][:5], atol=2e-6)
        np.testing.assert_allclose(expected[best], scores, atol=2e-6)


def test_a_context_has_its_own_statistics():
    index = Bm25Index(TEXTS)
    context = np.array([0, 4], np.int32)
    np.testing.assert_array_equal(index.scores("milk", context), Bm25Index([TEXTS[0], TEXTS[4]]).scores("milk"))
    assert index.scores("milk", context)[0] < index.scores("milk")[0]  # in every text of the context: less rare


def test_the_whole_pool_as_a_context_is_the_pool():
    everything = np.arange(len(TEXTS), dtype=np.int32)
    index = Bm25Index(TEXTS)
    np.testing.assert_array_equal(index.scores("Mary milk", everything), index.scores("Mary milk"))


def test_top_k_indexes_the_context_and_is_sorted():
    best, scores = Bm25Index(TEXTS).top_k("Where did Mary go?", 3, np.array([1, 4, 0, 2], np.int32))
    assert best.tolist()[:2] == [3, 2]  # places of texts 2 and 0 in the context
    assert best.dtype == np.int32 and (np.diff(scores) <= 0).all()


def test_equal_scores_go_by_document_order():
    index = Bm25Index(["a b", "c", "a b", "c", "a b"])
    assert index.top_k("b", 4)[0].tolist() == [0, 2, 4, 1]
    assert index.top_k("nothing of it", 3)[0].tolist() == [0, 1, 2]
    assert index.top_k("", 2)[0].tolist() == [0, 1]
    assert index.top_k("b", 2, np.array([4, 2, 0], np.int32))[0].tolist() == [0, 1]


def test_sums_in_another_order_still_tie():
    # a, b, c are as rare as p, q, r, and the question asks for them in the opposite order: the same three terms are
    # added up in two orders, and the first text comes out one bit lower.
    texts = ["a b c", "p q r", *["r z z", "c z z"] * 3]
    index = Bm25Index(texts)
    first, second = index.scores("p q r c b a")[:2]
    assert first == pytest.approx(second, rel=1e-12)
    assert index.top_k("p q r c b a", 2)[0].tolist() == [0, 1]


def test_top_k_is_the_head_of_a_stable_sort():
    rng = np.random.default_rng(3)
    index = Bm25Index(random_texts(rng, 100, num_words=6))
    scores = np.round(index.scores("waa wad"), 9)
    for k in (1, 7, 99, 100):
        np.testing.assert_array_equal(index.top_k("waa wad", k)[0], np.argsort(-scores, kind="stable")[:k])


def test_a_repeated_word_counts_again_and_unknown_words_do_not_count():
    index = Bm25Index(TEXTS)
    np.testing.assert_allclose(index.scores("milk milk"), 2 * index.scores("milk"))
    np.testing.assert_array_equal(index.scores("milk xyzzy"), index.scores("milk"))


def test_counts_of_common_words_in_all_texts_change_no_score(monkeypatch):
    rng = np.random.default_rng(0)
    texts = [
        " ".join(rng.choice(["the", "of", "lamp", "key", "hall"], size, p=[0.5, 0.3, 0.1, 0.06, 0.04]))
        for size in rng.integers(0, 12, 100)
    ]
    question, index = "the key of the hall", Bm25Index(texts)
    expected = index.scores(question), index.shares(question)
    assert not index._common
    monkeypatch.setattr(bm25, "_CACHED_TEXTS", 7)
    monkeypatch.setattr(bm25, "_MOST_USUAL", 1)
    for _ in range(2):
        assert all(map(np.array_equal, (index.scores(question), index.shares(question)), expected))
    assert (set(index._usual), set(index._common)) == ({"the"}, {"of"})


def test_shares_by_hand():
    """`milk` stands in 2 of 5 texts, twice in the question; `moon` in none; texts do not reach the bound."""
    index = Bm25Index(TEXTS)
    bound = 2 * math.log(1 + 3.5 / 2.5) + math.log(1 + 5.5 / 0.5)
    np.testing.assert_allclose(index.shares("milk Milk moon"), index.scores("milk Milk moon") / bound, atol=1e-12)
    assert (
        not index.shares("...").any() and not index.shares("").any() and not Bm25Index(["", "!"]).shares("milk").any()
    )


def test_an_identifier_counts_four_times_and_whole_where_it_occurs():
    index = Bm25Index(["pay b61", "pay b7 b7 b7 b7", "pay", "mole"])
    rarity = {"pay": math.log(1 + 1.5 / 3.5), "b": math.log(1 + 3.5 / 1.5), "7": math.log(1 + 3.5 / 1.5) / 2}
    damping = 1.5 * (0.25 + 0.75 * np.array([3, 9, 1, 1]) / 3.5)
    most = rarity["pay"] + 4 * rarity["b"] + rarity["7"]
    words = rarity["pay"] / (1 + damping)
    wanted = [words[0], words[1] + 4 * rarity["b"] + rarity["7"] * 4 / (4 + damping[1]), words[2], 0]
    np.testing.assert_allclose(index.shares("pay b7"), np.array(wanted) / most, atol=1e-12)


def test_a_rare_name_with_hyphens_counts_as_an_identifier():
    """Of 600 texts `redfox` is in 1, `red` and `fox` in 2: idf log(1 + 599.5 / 1.5) and log(1 + 598.5 / 2.5)."""
    index = Bm25Index(["red-fox", "red hen", "grey fox", *["owl"] * 597])
    once, twice = math.log(1 + 599.5 / 1.5), math.log(1 + 598.5 / 2.5)
    most = 2 * twice + 0.5 * 4 * once
    damping = 1.5 * (0.25 + 0.75 * np.array([3, 2, 2]) / (604 / 600))
    wanted = np.array([2 * twice, twice, twice]) / (1 + damping) + [2 * once, 0, 0]
    np.testing.assert_allclose(index.shares("Red\u2010fox")[:3], wanted / most, atol=1e-12)


@pytest.mark.parametrize(
    ("texts", "question", "is_name"),
    [
        (["red-fox"] * 3 + ["owl"] * 897, "red-fox", True),
        (["red-fox"] * 3 + ["owl"] * 896, "red-fox", False),  # 3 of 899 texts are more than one in 300
        (["red-fox"] * 4 + ["owl"] * 3000, "red-fox", False),
        (["peut-il"] + ["il"] * 59 + ["owl"] * 540, "peut-il", True),
        (["peut-il"] + ["il"] * 60 + ["owl"] * 539, "peut-il", False),
        (["coop"] + ["owl"] * 600, "co-op coop", False),  # asked as a plain word too
    ],
)
def test_what_is_a_name_with_hyphens(texts, question, is_name):
    assert (Bm25Index(texts).shares(question).max() > 0.5) == is_name


@examples(20)
@given(st.integers(0, 1000))
def test_shares_stay_below_1_and_come_near_it(seed):
    rng = np.random.default_rng(seed)
    question = " ".join(word(i) for i in rng.integers(0, 40, 4))
    texts = [*random_texts(rng, 8), " ".join([question] * 2000)]
    index = Bm25Index(texts)
    shares = index.shares(question)
    assert (shares < 1).all() and shares[-1] > 0.99


def test_top_k_each_equals_a_loop():
    rng = np.random.default_rng(4)
    index = Bm25Index(random_texts(rng, 60))
    questions, contexts = random_texts(rng, 5), rng.integers(0, 60, size=(5, 20)).astype(np.int32)
    ids, scores = index.top_k_each(questions, 3, contexts)
    assert ids.shape == scores.shape == (5, 3) and ids.dtype == np.int32
    for row, question in enumerate(questions):
        best, values = index.top_k(question, 3, contexts[row])
        np.testing.assert_array_equal(ids[row], best)
        np.testing.assert_array_equal(scores[row], values)
    assert index.top_k_each([], 3, contexts[:0])[0].shape == (0, 3)


def test_texts_without_words_score_zero():
    index = Bm25Index(["...", "!"])
    np.testing.assert_array_equal(index.scores("anything"), [0.0, 0.0])


def test_refusals():
    index = Bm25Index(TEXTS)
    with pytest.raises(InputError, match="cannot take 6 chunks from a context of 5"):
        index.top_k("milk", 6)
    with pytest.raises(InputError, match="cannot take 0 chunks"):
        index.top_k("milk", 0)


def test_words_that_few_texts_hold():
    index = Bm25Index(["the key", "the lamp", "the key and the lamp"])
    assert index.words_of("The key of the garden", 2) == {"key", "of", "garden"}
    assert index.words_of("The key", 3) == {"the", "key"} and index.words_of("The key", 1) == set()
    assert index.words_of("The new key") == {"the", "new", "key"}
