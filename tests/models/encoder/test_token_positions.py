import math

import numpy as np
import pytest
from support.networks import np_jit

from qrag_jax.models.encoder import text_encoder
from qrag_jax.models.encoder.text_encoder import MAX_DISTANCE, NUM_BUCKETS

pytestmark = pytest.mark.usefixtures("strict_promotion")
counted_positions = np_jit(text_encoder.counted_positions, static_argnums=1)
relative_buckets = np_jit(text_encoder.relative_buckets, static_argnums=0)


def test_counted_positions_by_hand():
    # <s>=0, <pad>=1: the first row ends in padding, the second writes <pad> out, the third is all padding
    tokens = np.asarray([[0, 7, 8, 2, 1, 1], [0, 1, 7, 1, 8, 2], [1, 1, 1, 1, 1, 1]], np.int32)
    assert counted_positions(tokens, 1).tolist() == [[2, 3, 4, 5, 1, 1], [2, 1, 3, 1, 4, 5], [1, 1, 1, 1, 1, 1]]
    assert counted_positions(tokens[:1], 0).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert counted_positions(tokens, 1).dtype == np.int32


def test_counted_positions_against_the_loop():
    tokens = np.random.default_rng(0).integers(0, 4, (20, 9)).astype(np.int32)
    for row, found in zip(tokens, counted_positions(tokens, 2).tolist(), strict=True):
        before = [sum(token != 2 for token in row[: place + 1]) for place in range(9)]
        assert found == [2 if token == 2 else 2 + count for token, count in zip(row, before, strict=True)]


def test_buckets_by_hand():
    buckets = relative_buckets(200)
    # looking back: 0 to 7 alone, then 8-11, 12-15, 16-22, 23-31, 32-45, 46-63, 64-90, 91 and more
    back = {0: 0, 1: 1, 7: 7, 8: 8, 11: 8, 12: 9, 15: 9, 16: 10, 22: 10, 23: 11, 31: 11, 32: 12, 45: 12, 46: 13,
            63: 13, 64: 14, 90: 14, 91: 15, 128: 15, 199: 15}  # fmt: skip
    assert {distance: int(buckets[199, 199 - distance]) for distance in back} == back
    ahead = {distance: bucket + 16 for distance, bucket in back.items() if distance}
    assert {distance: int(buckets[0, distance]) for distance in ahead} == ahead
    assert relative_buckets(3).tolist() == [[0, 17, 18], [1, 0, 17], [2, 1, 0]]


def test_buckets_by_the_formula():
    """The printed logarithm in float64, but for the distances where it is a whole number."""
    buckets = relative_buckets(300)
    side, exact = NUM_BUCKETS // 2, NUM_BUCKETS // 4
    for distance in range(300):
        steps = (side - exact) * math.log(max(distance, 1) / exact) / math.log(MAX_DISTANCE / exact)
        if distance in (16, 32, 64, 128):
            steps = round(steps)
        expected = distance if distance < exact else min(side - 1, exact + math.floor(steps))
        assert buckets[299, 299 - distance] == expected


def test_buckets_depend_on_the_distance_alone_and_use_every_bucket():
    buckets = relative_buckets(130)
    np.testing.assert_array_equal(buckets[1:, 1:], buckets[:-1, :-1])
    # 16 would be the distance 0 looking ahead, which there is not
    assert set(buckets.ravel().tolist()) == set(range(NUM_BUCKETS)) - {16}
