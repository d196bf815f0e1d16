"""Rows of prompts and answers."""

import numpy as np
import pytest

from qrag_jax.train.decoder.packing import fill_rows, pack_rows, pad_left
from qrag_jax.types import InputError


def test_texts_go_into_the_first_row_with_room():
    assert pack_rows([3, 4, 2, 1, 5], 6) == [[0, 2, 3], [1], [4]]
    assert pack_rows([], 6) == []
    with pytest.raises(InputError, match="example 1 has 7 tokens, a row holds 6"):
        pack_rows([2, 7], 6)


def test_no_text_is_lost_and_no_row_overflows():
    lengths = np.random.default_rng(0).integers(1, 40, 500).tolist()
    rows = pack_rows(lengths, 64)
    assert sorted(n for row in rows for n in row) == list(range(500))
    assert max(sum(lengths[n] for n in row) for row in rows) <= 64
    assert len(rows) < 1.15 * sum(lengths) / 64


def test_rows_by_hand():
    rows = fill_rows([[([5, 6], [7]), ([8], [9, 10])], [([1], [2])]], 3, 7)
    np.testing.assert_array_equal(rows.tokens, [[5, 6, 7, 8, 9, 10, 0], [1, 2, 0, 0, 0, 0, 0], [0] * 7])
    np.testing.assert_array_equal(rows.segments, [[1, 1, 1, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0, 0], [0] * 7])
    answers = [[0, 0, 1, 0, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0], [0] * 7]
    np.testing.assert_array_equal(rows.answers, np.array(answers, bool))


def test_prompts_are_padded_on_the_left():
    prompts, lengths = pad_left([[5, 6], [7]], 3)
    np.testing.assert_array_equal(prompts, [[0, 5, 6], [0, 0, 7]])
    np.testing.assert_array_equal(lengths, [2, 1])
