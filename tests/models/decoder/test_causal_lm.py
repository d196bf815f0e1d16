from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import (
    FAMILIES,
    SCALINGS,
    decoder_config,
    numpy_decoder,
    padded_rows,
    random_decoder_params,
    random_rows,
)
from support.networks import np_jit
from support.tiers import slow_but

from qrag_jax.models.decoder.causal_lm import (
    KVCache,
    all_logits,
    attend_grouped,
    extend,
    init_cache,
    init_decoder,
    join_projections,
)
from qrag_jax.types import UsageError

LENGTHS = [9, 1, 5]
STATIC = ("compute_dtype", "rope_length")
# Op by op every test would compile dozens of tiny programs.
run_all = np_jit(all_logits, static_argnums=0, static_argnames=STATIC)
run = np_jit(extend, static_argnums=0, static_argnames=STATIC)
empty_cache = np_jit(init_cache, static_argnums=(0, 1, 2, 3))
VARIANTS = {
    "llama, tied": decoder_config("llama"),
    "llama, biases, one kv head": decoder_config(
        "llama", tie_embeddings=False, qkv_bias=True, output_bias=True, mlp_bias=True, num_kv_heads=1
    ),
    "qwen2": decoder_config("qwen2"),
    "qwen2, tied, a kv head each": decoder_config("qwen2", tie_embeddings=True, num_kv_heads=4),
    "qwen3, wide heads": decoder_config("qwen3"),
    **{kind: decoder_config(rope_scaling=scaling) for kind, scaling in SCALINGS.items()},
}


def read_in_chunks(config, params, tokens, pads, sizes, num_slots=None, dtype="float32", **options):
    """Logits after every chunk, and the cache."""
    cache = empty_cache(config, len(tokens), num_slots or tokens.shape[1], dtype)
    tokens, start, found = np.asarray(tokens), 0, []
    for size in sizes:
        logits, cache = run(config, params, tokens[:, start : start + size], pads, cache, np.int32(start), **options)
        start += size
        found.append(logits)
    return found, cache


@pytest.mark.parametrize("name", slow_but(["llama, biases, one kv head", "qwen3, wide heads"], VARIANTS))
def test_matches_numpy_written_position_by_position(name):
    config = VARIANTS[name]
    params, rows = random_decoder_params(config), random_rows(LENGTHS)
    found = run_all(config, params, *padded_rows(rows))
    assert found.shape == (3, 9, config.vocab_size) and found.dtype == np.float32
    for logits, row in zip(found, rows, strict=True):
        np.testing.assert_allclose(logits[-len(row) :], numpy_decoder(config, params, row), atol=2e-5, rtol=2e-5)


CHUNKS = [(name, (4, 4, 1)) for name in VARIANTS] + [("dynamic", (9,)), ("qwen3, wide heads", (1,) * 9)]
CHUNKS_QUICK = [("llama, tied", (4, 4, 1))]


@pytest.mark.parametrize(("name", "sizes"), slow_but(CHUNKS_QUICK, CHUNKS))
def test_chunks_of_any_sizes_are_one_piece(name, sizes):
    """Also a row whose first chunks are padding only; the cache has more slots than are used."""
    config = VARIANTS[name]
    params = random_decoder_params(config)
    tokens, pads = padded_rows(random_rows(LENGTHS))
    expected = run_all(config, params, tokens, pads)
    found, _ = read_in_chunks(config, params, tokens, pads, sizes, num_slots=16)
    for end, logits in zip(np.cumsum(sizes), found, strict=True):
        real = np.asarray(pads) < end
        np.testing.assert_allclose(logits[real], expected[real, end - 1], atol=2e-5, rtol=2e-5)


@pytest.mark.slow
def test_a_row_does_not_depend_on_its_batch_or_padding():
    config = VARIANTS["qwen3, wide heads"]
    params, rows = random_decoder_params(config), random_rows(LENGTHS)
    (together,), _ = read_in_chunks(config, params, *padded_rows(rows), sizes=(9,))
    for logits, row in zip(together, rows, strict=True):
        for length in [len(row), len(row) + 3]:
            (alone,), _ = read_in_chunks(config, params, *padded_rows([row], length), sizes=(length,))
            np.testing.assert_allclose(alone[0], logits, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("family", slow_but(["qwen3"], FAMILIES))
def test_tokens_at_padding_and_later_slots_have_no_effect_bit_for_bit(family):
    config = decoder_config(family)
    params = random_decoder_params(config)
    tokens, pads = padded_rows(random_rows(LENGTHS))
    tokens, pads = np.asarray(tokens), np.asarray(pads)
    other = np.where(np.arange(9) < pads[:, None], (tokens + 3) % config.vocab_size, tokens)
    old = jax.tree.map(lambda leaf: leaf + 7, empty_cache(config, 3, 12))
    for tail in [slice(0, None), slice(8, None)]:  # all in one piece, and the last token alone
        found = []
        for row, cache in [(tokens, empty_cache(config, 3, 12)), (other, old)]:
            if tail.start:
                _, cache = run(config, params, row[:, : tail.start], pads, cache, np.int32(0))
            found.append(run(config, params, row[:, tail], pads, cache, np.int32(tail.start or 0))[0])
        np.testing.assert_array_equal(*found)


def test_a_token_sees_nothing_after_it():
    config = VARIANTS["qwen2"]
    params = random_decoder_params(config)
    tokens, pads = map(np.asarray, padded_rows(random_rows([9])))
    before, after = (
        run_all(config, params, row, pads) for row in (tokens, tokens + (np.arange(9) == 6).astype(np.int32))
    )
    np.testing.assert_array_equal(before[:, :6], after[:, :6])
    assert (np.abs(before - after)[:, 6:].max(axis=-1) > 1e-3).all()


def test_only_the_slots_of_the_tokens_are_written():
    config = VARIANTS["qwen2"]
    params = random_decoder_params(config)
    rng = np.random.default_rng(0)
    old = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), empty_cache(config, 2, 8))
    tokens, pads = padded_rows(random_rows([3, 2]))
    _, new = run(config, params, tokens, pads, old, np.int32(4))
    for before, after in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
        assert ((np.asarray(before) != after).any(axis=(0, 2)) == [False] * 4 + [True] * 3 + [False]).all()


def test_grouped_attention_by_hand():
    """Heads 0 and 1 read the first head of keys and values, 2 and 3 the second; slot 2 is masked."""
    query = np.asarray([0, 1, 2, 3], np.float32).reshape(1, 4, 1, 1)
    keys = np.log(np.asarray([[1, 2, 9], [3, 1, 9]], np.float32)).reshape(2, 3, 1)
    values = np.asarray([[10, 20, 99], [30, 40, 99]], np.float32).reshape(2, 3, 1)
    mask = np.asarray([True, True, False]).reshape(1, 1, 3)
    found = np_jit(attend_grouped)(query, keys, values, mask).ravel()
    expected = [(10 + 20) / 2, (10 + 2 * 20) / 3, (9 * 30 + 40) / 10, (27 * 30 + 40) / 28]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("family", slow_but(["qwen2"], FAMILIES))
def test_parameters_have_the_names_and_shapes_that_files_are_read_into(family):
    config = decoder_config(family, num_layers=1)
    params = jax.eval_shape(partial(init_decoder, config=config), jax.random.key(0))
    shapes = {"/".join(entry.key for entry in path): leaf.shape for path, leaf in jax.tree.leaves_with_path(params)}
    c = config.head_dim
    expected = {
        "embed/embedding": (13, 16), "norm/scale": (16,), "layer_0/attention_norm/scale": (16,),
        "layer_0/mlp_norm/scale": (16,), "layer_0/query/kernel": (16, 4 * c), "layer_0/key/kernel": (16, 2 * c),
        "layer_0/value/kernel": (16, 2 * c), "layer_0/output/kernel": (4 * c, 16), "layer_0/gate/kernel": (16, 24),
        "layer_0/up/kernel": (16, 24), "layer_0/down/kernel": (24, 16),
    }  # fmt: skip
    if family != "llama":
        expected["head/kernel"] = (16, 13)
    if family == "qwen2":
        expected |= {f"layer_0/{name}/bias": (n * c,) for name, n in [("query", 4), ("key", 2), ("value", 2)]}
    if family == "qwen3":
        expected |= {"layer_0/query_norm/scale": (c,), "layer_0/key_norm/scale": (c,)}
    assert shapes == expected
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}


@pytest.mark.slow
def test_dynamic_frequencies_are_those_of_the_longest_text_or_of_a_given_one():
    config = VARIANTS["dynamic"]
    params, (row,) = random_decoder_params(config), random_rows([9])
    tokens, pads = padded_rows([row])
    for given in [9, 20]:
        found = run_all(config, params, tokens, pads, rope_length=given)[0]
        np.testing.assert_allclose(found, numpy_decoder(config, params, row, given), atol=2e-5, rtol=2e-5)
        (*_, last), _ = read_in_chunks(config, params, tokens, pads, (4, 5), rope_length=given)
        np.testing.assert_allclose(last[0], found[-1], atol=2e-5, rtol=2e-5)
    longest, default = (run_all(config, params, tokens, pads, rope_length=n) for n in (32, None))
    np.testing.assert_array_equal(longest, default)
    assert np.abs(longest[0] - found).max() > 1e-3


@pytest.mark.parametrize("family", slow_but(["qwen3"], FAMILIES))
@pytest.mark.slow
def test_bfloat16_is_near(family):
    config = decoder_config(family)
    params = jax.tree.map(lambda leaf: 0.5 * leaf, random_decoder_params(config))
    tokens, pads = padded_rows(random_rows(LENGTHS))
    expected = run_all(config, params, tokens, pads)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    real = np.arange(9) >= np.asarray(pads)[:, None]
    for given in [params, half]:
        found = run_all(config, given, tokens, pads, compute_dtype="bfloat16")
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found[real], expected[real], atol=0.1 * float(expected.std()))
    (*_, last), cache = read_in_chunks(config, params, tokens, pads, (4, 5), dtype="bfloat16")
    assert cache.keys[0].dtype == jnp.bfloat16 and last.dtype == jnp.float32
    np.testing.assert_allclose(last, expected[:, -1], atol=0.1 * float(expected.std()))


def test_runs_under_strict_promotion():
    config = VARIANTS["llama, biases, one kv head"]
    params = random_decoder_params(config)
    tokens, pads = padded_rows(random_rows(LENGTHS))
    with jax.numpy_dtype_promotion("strict"):
        assert run_all(config, params, tokens, pads).dtype == jnp.float32
        read_in_chunks(config, params, tokens, pads, (9,))


@pytest.mark.slow
def test_gradients_are_finite_beside_padding_and_that_of_one_row_alone():
    config = VARIANTS["qwen3, wide heads"]
    params, rows = random_decoder_params(config), random_rows([9, 2])

    @partial(jax.jit, static_argnums=2)
    def gradient(tokens, pads, row):
        return jax.grad(lambda params: all_logits(config, params, tokens, pads)[row, -1, 3])(params)

    together, alone = gradient(*padded_rows(rows), 1), gradient(*padded_rows(rows[1:]), 0)
    for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", slow_but(["float32"], ["float32", "bfloat16"]))
@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_single_row_is_multiplied_like_the_rows_of_a_batch(tied, dtype):
    """Another product is used for one row on CPU, of a matrix by its first axis and of a tied table by its last."""
    config = decoder_config("qwen2", tie_embeddings=tied)
    params = random_decoder_params(config)

    def first_step(batch):
        tokens, cache = np.full((batch, 1), 3, np.int32), empty_cache(config, batch, 4, dtype)
        return run(config, params, tokens, np.zeros(batch, np.int32), cache, np.int32(0), compute_dtype=dtype)[0]

    row, rows = first_step(1), first_step(2)
    assert row.dtype == jnp.float32
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    np.testing.assert_allclose(row, rows[:1], atol=tolerance, rtol=tolerance)


def test_cosines_are_computed_once_for_all_heads_and_layers():
    config = decoder_config("llama", num_layers=3)
    params, cache = random_decoder_params(config), empty_cache(config, 1, 16)
    arguments = params, np.ones((1, 16), np.int32), np.zeros(1, np.int32), cache, np.int32(0)
    compiled = jax.jit(partial(extend, config)).lower(*arguments).compile().as_text()
    assert compiled.count(" cosine(") == compiled.count(" sine(") == 1


@pytest.mark.parametrize("batch", slow_but([1], [1, 2]))
def test_a_donated_cache_is_updated_in_place(batch):
    """In a loop of steps on the device, nothing as large as one layer's keys is allocated beside the cache."""
    config = decoder_config("llama", num_layers=3, head_dim=16)
    params = random_decoder_params(config)
    cache = init_cache(config, batch, 4096)
    one = cache.keys[0].nbytes

    def steps(cache, token, pads):
        def step(carry):
            slot, token, cache = carry
            logits, cache = extend(config, params, token, pads, cache, slot)
            return slot + 1, jnp.argmax(logits, axis=-1).astype(jnp.int32)[:, None], cache

        return jax.lax.while_loop(lambda carry: carry[0] < 9, step, (jnp.int32(3), token, cache))

    token, pads = np.ones((batch, 1), np.int32), np.zeros(batch, np.int32)
    compiled = jax.jit(steps, donate_argnums=0).lower(cache, token, pads).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= 6 * one
    assert memory.temp_size_in_bytes < one
    slot, _, new = compiled(cache, token, pads)
    assert slot == 9 and all(leaf.is_deleted() for leaf in jax.tree.leaves(cache))
    assert isinstance(new, KVCache) and new.num_slots == 4096


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda config: init_cache(config, 0, 4), "a cache of 0 rows and 4 slots: both must be at least 1"),
        (
            lambda config: read_in_chunks(config, {}, *padded_rows(random_rows([5])), sizes=(5,), num_slots=4),
            "5 tokens a row for a cache of 4 slots: make a larger cache",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(UsageError, match=message):
        call(decoder_config())


@pytest.mark.parametrize(
    "name", slow_but(["qwen3, wide heads"], ["llama, biases, one kv head", "qwen2", "qwen3, wide heads"])
)
def test_joined_projections_are_the_same_decoder(name):
    config = VARIANTS[name]
    params = random_decoder_params(config)
    joined = np_jit(join_projections)(params)
    assert not set(joined["layer_0"]) & {"query", "key", "value", "gate", "up"}
    numbers = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (joined, params)]
    assert numbers[0] == numbers[1]
    tokens, pads = padded_rows(random_rows(LENGTHS))
    both = [run_all(config, each, tokens, pads) for each in (joined, params)]
    np.testing.assert_allclose(*both, atol=2e-5, rtol=2e-5)
    steps = [run(config, each, tokens, pads, empty_cache(config, 3, 9), np.int32(0)) for each in (joined, params)]
    for left, right in zip(*map(jax.tree.leaves, steps), strict=True):
        np.testing.assert_allclose(left, right, atol=2e-5, rtol=2e-5)
