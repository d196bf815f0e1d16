"""BERTScore against numbers worked out by hand and a slow reading of its definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qrag_jax.measures.answer_vectors import NOTHING, BertScore, bert_score, match_tokens
from qrag_jax.types import InputError

VALUES = st.floats(-3, 3, width=32).filter(lambda value: value == 0 or abs(value) > 1e-3)
HALF = 1 / math.sqrt(2)
VECTORS = {"north": (0, 1), "east": (2, 0), "between": (3, 3), "south": (0, -1), "nowhere": (0, 0)}


@st.composite
def two_texts(draw):
    dim = draw(st.integers(1, 4))
    sizes = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    return tuple(draw(arrays(np.float32, (size, dim), elements=VALUES)) for size in sizes)


def embed_words(text):
    """One token a word of `VECTORS`; other words have no token, as characters that a tokenizer drops."""
    words = [word for word in text.split() if word in VECTORS]
    vectors = np.array([VECTORS[word] for word in words], np.float32).reshape(-1, 2)
    return vectors, np.zeros((len(words), 2), np.int64)


def slow_mean_of_best(these, others):
    best = []
    for a in these.astype(float):
        cosines = []
        for b in others.astype(float):
            lengths = math.sqrt(sum(a * a)) * math.sqrt(sum(b * b))
            cosines.append(sum(a * b) / lengths if lengths else 0.0)
        best.append(max(cosines))
    return sum(best) / len(best)


# --- by hand


def test_by_hand():
    # north matches between (cos 45 degrees), east matches it too; between matches either of them.
    score = bert_score("north east south", ["between"], embed_words)
    assert score.precision == pytest.approx((HALF + HALF - HALF) / 3)
    assert score.recall == pytest.approx(HALF)
    assert score.f1 == pytest.approx(2 * HALF / 3 * HALF / (HALF / 3 + HALF))


def test_length_of_a_vector_does_not_count_and_order_neither():
    assert bert_score("east north", ["north east"], embed_words) == BertScore(1.0, 1.0, 1.0)
    assert bert_score("between", ["between between"], embed_words).f1 == pytest.approx(1.0)


def test_a_vector_of_zeros_is_like_nothing():
    assert bert_score("nowhere", ["north"], embed_words) == NOTHING
    assert bert_score("nowhere north", ["north"], embed_words).precision == pytest.approx(0.5)


def test_opposite_texts_have_no_f1():
    assert bert_score("south", ["north"], embed_words) == BertScore(-1.0, -1.0, 0.0)


def test_opposite_signs_do_not_blow_f1_up():
    answer = np.array([[1.0, 0.0], [-1.0, 0.01]])
    score = match_tokens(answer, np.array([[-0.02, -1.0]]))
    assert min(score.precision, score.recall) < 0
    assert score.f1 == 0.0


# --- several references, nothing to compare


def test_the_best_reference_gives_all_three():
    references = ["south", "north east", "between"]
    alone = [bert_score("north", [reference], embed_words) for reference in references]
    assert bert_score("north", references, embed_words) == max(alone, key=lambda score: score.f1)
    assert bert_score("north", ["east", "north", "south"], embed_words) == BertScore(1.0, 1.0, 1.0)


def test_best_reference_by_f1_not_by_precision():
    # Against "north south": precision 1, recall 0. Against "between": both HALF.
    assert bert_score("north", ["north south"], embed_words) == BertScore(1.0, 0.0, 0.0)
    score = bert_score("north", ["north south", "between"], embed_words)
    assert score.precision == pytest.approx(HALF)
    assert score.f1 == pytest.approx(HALF)


@pytest.mark.parametrize("answer", ["", " \n", "unknown words"])
def test_an_answer_without_tokens_has_0(answer):
    assert bert_score(answer, ["north"], embed_words) == NOTHING


def test_a_reference_without_tokens_is_matched_by_nothing():
    assert bert_score("north", ["unknown"], embed_words) == NOTHING
    assert bert_score("north", ["unknown", "north"], embed_words).f1 == 1.0


def test_each_text_is_read_once():
    read = []

    def embed(text):
        read.append(text)
        return embed_words(text)

    bert_score("north", ["east", "south"], embed)
    assert sorted(read) == ["east", "north", "south"]


# --- a slow reading, relations


@given(two_texts())
def test_slow_reading(texts):
    answer, reference = texts
    score = match_tokens(answer, reference)
    precision, recall = slow_mean_of_best(answer, reference), slow_mean_of_best(reference, answer)
    assert score.precision == pytest.approx(precision, abs=1e-9)
    assert score.recall == pytest.approx(recall, abs=1e-9)
    if precision > 1e-9 and recall > 1e-9:
        assert score.f1 == pytest.approx(2 / (1 / precision + 1 / recall))


@given(two_texts())
def test_swapped_texts_swap_precision_and_recall(texts):
    forward, back = match_tokens(*texts), match_tokens(*reversed(texts))
    assert (forward.precision, forward.recall) == pytest.approx((back.recall, back.precision), abs=1e-12)
    assert forward.f1 == pytest.approx(back.f1, abs=1e-12)


@given(two_texts())
def test_no_score_above_1_and_a_text_agrees_with_itself(texts):
    for score in (match_tokens(*texts), match_tokens(texts[0], texts[0])):
        assert max(score.precision, score.recall, score.f1) <= 1.0
    share = float(np.any(texts[0] != 0, axis=1).mean())  # vectors of zeros agree with nothing
    assert match_tokens(texts[0], texts[0]).f1 == pytest.approx(share)


# --- refusals


def test_no_reference_is_refused():
    with pytest.raises(InputError, match="references is empty: BERTScore needs at least one reference answer"):
        bert_score("north", [], embed_words)


def test_a_blank_reference_is_refused_even_if_the_answer_is_empty():
    with pytest.raises(InputError, match=r"references\[1\] is blank: leave it out"):
        bert_score("", ["north", "  "], embed_words)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(value):
    broken = np.array([[1.0, 0.0], [value, 1.0]])
    with pytest.raises(InputError, match="answer: the vector of token 1 is not finite"):
        match_tokens(broken, np.ones((1, 2)))
    with pytest.raises(InputError, match="reference: the vector of token 1 is not finite"):
        match_tokens(np.ones((1, 2)), broken)


def test_vectors_of_other_sizes_are_refused():
    with pytest.raises(InputError, match="sizes 2 and 3: use one encoder"):
        match_tokens(np.ones((1, 2)), np.ones((1, 3)))
    with pytest.raises(InputError, match=r"token vectors have shape \[2\]"):
        bert_score("a", ["b"], lambda text: (np.ones(2), np.zeros((2, 2), np.int64)))
