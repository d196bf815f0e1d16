import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from support.networks import np_jit

from qrag_jax.train.qrag import returns
from qrag_jax.train.qrag.returns import state_value

pytestmark = pytest.mark.usefixtures("strict_promotion")
KINDS = ("soft", "expected", "hard")
# Compiled once for all temperatures and masks.
values = np_jit(state_value, static_argnums=(3, 4))
gradient = np_jit(jax.grad(state_value), static_argnums=(3, 4))
lambda_returns, chosen_pair_loss = np_jit(returns.lambda_returns), np_jit(returns.chosen_pair_loss)


def f32(*numbers):
    return np.asarray(numbers, np.float32).reshape(-1)


def backward_loop(r, d, v, lambda_, bonus=None):
    """The recursion G_{t-1} = r_t + d_t ((1 - l) v_t + l (G_t + b_t)), G_T = v_T, in float64."""
    g, out = float(v[-1]), []
    for t in reversed(range(len(r))):
        g = r[t] + d[t] * ((1 - lambda_) * v[t] + lambda_ * (g + (0.0 if bonus is None else bonus[t])))
        out.append(g)
    return np.array(out[::-1])


def forward_view(r, d, v, lambda_):
    """(1 - l) sum_n l^(n-1) G^(n) + l^(N-1) G^(N), each n-step return unrolled from the recursion with lambda = 1."""
    out = []
    for t in range(len(r)):
        most = len(r) - t
        n_step = []
        for n in range(1, most + 1):
            total, discount = 0.0, 1.0
            for k in range(t, t + n):
                total += discount * r[k]
                discount *= d[k]
            n_step.append(total + discount * v[t + n - 1])
        weights = [(1 - lambda_) * lambda_ ** (n - 1) for n in range(1, most)] + [lambda_ ** (most - 1)]
        out.append(float(np.dot(weights, n_step)))
    return np.array(out)


def random_trajectory(length, seed):
    rng = np.random.default_rng(seed)
    discount = rng.uniform(0, 1, length) * (rng.random(length) > 0.2)
    return [x.astype(np.float32) for x in (rng.normal(size=length), discount, rng.normal(size=length))]


# --- lambda-returns


def test_lambda_returns_by_hand():
    # G_2 = 4 + .5 * 3 = 5.5;  G_1 = 2 + .5 (.5 * 2 + .5 * 5.5) = 3.875;  G_0 = 1 + .5 (.5 * 1 + .5 * 3.875) = 2.21875
    found = lambda_returns(f32(1, 2, 4), f32(0.5, 0.5, 0.5), f32(1, 2, 3), 0.5)
    np.testing.assert_allclose(found, [2.21875, 3.875, 5.5], rtol=1e-6)


def test_an_ended_episode_does_not_bootstrap():
    # The last step ends: its value of 1000 never counts. G_2 = 1, G_1 = 0.99 (.5 * .2 + .5 * 1) = .594, ..
    found = lambda_returns(f32(0, 0, 1), f32(0.99, 0.99, 0), f32(0.1, 0.2, 1000), 0.5)
    np.testing.assert_allclose(found, [0.99 * (0.05 + 0.5 * 0.594), 0.594, 1.0], rtol=1e-6)


def test_nothing_passes_a_discount_of_0():
    r, d, v = random_trajectory(5, 0)
    d[2] = 0
    other_r, other_v = r.copy(), v.copy()
    other_r[3:] += 100
    other_v[2:] -= 100
    whole, changed = (lambda_returns(*x, np.float32(0.7)) for x in ((r, d, v), (other_r, d, other_v)))
    np.testing.assert_array_equal(whole[:3], changed[:3])
    assert (np.abs(whole[3:] - changed[3:]) > 1).all()


@given(st.integers(1, 6), st.floats(0, 1), st.integers(0, 1000))
def test_lambda_returns_against_the_forward_view(length, lambda_, seed):
    r, d, v = random_trajectory(length, seed)
    found = lambda_returns(r, d, v, np.float32(lambda_))
    np.testing.assert_allclose(found, forward_view(r, d, v, lambda_), atol=1e-5)
    np.testing.assert_allclose(found, backward_loop(r, d, v, lambda_), atol=1e-5)


def test_lambda_0_is_one_step_td():
    r, d, v = random_trajectory(5, 1)
    np.testing.assert_allclose(lambda_returns(r, d, v, 0.0), r + d * v, rtol=1e-6)


def test_lambda_1_is_monte_carlo_with_a_bootstrap_at_the_cut():
    r, v = f32(1, 2, 3), f32(100, 200, 4)
    found = lambda_returns(r, f32(0.5, 0.5, 0.5), v, 1.0)
    np.testing.assert_allclose(found, [1 + 1 + 0.75 + 0.5, 2 + 1.5 + 1, 3 + 2], rtol=1e-6)


def test_soft_trace_bonus_by_hand():
    # G_1 = 2 + .5 * 3 = 3.5 (bonus 0 at the last step); G_0 = 1 + .5 (.5 * 1 + .5 (3.5 + .4)) = 2.225
    found = lambda_returns(f32(1, 2), f32(0.5, 0.5), f32(1, 3), 0.5, f32(0.4, 0))
    np.testing.assert_allclose(found, [2.225, 3.5], rtol=1e-6)


def test_bonus_enters_with_weight_lambda_only():
    r, d, v = random_trajectory(4, 2)
    bonus = f32(0.3, 0.1, 0.2, 0)
    np.testing.assert_array_equal(lambda_returns(r, d, v, 0.0, bonus), lambda_returns(r, d, v, 0.0))
    np.testing.assert_allclose(lambda_returns(r, d, v, 0.6, bonus), backward_loop(r, d, v, 0.6, bonus), atol=1e-6)
    np.testing.assert_array_equal(lambda_returns(r, d, v, 0.6, np.zeros(4, np.float32)), lambda_returns(r, d, v, 0.6))


def test_batch_by_vmap_is_a_loop():
    rows = [random_trajectory(4, seed) for seed in range(3)]
    batch = [np.stack(column) for column in zip(*rows, strict=True)]
    stacked = np_jit(jax.vmap(returns.lambda_returns, in_axes=(0, 0, 0, None)))(*batch, np.float32(0.4))
    for row, found in zip(rows, stacked, strict=True):
        np.testing.assert_allclose(found, lambda_returns(*row, np.float32(0.4)), rtol=1e-6)


# --- state value


def test_soft_value_by_hand():
    # 2 log(e^(log 3 / 2 * 2 / 2) ..): alpha = 1, Q = log 1, log 2, log 5 (the last one not allowed): log 3.
    q = np.log(f32(1, 2, 5))[None]
    allowed = jnp.array([True, True, False])
    assert values(q, allowed, 1.0) == pytest.approx(np.log(3), rel=1e-6)
    # alpha 1/2: 0.5 log(1^2 + 2^2)
    assert values(q, allowed, 0.5) == pytest.approx(0.5 * np.log(5), rel=1e-6)


def test_expected_and_hard_value_by_hand():
    # softmax of (0, log 3) is (1/4, 3/4).
    q = jnp.array([[0.0, np.log(3)]], jnp.float32)
    both = np.ones(2, bool)
    assert values(q, both, 1.0, "expected") == pytest.approx(0.75 * np.log(3), rel=1e-6)
    assert values(q, both, 1.0, "hard") == pytest.approx(np.log(3), rel=1e-6)


def test_two_heads_by_hand():
    q = jnp.array([[1.0, 0.0], [0.0, 3.0]])
    both = np.ones(2, bool)
    assert values(q, both, 1.0, "hard") == 4.0  # each head has a maximum of its own
    soft = np.log(np.exp(1) + 1) + np.log(1 + np.exp(3))
    assert values(q, both, 1.0, "soft") == pytest.approx(soft, rel=1e-6)
    p = softmax([1.0, 3.0])  # the policy sees the sum of heads, and so does its expectation
    assert values(q, both, 1.0, "expected") == pytest.approx(p @ [1.0, 3.0], rel=1e-6)


@given(st.sampled_from([1, 2]), st.floats(1e-3, 10), st.sampled_from([None, 2]), st.integers(0, 2**16))
def test_values_against_scipy(num_heads, temperature, top_k, seed):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(num_heads, 6)).astype(np.float32)
    allowed = rng.random(6) < 0.7
    allowed[rng.integers(6)] = True
    best = lambda x: np.sort(x)[::-1][:top_k]  # noqa: E731
    heads = [best(row[allowed].astype(np.float64)) for row in q]
    total = best(q.sum(0)[allowed].astype(np.float64))
    expected = {
        "soft": sum(temperature * logsumexp(row / temperature) for row in heads),
        "hard": sum(row.max() for row in heads),
        "expected": softmax(total / temperature) @ total,
    }
    for kind, value in expected.items():
        found = values(q, allowed, np.float32(temperature), kind, top_k)
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5, err_msg=kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [None, 2, 5])
@pytest.mark.parametrize("filler", [0.0, 7.0, 3e38, -3e38, np.inf, -np.inf, np.nan])
def test_value_is_unchanged_by_taken_and_padded_chunks(kind, top_k, filler):
    """V over 3 real chunks equals V over 6 with 3 taken or padded ones, whatever stands there.

    With top_k = 2 and a large filler, the taken chunks would fill the whole top-k if it came before the mask.
    """
    q = jnp.array([[0.3, -1.0, 0.8], [0.1, 0.5, -0.2]])
    alone = values(q, np.ones(3, bool), np.float32(0.5), kind, top_k)
    padded = np.full((2, 6), filler, np.float32)
    padded[:, [1, 2, 5]] = q
    allowed = jnp.array([False, True, True, False, False, True])
    np.testing.assert_allclose(values(padded, allowed, np.float32(0.5), kind, top_k), alone, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("filler", [0.0, 3e38, -3e38, np.inf, np.nan])
def test_gradient_ignores_masked_chunks_and_is_finite(kind, top_k, filler):
    q = jnp.array([[0.3, -1.0, 0.8]])
    alone = gradient(q, np.ones(3, bool), np.float32(0.5), kind, top_k)
    padded = np.full((1, 5), filler, np.float32)
    padded[:, [0, 2, 3]] = q
    allowed = jnp.array([True, False, True, True, False])
    found = gradient(padded, allowed, np.float32(0.5), kind, top_k)
    np.testing.assert_allclose(found[:, [0, 2, 3]], alone, rtol=1e-6)
    np.testing.assert_array_equal(found[:, [1, 4]], 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_heads", [1, 3])
def test_no_action_left_is_0_with_a_gradient_of_0(kind, num_heads):
    q = np.full((num_heads, 4), 5, np.float32)
    slope = np_jit(jax.value_and_grad(state_value, argnums=(0, 2)), static_argnums=3)
    value, gradient = slope(q, np.zeros(4, bool), np.float32(0.1), kind)
    assert value == 0
    np.testing.assert_array_equal(gradient[0], np.zeros_like(q))
    assert gradient[1] == 0


def test_gradient_of_the_soft_value_is_the_policy():
    q = jnp.array([[0.3, -1.0, 0.8, 2.0]])
    allowed = jnp.array([True, True, True, False])
    found = gradient(q, allowed, np.float32(0.5))
    np.testing.assert_allclose(found[0, :3], softmax(np.array([0.3, -1.0, 0.8]) / 0.5), rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.5, 1e-6])
def test_slope_of_the_soft_value_in_the_temperature_is_the_entropy(alpha):
    """Finite under masks also where the filler over the temperature leaves the range of float32."""
    q = alpha * np.array([0.3, -1.0, 0.8, 2.0], np.float32)
    allowed = jnp.array([True, True, True, False])
    found = np_jit(jax.grad(state_value, argnums=2))(q[None], allowed, np.float32(alpha))
    p = softmax(q[:3].astype(np.float64) / alpha)
    assert float(found) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-4)


def test_soft_and_expected_become_hard_as_the_temperature_falls():
    q = jnp.array([[0.3, -1.0, 0.8, 0.79]])
    allowed = jnp.array([True, True, True, False])
    hard = values(q, allowed, 1.0, "hard")
    for kind in ("soft", "expected"):
        gaps = [abs(float(values(q, allowed, alpha, kind) - hard)) for alpha in (1.0, 0.3, 0.1, 0.01, 1e-6, 1e-30)]
        assert gaps[0] > 0.1 and gaps[-1] == 0
        assert all(later <= sooner for sooner, later in zip(gaps, gaps[1:], strict=False)), (kind, gaps)


def test_soft_value_lies_between_hard_and_hard_plus_alpha_log_actions():
    rng = np.random.default_rng(3)
    q = rng.normal(size=(1, 50)).astype(np.float32)
    allowed = np.ones(50, bool)
    soft, expected, hard = (float(values(q, allowed, 0.3, kind)) for kind in KINDS)
    assert expected < hard < soft < hard + 0.3 * np.log(50)


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_values_do_not_overflow(size):
    q = jnp.array([[size, 0.5 * size, -size]])
    assert float(values(q, np.ones(3, bool), np.float32(0.01))) == pytest.approx(size)


def test_value_does_not_depend_on_the_order_of_chunks():
    rng = np.random.default_rng(4)
    q, allowed = rng.normal(size=(2, 7)).astype(np.float32), rng.random(7) < 0.6
    order = rng.permutation(7)
    for kind in KINDS:
        found = values(q[:, order], allowed[order], np.float32(0.2), kind, 2)
        np.testing.assert_allclose(found, values(q, allowed, np.float32(0.2), kind, 2), rtol=1e-5)


# --- loss


def test_loss_of_one_head_by_hand():
    assert chosen_pair_loss(f32(3.0), np.float32(1)) == 4.0


def test_loss_of_two_heads_by_hand():
    # 0.5 (2 * 1 - 3)^2 + 0.5 (2 * 0.5 - 3)^2 = 0.5 + 2
    assert chosen_pair_loss(f32(1.0, 0.5), np.float32(3)) == 2.5


@given(st.floats(-5, 5, width=32), st.floats(-5, 5, width=32), st.floats(-5, 5, width=32))
def test_loss_of_two_heads_is_half_of_each_doubled_head(q1, q2, g):
    expected = 0.5 * (2 * q1 - g) ** 2 + 0.5 * (2 * q2 - g) ** 2
    assert float(chosen_pair_loss(f32(q1, q2), np.float32(g))) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_loss_is_least_where_the_heads_share_the_return():
    heads = np_jit(jax.grad(returns.chosen_pair_loss))(f32(0.6, 0.6, 0.6), np.float32(1.8))
    np.testing.assert_allclose(heads, 0.0, atol=1e-6)
