from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import ENCODER, SEP, random_params, text_network, token_rows
from support.tiers import slow_but

from qrag_jax.models.encoder.text_encoder import encode, init_encoder
from qrag_jax.models.towers.q_network import TokenRows
from qrag_jax.models.towers.text import assemble_state, make_text_network
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")
CLS, PAD = 2, 7  # padding with a word's id: reading it would show
assemble = jax.jit(assemble_state, static_argnums=(4, 5))
encode_once = jax.jit(encode, static_argnums=0)


def padded(row, width):
    return row + [PAD] * (width - len(row))


def assembled(question, chunks, question_width=6, chunk_width=6, chunk_window=64):
    """Tokens of the state without their padding."""
    tokens, length = assemble(
        jnp.asarray(padded(question, question_width), jnp.int32),
        jnp.int32(len(question)),
        jnp.asarray([padded(chunk, chunk_width) for chunk in chunks], jnp.int32).reshape(-1, chunk_width),
        jnp.asarray([len(chunk) for chunk in chunks], jnp.int32),
        chunk_window,
        SEP,
    )
    tokens = np.asarray(tokens)
    assert tokens.dtype == np.int32
    assert tokens.shape == (question_width + len(chunks) * min(chunk_width - 1, chunk_window),)
    assert (tokens[int(length) :] == 0).all()
    return tokens[: int(length)].tolist()


def concatenated(question, chunks, chunk_window):
    """Question, then every chunk without its [CLS]; a longer one keeps its first tokens and its [SEP]."""
    tokens = list(question)
    for chunk in chunks:
        body = chunk[1:]
        tokens += body if len(body) <= chunk_window else [*body[: chunk_window - 1], SEP]
    return tokens


def test_a_state_by_hand():
    state = assembled([CLS, 10, 11, SEP], [[CLS, 12, SEP], [CLS, 13, 14, SEP]])
    assert state == [CLS, 10, 11, SEP, 12, SEP, 13, 14, SEP]


def test_a_cut_chunk_keeps_its_separator():
    state = assembled([CLS, 10, SEP], [[CLS, 11, 12, 13, 14, SEP], [CLS, 15, SEP]], chunk_window=3)
    assert state == [CLS, 10, SEP, 11, 12, SEP, 15, SEP]
    # Exactly as long as the window: nothing is cut.
    state = assembled([CLS, 10, SEP], [[CLS, 11, 12, SEP]], chunk_window=3)
    assert state == [CLS, 10, SEP, 11, 12, SEP]


def test_rows_of_an_encoder_without_cls_join_whole():
    rows = [[10, 11, SEP], [12, SEP], [13, 14, SEP]]
    tokens, length = assemble_state(
        jnp.asarray(rows[0]), jnp.int32(3), jnp.asarray([padded(row, 4) for row in rows[1:]]), jnp.asarray([2, 3]),
        64, SEP, num_opening=0,
    )  # fmt: skip
    assert tokens[: int(length)].tolist() == [10, 11, SEP, 12, SEP, 13, 14, SEP]


def test_empty_chunks_and_full_rows():
    # [CLS] [SEP] adds its [SEP]; rows without any padding.
    assert assembled([CLS, SEP], [[CLS, SEP], [CLS, SEP]], 2, 2) == [CLS, SEP, SEP, SEP]
    full = [CLS, 10, 11, 12, 13, SEP]
    assert assembled(full, [full, full]) == full + full[1:] + full[1:]


@pytest.mark.parametrize("chunk_window", [1, 2, 4, 64])
@pytest.mark.parametrize("num_taken", [1, 3])
def test_states_of_random_lengths_are_concatenations(num_taken, chunk_window):
    rng = np.random.default_rng(num_taken)
    for _ in range(20):
        word = lambda low: rng.integers(4, 20, rng.integers(low, 5)).tolist()  # noqa: E731
        question = [CLS, *word(0), SEP]
        chunks = [[CLS, *word(0), SEP] for _ in range(num_taken)]
        found = assembled(question, chunks, chunk_window=chunk_window)
        assert found == concatenated(question, chunks, chunk_window)


def rows_and_taken(num_taken, seed=0):
    rng = np.random.default_rng(seed)
    taken = np.sort(np.stack([rng.permutation(6)[:num_taken] for _ in range(4)]), axis=1)
    return token_rows(rng, 4, 5), token_rows(rng, 6, 6), jnp.asarray(taken.reshape(4, num_taken), jnp.int32)


def row_of(rows, index):
    return np.asarray(rows.tokens)[index, : int(rows.lengths[index])].tolist()


@pytest.mark.parametrize("chunk_window", slow_but([3], [3, 64]))
@pytest.mark.parametrize("num_taken", slow_but([0, 3], [0, 1, 3], []))
def test_states_encode_the_concatenated_tokens(num_taken, chunk_window):
    """The tower's state at step t is the encoding of the plain text, which was never padded."""
    network = text_network(chunk_window=chunk_window, scale=10.0)
    params = random_params(network)
    questions, table, taken = rows_and_taken(num_taken)
    states = jax.jit(network.states)(params, questions, table, taken)
    for env in range(4):
        chunks = [row_of(table, row) for row in np.asarray(taken)[env]]
        tokens = concatenated(row_of(questions, env), chunks, chunk_window)
        # One width for all, so that it compiles once; lengths say what is real.
        plain = jnp.asarray(padded(tokens, 24), jnp.int32)[None]
        expected = encode_once(ENCODER, params["state"], plain, jnp.asarray([len(tokens)], jnp.int32))[0] / 10
        np.testing.assert_allclose(states[env], expected, atol=1e-5)


def test_actions_encode_the_rows_with_their_own_tower():
    network = text_network(scale=4.0)
    params = random_params(network)
    _, table, _ = rows_and_taken(0)
    actions = jax.jit(network.actions)(params, table)
    expected = encode_once(ENCODER, params["action"], table.tokens, table.lengths) / 4
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert (
        np.abs(np.asarray(actions - encode_once(ENCODER, params["state"], table.tokens, table.lengths) / 4)).max()
        > 1e-2
    )


def test_blocks_change_nothing():
    whole = text_network()
    params = random_params(whole)
    questions, table, taken = rows_and_taken(2)
    expected = jax.jit(whole.states)(params, questions, table, taken)
    for tokens_per_block in (1, 33):  # a row each; 2 blocks of 2
        blocks = text_network(tokens_per_block=tokens_per_block)
        np.testing.assert_allclose(jax.jit(blocks.states)(params, questions, table, taken), expected, atol=1e-5)


def test_what_stands_in_the_padding_does_not_matter():
    network = text_network()
    params = random_params(network)
    questions, table, taken = rows_and_taken(2)

    def other_padding(rows):
        places = jnp.arange(rows.tokens.shape[1], dtype=jnp.int32)
        return TokenRows(jnp.where(places < rows.lengths[:, None], rows.tokens, 1), rows.lengths)

    run = jax.jit(network.states)
    np.testing.assert_array_equal(
        run(params, questions, table, taken), run(params, other_padding(questions), other_padding(table), taken)
    )


def test_towers_start_equal_in_buffers_of_their_own():
    params = text_network().init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params["state"], params["action"])
    for state, action in zip(jax.tree.leaves(params["state"]), jax.tree.leaves(params["action"]), strict=True):
        assert state is not action
        assert state.unsafe_buffer_pointer() != action.unsafe_buffer_pointer()


@pytest.mark.slow
def test_towers_take_gradients_of_their_own():
    network = text_network()
    params = random_params(network)
    questions, table, taken = rows_and_taken(2)
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(jnp.square(network.states(params, questions, table, taken)))))(
        params
    )
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient["action"]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient["state"]))
    assert float(jnp.abs(gradient["state"]["word_embeddings"]["embedding"]).max()) > 1e-6


def test_more_chunks_than_the_encoder_has_positions_for_are_refused():
    # 5 tokens of question and 3 x 5 of chunks.
    small = replace(ENCODER, max_positions=19)
    network = make_text_network(small, partial(init_encoder, config=small), SEP)
    params = random_params(network)
    message = (
        "a state of 3 chunks takes up to 20 tokens, the encoder has 19 positions: lower env.num_steps or model.state"
    )
    with pytest.raises(UsageError, match=message):
        jax.eval_shape(network.states, params, *rows_and_taken(3))
    shorter = make_text_network(small, partial(init_encoder, config=small), SEP, chunk_window=4)
    assert jax.eval_shape(shorter.states, params, *rows_and_taken(3)).shape == (4, 8)
