import jax
import numpy as np
import pytest
from support.networks import np_jit

from qrag_jax.chunking.tree.parent_vectors import mean_of_children
from qrag_jax.models import compressor as network
from qrag_jax.models.compressor import Compressor, compress_parents, compressor_parents
from qrag_jax.names import COMPRESSOR_KINDS
from qrag_jax.types import InputError
from qrag_jax.unit_rows import unit_rows

DIM = 5
init, compress = np_jit(network.init, static_argnums=(1, 2, 3)), np_jit(network.compress)


def make_compressor(kind="both", seed=0):
    params, draw = init(jax.random.key(seed), kind, DIM, 4), np.random.default_rng(seed)
    params = {name: np.asarray(array + draw.normal(size=array.shape), np.float32) for name, array in params.items()}
    return Compressor(params, kind, "a" * 64, "minilm")


def families(numbers, seed=0):
    draw, total = np.random.default_rng(seed), sum(numbers)
    vectors = unit_rows(draw.normal(size=(total, DIM)).astype(np.float32))
    return vectors, draw.integers(0, 40, total), np.repeat(np.arange(len(numbers)), numbers)


@pytest.mark.parametrize("kind", COMPRESSOR_KINDS)
def test_parents_of_all_sizes_are_those_of_a_loop(kind):
    numbers = [1, 9, 2, 8, 17, 1, 3]
    compressor, (vectors, tokens, parent) = make_compressor(kind), families(numbers)
    found = compressor_parents(compressor, "a" * 64).of_children(vectors, tokens, parent)
    assert found.shape == (len(numbers), DIM) and found.dtype == np.float32
    for number in range(len(numbers)):
        one = compress(compressor.params, vectors, tokens, parent == number)
        np.testing.assert_allclose(found[number], one, atol=1e-5)


def test_untrained_it_is_the_mean_of_10_000_children():
    vectors, tokens, parent = families([10_000, 1])
    params = init(jax.random.key(0), "attention", DIM, 4)
    found = compress_parents(params, vectors, tokens, parent)
    np.testing.assert_allclose(found, mean_of_children(vectors, tokens, parent), atol=1e-4)  # sums of 10,000 in float32


def test_no_children_make_no_parents():
    params = make_compressor().params
    assert compress_parents(params, np.zeros((0, DIM), np.float32), np.zeros(0, int), np.zeros(0, int)).shape == (
        0,
        DIM,
    )


def test_children_of_no_direction_make_a_parent_of_none():
    params = init(jax.random.key(0), "both", DIM, 4)
    found = compress_parents(params, np.zeros((2, DIM), np.float32), np.array([3, 0]), np.array([0, 0]))
    assert np.array_equal(found, np.zeros((1, DIM)))


def test_it_names_itself_by_what_it_does():
    first, again, other = (compressor_parents(make_compressor(seed=seed), "a" * 64) for seed in (0, 0, 1))
    assert first.name == "compressor" and first.fingerprint == again.fingerprint != other.fingerprint


def test_another_encoder_is_refused_by_name():
    with pytest.raises(InputError, match=r"trained on vectors of the encoder 'minilm' .*fingerprint bbbbbbbbbbbb"):
        compressor_parents(make_compressor(), "b" * 64)
