import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import LATENT, VECTOR, latent_network, random_params, vector_rows
from support.tiers import slow_but

from qrag_jax.models.towers.latent import LatentConfig, make_latent_network, order_code
from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
ZERO, ONE = np.zeros(VECTOR, np.float32), np.ones(VECTOR, np.float32)


def in_float64(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def layer_norm(p, x, eps=1e-6):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * p["scale"] + p["bias"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(p, x):
    """Softmax attention, head by head and token by token."""
    out = np.zeros_like(x)
    num_heads, size = p["query"]["bias"].shape
    for head in range(num_heads):
        query, key, value = (
            x @ p[name]["kernel"][:, head] + p[name]["bias"][head] for name in ("query", "key", "value")
        )
        for token in range(len(x)):
            scores = np.exp(key @ query[token] / math.sqrt(size))
            out[token] += (scores / scores.sum()) @ value @ p["out"]["kernel"][head]
    return out + p["out"]["bias"]


def numpy_state(config, params, question, chunks):
    """The state of one environment: pre-norm blocks over [question, chunks + code of their rank]."""
    p = in_float64(params)["state"]["params"]
    tokens = [dense(p["question_in"], question)]
    for rank, chunk in enumerate(chunks):
        half = config.width // 2
        angles = [rank * 100.0 ** (-k / half) for k in range(half)]
        code = np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
        tokens.append(dense(p["chunk_in"], chunk) + code)
    x = np.stack(tokens)
    for index in range(config.num_layers):
        layer = p[f"layer_{index}"]
        x = x + attention(layer["attention"], layer_norm(layer["attention_norm"], x))
        x = x + dense(layer["mlp_out"], gelu(dense(layer["mlp_in"], layer_norm(layer["mlp_norm"], x))))
    return dense(p["out"], layer_norm(p["final_norm"], x[0])) / math.sqrt(config.dim)


def numpy_actions(params, vectors):
    p = in_float64(params)["action"]["params"]
    return dense(p["out"], gelu(dense(p["hidden"], vectors)))


def random_case(num_taken, seed=0):
    rng = np.random.default_rng(seed)
    taken = np.sort(np.stack([rng.permutation(9)[:num_taken] for _ in range(3)]), axis=1).astype(np.int32)
    return vector_rows(rng, 3), vector_rows(rng, 9), jnp.asarray(taken.reshape(3, num_taken))


def test_order_code_by_hand():
    # Width 4: frequencies 1 and 1/10; sines, then cosines.
    expected = [[0, 0, 1, 1], [math.sin(1), math.sin(0.1), math.cos(1), math.cos(0.1)]]
    np.testing.assert_allclose(order_code(2, 4), expected, atol=1e-7)
    assert order_code(0, 4).shape == (0, 4)
    assert order_code(3, 8).dtype == np.float32


def test_ranks_have_distinct_codes():
    code = order_code(200, 8)
    gaps = np.linalg.norm(code[:, None] - code, axis=-1) + 10 * np.eye(200)
    assert gaps.min() > 0.01


@pytest.mark.parametrize("num_taken", slow_but([3], [0, 1, 3], [0]))
def test_states_against_numpy(num_taken):
    config = replace(LATENT, num_layers=2)
    mean, std = np.linspace(-1, 1, VECTOR, dtype=np.float32), np.linspace(0.5, 2, VECTOR, dtype=np.float32)
    network = make_latent_network(config, mean, std)
    params = random_params(network)
    questions, table, taken = random_case(num_taken)
    states = jax.jit(network.states)(params, questions, table, taken)
    plain = lambda rows: (np.asarray(rows, np.float64) - mean) / std  # noqa: E731
    for env in range(3):
        chunks = plain(np.asarray(table.vectors)[np.asarray(taken)[env]])
        expected = numpy_state(config, params, plain(questions.vectors)[env], chunks)
        np.testing.assert_allclose(np.asarray(states)[env], expected, atol=2e-5)


def test_actions_against_numpy():
    network = make_latent_network(LATENT, ZERO, ONE)
    params = random_params(network)
    _, table, _ = random_case(0)
    np.testing.assert_allclose(
        jax.jit(network.actions)(params, table), numpy_actions(params, np.asarray(table.vectors)), atol=2e-5
    )


def test_vectors_are_standardised():
    """Towers over `std * x + mean` with these constants are towers over x without them."""
    mean, std = np.full(VECTOR, 3.0, np.float32), np.linspace(0.5, 2, VECTOR, dtype=np.float32)
    plain, given = make_latent_network(LATENT, ZERO, ONE), make_latent_network(LATENT, mean, std)
    params = random_params(plain)
    questions, table, taken = random_case(2)
    moved = lambda rows: VectorRows(np.asarray(rows.vectors) * std + mean)  # noqa: E731
    found = jax.jit(given.states)(params, moved(questions), moved(table), taken)
    np.testing.assert_allclose(found, jax.jit(plain.states)(params, questions, table, taken), atol=1e-4)
    of_moved, of_plain = (jax.jit(net.actions)(params, rows) for net, rows in ((given, moved(table)), (plain, table)))
    np.testing.assert_allclose(of_moved, of_plain, atol=1e-4)


def test_what_a_state_knows():
    """Its question and chunks in their order; no other environment, no chunk that was not taken."""
    network = latent_network()
    params, compiled = random_params(network), jax.jit(network.states)
    run = lambda *given: np.asarray(compiled(*given))  # noqa: E731
    questions, table, taken = random_case(3)
    states = run(params, questions, table, taken)
    swapped = run(params, questions, table, taken[:, ::-1])
    assert np.abs(states - swapped).max(1).min() > 1e-3
    moved = np.array(questions.vectors)
    moved[1] += 1
    asked = run(params, VectorRows(moved), table, taken)
    np.testing.assert_array_equal(states[0], asked[0])
    assert np.abs(states - asked)[1].max() > 1e-3
    rest = [row for row in range(9) if row not in np.asarray(taken)]
    assert rest
    moved = np.array(table.vectors)
    moved[rest] = 1e3
    np.testing.assert_array_equal(states, run(params, questions, VectorRows(moved), taken))


def test_every_action_is_encoded_alone():
    network = latent_network()
    params = random_params(network)
    _, table, _ = random_case(0)
    actions, some = jax.jit(network.actions), np.array([4, 2])
    whole = np.asarray(actions(params, table))
    np.testing.assert_allclose(actions(params, VectorRows(np.asarray(table.vectors)[some])), whole[some], atol=1e-6)


def test_gradients_are_finite_and_reach_every_parameter():
    network = latent_network()
    params = random_params(network)
    questions, table, taken = random_case(2)

    def total(params):
        states = network.states(params, questions, table, taken)
        return jnp.sum(jnp.square(states)) + jnp.sum(network.actions(params, table))

    gradient = jax.jit(jax.grad(total))(params)
    for path, leaf in jax.tree_util.tree_flatten_with_path(gradient)[0]:
        assert np.isfinite(leaf).all(), path
        # A key's bias shifts all scores of a query alike: softmax does not see it.
        if "['key']['bias']" not in jax.tree_util.keystr(path):
            assert np.abs(leaf).max() > 1e-6, path


@pytest.mark.slow
def test_fresh_parameters_give_moderate_q_values():
    """Q starts at the order of 1 or below, also for wide vectors: the temperature is in units of Q."""
    network = make_latent_network(replace(LATENT, dim=128), ZERO, ONE)
    params = jax.jit(network.init)(jax.random.key(0))
    questions, table, taken = random_case(2)
    q = network.states(params, questions, table, taken) @ network.actions(params, table).T
    assert 0.01 < float(jnp.std(q)) < 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 12, "num_heads": 4}, "width=12 must be a multiple of twice num_heads=4"),
    ],
)
def test_sizes_out_of_range_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        LatentConfig(**options)


def test_a_constant_component_is_refused():
    with pytest.raises(ValueError, match="std must be positive in every component"):
        make_latent_network(LATENT, ZERO, np.array([1, 1, 0, 1, 1, 1], np.float32))


@pytest.mark.slow
def test_fresh_residual_towers_are_the_similarity_of_the_vectors():
    """Q(s, a) = <q, a> / dim of standardised vectors, whatever was taken."""
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=VECTOR).astype(np.float32), rng.uniform(0.5, 2, VECTOR).astype(np.float32)
    network = make_latent_network(replace(LATENT, dim=VECTOR, residual=True), mean, std)
    params = network.init(jax.random.key(0))
    table, questions = vector_rows(rng, 5), vector_rows(rng, 2)
    scaled = [(np.asarray(rows.vectors) - mean) / std for rows in (questions, table)]
    for taken in ([[], []], [[0], [3]]):
        states = network.states(params, questions, table, jnp.asarray(taken, jnp.int32).reshape(2, -1))
        np.testing.assert_allclose(
            states @ network.actions(params, table).T, scaled[0] @ scaled[1].T / VECTOR, atol=1e-5
        )


@pytest.mark.slow
def test_residual_towers_learn_a_correction():
    network = make_latent_network(replace(LATENT, dim=VECTOR, residual=True), ZERO, ONE)
    rng = np.random.default_rng(1)
    table, questions = vector_rows(rng, 3), vector_rows(rng, 1)
    taken = jnp.zeros((1, 1), jnp.int32)

    def q(params):
        return (network.states(params, questions, table, taken) @ network.actions(params, table).T).sum()

    gradient = jax.grad(q)(network.init(jax.random.key(0)))
    for tower in ("state", "action"):
        assert float(jnp.abs(gradient[tower]["params"]["out"]["kernel"]).max()) > 0


def test_residual_towers_of_another_width_are_refused():
    with pytest.raises(UsageError, match=f"model.latent.dim={VECTOR}, the width of the vectors, got 8"):
        make_latent_network(replace(LATENT, dim=8, residual=True), ZERO, ONE)
