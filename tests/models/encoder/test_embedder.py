from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.networks import np_jit
from support.tiers import examples

import qrag_jax.models.encoder.embedder as embedder_module
from qrag_jax.models.encoder.config import Prompts
from qrag_jax.models.encoder.embedder import make_embedder, plan_blocks
from qrag_jax.models.encoder.text_encoder import EncoderConfig, encode, encode_tokens, init_encoder
from qrag_jax.models.encoder.tokenizer import train_word_level
from qrag_jax.models.encoder.weights import LoadedEncoder
from qrag_jax.types import InputError, TextCounts, UsageError
from qrag_jax.unit_rows import unit_rows

WORDS = "mary john went took the milk to kitchen hall garden".split()


@pytest.fixture(scope="module")
def loaded():
    tokenizer = train_word_level([" ".join(WORDS)])
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8, max_positions=40
    )
    shapes = jax.eval_shape(partial(init_encoder, config=config), jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0.2, 0.4, leaf.shape), leaf.dtype), shapes)
    return LoadedEncoder(config, params, tokenizer)


@pytest.fixture(scope="module")
def embed(loaded):
    return make_embedder(loaded, window=20, tokens_per_block=64)


def random_texts(num_words, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, count)) for count in num_words]


def reference(loaded, texts, window):
    table = loaded.tokenizer.encode(texts, window)
    return np_jit(encode, static_argnums=0)(loaded.config, loaded.params, table.tokens, table.lengths)


def test_vectors_stand_in_the_order_of_the_texts(loaded, embed):
    texts = random_texts([3, 15, 1, 7, 18, 2, 2, 9, 4, 5, 6, 11])
    vectors = embed(texts)
    assert vectors.shape == (12, 8) and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, reference(loaded, texts, 20), atol=1e-5)
    np.testing.assert_allclose(embed(texts[3:4]), vectors[3:4], atol=1e-6)


def test_empty_text_and_no_text(loaded, embed):
    vectors = embed(["", "mary", ""])
    np.testing.assert_allclose(vectors, reference(loaded, ["", "mary", ""], 20), atol=1e-6)
    assert np.any(vectors[0] != 0) and np.array_equal(vectors[0], vectors[2])
    assert embed([]).shape == (0, 8)


def test_nothing_is_compiled_for_an_example(loaded, monkeypatch):
    # Buckets of 8, 16 and 20 tokens, each with a full block and a small one.
    counted = jax.jit(chex.assert_max_traces(encode, n=6), static_argnums=(0, 4))
    monkeypatch.setattr(embedder_module, "_compiled", {"encode": counted}.__getitem__)
    embed = make_embedder(loaded, window=20, tokens_per_block=144)
    assert embed.lengths == (8, 16, 20)
    rng = np.random.default_rng(1)
    for seed in range(12):
        embed(random_texts(rng.integers(0, 19, rng.integers(1, 30)), seed))


def test_texts_beyond_the_window_are_counted(loaded):
    embed = make_embedder(loaded, window=10, tokens_per_block=64)
    texts = random_texts([3, 12, 9])
    np.testing.assert_allclose(embed(texts), reference(loaded, texts, 10), atol=1e-5)
    assert embed.counts == TextCounts(num_texts=3, num_tokens=5 + 10 + 10, num_texts_cut=2)
    embed(["mary"])
    assert embed.counts == TextCounts(num_texts=4, num_tokens=28, num_texts_cut=2)


def test_texts_beyond_the_window_are_refused_on_demand(loaded):
    embed = make_embedder(loaded, window=10, long_texts="error")
    assert embed(["mary " * 8]).shape == (1, 8)
    with pytest.raises(InputError, match=r"text 'mary mary.*' has 11 tokens .* the window has 10"):
        embed(["mary", "mary " * 9])


def test_progress_counts_to_the_end(embed):
    seen = []
    embed(random_texts([3] * 40), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (40, 40) and len(seen) > 1
    assert seen == sorted(set(seen))


def test_token_vectors_are_those_of_the_last_layer(loaded, embed):
    (text,) = random_texts([6])
    vectors, offsets = embed.tokens(text)
    table = loaded.tokenizer.encode([text], 20)
    hidden = np_jit(encode_tokens, static_argnums=0)(loaded.config, loaded.params, table.tokens, table.lengths)
    np.testing.assert_allclose(vectors, hidden[0, 1:7], atol=1e-5)
    assert vectors.dtype == np.float32 and offsets.dtype == np.int64
    assert [text[start:end] for start, end in offsets] == text.split()


def test_token_vectors_of_a_long_text_come_window_by_window(loaded):
    embed = make_embedder(loaded, window=7, tokens_per_block=16)
    (text,) = random_texts([13])
    vectors, offsets = embed.tokens(text)
    assert [text[start:end] for start, end in offsets] == text.split()
    words = text.split()
    parts = [embed.tokens(" ".join(words[start : start + 5]))[0] for start in (0, 5, 10)]
    np.testing.assert_allclose(vectors, np.concatenate(parts), atol=1e-5)
    assert embed.counts.num_texts_cut == 0 and embed.counts.num_tokens == 2 * (13 + 6)


def test_token_vectors_of_an_empty_text(embed):
    vectors, offsets = embed.tokens("")
    assert vectors.shape == (0, 8) and offsets.shape == (0, 2)


def test_vectors_and_tokens_come_from_one_pass(loaded, embed):
    texts = random_texts([6, 0, 3, 11])
    vectors, codes = embed.with_tokens(texts)
    np.testing.assert_allclose(vectors, embed(texts), atol=1e-6)
    assert [code.shape for code in codes] == [(6, 8), (0, 8), (3, 8), (11, 8)] and embed.token_dim == 8
    for text, code in zip(texts, codes, strict=True):
        exact, _ = embed.tokens(text)
        assert code.dtype == np.int8 and np.abs(code).max(initial=127) == 127
        np.testing.assert_allclose(embed.question_tokens(text), unit_rows(exact), atol=1e-6)
        # s = 127 / max |x|: |code - s x| <= sqrt(d) / 2, and |u / |u| - v / |v|| <= 2 |u - v| / |v|.
        scale = 127 / np.abs(exact).max(axis=1, keepdims=True, initial=1e-9)
        bound = np.sqrt(8) / np.linalg.norm(scale * exact, axis=1)
        lost = np.linalg.norm(unit_rows(code.astype(np.float32)) - unit_rows(exact), axis=1)
        assert (lost <= bound).all() and (bound <= np.sqrt(8) / 127 + 1e-6).all()


def test_tokens_beyond_the_window_and_of_prompts_are_left_out(loaded):
    prompts = Prompts("mary went ", "the hall: ")
    embed = make_embedder(replace(loaded, prompts=prompts), window=12, tokens_per_block=64)
    (text,) = random_texts([20])
    _, (codes,) = embed.with_tokens([text])
    assert len(codes) == 12 - embed.num_added and len(embed.question_tokens("john took milk")) == 3
    plain = make_embedder(loaded, window=12, tokens_per_block=64)
    assert len(plain.with_tokens([text])[1][0]) == 10


def test_count_tokens(embed):
    assert embed.count_tokens("Mary went  home") == 3 and embed.count_tokens("") == 0


def test_unknown_tokens_of_a_question_are_not_compared(embed):
    vectors, _ = embed.tokens("mary zebra took")
    np.testing.assert_allclose(embed.question_tokens("mary zebra took"), unit_rows(vectors[[0, 2]]), atol=1e-5)
    assert embed.question_tokens("zebra").shape == (0, 8)


def test_prompts_stand_before_questions_and_documents(loaded, embed):
    asks = make_embedder(loaded, window=20, prompts=Prompts("mary took: ", "the garden: "))
    texts = random_texts([3, 1, 12])
    np.testing.assert_allclose(asks.questions(texts), embed([f"mary took: {text}" for text in texts]), atol=1e-6)
    np.testing.assert_allclose(asks(texts), embed([f"the garden: {text}" for text in texts]), atol=1e-6)
    vectors, offsets = asks.tokens(texts[0])  # as the documents are read, but of the text's own tokens
    together, _ = embed.tokens(f"the garden: {texts[0]}")
    np.testing.assert_allclose(vectors, together[-3:], atol=1e-5)
    assert [texts[0][start:end] for start, end in offsets] == texts[0].split()
    assert asks.fingerprint != embed.fingerprint


@examples(100)
@given(
    lengths=st.lists(st.integers(2, 40), max_size=80),
    tokens_per_block=st.sampled_from([1, 64, 1000]),
)
def test_plan_puts_every_row_in_one_block_of_few_shapes(lengths, tokens_per_block):
    lengths = np.asarray(lengths, np.int32)
    blocks = plan_blocks(lengths, [8, 16, 40], tokens_per_block)
    taken = np.concatenate([rows for rows, _, _ in blocks]) if blocks else np.zeros(0, int)
    assert sorted(taken.tolist()) == list(range(len(lengths)))
    for rows, length, num_rows in blocks:
        assert 0 < len(rows) <= num_rows and lengths[rows].max() <= length
        assert num_rows == 1 or num_rows * length <= tokens_per_block
    assert len({(length, num_rows) for _, length, num_rows in blocks}) <= 6


def test_plan_by_hand():
    # Five rows of at most 8 tokens in blocks of 4 rows, the fifth in a small block; one row of 64 alone.
    blocks = plan_blocks(np.asarray([5, 64, 8, 3, 7, 6]), [8, 64], 32)
    assert [(rows.tolist(), length, num_rows) for rows, length, num_rows in blocks] == [
        ([3, 0, 5, 4], 8, 4),
        ([2], 8, 1),
        ([1], 64, 1),
    ]


def test_rows_that_fill_no_block_wait_for_the_next_length():
    # Two rows of 8 alone: two small blocks cost 2 x (8 + 40); beside rows of 16 they cost 2 x 16.
    blocks = plan_blocks(np.asarray([8, 16, 8, 15]), [8, 16, 40], 64)
    assert [(rows.tolist(), length, num_rows) for rows, length, num_rows in blocks] == [([0, 2, 3, 1], 16, 4)]
    # Beside a row of 300 they would cost 2 x 300.
    blocks = plan_blocks(np.asarray([8, 300, 8]), [8, 300], 64)
    assert [(rows.tolist(), length, num_rows) for rows, length, num_rows in blocks] == [
        ([0], 8, 1),
        ([2], 8, 1),
        ([1], 300, 1),
    ]


def test_default_window(loaded):
    assert make_embedder(loaded).window == 40
    assert make_embedder(replace(loaded, max_seq_length=16)).window == 16
    assert make_embedder(replace(loaded, max_seq_length=64)).window == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 41}, "window 41: choose 3 to 40, the positions of the encoder"),
        ({"window": 2}, "window 2: choose 3 to 40"),
        ({"tokens_per_block": 0}, "tokens_per_block 0: a positive number is needed"),
        ({"window": 5, "prompts": Prompts(query="mary took the")}, "query_prompt 'mary took the': .*window"),
    ],
)
def test_wrong_arguments_are_refused(loaded, arguments, message):
    with pytest.raises(UsageError, match=message):
        make_embedder(loaded, **arguments)
