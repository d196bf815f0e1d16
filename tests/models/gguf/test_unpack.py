import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gguf_files import random_blocks

from qrag_jax.models.gguf.unpack import CODE_BITS, FileRows, block_numbers, unpack_blocks


def numbers_of(kind, blocks):
    codes = unpack_blocks(kind, blocks).codes
    assert codes.dtype == (np.uint8 if CODE_BITS[kind] == 4 else np.int8)
    assert CODE_BITS[kind] == 8 or int(codes.max()) < 16
    return block_numbers(kind, blocks)


def halves(*numbers):
    return np.array(numbers, np.float16).view(np.uint8)


def test_a_block_by_hand():
    """Q4_1: byte i holds number i in its low half and number i + 16 in its high one."""
    block = np.concatenate([halves(0.5, -3), np.full(16, 0x40, np.uint8)])
    block[4 + 2] = 0xF1
    codes, scales, mins = unpack_blocks("Q4_1", block[None])
    expected = [0] * 16 + [4] * 16
    expected[2], expected[18] = 1, 15
    assert codes.tolist() == [expected] and scales.tolist() == [[0.5]] and mins.tolist() == [[-3]]


def test_scales_of_six_bits_by_hand():
    """Q4_K: scale 5 is 4 bits of the third word and the upper two bits of scale 1's byte; min 5 likewise."""
    scales = np.zeros(12, np.uint8)
    scales[1] = 0b10_000011  # scale 1 is 3
    scales[5] = 0b01_000111  # min 1 is 7
    scales[9] = 0b1001_0110  # scale 5 is 0b10_0110 = 38, min 5 is 0b01_1001 = 25
    block = np.concatenate([halves(0.25, 2), scales, np.zeros(128, np.uint8)])
    block[16 + 2 * 32] = 0xB0  # sub-blocks 4 and 5 share bytes: the first number of 5 is 11
    codes, found, mins = unpack_blocks("Q4_K", block[None])
    assert found[0].tolist() == [0, 0.75, 0, 0, 0, 9.5, 0, 0] and mins[0].tolist() == [0, -14, 0, 0, 0, -50, 0, 0]
    assert np.flatnonzero(codes).tolist() == [5 * 32] and codes[0, 160] == 11
    assert numbers_of("Q4_K", block[None])[0, 160] == 11 * 9.5 - 50


@pytest.mark.parametrize("kind", CODE_BITS)
def test_every_format_is_what_gguf_makes_of_it(kind):
    blocks = random_blocks(kind, (7,))
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    assert np.abs(expected).max() > 0.1
    # The products of a code and its scale are exact in float32, so nothing is rounded twice.
    np.testing.assert_array_equal(numbers_of(kind, blocks), expected)


@pytest.mark.parametrize("kind", CODE_BITS)
def test_rows_that_are_looked_up_are_those_of_the_table(kind):
    blocks = random_blocks(kind, (5, 2))
    table = gguf.dequantize(blocks.reshape(5, -1), gguf.GGMLQuantizationType[kind])
    ids = jnp.array([[4, 0, 4], [1, 2, 3]])
    found = jax.jit(lambda rows, ids: rows.rows(ids))(FileRows(jnp.asarray(blocks), kind), ids)
    assert found.shape == (2, 3, table.shape[1]) and found.dtype == jnp.float32
    np.testing.assert_allclose(found, table[np.asarray(ids)], rtol=1e-6)


def test_the_extremes_of_codes():
    """Codes of Q8_0 reach -128, those of Q6_K -32 and 31 with scales of -128 and 127."""
    block = np.concatenate([halves(1), np.full(32, 0x80, np.uint8)])
    assert numbers_of("Q8_0", block[None]).tolist() == [[-128.0] * 32]
    for fill, scale, number in ((0, 0x80, 32 * 128), (0xFF, 0x7F, 31 * 127)):
        block = np.concatenate([np.full(192, fill, np.uint8), np.full(16, scale, np.uint8), halves(1)])
        assert numbers_of("Q6_K", block[None]).tolist() == [[float(number)] * 256]


def test_scales_that_are_not_finite_stay_so():
    block = np.concatenate([halves(np.inf), np.full(32, 1, np.uint8)])
    assert np.isinf(unpack_blocks("Q8_0", block[None]).scales).all()
