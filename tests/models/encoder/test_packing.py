from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.models.encoder.text_encoder import max_members, num_packed_rows, pack_rows, packed_width

MOST = 30  # rows of a drawn example: one compilation for all


@partial(jax.jit, static_argnums=1)
def pack(lengths, width):
    return pack_rows(lengths, width)


def pack_slowly(lengths, width):
    """(packed row, its member, first place) of each row, one after the other."""
    wide, row, member, place, found = packed_width(width), 0, 0, 0, []
    for length in lengths:
        if place + length > wide or member == max_members(wide):
            row, member, place = row + 1, 0, 0
        found.append((row, member, place))
        member, place = member + 1, place + length
    return found


def test_by_hand():
    # Packed rows are 80 wide: 30 + 30 fit, 25 more do not; 25 + 0 + 40 fit, 30 more do not.
    packing = pack(jnp.asarray([30, 30, 25, 0, 40, 30]), 40)
    np.testing.assert_array_equal(packing.row, [0, 0, 1, 1, 1, 2])
    np.testing.assert_array_equal(packing.member, [0, 1, 0, 1, 2, 0])
    assert packing.num_used == 3 and packing.sources.shape == (3, 80)
    np.testing.assert_array_equal(packing.members[0], [0] * 30 + [1] * 30 + [-1] * 20)
    np.testing.assert_array_equal(packing.sources[1, :65], [*range(80, 105), *range(160, 200)])
    np.testing.assert_array_equal(packing.members[1], [0] * 25 + [2] * 40 + [-1] * 15)


@examples(200)
@given(st.sampled_from([1, 7, 32, 69, 300]), st.integers(1, MOST), st.data())
def test_equals_filling_row_after_row(width, n, data):
    lengths = data.draw(st.lists(st.integers(0, width), min_size=n, max_size=n))
    lengths += [0] * (MOST - n)
    packing = jax.tree.map(np.asarray, pack(jnp.asarray(lengths), width))
    expected = pack_slowly(lengths, width)
    np.testing.assert_array_equal(packing.row, [row for row, _, _ in expected])
    np.testing.assert_array_equal(packing.member, [member for _, member, _ in expected])
    sources = np.zeros((num_packed_rows(MOST, width), packed_width(width)), int)
    members = np.full_like(sources, -1)
    for i, (row, member, place) in enumerate(expected):
        sources[row, place : place + lengths[i]] = i * width + np.arange(lengths[i])
        members[row, place : place + lengths[i]] = member
    np.testing.assert_array_equal(packing.sources, sources)
    np.testing.assert_array_equal(packing.members, members)
    assert packing.num_used == 1 + max((expected[i][0] for i in range(MOST) if lengths[i]), default=-1)


@pytest.mark.parametrize(("width", "wide"), [(1, 64), (7, 64), (33, 72), (69, 144), (128, 256), (150, 152), (512, 512)])
def test_width_of_packed_rows(width, wide):
    assert packed_width(width) == wide


def test_small_integers_do_not_overflow():
    lengths = np.full(30, 127)
    for kind in (np.int8, np.int16):
        chex.assert_trees_all_equal(pack(jnp.asarray(lengths, kind), 127), pack(jnp.asarray(lengths, np.int32), 127))


def test_no_rows():
    packing = pack(jnp.zeros(0, jnp.int32), 5)
    assert packing.sources.shape == (0, 64) and packing.num_used == 0
