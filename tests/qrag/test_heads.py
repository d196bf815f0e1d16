from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import linear_network, make_batch, np_jit, random_params

from qrag_jax.qrag import env as process
from qrag_jax.qrag import heads
from qrag_jax.qrag.beam import beam_search
from qrag_jax.qrag.env import EnvConfig, replay_q_values, rollout
from qrag_jax.qrag.heads import SCALES
from qrag_jax.qrag.policy import make_greedy
from qrag_jax.qrag.retriever import _fresh_params
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
stop_q_values = np_jit(heads.stop_q_values, static_argnums=2)
ranking_factor, link_inputs, coverage_inputs, link_q_values = map(
    np_jit, (heads.ranking_factor, heads.link_inputs, heads.coverage_inputs, heads.link_q_values)
)
fresh_heads = np_jit(heads.fresh_heads, static_argnums=(0, 1, 2, 3))
fresh_links = np_jit(heads.fresh_links, static_argnums=(1, 2, 3))
fresh_params = np_jit(_fresh_params, static_argnums=(0, 1))


@partial(np_jit, static_argnames="env")
def q_of(params, batch, taken, env):
    """Q of all actions under linear towers that positions do not turn."""
    rows = linear_network().actions(params, batch.table)[batch.chunks]
    return process.q_values(linear_network(), params, rows, batch, taken, None, env)


@np_jit
def states_of(params, batch, taken):
    rows = jnp.take_along_axis(batch.chunks, taken, axis=1)
    return linear_network().states(params, batch.questions, batch.table, rows)


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
    stop = fresh_heads(4, 1, "affine", None)["stop"] | {"vector": np.ones(4, np.float32)}
    gradient = np_jit(jax.grad(lambda s, stop: heads.stop_q_values(stop, s, 1).sum()))(
        np.zeros((1, 4), np.float32), stop
    )
    assert np.isfinite(gradient).all()


def test_the_factor_starts_where_it_is_told_and_cannot_run_away():
    assert float(ranking_factor(fresh_heads(4, 1, None, 20.0)["ranking"])) == pytest.approx(20)
    for far, bound in ((-1e6, SCALES[0]), (1e6, SCALES[1])):
        assert float(ranking_factor({"log_scale": np.float32(far)})) == pytest.approx(bound, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {}),
        ({"stop": True, "reward": "at_end"}, {"stop": (8,)}),
        ({"ranking_scale": 5.0}, {"ranking/log_scale": ()}),
        (
            {"links": True, "link_width": 5, "num_q_heads": 2},
            {"links/linear": (16, 2), "links/hidden": (16, 5), "links/bias": (5,), "links/out": (5, 2)},
        ),
        (
            {"links": True, "coverage": True, "link_width": 5},
            {"links/linear": (19, 1), "links/hidden": (19, 5), "links/bias": (5,), "links/out": (5, 1)},
        ),
        (
            {"links": True, "coverage": True, "bridges": True, "link_width": 5},
            {"links/linear": (25, 1), "links/hidden": (25, 5), "links/bias": (5,), "links/out": (5, 1)},
        ),
        (
            {"stop": True, "reward": "at_end", "stop_head": "affine", "num_q_heads": 2},
            {"stop/vector": (8,), "stop/scale": (2,), "stop/bias": (2,)},
        ),
    ],
)
def test_parameters_that_join_those_of_the_towers(options, shapes):
    network = linear_network()
    params = fresh_params(network, EnvConfig(**options), jax.random.key(0))
    paths = jax.tree_util.tree_leaves_with_path({k: v for k, v in params.items() if k not in ("state", "action")})
    assert {jax.tree_util.keystr(p, simple=True, separator="/"): x.shape for p, x in paths} == shapes


def test_an_affine_stop_is_the_last_column_of_q():
    env = EnvConfig(num_steps=3, reward="at_end", stop=True, stop_head="affine", num_q_heads=2, positions="none")
    batch, stop = make_batch(), fresh_heads(8, 2, "affine", None)["stop"]
    stop |= {"vector": np.arange(8, dtype=np.float32), "bias": np.array([0.5, -0.5], np.float32)}
    params, taken = random_params(linear_network()) | {"stop": stop}, np.array([[0], [1], [0], [2]], np.int32)
    q = q_of(params, batch, taken, env)
    np.testing.assert_allclose(q[..., -1], stop_q_values(stop, states_of(params, batch, taken), 2), rtol=1e-6)


LINKED = EnvConfig(num_steps=3, links=True, link_width=3, num_q_heads=2, positions="none")


def random_links(batch, seed=0):
    """Links of three kinds between random texts, and five words that they may share."""
    size, chunks = batch.chunks.shape
    rng = np.random.default_rng(seed)
    links = rng.random((size, 1 + chunks, chunks, 3)).astype(np.float32)
    words = (rng.random((size, 1 + chunks, 5)) * (rng.random((size, 1 + chunks, 5)) > 0.5)).astype(np.float32)
    return batch.replace(links=jnp.asarray(links), words=jnp.asarray(words))


def drawn_links(seed=3, num_inputs=6):
    fresh = fresh_links(jax.random.key(0), num_inputs, 3, 2)
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.normal(size=x.shape), jnp.float32) for name, x in fresh.items()}


def test_inputs_are_the_links_of_the_question_and_the_largest_of_the_taken():
    links = np.zeros((1, 4, 3, 2), np.float32)
    links[0, 0] = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]  # of the question
    links[0, 1, 2] = [0.7, 0.1]  # of chunk 0 with chunk 2
    links[0, 2, 2] = [0.2, 0.9]  # of chunk 1 with chunk 2
    links[0, 3, 0] = 1.0
    none = link_inputs(links, np.zeros((1, 0), np.int32))
    np.testing.assert_allclose(none[0], [[0.1, 0.2, 0, 0], [0.3, 0.4, 0, 0], [0.5, 0.6, 0, 0]])
    two = link_inputs(links, np.array([[0, 1]], np.int32))
    np.testing.assert_allclose(two[0], [[0.1, 0.2, 0, 0], [0.3, 0.4, 0, 0], [0.5, 0.6, 0.7, 0.9]])


def test_q_of_links_by_hand():
    params = {
        "linear": jnp.array([[2.0], [0.0]]),
        "hidden": jnp.array([[0.0, 1.0], [100.0, 0.0]]),
        "bias": jnp.array([0.0, 99.0]),
        "out": jnp.array([[0.1], [0.01]]),
    }
    # gelu leaves what is far above 0 as it is: 2 * 0.5 + 0.1 * 100 * 0.25 + 0.01 * (0.5 + 99)
    q = link_q_values(params, jnp.array([[[0.5, 0.25], [0.0, 0.5]]]))
    np.testing.assert_allclose(q, [[[1 + 2.5 + 0.995, 5 + 0.99]]], rtol=1e-6)


def test_links_are_worth_nothing_at_first_and_then_what_their_head_says():
    batch, taken = random_links(make_batch()), np.array([[0], [1], [0], [2]], np.int32)
    params = random_params(linear_network())
    q = lambda links, env=LINKED: q_of(params | {"links": links}, batch, taken, env)  # noqa: E731
    without = q(None, replace(LINKED, links=False))
    np.testing.assert_array_equal(q(fresh_links(jax.random.key(0), 6, 3, 2)), without)
    added = link_q_values(drawn_links(), link_inputs(batch.links, taken))
    assert np.abs(added).min() > 0
    np.testing.assert_allclose(q(drawn_links()) - without, added, rtol=1e-4, atol=1e-4)


def test_what_a_state_covers_by_hand():
    words = np.zeros((1, 4, 3), np.float32)
    words[0, 0] = [0.6, 0.0, 0.2]  # the question: the last fifth of it is in no chunk
    words[0, 1] = [0.5, 0.5, 0.0]
    words[0, 2] = [0.0, 0.7, 0.0]  # a chunk without a word of the question
    words[0, 3] = [0.0, 0.4, 0.6]
    none = coverage_inputs(words, np.zeros((1, 0), np.int32))
    np.testing.assert_allclose(none[0], [[0.5, 0.6, 1.0], [0.0, 0.0, 0.7], [0.6, 0.2, 1.0]], rtol=1e-6)
    # Chunk 0 has the first two words: all of chunk 1, the first of the question.
    one = coverage_inputs(words, np.array([[0]], np.int32))
    np.testing.assert_allclose(one[0, 1:], [[0.7, 0.0, 0.7], [1.0, 0.2, 1.0]], rtol=1e-6)
    # All of chunk 0's words are those of the question and chunk 1 together.
    np.testing.assert_allclose(coverage_inputs(words, np.array([[1]], np.int32))[0, 0], [1, 0.6, 1], rtol=1e-6)


def test_coverage_of_a_state_is_read_beside_its_links():
    batch, env = random_links(make_batch()), replace(LINKED, coverage=True)
    taken = np.array([[0, 1], [1, 2], [0, 2], [2, 3]], np.int32)
    params = random_params(linear_network()) | {"links": drawn_links(num_inputs=9)}
    q = q_of(params, batch, taken, env)
    inputs = np.concatenate([link_inputs(batch.links, taken), coverage_inputs(batch.words, taken)], axis=-1)
    without = q_of(params, batch, taken, replace(LINKED, links=False))
    np.testing.assert_allclose(q - without, link_q_values(params["links"], inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("coverage", [False, True])
def test_chosen_pairs_encoded_again_have_the_same_links(coverage):
    env = replace(LINKED, coverage=coverage)
    network, batch = linear_network(), random_links(make_batch())
    params = random_params(network) | {"links": drawn_links(num_inputs=9 if coverage else 6)}

    @jax.jit
    def run(params):
        played = rollout(network, params, batch, jax.random.key(0), make_greedy(), env)
        plans = [beam_search(network, params, batch, env, width).actions for width in (1, 2)]
        return played, replay_q_values(network, params, batch, played, env), plans

    played, again, (one_beam, two_beams) = run(params)
    np.testing.assert_allclose(again, played.q_values, rtol=1e-5, atol=1e-5)
    assert two_beams.shape == played.actions.shape
    np.testing.assert_array_equal(one_beam, played.actions)  # the greedy search here too


def test_a_run_with_links_starts_with_the_towers_of_one_without():
    network = linear_network()
    with_links, without = (fresh_params(network, EnvConfig(links=on), jax.random.key(7)) for on in (True, False))
    assert set(with_links) - set(without) == {"links"}
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, {k: with_links[k] for k in without}, without)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": True}, "env.coverage=true adds to what env.links=true reads: set both, or neither"),
        ({"bridges": True}, "env.bridges=true adds to what env.links=true reads: set both, or neither"),
        ({"stop_head": "affine"}, "env.stop_head=affine works only with env.stop=true"),
        ({"ranking_scale": 1e9}, r"ranking_scale 1000000000.0: must lie in \[0.01, 1000\], or null"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(UsageError, match=message):
        EnvConfig(**options)
