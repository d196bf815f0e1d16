import math
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.encoders import NUM_TYPES, random_params
from support.networks import np_jit
from support.tiers import slow_but

from qrag_jax.models.encoder.text_encoder import (
    FLOAT32,
    Compute,
    Encoder,
    EncoderConfig,
    EncoderLayer,
    encode,
    encode_in_blocks,
    encode_tokens,
    init_encoder,
    normalized,
    num_packed_rows,
    pack_rows,
    pool,
)
from qrag_jax.types import UsageError

CONFIG = EncoderConfig(
    vocab_size=11,
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    intermediate_size=12,
    max_positions=9,
    type_vocab_size=2,
)
FAMILIES = ["bert", "mpnet"]  # mpnet counts positions as roberta does, and xlm-roberta is roberta by another name
PADDING_ID = 1
# Op by op every test would compile dozens of tiny programs.
run = np_jit(encode, static_argnums=0)
run_in_blocks = np_jit(encode_in_blocks, static_argnums=(0, 4))
run_tokens = np_jit(encode_tokens, static_argnums=0)


def config_of(family, **changes):
    return replace(CONFIG, family=family, type_vocab_size=NUM_TYPES[family], **changes)


def random_rows(n, length, seed=0, shortest=1):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, length + 1, n).astype(np.int32)
    return rng.integers(0, CONFIG.vocab_size, (n, length)).astype(np.int32), lengths


def numpy_places(config, tokens):
    """Rows of the position table that the tokens of one row read."""
    if config.family == "bert":
        return range(len(tokens))
    places, count = [], 0
    for token in tokens:
        count += token != PADDING_ID
        places.append(PADDING_ID if token == PADDING_ID else PADDING_ID + count)
    return places


def numpy_bias(p, head, here, there):
    """MPNet's bias of a token at `here` that looks at one `there`, for distances below 12."""
    distance = abs(here - there)
    bucket = distance if distance < 8 else 8
    return p["relative_bias"]["embedding"][bucket + (16 if there > here else 0), head]


def numpy_encoder(config, params, tokens):
    """An encoder for one row without padding, position by position and head by head, in float64."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def dense(layer, name, x):
        return x @ layer[name]["kernel"] + layer[name]["bias"]

    def norm(values, x):
        centred = x - x.mean()
        return centred / math.sqrt((centred**2).mean() + config.layer_norm_eps) * values["scale"] + values["bias"]

    def gelu(x):
        if config.activation == "gelu":
            return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    rows = []
    for place, token in zip(numpy_places(config, tokens), tokens, strict=True):
        total = p["word_embeddings"]["embedding"][token] + p["position_embeddings"]["embedding"][place]
        if config.family != "mpnet":
            total = total + p["type_embeddings"]["embedding"][0]
        rows.append(norm(p["embeddings_norm"], total))
    size = config.hidden_size // config.num_heads
    for index in range(config.num_layers):
        layer = p[f"layer_{index}"]
        attended = []
        for here, row in enumerate(rows):
            heads = []
            for head in range(config.num_heads):
                part = slice(head * size, (head + 1) * size)
                query = dense(layer, "query", row)[part]
                scores = np.array([query @ dense(layer, "key", other)[part] for other in rows]) / math.sqrt(size)
                if config.family == "mpnet":
                    scores += [numpy_bias(p, head, here, there) for there in range(len(rows))]
                weights = np.exp(scores) / np.exp(scores).sum()
                heads.append(
                    sum(w * dense(layer, "value", other)[part] for w, other in zip(weights, rows, strict=True))
                )
            attended.append(
                norm(layer["attention_norm"], row + dense(layer, "attention_output", np.concatenate(heads)))
            )
        rows = []
        for row in attended:
            inner = np.array([gelu(x) for x in dense(layer, "intermediate", row)])
            rows.append(norm(layer["output_norm"], row + dense(layer, "output", inner)))
    return np.stack(rows)


@pytest.mark.parametrize(
    ("family", "activation"),
    slow_but(
        [("bert", "gelu"), ("mpnet", "gelu")],
        [("bert", "gelu"), ("bert", "gelu_tanh"), ("roberta", "gelu"), ("mpnet", "gelu")],
    ),
)
def test_matches_numpy_written_position_by_position(family, activation):
    config = config_of(family, activation=activation, max_positions=12)
    params = random_params(config)
    tokens, lengths = random_rows(4, 12, shortest=9)
    tokens[0, 3] = PADDING_ID  # written out inside of a text
    hidden = run_tokens(config, params, tokens, lengths)
    for row, length in enumerate(lengths):
        expected = numpy_encoder(config, params, tokens[row, :length])
        np.testing.assert_allclose(hidden[row, :length], expected, atol=1e-5)


def test_runs_under_strict_promotion():
    params = random_params(CONFIG)
    tokens, lengths = random_rows(3, 5)
    with jax.numpy_dtype_promotion("strict"):
        assert run_in_blocks(CONFIG, params, tokens, lengths, 5).dtype == np.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_content_of_padding_has_no_effect_bit_for_bit(family):
    config = config_of(family)
    params = random_params(config)
    tokens, lengths = random_rows(5, 8, shortest=2)
    other = np.where(np.arange(8) < lengths[:, None], tokens, (tokens + 3) % CONFIG.vocab_size)
    np.testing.assert_array_equal(run(config, params, tokens, lengths), run(config, params, other, lengths))


@pytest.mark.parametrize("family", slow_but(["mpnet"], FAMILIES))
def test_amount_of_padding_and_neighbours_have_no_effect(family):
    config = config_of(family)
    params = random_params(config)
    tokens, lengths = random_rows(3, 6)[0], np.array([6, 3, 3], np.int32)
    together = run(config, params, tokens, lengths)
    for row, length in enumerate(lengths):
        alone = run(config, params, tokens[row : row + 1, :length], lengths[row : row + 1])
        np.testing.assert_allclose(together[row], alone[0], atol=1e-6)


def test_first_layers_are_those_of_the_whole_encoder():
    params = random_params(CONFIG)
    tokens, lengths = map(jnp.asarray, random_rows(3, 6))
    valid = (jnp.arange(6) < lengths[:, None])[:, None]

    @jax.jit
    def first_layer(params):
        encoder = Encoder(CONFIG).bind({"params": params})
        embedded = encoder.embed(tokens, encoder.places(tokens))
        return EncoderLayer(CONFIG).apply({"params": params["layer_0"]}, embedded, valid)

    one = replace(CONFIG, num_layers=1)
    shallow = {name: value for name, value in params.items() if name != "layer_1"}
    hidden = run_tokens(one, shallow, tokens, lengths)
    np.testing.assert_allclose(hidden, first_layer(params), atol=1e-6)


@pytest.mark.parametrize(
    ("n", "tokens_per_block"),
    slow_but([(0, 12), (40, 64)], [(0, 12), (1, 12), (40, 64), (40, 128), (3, 1), (9, 1024)], [(3, 1)]),
)
def test_blocks_give_the_values_of_one_batch(n, tokens_per_block):
    params = random_params(CONFIG)
    tokens, lengths = random_rows(n, 6)
    blocks = run_in_blocks(CONFIG, params, tokens, lengths, tokens_per_block)
    assert blocks.shape == (n, CONFIG.hidden_size)
    np.testing.assert_allclose(blocks, run(CONFIG, params, tokens, lengths), atol=1e-6)


@pytest.mark.parametrize("family", slow_but(["mpnet"], FAMILIES))
def test_packed_rows_give_the_values_of_one_batch(family):
    # 40 places: two and more rows share one of 80, blocks of two of them, the last blocks are skipped
    config = config_of(family, num_layers=1, max_positions=40)
    params = random_params(config)
    tokens, lengths = random_rows(12, 40)
    blocks = run_in_blocks(config, params, tokens, lengths, 160)
    np.testing.assert_allclose(blocks, run(config, params, tokens, lengths), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "pooling"), slow_but([("mpnet", "mean")], [("bert", "mean"), ("bert", "cls"), ("mpnet", "mean")])
)
@pytest.mark.parametrize("compute", [pytest.param(FLOAT32, marks=pytest.mark.slow), Compute(remat=True)])
def test_blocks_give_the_gradient_of_one_batch(family, pooling, compute):
    """Three blocks of two packed rows, of which the last holds no token."""
    config = config_of(family, num_layers=1, max_positions=40, pooling=pooling)
    params = random_params(config)
    tokens, _ = random_rows(12, 40)
    lengths = np.asarray([40, 3, 0, 37, 12, 25, 40, 9, 0, 0, 0, 0], np.int32)
    assert np_jit(pack_rows, static_argnums=1)(lengths, 40).num_used <= 4 < num_packed_rows(12, 40)
    target = np.random.default_rng(1).normal(size=(12, CONFIG.hidden_size)).astype(np.float32)

    def loss(params, function, *arguments):
        rows = jnp.asarray(tokens), jnp.asarray(lengths)
        return jnp.mean(jnp.square(function(config, params, *rows, *arguments) - target))

    gradient = np_jit(jax.grad(loss), static_argnums=(1, 2, 3))
    whole = gradient(params, encode)
    blocks = gradient(params, encode_in_blocks, 160, compute)
    chex.assert_trees_all_close(blocks, whole, atol=1e-6)
    assert all(np.any(leaf) for name, leaf in blocks["layer_0"]["output"].items())


@pytest.mark.parametrize(("pooling", "normalize"), slow_but([("mean", True)], [("mean", True), ("cls", False)]))
def test_row_of_padding_is_zero_and_its_gradient_finite(pooling, normalize):
    config = replace(CONFIG, num_layers=1, pooling=pooling, normalize=normalize)
    params = random_params(config)
    tokens, _ = random_rows(3, 6)
    lengths = np.asarray([6, 0, 2], np.int32)
    vectors = run(config, params, tokens, lengths)
    np.testing.assert_array_equal(vectors[1], np.zeros(8, np.float32))
    assert np.all(np.any(vectors[[0, 2]] != 0, axis=1))
    weights = np.arange(24, dtype=np.float32).reshape(3, 8) / 24
    gradient = np_jit(jax.grad(lambda params, *rows: jnp.sum(encode(config, params, *rows[:2]) * rows[2])))
    gradients = gradient(params, tokens, lengths, weights)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    without = gradient(params, tokens, lengths, weights * np.array([[1], [0], [1]], np.float32))
    chex.assert_trees_all_close(gradients, without, atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("mean", [[2.0, 4.0], [7.0, 0.0], [0.0, 0.0]]), ("cls", [[3.0, 4.0], [7.0, 0.0], [0.0, 0.0]])],
)
def test_pooling_by_hand(pooling, expected):
    hidden = jnp.asarray([[[3.0, 4.0], [1.0, 4.0], [7.0, 0.0], [100.0, 100.0]]])
    members = jnp.asarray([[[True, True, False, False], [False, False, True, False], [False] * 4]])
    np.testing.assert_allclose(np_jit(pool, static_argnums=2)(hidden, members, pooling)[0], expected, atol=1e-7)


def test_normalized_by_hand():
    np.testing.assert_allclose(
        np_jit(normalized)(np.array([[3, 4], [0, 0]], np.float32)), [[0.6, 0.8], [0.0, 0.0]], atol=1e-7
    )


@pytest.mark.parametrize("family", NUM_TYPES)
def test_rows_beyond_the_position_table_are_refused(family):
    tokens, lengths = random_rows(2, 10)
    with pytest.raises(UsageError, match="rows of 10 tokens, but the encoder has 9 positions"):
        run(config_of(family), random_params(config_of(family)), tokens, lengths)


@pytest.mark.parametrize("family", NUM_TYPES)
def test_parameters_of_a_family(family):
    params = random_params(config_of(family))
    assert ("type_embeddings" in params) == (family != "mpnet") and ("relative_bias" in params) == (family == "mpnet")
    assert len(params["position_embeddings"]["embedding"]) == (9 if family == "bert" else 11)


# --- precision and memory


COMPUTES = [Compute("bfloat16"), Compute(remat=True), Compute("bfloat16", remat=True)]


@pytest.mark.slow
@pytest.mark.parametrize("compute", COMPUTES)
def test_how_it_computes_changes_rounding_at_most(compute):
    """Vectors and gradients are float32, near those of float32 layers; so are those of recomputed layers."""
    config = replace(CONFIG, num_layers=2, pooling="mean", normalize=False)
    params = init_encoder(jax.random.key(0), config)
    rng = np.random.default_rng(0)
    tokens, lengths = rng.integers(1, config.vocab_size, (6, 7)), np.array([7, 3, 5, 0, 1, 7])

    def loss(params, compute):
        vectors = encode_in_blocks(config, params, jnp.asarray(tokens), jnp.asarray(lengths), 16, compute)
        return jnp.square(vectors).sum(), vectors

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    ((_, expected), wanted), ((_, vectors), found) = gradient(params, FLOAT32), gradient(params, compute)
    assert vectors.dtype == jnp.float32 and (vectors[3] == 0).all()
    assert {leaf.dtype.name for leaf in jax.tree.leaves(found)} == {"float32"}
    atol = 0.05 if compute.dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(vectors, expected, atol=atol)
    assert compute.dtype == "float32" or (vectors != expected).any()
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(wanted))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol * largest), found, wanted)


@pytest.mark.slow
def test_recomputed_layers_are_kept_apart():
    """A barrier for every layer, or the compiler may take the first computation for the second and save no memory."""
    config = replace(CONFIG, num_layers=3)
    params = init_encoder(jax.random.key(0), config)

    def barriers(compute):
        def loss(params):
            return encode_in_blocks(config, params, jnp.ones((2, 4), jnp.int32), jnp.array([4, 2]), 64, compute).sum()

        return jax.jit(jax.grad(loss)).lower(params).as_text().count("optimization_barrier")

    assert barriers(Compute(remat=True)) >= barriers(FLOAT32) + 3
