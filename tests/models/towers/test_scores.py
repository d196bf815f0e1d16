import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import networks

from qrag_jax.models.towers import positions as towers
from qrag_jax.models.towers.positions import inverse_frequencies

pytestmark = pytest.mark.usefixtures("strict_promotion")
cos_sin = jax.jit(towers.cos_sin)
rotation_table = jax.jit(towers.rotation_table, static_argnames="small_angles")
rotate = jax.jit(networks.rotate, static_argnames=("num_heads", "theta"))
rotary_scores = jax.jit(towers.rotary_scores, static_argnames="num_heads")


def rotated_by_hand(vector, position, num_heads=1, theta=1e4):
    """R(p) a, pair by pair with Python's floats; each head has the frequencies of its own width."""
    width = len(vector) // num_heads
    out = []
    for head in range(num_heads):
        part = [float(x) for x in vector[head * width : (head + 1) * width]]
        for k in range(width // 2):
            angle = float(position) * theta ** (-2 * k / width)
            x, y = part[2 * k], part[2 * k + 1]
            out += [x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)]
    return np.array(out)


def random_case(dim=8, chunks=5, seed=0):
    rng = np.random.default_rng(seed)
    state = jnp.asarray(rng.normal(size=dim), jnp.float32)
    actions = jnp.asarray(rng.normal(size=(chunks, dim)), jnp.float32)
    return state, actions, jnp.asarray(rng.uniform(0, 60, chunks), jnp.float32)


def test_frequencies_by_hand():
    np.testing.assert_allclose(inverse_frequencies(4, theta=100.0), [1.0, 0.1], rtol=1e-7)
    # Two heads of width 4: the table of one head, twice; not the table of width 8.
    np.testing.assert_allclose(inverse_frequencies(8, 2, theta=100.0), [1.0, 0.1, 1.0, 0.1], rtol=1e-7)
    np.testing.assert_allclose(inverse_frequencies(8, 1, theta=1e4), [1.0, 0.1, 0.01, 0.001], rtol=1e-6)


def test_quarter_turn_by_hand():
    turned = rotate(jnp.array([[3.0, 4.0]]), jnp.array([math.pi / 2], jnp.float32))
    np.testing.assert_allclose(turned, [[-4.0, 3.0]], atol=1e-6)


def test_pairs_are_interleaved_and_slow_down():
    # theta 100, width 4: pair (0, 1) turns by p, pair (2, 3) by p / 10.
    turned = rotate(jnp.array([1.0, 0.0, 1.0, 0.0]), jnp.float32(2.0), theta=100.0)
    np.testing.assert_allclose(turned, [math.cos(2), math.sin(2), math.cos(0.2), math.sin(0.2)], atol=1e-6)


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_rotation_against_python_floats(num_heads):
    _, actions, positions = random_case()
    expected = [
        rotated_by_hand(a, p, num_heads) for a, p in zip(np.asarray(actions), np.asarray(positions), strict=True)
    ]
    np.testing.assert_allclose(rotate(actions, positions, num_heads), expected, atol=2e-5)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_position_zero_is_the_identity_bit_for_bit(num_heads):
    state, actions, _ = random_case()
    still = np.zeros(5, np.float32)
    np.testing.assert_array_equal(rotate(actions, still, num_heads), actions)
    table = rotation_table(still, inverse_frequencies(8, num_heads))
    np.testing.assert_allclose(
        rotary_scores(state, actions, table, num_heads), rotary_scores(state, actions, None, num_heads), rtol=1e-6
    )


@given(st.floats(0, 1e5, width=32), st.integers(0, 100))
def test_rotation_keeps_every_pair_norm(position, seed):
    _, actions, _ = random_case(seed=seed)
    turned = rotate(actions, np.full(5, position, np.float32), 2)
    before, after = (np.linalg.norm(np.asarray(x).reshape(5, 4, 2), axis=-1) for x in (actions, turned))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_scores_are_inner_products_with_rotated_rows(num_heads):
    state, actions, positions = random_case()
    table = rotation_table(positions, inverse_frequencies(8, num_heads))
    scores = rotary_scores(state, actions, table, num_heads)
    rotated = np.asarray(rotate(actions, positions, num_heads), np.float64)
    parts = (np.asarray(state, np.float64) * rotated).reshape(5, num_heads, -1).sum(-1).T
    assert scores.shape == (num_heads, 5)
    np.testing.assert_allclose(scores, parts, atol=1e-5)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_scores_without_a_table_are_plain_inner_products(num_heads):
    state, actions, _ = random_case()
    scores = rotary_scores(state, actions, None, num_heads)
    np.testing.assert_allclose(np.sum(scores, axis=0), np.asarray(actions) @ np.asarray(state), atol=1e-5)
    np.testing.assert_allclose(
        np.asarray(scores)[0], np.asarray(actions)[:, : 8 // num_heads] @ np.asarray(state)[: 8 // num_heads], atol=1e-5
    )


def test_heads_turn_as_if_they_were_vectors_of_their_own():
    _, actions, positions = random_case()
    halves = [rotate(np.asarray(actions)[:, part], positions) for part in (slice(0, 4), slice(4, 8))]
    np.testing.assert_allclose(rotate(actions, positions, 2), np.concatenate(halves, 1), atol=1e-6)
    assert not np.allclose(rotate(actions, positions, 1), rotate(actions, positions, 2), atol=1e-2)


@given(st.floats(0, 50, width=32), st.floats(0, 50, width=32), st.floats(0, 50, width=32))
def test_scores_depend_on_the_difference_of_positions(state_position, action_position, shift):
    """<R(p) s, R(q) a> = <R(p + z) s, R(q + z) a>, which is what "rotary" means."""
    state, actions, _ = map(np.asarray, random_case(chunks=1))

    def score(offset):
        at = lambda p: np.full(1, p + offset, np.float32)  # noqa: E731
        return float(np.vdot(rotate(state[None], at(state_position)), rotate(actions, at(action_position))))

    # Angles up to 100 rad in float32: 8e-6 rad of rounding on products of a few units.
    assert score(shift) == pytest.approx(score(0.0), abs=1e-3)


def test_positions_and_angles_stay_in_float32():
    cos, sin = rotation_table(np.arange(3, dtype=np.float16), inverse_frequencies(8))
    assert cos.dtype == sin.dtype == jnp.float32
    # 4097 and 4098 are one number in bfloat16 and two angles here.
    cos, _ = rotation_table(jnp.array([4097.0, 4098.0]), inverse_frequencies(2))
    assert abs(np.diff(cos[:, 0])) > 0.1


def test_large_vectors_turn_as_far_as_float32_angles_go():
    # At 400,000 (absolute positions) an angle is exact to 0.03 rad; the norm must not suffer from it.
    turned = rotate(np.ones((1, 8), np.float32), jnp.array([400_000.0]))
    np.testing.assert_allclose(np.linalg.norm(turned), math.sqrt(8), rtol=1e-6)


def test_gradient_of_the_scores_is_the_rotated_row():
    state, actions, positions = random_case()
    table = rotation_table(positions, inverse_frequencies(8))
    gradient = jax.jit(jax.grad(lambda s: towers.rotary_scores(s, actions, table)[0, 2]))(state)
    np.testing.assert_allclose(gradient, np.asarray(rotate(actions, positions))[2], atol=1e-5)


@pytest.mark.parametrize(("dim", "num_heads"), [(6, 2), (7, 1), (8, 3), (8, 0)])
def test_widths_that_do_not_split_are_refused(dim, num_heads):
    with pytest.raises(ValueError, match=f"dim={dim} must split into num_heads={num_heads}"):
        inverse_frequencies(dim, num_heads)


@given(st.floats(-1e4, 1e4, width=32))
def test_cosine_and_sine_are_as_exact_as_float32(angle):
    cos, sin = cos_sin(np.float32(angle))
    assert abs(float(cos) - math.cos(angle)) < 1.2e-7
    assert abs(float(sin) - math.sin(angle)) < 1.2e-7


def test_cosine_and_sine_at_multiples_of_a_quarter_turn():
    quarters = np.arange(-8, 9)
    cos, sin = cos_sin(jnp.asarray(quarters * np.pi / 2, jnp.float32))
    np.testing.assert_allclose(cos, np.cos(quarters * np.pi / 2), atol=1e-6)
    np.testing.assert_allclose(sin, np.sin(quarters * np.pi / 2), atol=1e-6)
    assert [float(x) for x in cos_sin(np.float32(0.0))] == [1.0, 0.0]


def test_a_table_of_small_angles_is_the_table():
    positions, frequencies = jnp.asarray([0.0, 3.25, 57.0]), inverse_frequencies(8)
    for small, exact in zip(
        rotation_table(positions, frequencies, small_angles=True), rotation_table(positions, frequencies), strict=True
    ):
        np.testing.assert_allclose(small, exact, atol=2e-7)


def test_forty_thousand_chunks_score_as_rotated_rows():
    """The element-wise form at the size of 1M tokens, against the rotated rows themselves in float64."""
    rng = np.random.default_rng(0)
    state, actions = rng.normal(size=8), rng.normal(size=(40_000, 8))
    positions = np.sort(rng.uniform(0, 70, 40_000))
    angles = positions[:, None] * 1e4 ** (-np.arange(0, 8, 2) / 8)
    even, odd = actions[:, 0::2], actions[:, 1::2]
    rotated = np.stack([even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)], -1)
    table = rotation_table(jnp.asarray(positions, jnp.float32), inverse_frequencies(8), small_angles=True)
    scores = rotary_scores(jnp.asarray(state, jnp.float32), jnp.asarray(actions, jnp.float32), table)
    np.testing.assert_allclose(np.asarray(scores)[0], rotated.reshape(40_000, 8) @ state, atol=1e-4)
