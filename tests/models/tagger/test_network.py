import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qrag_jax.models.tagger.tagger import NUM_CLASSES, init, tag

pytestmark = pytest.mark.usefixtures("strict_promotion")


def test_fresh_parameters_prefer_no_class():
    rows = tag(init(3), jnp.ones((2, 3)), jnp.zeros((2, 5), jnp.int32))
    np.testing.assert_allclose(np.exp(rows), 1 / NUM_CLASSES, rtol=1e-6)


def test_log_probabilities_by_hand():
    """One feature of 2 with weight 1 for class 1, one cue with weight 3 for class 2: scores 0, 2, 3, 0."""
    params = init(1, num_cues=4)
    params["weights"] = params["weights"].at[0, 1].set(1.0)
    params["cues"] = params["cues"].at[3, 2].set(3.0)
    rows = tag(params, jnp.full((1, 1), 2.0), jnp.array([[3, 0]], jnp.int32))
    expected = np.exp([0, 2, 3, 0]) / np.exp([0, 2, 3, 0]).sum()
    np.testing.assert_allclose(np.exp(rows)[0], expected, rtol=1e-6)


def test_a_cue_that_stands_twice_counts_twice():
    params = init(1, num_cues=4)
    params["cues"] = params["cues"].at[1, 1].set(0.5)
    once, twice = (tag(params, jnp.zeros((1, 1)), jnp.array([cues], jnp.int32)) for cues in ([1, 0], [1, 1]))
    assert float(twice[0, 1] - twice[0, 0]) == pytest.approx(2 * float(once[0, 1] - once[0, 0]))


def test_gaps_do_not_influence_each_other():
    key = jax.random.key(0)
    params = jax.tree.map(lambda x: jax.random.normal(key, x.shape), init(6, num_cues=8))
    features = jax.random.normal(key, (5, 6))
    cues = jax.random.randint(key, (5, 2), 0, 8)
    together = tag(params, features, cues)
    alone = jnp.concatenate([tag(params, features[i : i + 1], cues[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(together, alone, atol=1e-5)
