import jax
import numpy as np
import pytest
from support.networks import np_jit
from support.tiers import slow_but

from qrag_jax.chunking.tree.parent_vectors import mean_of_children
from qrag_jax.models import compressor as network
from qrag_jax.models.compressor import shapes
from qrag_jax.names import COMPRESSOR_KINDS
from qrag_jax.unit_rows import unit_rows

DIM, HIDDEN = 6, 4
compress, unit, init = np_jit(network.compress), np_jit(network.unit), np_jit(network.init, static_argnums=(1, 2, 3))


def family(number, seed=0):
    draw = np.random.default_rng(seed)
    vectors = unit_rows(draw.normal(size=(number, DIM)).astype(np.float32))
    return vectors, draw.integers(1, 50, number).astype(np.int32), np.ones(number, bool)


def trained(kind, seed=0):
    """Parameters of which none is zero."""
    params, draw = init(jax.random.key(seed), kind, DIM, HIDDEN), np.random.default_rng(seed)
    return {name: np.asarray(array + draw.normal(size=array.shape), np.float32) for name, array in params.items()}


@pytest.mark.parametrize("kind", COMPRESSOR_KINDS)
@pytest.mark.parametrize("number", slow_but([1, 9], [1, 2, 9]))
def test_untrained_it_is_the_mean_by_tokens(kind, number):
    vectors, tokens, mask = family(number)
    found = compress(init(jax.random.key(3), kind, DIM, HIDDEN), vectors, tokens, mask)
    np.testing.assert_allclose(found, mean_of_children(vectors, tokens, np.zeros(number, np.int64))[0], atol=1e-6)


def test_the_mlp_by_hand():
    """One number in and out: m = 1, told = gelu(1 + 0) = .8412, y = 1 + 2 gelu(.8412) > 0, so y / |y| = 1; W = -2
    turns it round. XLA versions differ in the last bit of y / |y|."""
    params = {
        "child": np.ones((1, 1), np.float32),
        "child_bias": np.zeros(1, np.float32),
        "inner": np.ones((1, 1), np.float32),
        "inner_bias": np.zeros(1, np.float32),
    }
    one = np.ones((1, 1), np.float32), np.array([3], np.int32), np.array([True])
    assert compress({**params, "out": np.full((1, 1), 2, np.float32)}, *one) == pytest.approx([1], rel=1e-6)
    assert compress({**params, "out": np.full((1, 1), -2, np.float32)}, *one) == pytest.approx([-1], rel=1e-6)


def test_the_attention_by_hand():
    """Scores that prefer the first child by log 3 make equal weights of 1 and 3 tokens."""
    inner = 5.0  # gelu(5) is 5 but for 1e-6
    params = {
        "score_child": np.array([[inner], [0.0]], np.float32),
        "score_mean": np.zeros((2, 1), np.float32),
        "score_features": np.zeros((3, 1), np.float32),
        "score_bias": np.zeros(1, np.float32),
        "score_out": np.array([np.log(3.0) / inner], np.float32),
    }
    found = compress(params, np.eye(2, dtype=np.float32), np.array([1, 3], np.int32), np.array([True, True]))
    np.testing.assert_allclose(found, [np.sqrt(0.5)] * 2, atol=1e-5)


@pytest.mark.parametrize("kind", COMPRESSOR_KINDS)
def test_the_order_of_the_children_counts_for_nothing(kind):
    vectors, tokens, mask = family(7)
    order = np.random.default_rng(1).permutation(7)
    params = trained(kind)
    found = compress(params, vectors, tokens, mask)
    np.testing.assert_allclose(compress(params, vectors[order], tokens[order], mask), found, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found), 1, atol=1e-6)


@pytest.mark.parametrize("kind", COMPRESSOR_KINDS)
def test_what_is_masked_is_not_there(kind):
    vectors, tokens, mask = family(5)
    params = trained(kind)
    alone = compress(params, vectors[:3], tokens[:3], mask[:3])
    filled = np.concatenate([vectors[:3], 9 * vectors[3:]])
    np.testing.assert_allclose(compress(params, filled, tokens, np.arange(5) < 3), alone, atol=1e-6)


@pytest.mark.parametrize("kind", COMPRESSOR_KINDS)
def test_vmap_is_a_loop(kind):
    params = trained(kind)
    groups = [family(4, seed) for seed in range(3)]
    together = np_jit(jax.vmap(network.compress, in_axes=(None, 0, 0, 0)))(
        params, *map(np.stack, zip(*groups, strict=True))
    )
    for found, group in zip(together, groups, strict=True):
        np.testing.assert_allclose(found, compress(params, *group), atol=1e-6)


@pytest.mark.parametrize("kind", COMPRESSOR_KINDS)
def test_children_without_direction_give_none_and_no_gradient_is_lost(kind):
    params = init(jax.random.key(0), kind, DIM, HIDDEN)
    zeros, tokens = np.zeros((3, DIM), np.float32), np.array([4, 0, 2], np.int32)
    slope = np_jit(jax.grad(lambda own, *arrays: network.compress(own, *arrays).sum()))
    for mask in (np.ones(3, bool), np.zeros(3, bool)):
        assert not np.any(compress(params, zeros, tokens, mask))
        assert all(np.isfinite(one).all() for one in slope(params, zeros, tokens, mask).values())


def test_a_child_without_tokens_counts_as_one():
    vectors, _, mask = family(3)
    params = trained("both")
    ones = compress(params, vectors, np.ones(3, np.int32), mask)
    np.testing.assert_allclose(compress(params, vectors, np.array([0, 1, 0], np.int32), mask), ones, atol=1e-7)


def test_shapes_are_those_of_the_parameters():
    for kind in COMPRESSOR_KINDS:
        found = {name: array.shape for name, array in init(jax.random.key(0), kind, DIM, HIDDEN).items()}
        assert found == shapes(kind, DIM, HIDDEN)


def test_a_vector_of_no_length_stays_zero():
    assert np.array_equal(unit(np.zeros(3, np.float32)), np.zeros(3))
    np.testing.assert_allclose(unit(np.array([3, 4], np.float32)), [0.6, 0.8], atol=1e-7)
