import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import linear_network, make_batch, random_params

from qrag_jax.retrieval.index.retriever import _fresh_params
from qrag_jax.retrieval.mdp.env import EnvConfig, q_values
from qrag_jax.retrieval.mdp.heads import SCALES, fresh_heads, ranking_factor, stop_q_values
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")


def test_an_affine_stop_by_hand():
    """Heads of two components: the state (3, 4) has rms sqrt(12.5)."""
    stop = {
        "vector": jnp.array([1.0, 2.0, 1.0, 0.0]),
        "scale": jnp.array([2.0, 10.0]),
        "bias": jnp.array([-1.0, 0.5]),
    }
    states = jnp.array([[3.0, 4.0, 0.0, 0.0], [0.3, 0.4, 5.0, 5.0]])
    product = (3 * 1 + 4 * 2) / np.sqrt(12.5) / np.sqrt(2)
    expected = [[-1 + 2 * product, 0.5], [-1 + 2 * product, 0.5 + 10 / np.sqrt(2)]]  # lengths of states do not matter
    np.testing.assert_allclose(stop_q_values(stop, states, 2), expected, rtol=1e-6)


def test_a_vector_is_the_inner_product():
    states, vector = jnp.array([[1.0, 2.0, 3.0, 4.0]]), jnp.array([1.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(stop_q_values(vector, states, 2), [[1.0, 7.0]])
    np.testing.assert_array_equal(stop_q_values(vector, states, 1), [[8.0]])


def test_a_state_of_zeros_has_a_finite_gradient():
    stop = fresh_heads(4, 1, "affine", None)["stop"] | {"vector": jnp.ones(4)}
    gradient = jax.grad(lambda s: stop_q_values(stop, s, 1).sum())(jnp.zeros((1, 4)))
    assert np.isfinite(gradient).all()


def test_the_factor_starts_where_it_is_told_and_cannot_run_away():
    assert float(ranking_factor(fresh_heads(4, 1, None, 20.0)["ranking"])) == pytest.approx(20)
    for far, bound in ((-1e6, SCALES[0]), (1e6, SCALES[1])):
        assert float(ranking_factor({"log_scale": jnp.float32(far)})) == pytest.approx(bound, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {}),
        ({"stop": True, "reward": "at_end"}, {"stop": (8,)}),
        ({"ranking_scale": 5.0}, {"ranking/log_scale": ()}),
        (
            {"stop": True, "reward": "at_end", "stop_head": "affine", "num_q_heads": 2},
            {"stop/vector": (8,), "stop/scale": (2,), "stop/bias": (2,)},
        ),
    ],
)
def test_parameters_that_join_those_of_the_towers(options, shapes):
    network = linear_network()
    params = _fresh_params(network, EnvConfig(**options), jax.random.key(0))
    paths = jax.tree_util.tree_leaves_with_path({k: v for k, v in params.items() if k not in ("state", "action")})
    assert {jax.tree_util.keystr(p, simple=True, separator="/"): x.shape for p, x in paths} == shapes


def test_an_affine_stop_is_the_last_column_of_q():
    env = EnvConfig(num_steps=3, reward="at_end", stop=True, stop_head="affine", num_q_heads=2, positions="none")
    network, batch = linear_network(), make_batch()
    heads = fresh_heads(8, 2, "affine", None)
    heads["stop"] |= {"vector": jnp.arange(8.0), "bias": jnp.array([0.5, -0.5])}
    params, taken = random_params(network) | heads, jnp.array([[0], [1], [0], [2]])
    rows = network.actions(params, batch.table)[batch.chunks]
    q = q_values(network, params, rows, batch, taken, None, env)
    rows_taken = jnp.take_along_axis(batch.chunks, taken, axis=1)
    states = network.states(params, batch.questions, batch.table, rows_taken)
    np.testing.assert_allclose(q[..., -1], stop_q_values(heads["stop"], states, 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_head": "affine"}, "env.stop_head=affine belongs to env.stop=true"),
        ({"ranking_scale": 0.0}, r"env.ranking_scale=0.0 must lie in \[0.01, 1000\], or be null"),
        ({"ranking_scale": 1e9}, "env.ranking_scale=1000000000.0 must lie in"),
        ({"ranking_scale": float("nan")}, "env.ranking_scale=nan must lie in"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(UsageError, match=message):
        EnvConfig(**options)
