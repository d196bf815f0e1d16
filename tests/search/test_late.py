"""MaxSim: hand-worked numbers, a loop, and relations that hold whatever the encoder is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.search.late import LateScorer, late_score
from qrag_jax.types import TextCounts
from qrag_jax.unit_rows import unit_rows


def draw(seed, num_tokens, dim=5):
    """Directions of tokens, int8."""
    return np.random.default_rng(seed).integers(-127, 128, (num_tokens, dim)).astype(np.int8)


def as_question(codes):
    return unit_rows(codes.astype(np.float32))


def loop(question, passage):
    """The formula of the module, token by token."""
    best = []
    for asked in question.astype(np.float64):
        cosines = [0.0 if not code.any() else asked @ code / np.linalg.norm(code) for code in passage.astype(float)]
        best.append(max(cosines))
    return sum(best) / len(best)


def test_by_hand():
    question = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    passage = np.array([[127, 0], [-30, -40], [0, 0]], np.int8)
    # Cosines (1, -.6, 0), (0, -.8, 0) and (.6, -1, 0): the best are 1, 0 and .6.
    assert late_score(question, passage) == pytest.approx(1.6 / 3, abs=1e-6)
    assert late_score(question[1:2], passage[1:2]) == pytest.approx(-0.8, abs=1e-6)


def test_nothing_to_compare_is_zero():
    assert late_score(np.zeros((0, 2), np.float32), np.ones((1, 2), np.int8)) == 0
    assert late_score(np.ones((1, 2), np.float32), np.zeros((0, 2), np.int8)) == 0


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 9))
def test_is_the_loop_whatever_the_order(seed, num_asked, num_tokens):
    question, passage = as_question(draw(seed, num_asked)), draw(seed + 1, num_tokens)
    score = late_score(question, passage)
    assert score == pytest.approx(loop(question, passage), abs=1e-6) and -1 - 1e-6 <= score <= 1 + 1e-6
    rng = np.random.default_rng(seed)
    assert late_score(rng.permutation(question), rng.permutation(passage)) == pytest.approx(score, abs=1e-6)


def test_a_passage_with_the_tokens_of_the_question_scores_one():
    asked = draw(0, 4)
    passage = np.concatenate([draw(1, 7), asked[::-1]])
    assert late_score(as_question(asked), passage) == pytest.approx(1, abs=1e-6)
    assert late_score(as_question(asked), passage[:7]) < 0.99


class Letters:
    """A token a letter; satisfies `types.ReadsTokens`, and remembers what it has read."""

    counts, token_dim = TextCounts(), 26

    def __init__(self):
        self.read = []

    def with_tokens(self, texts):
        self.read += texts
        return np.zeros((len(texts), 1), np.float32), [self._codes(text) for text in texts]

    def question_tokens(self, text):
        return as_question(self._codes(text))

    def _codes(self, text):
        codes = np.zeros((len(text), 26), np.int8)
        codes[np.arange(len(text)), [ord(letter) - 97 for letter in text]] = 127
        return codes


class KnowsAscii(Letters):
    """Knows no other letters; satisfies `types.KnowsWords` too."""

    def unknown_shares(self, texts):
        return np.array([float(not text.isascii()) for text in texts])

    def _codes(self, text):
        return super()._codes(text if text.isascii() else "abcd")  # as [UNK] = [UNK]


def test_a_passage_in_unknown_words_gets_the_lowest_score():
    assert LateScorer(KnowsAscii())("abcd", ["abx", "გასაღები", "ax"]).tolist() == [0.5, 0.25, 0.25]


def test_what_is_stored_is_not_read():
    encoder = Letters()
    scorer = LateScorer(encoder, lambda texts: {"ab": encoder._codes("ab")})
    np.testing.assert_allclose(scorer("abcd", ["abc", "ab", "x", "x"]), [0.75, 0.5, 0, 0], atol=1e-6)
    assert encoder.read == ["abc", "x", "x"]
    assert LateScorer(encoder)("a", ["ab"]).tolist() == [1]
