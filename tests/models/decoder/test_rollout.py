from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from qrag_jax.models.decoder.network import token_logprobs
from qrag_jax.models.decoder.rollout import answer_logprobs, attend_part, generate_groups, join_parts, read_prompts
from tests.models.decoder.test_network import logprobs_of, make

PROMPTS = ([7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18])
M = 6
read = jax.jit(read_prompts, static_argnames="config")
generate = jax.jit(generate_groups, static_argnames=("config", "max_tokens", "end_ids", "temperature"))


def left_padded(prompts, size=8, filler=0):
    rows = np.full((len(prompts), size), filler, np.int32)
    for row, prompt in zip(rows, prompts, strict=True):
        row[size - len(prompt) :] = prompt
    return jnp.asarray(rows), jnp.asarray([len(prompt) for prompt in prompts], jnp.int32)


@pytest.fixture(scope="module")
def model():
    return make("qwen3")


@pytest.fixture(scope="module")
def draw(model):
    config, params = model
    compiled = jax.jit(partial(generate_groups, config=config, max_tokens=M, end_ids=(3, 4, 5, 6)))

    def run(seeds, prompts=PROMPTS, **more):
        return compiled(params, *left_padded(prompts, **more), jnp.asarray(seeds, jnp.uint32))

    return run


SEEDS = np.arange(8).reshape(2, 4)


def test_logprobs_of_drawn_tokens_are_those_of_training(model, draw):
    config, params = model
    drawn = draw(SEEDS)
    places = [(place, row) for place in range(2) for row in range(4)]
    counts = [int(drawn.lengths[at]) for at in places]
    texts, segments = np.zeros((8, 13), np.int32), np.zeros((8, 13), np.int32)
    for number, (at, count) in enumerate(zip(places, counts, strict=True)):
        text = [*PROMPTS[at[0]], *drawn.tokens[at][:count].tolist()]
        texts[number, : len(text)], segments[number, : len(text)] = text, 1
    found = logprobs_of(params, jnp.asarray(texts), jnp.asarray(segments), config=config)
    for number, (at, count) in enumerate(zip(places, counts, strict=True)):
        start = len(PROMPTS[at[0]])
        np.testing.assert_allclose(drawn.logprobs[at][:count], found[number, start : start + count], atol=1e-5)
        assert not drawn.tokens[at][count:].any()


def test_a_group_that_shares_its_prompt_has_the_logprobs_and_the_gradient_of_single_texts(model):
    config, params = model
    prompts = [*PROMPTS, [5]]  # nothing of a prompt of one token is shared
    answers = np.random.default_rng(0).integers(2, 40, (3, 4, M)).astype(np.int32)
    texts, segments = np.zeros((12, 13), np.int32), np.zeros((12, 13), np.int32)
    starts = np.repeat([len(one) for one in prompts], 4)
    for number in range(12):
        text = [*prompts[number // 4], *answers[number // 4, number % 4]]
        texts[number, : len(text)], segments[number, : len(text)] = text, 1
    places = starts[:, None] + np.arange(M)

    def single(params):
        found = token_logprobs(params, jnp.asarray(texts), jnp.asarray(segments), config=config)
        return jnp.take_along_axis(found, places, axis=1).reshape(answers.shape)

    def shared(params):
        return answer_logprobs(params, *left_padded(prompts, filler=9), jnp.asarray(answers), config=config)

    def found_and_slope(each):
        def loss(params):
            found = each(params)
            return jnp.sin(found).sum(), found

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    (slope, found), (expected_slope, expected) = map(found_and_slope, (shared, single))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-4), slope, expected_slope)


def test_a_group_differs_and_a_row_depends_on_its_seed_alone(draw):
    drawn = draw(SEEDS)
    assert len({tuple(row) for row in drawn.tokens[0].tolist()}) > 1
    turned = draw(SEEDS[::-1, ::-1], prompts=PROMPTS[::-1], filler=9)
    np.testing.assert_array_equal(turned.tokens, drawn.tokens[::-1, ::-1])
    same = draw(np.full((2, 4), 5))
    assert (same.tokens == same.tokens[:, :1]).all()


def test_an_end_token_ends_an_answer_and_is_counted(draw):
    parts = [draw(seeds) for seeds in np.arange(64).reshape(8, 2, 4)]
    drawn = jax.tree.map(lambda *each: np.concatenate(each), *parts)
    tokens, lengths = drawn.tokens, drawn.lengths
    ends = np.isin(tokens, (3, 4, 5, 6))
    expected = np.where(ends.any(-1), ends.argmax(-1) + 1, M)
    np.testing.assert_array_equal(lengths, expected)
    np.testing.assert_array_equal(drawn.finished, ends.any(-1))
    assert set(drawn.finished.ravel().tolist()) == {True, False}


def test_temperature_zero_takes_the_most_likely_token(model):
    config, params = model
    prompts, lengths = left_padded(PROMPTS)
    logits, _ = read(params, prompts, lengths, config=config)
    fixed = {"config": config, "max_tokens": 1, "end_ids": (3,), "temperature": 0.0}
    drawn = generate(params, prompts, lengths, jnp.zeros((2, 1), jnp.uint32), **fixed)
    np.testing.assert_array_equal(drawn.tokens[:, 0, 0], np.asarray(logits).argmax(-1))


def test_a_temperature_draws_from_the_divided_logits(model):
    config, params = model
    prompts, lengths = left_padded(PROMPTS)
    logits, _ = read(params, prompts, lengths, config=config)
    count = 4000
    fixed = {"config": config, "max_tokens": 1, "end_ids": (3,), "temperature": 0.5}
    seeds = jnp.asarray(np.arange(2 * count, dtype=np.uint32).reshape(2, count))
    drawn = np.asarray(generate(params, prompts, lengths, seeds, **fixed).tokens)
    found = [np.bincount(row.ravel(), minlength=50) / count for row in drawn]
    np.testing.assert_allclose(found, softmax(np.asarray(logits) / 0.5, axis=-1), atol=4 * 0.5 / count**0.5)


def test_attention_to_two_parts_is_attention_to_both():
    rng = np.random.default_rng(0)
    query, keys, values = (jnp.asarray(rng.normal(size=(2, 3, heads, 8)), jnp.float32) for heads in (4, 2, 2))

    @jax.jit
    def both_ways(query, keys, values):
        mask = jnp.ones((2, 3, 3), bool)
        whole, _ = attend_part(query, keys, values, mask)
        parts = [attend_part(query, keys[:, cut], values[:, cut], mask[..., cut]) for cut in (slice(1), slice(1, 3))]
        return join_parts(parts), whole

    np.testing.assert_allclose(*both_ways(query, keys, values), atol=1e-6)
