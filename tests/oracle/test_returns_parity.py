"""Lambda-returns against rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qrag_jax.train.qrag.returns import lambda_returns

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.65, 1.0])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_lambda_returns(lambda_, length):
    import rlax

    rng = np.random.default_rng(length)
    r_t, v_t = (jnp.asarray(rng.normal(size=(5, length)), jnp.float32) for _ in range(2))
    discount_t = jnp.asarray(rng.uniform(0, 1, (5, length)) * (rng.random((5, length)) > 0.2), jnp.float32)
    ours = jax.vmap(lambda_returns, in_axes=(0, 0, 0, None))(r_t, discount_t, v_t, lambda_)
    theirs = jax.vmap(lambda *row: rlax.lambda_returns(*row, lambda_))(r_t, discount_t, v_t)
    np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=1e-6)


def test_gradients():
    import rlax

    rng = np.random.default_rng(0)
    r_t, discount_t, v_t = (jnp.asarray(rng.uniform(size=6), jnp.float32) for _ in range(3))
    ours, theirs = (
        jax.grad(lambda v, f=f: jnp.vdot(jnp.arange(6.0), f(r_t, discount_t, v, 0.6)))(v_t)
        for f in (lambda_returns, rlax.lambda_returns)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
