import jax
import numpy as np
import pytest
from support.networks import np_jit

from qrag_jax.models.tagger import tagger
from qrag_jax.models.tagger.tagger import NUM_CLASSES

pytestmark = pytest.mark.usefixtures("strict_promotion")
init, tag = np_jit(tagger.init, static_argnums=0, static_argnames="num_cues"), np_jit(tagger.tag)


def test_fresh_parameters_prefer_no_class():
    rows = tag(init(3), np.ones((2, 3), np.float32), np.zeros((2, 5), np.int32))
    np.testing.assert_allclose(np.exp(rows), 1 / NUM_CLASSES, rtol=1e-6)


def test_log_probabilities_by_hand():
    """One feature of 2 with weight 1 for class 1, one cue with weight 3 for class 2: scores 0, 2, 3, 0."""
    params = jax.tree.map(np.array, init(1, num_cues=4))
    params["weights"][0, 1], params["cues"][3, 2] = 1, 3
    rows = tag(params, np.full((1, 1), 2, np.float32), np.array([[3, 0]], np.int32))
    expected = np.exp([0, 2, 3, 0]) / np.exp([0, 2, 3, 0]).sum()
    np.testing.assert_allclose(np.exp(rows)[0], expected, rtol=1e-6)


def test_a_cue_that_stands_twice_counts_twice():
    params = jax.tree.map(np.array, init(1, num_cues=4))
    params["cues"][1, 1] = 0.5
    once, twice = (tag(params, np.zeros((1, 1), np.float32), np.array([cues], np.int32)) for cues in ([1, 0], [1, 1]))
    assert float(twice[0, 1] - twice[0, 0]) == pytest.approx(2 * float(once[0, 1] - once[0, 0]))


def test_gaps_do_not_influence_each_other():
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), init(6, num_cues=8))
    features, cues = rng.normal(size=(5, 6)).astype(np.float32), rng.integers(0, 8, (5, 2)).astype(np.int32)
    together = tag(params, features, cues)
    alone = np.concatenate([tag(params, features[i : i + 1], cues[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(together, alone, atol=1e-5)
