import numpy as np
import pytest

from qrag_jax.files.array_file import digests_of

BORDERS = [0, 3, 3, 23, 50]


def rows_of(kind, dim):
    return (np.random.default_rng(0).normal(size=(BORDERS[-1], dim)) * 30).astype(kind)


def digests(rows):
    return digests_of(rows, np.diff(BORDERS))


def test_a_digest_is_the_sum_of_its_equation():
    rows = rows_of(np.float32, 6)
    a, b = ([int(one) | 1 for one in np.random.PCG64(seed).random_raw(27)] for seed in (1, 2))
    numbers = [[int(x) for x in row.view(np.uint64)] for row in rows[23:]]
    by_hand = sum(b[r] * sum(x * one for x, one in zip(row, a, strict=False)) for r, row in enumerate(numbers)) % 2**64
    assert digests(rows)[3] == by_hand


@pytest.mark.parametrize(
    ("kind", "dim"), [(np.float32, 384), (np.float32, 3), (np.int8, 384), (np.float16, 6), (np.int8, 7)]
)
def test_a_digest_tells_flipped_bits_and_exchanged_rows(kind, dim):
    rows = rows_of(kind, dim)
    whole = digests(rows)
    assert whole[1] == 0 and len(set(whole.tolist())) == 4
    alone = [
        digests_of(rows[start:end], np.array([end - start])) for start, end in zip(BORDERS, BORDERS[1:], strict=False)
    ]
    assert np.concatenate(alone).tolist() == whole.tolist()
    width = rows.itemsize * dim
    for byte in range(0, width, 1 + width // 40):
        for bit in range(8):
            changed = rows.copy()
            changed.view(np.uint8)[7, byte] ^= 1 << bit
            assert (digests(changed) != whole).tolist() == [False, False, True, False]
    assert (digests(rows[[0, 2, 1, *range(3, 50)]]) != whole).tolist() == [True, False, False, False]
