"""The cosine of question and answer against numbers worked out by hand and a slow reading."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.measures.answer_vectors import answer_similarities
from qrag_jax.types import InputError

VECTORS = {"north": (0, 1), "east": (2, 0), "between": (3, 3), "south": (0, -1), "nowhere": (0, 0)}


def embed(texts):
    return np.array([VECTORS[text] for text in texts], np.float32)


def test_by_hand():
    questions = ["north", "north", "north", "between", "north", "nowhere"]
    answers = ["north", "east", "south", "east", "nowhere", "nowhere"]
    values = answer_similarities(questions, answers, embed)
    np.testing.assert_allclose(values, [1, 0, -1, 1 / math.sqrt(2), 0, 0], atol=1e-15)


def test_a_blank_answer_has_0_and_is_not_embedded():
    # `embed` knows no blank text: it would fail.
    np.testing.assert_allclose(answer_similarities(["north", "east"], ["  \n", "east"], embed), [0, 1])
    np.testing.assert_array_equal(answer_similarities(["north"], [""], embed), [0])
    assert answer_similarities([], [], embed).shape == (0,)


@given(st.lists(st.tuples(st.sampled_from(list(VECTORS)), st.sampled_from(list(VECTORS))), min_size=1, max_size=5))
def test_slow_reading_and_symmetry(pairs):
    questions, answers = zip(*pairs, strict=True)
    values = answer_similarities(questions, answers, embed)
    for value, (question, answer) in zip(values, pairs, strict=True):
        a, b = VECTORS[question], VECTORS[answer]
        lengths = math.hypot(*a) * math.hypot(*b)
        assert value == pytest.approx((a[0] * b[0] + a[1] * b[1]) / lengths if lengths else 0.0)
    np.testing.assert_allclose(answer_similarities(answers, questions, embed), values)


@given(st.integers(0, 2**32 - 1))
def test_a_text_and_itself_are_at_most_1(seed):
    vector = np.random.default_rng(seed).normal(size=(1, 7)).astype(np.float32)
    (value,) = answer_similarities(["a"], ["a"], lambda texts: np.repeat(vector, len(texts), axis=0))
    assert 1 - 1e-12 <= value <= 1


def test_refusals():
    with pytest.raises(InputError, match="2 questions and 1 answers: give one answer a question"):
        answer_similarities(["north", "east"], ["north"], embed)
    with pytest.raises(InputError, match="the vector of 'east' is not finite"):
        answer_similarities(["north"], ["east"], lambda texts: np.array([[1, 2], [np.nan, 1]]))
    with pytest.raises(InputError, match=r"gave \(1, 2\) for 2 texts"):
        answer_similarities(["north"], ["east"], lambda texts: np.ones((1, 2)))
