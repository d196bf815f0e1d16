import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qrag_jax.chunking.tree.parent_vectors import mean_of_children
from qrag_jax.models import compressor as network
from qrag_jax.models.compressor import init, shapes, unit
from qrag_jax.names import COMPRESSOR_KINDS
from qrag_jax.unit_rows import unit_rows

DIM, HIDDEN = 6, 4


def compress(params, *arrays):
    return network.compress(params, *map(jnp.asarray, arrays))


def family(number, seed=0):
    draw = np.random.default_rng(seed)
    vectors = unit_rows(draw.normal(size=(number, DIM)).astype(np.float32))
    return vectors, draw.integers(1, 50, number).astype(np.int32), np.ones(number, bool)


def trained(kind, seed=0):
    """Parameters of which none is zero."""
    params, draw = init(jax.random.key(seed), kind, DIM, HIDDEN), np.random.default_rng(seed)
    return {name: np.asarray(array + draw.normal(size=array.shape), np.float32) for name, array in params.items()}


@pytest.mark.parametrize("kind", COMPRESSOR_KINDS)
@pytest.mark.parametrize("number", [1, 2, 9])
def test_untrained_it_is_the_mean_by_tokens(kind, number):
    vectors, tokens, mask = family(number)
    found = compress(init(jax.random.key(3), kind, DIM, HIDDEN), vectors, tokens, mask)
    np.testing.assert_allclose(found, mean_of_children(vectors, tokens, np.zeros(number, np.int64))[0], atol=1e-6)


def test_the_mlp_by_hand():
    """One number in and out: m = 1, told = gelu(1 + 0) = .8412, y = 1 + 2 gelu(.8412) > 0, so y / |y| = 1; W = -2
    turns it round."""
    params = {
        "child": jnp.ones((1, 1)),
        "child_bias": jnp.zeros(1),
        "inner": jnp.ones((1, 1)),
        "inner_bias": jnp.zeros(1),
    }
    one = jnp.ones((1, 1)), jnp.array([3]), jnp.array([True])
    assert float(compress({**params, "out": jnp.full((1, 1), 2.0)}, *one)[0]) == 1
    assert float(compress({**params, "out": jnp.full((1, 1), -2.0)}, *one)[0]) == -1


def test_the_attention_by_hand():
    """Scores that prefer the first child by log 3 make equal weights of 1 and 3 tokens."""
    inner = 5.0  # gelu(5) is 5 but for 1e-6
    params = {
        "score_child": jnp.array([[inner], [0.0]]),
        "score_mean": jnp.zeros((2, 1)),
        "score_features": jnp.zeros((3, 1)),
        "score_bias": jnp.zeros(1),
        "score_out": jnp.array([np.log(3.0) / inner]),
    }
    found = compress(params, jnp.eye(2), jnp.array([1, 3]), jnp.array([True, True]))
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
    together = jax.vmap(network.compress, in_axes=(None, 0, 0, 0))(params, *map(jnp.stack, zip(*groups, strict=True)))
    for found, group in zip(together, groups, strict=True):
        np.testing.assert_allclose(found, compress(params, *group), atol=1e-6)


@pytest.mark.parametrize("kind", COMPRESSOR_KINDS)
def test_children_without_direction_give_none_and_no_gradient_is_lost(kind):
    params = init(jax.random.key(0), kind, DIM, HIDDEN)
    zeros, tokens = np.zeros((3, DIM), np.float32), np.array([4, 0, 2])
    for mask in (np.ones(3, bool), np.zeros(3, bool)):
        assert not np.any(compress(params, zeros, tokens, mask))
        gradient = jax.grad(lambda own, mask=mask: compress(own, zeros, tokens, mask).sum())(params)
        assert all(np.isfinite(one).all() for one in jax.tree.leaves(gradient))


def test_a_child_without_tokens_counts_as_one():
    vectors, _, mask = family(3)
    params = trained("both")
    ones = compress(params, vectors, np.ones(3, np.int32), mask)
    np.testing.assert_allclose(compress(params, vectors, np.array([0, 1, 0]), mask), ones, atol=1e-7)


def test_shapes_are_those_of_the_parameters():
    for kind in COMPRESSOR_KINDS:
        found = {name: array.shape for name, array in init(jax.random.key(0), kind, DIM, HIDDEN).items()}
        assert found == shapes(kind, DIM, HIDDEN)


def test_a_vector_of_no_length_stays_zero():
    assert np.array_equal(unit(jnp.zeros(3)), np.zeros(3))
    np.testing.assert_allclose(unit(jnp.array([3.0, 4.0])), [0.6, 0.8], atol=1e-7)
