import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qrag_jax.train.trainer import add_losses
from qrag_jax.types import UsageError


def test_named_losses_add_up():
    """2 * 0.5 + 3 * 1 + 0 * 7 = 4; parts are logged before their weights."""
    terms = {"td": (jnp.float32(2), 0.5), "rank": (jnp.float32(3), 1.0), "watched": (jnp.float32(7), 0.0)}
    total, metrics = add_losses(terms)
    assert float(total) == 4
    assert {name: float(x) for name, x in metrics.items()} == {
        "loss": 4,
        "loss/td": 2,
        "loss/rank": 3,
        "loss/watched": 7,
    }


def test_one_loss_is_the_loss():
    total, metrics = add_losses({"td": (jnp.float32(0.1), 1.0)})
    assert float(total) == np.float32(0.1) and metrics == {"loss": total}


def test_gradients_are_weighted_too():
    """d/dx (0.5 x^2 + 3 * 4 x) at 2 = 14; what has weight 0 has no part in it, not even a NaN."""
    loss = lambda x: add_losses({"a": (x**2, 0.5), "b": (4 * x, 3.0), "c": (jnp.sqrt(x - 2), 0.0)})[0]  # noqa: E731
    assert float(jax.grad(loss)(2.0)) == 14


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_weights_out_of_range_are_refused(weight):
    with pytest.raises(UsageError, match=f"loss rank: weight={weight} must be at least 0 and finite"):
        add_losses({"td": (jnp.float32(1), 1.0), "rank": (jnp.float32(1), weight)})


@pytest.mark.parametrize("terms", [{}, {"td": (1.0, 0.0)}])
def test_nothing_to_train_on_is_refused(terms):
    with pytest.raises(UsageError, match="no loss is left to train on"):
        add_losses({name: (jnp.float32(x), weight) for name, (x, weight) in terms.items()})
