import math

import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import SCALINGS, decoder_config
from support.networks import np_jit

from qrag_jax.models.decoder.config import RopeScaling
from qrag_jax.models.decoder.rotary import inverse_frequencies, turns_at
from qrag_jax.models.encoder.text_encoder import rotate_halves
from qrag_jax.types import InputError

pytestmark = pytest.mark.usefixtures("strict_promotion")


def frequencies_of(scaling, **changes):
    return inverse_frequencies(decoder_config(rope_scaling=scaling, **changes))


def test_frequencies_by_hand():
    found, factor = frequencies_of(RopeScaling(), head_dim=4, rope_theta=100.0)
    np.testing.assert_allclose(found, [1, 0.1], rtol=1e-7)
    assert factor == 1 and found.dtype == np.float32
    found, _ = frequencies_of(RopeScaling("linear", 4.0), head_dim=4, rope_theta=100.0)
    np.testing.assert_allclose(found, [0.25, 0.025], rtol=1e-7)


def test_llama3_pair_by_pair():
    scaling = RopeScaling("llama3", 8.0, 25, low_freq_factor=0.75, high_freq_factor=3.0)
    found, factor = frequencies_of(scaling, head_dim=8, rope_theta=16.0)
    expected, kinds = [], []
    for frequency in [1, 0.5, 0.25, 0.125]:
        wavelength = 2 * math.pi / frequency
        if wavelength < 25 / 3:
            kinds.append("kept")
            expected.append(frequency)
        elif wavelength > 25 / 0.75:
            kinds.append("stretched")
            expected.append(frequency / 8)
        else:
            kinds.append("mixed")
            smooth = (25 / wavelength - 0.75) / (3 - 0.75)
            expected.append((1 - smooth) * frequency / 8 + smooth * frequency)
    assert kinds == ["kept", "mixed", "mixed", "stretched"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert factor == 1


def test_yarn_by_hand():
    """Over 64 positions pair k of 8, with base 16, makes 64 * 16 ** (-k / 8) / 2 pi turns: 10.2, 7.2, 5.1, ... 0.9.

    8 turns are at k = 8 log(64 / 16 pi) / log 16 = 0.697, rounded down 0; 2 turns at 4.697, rounded up 5.
    """
    options = {"original_max_positions": 64, "beta_fast": 8.0, "beta_slow": 2.0}
    found, factor = frequencies_of(RopeScaling("yarn", 4.0, **options), head_dim=16, rope_theta=16.0)
    stretched = np.array([0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1])
    plain = 16.0 ** (-np.arange(8) / 8)
    np.testing.assert_allclose(found, plain * (1 - stretched) + plain / 4 * stretched, rtol=1e-6)
    assert factor == pytest.approx(0.1 * math.log(4) + 1)
    exact, _ = frequencies_of(RopeScaling("yarn", 4.0, truncate=False, **options), head_dim=16, rope_theta=16.0)
    low, high = (8 * math.log(64 / (2 * math.pi * turns)) / math.log(16) for turns in (8, 2))
    stretched = np.clip((np.arange(8) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(exact, plain * (1 - stretched) + plain / 4 * stretched, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"attention_factor": 0.7}, 0.7),
        ({}, 0.1 * math.log(4) + 1),
    ],
)
def test_attention_factor_of_yarn(options, expected):
    assert frequencies_of(RopeScaling("yarn", 4.0, 64, **options))[1] == pytest.approx(expected)


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_factor_of_1_stretches_nothing(kind):
    plain, _ = frequencies_of(RopeScaling(), head_dim=16)
    found, factor = frequencies_of(RopeScaling(kind, 1.0, original_max_positions=32), head_dim=16)
    np.testing.assert_allclose(found, plain, rtol=1e-6)
    assert factor == 1


def test_a_ramp_without_width_is_a_step():
    scaling = RopeScaling("yarn", 2.0, original_max_positions=64, beta_fast=2.0, beta_slow=2.0, truncate=False)
    found, _ = frequencies_of(scaling, head_dim=16, rope_theta=16.0)
    assert (found / 16.0 ** (-np.arange(8) / 8)).round(6).tolist() == [1, 1, 1, 1, 1, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("scaling", "changes", "message"),
    [
        (SCALINGS["yarn"], {"rope_theta": 1.0}, "rope scaling yarn: rope_theta 1.0 must be above 1"),
        (RopeScaling("yarn", 2.0, 8, beta_slow=0.0), {}, "beta_fast 32.0 and beta_slow 0.0 above 0"),
    ],
)
def test_refusals(scaling, changes, message):
    with pytest.raises(InputError, match=message):
        frequencies_of(scaling, **changes)


def turned(x, positions, frequencies, factor=1.0):
    frequencies = np.float32(frequencies)
    turn = np_jit(lambda x, positions: rotate_halves(x, *turns_at(positions, frequencies, factor)))
    return turn(x, np.asarray(positions, np.int32))


def test_rotation_by_hand():
    x = np.asarray([1, 0, 0, 2], np.float32).reshape(1, 1, 1, 4)
    found = turned(x, [[3]], [1, 0.5], factor=10.0).ravel()
    expected = [math.cos(3), -2 * math.sin(1.5), math.sin(3), 2 * math.cos(1.5)]
    np.testing.assert_allclose(found, 10 * np.array(expected), rtol=1e-5)


def test_rotation_is_a_product_of_complex_numbers():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype(np.float32)
    positions = np.array([[0, 1, 2, 3], [7, 11, 100, 5]])
    frequencies = np.array([1, 0.3, 0.01])
    angles = np.exp(1j * positions[:, None, :, None] * frequencies)
    expected = (x[..., :3] + 1j * x[..., 3:]) * angles
    found = turned(x, positions, frequencies)
    np.testing.assert_allclose(found, np.concatenate([expected.real, expected.imag], -1), atol=2e-5)
    np.testing.assert_array_equal(found[0, :, 0], x[0, :, 0])  # position 0 is the identity


def test_products_depend_on_the_distance_only():
    rng = np.random.default_rng(0)
    query, key = (jnp.asarray(rng.normal(size=(1, 1, 1, 8)), jnp.float32) for _ in range(2))
    frequencies, _ = frequencies_of(RopeScaling(), head_dim=8)
    products = [
        float((turned(query, [[place]], frequencies) * turned(key, [[place - 3]], frequencies)).sum())
        for place in [3, 4, 10, 200]
    ]
    np.testing.assert_allclose(products, products[0], rtol=1e-4)


def test_angles_of_late_positions_keep_their_digits_in_bfloat16():
    found = turned(np.ones((1, 1, 1, 2), jnp.bfloat16), [[1001]], [1.0])
    assert found.dtype == jnp.bfloat16
    expected = [math.cos(1001) - math.sin(1001), math.sin(1001) + math.cos(1001)]
    np.testing.assert_allclose(found.ravel().astype(np.float32), expected, rtol=1e-2)
