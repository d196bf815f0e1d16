import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.measures.evidence_scores import measure_tokens, measure_words
from qrag_jax.types import InputError


def between(measure, start, end):
    (found,) = measure.between(np.array([start], np.float64), np.array([end], np.float64))
    return found


def test_tokens_by_hand():
    """Words of 2, 4 and 1 tokens; half a word has half of its tokens, and blanks have none."""
    text = "  ab cdef\n\tg "
    measure = measure_tokens(text, len)
    assert between(measure, 0, len(text)) == 7
    assert between(measure, 2, 4) == 2
    assert between(measure, 3, 7) == 1 + 2
    assert between(measure, 4, 5) == between(measure, 0, 2) == between(measure, 5, 5) == between(measure, 9, 5) == 0
    np.testing.assert_array_equal(measure.between(np.array([0.0, 5.0]), np.array([5.0, 13.0])), [2, 5])
    # Tokens that are less or more than characters are spread over them.
    assert between(measure_tokens("abcd efgh", lambda word: 1), 2, 7) == pytest.approx(0.5 + 0.5)


def test_words_without_a_token_have_one_and_long_words_are_cut():
    assert between(measure_tokens("a \u200b b", lambda word: len(word.strip("\u200b"))), 0, 5) == 3
    text = "x" * 250 + " y"
    assert between(measure_tokens(text, lambda word: 1), 0, 250) == 3  # 100, 100 and 50 characters
    assert between(measure_tokens(text, lambda word: 1), 200, 225) == pytest.approx(0.5)


def test_lone_surrogates_reach_no_tokenizer():
    assert between(measure_tokens("a\ud800b", lambda word: len(word.encode("utf-8"))), 0, 3) == 5


def test_a_blank_text_is_refused():
    with pytest.raises(InputError, match="the text is blank"):
        measure_words(" \n\t", len)


texts = st.text(st.sampled_from("ab \n\u3000\u00e9"), min_size=1, max_size=30).filter(str.strip)


@given(texts, st.data())
def test_by_characters_it_counts_those_that_are_not_blank(text, data):
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    measure = measure_words(text, len)
    assert between(measure, start, end) == sum(not letter.isspace() for letter in text[start:end])


@given(st.text(st.sampled_from("abc "), min_size=1, max_size=400).filter(str.strip), st.data())
def test_disjoint_spans_add_up(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    bounds = np.array([0, *cuts, len(text)], np.float64)
    measure = measure_tokens(text, lambda word: 1 + word.count("a"))
    assert measure.between(bounds[:-1], bounds[1:]).sum() == pytest.approx(between(measure, 0, len(text)))
