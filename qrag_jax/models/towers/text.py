"""Text towers (the paper's): two copies of one text encoder, one reads the state's tokens, the other the chunk's.

The state's text is assembled on the device from token tables: `[CLS] question [SEP] chunk [SEP] chunk [SEP] ..`, chunks
in document order, packed without gaps, so a step costs no tokenisation and no host round trip. Every family of encoders
gets one [SEP] between texts (RoBERTa's own convention for two texts is two).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from qrag_jax.models.encoder.text_encoder import FLOAT32, Compute, EncoderConfig, encode_in_blocks
from qrag_jax.models.towers.q_network import Network, PyTree, TokenRows
from qrag_jax.sharding import map_rows
from qrag_jax.types import UsageError


def assemble_state(
    question: Int[Array, " question_width"],
    question_length: Int[Array, ""],
    chunks: Int[Array, "taken chunk_width"],
    chunk_lengths: Int[Array, " taken"],
    chunk_window: int,
    sep_id: int,
    num_opening: int = 1,
) -> tuple[Int[Array, " state_width"], Int[Array, ""]]:
    """Packs one state's tokens: the question's row, then every chunk's row without its [CLS].

    Args:
        question: `[CLS] question [SEP]`, padded.
        chunks: `[CLS] chunk [SEP]` of the taken chunks in document order, padded.
        chunk_window: most tokens that one chunk adds; the tail of a longer chunk is cut, its [SEP] stays.
        sep_id: id of [SEP].
        num_opening: tokens that open a row: 1, or 0 for an encoder without [CLS].

    Returns:
        Tokens [question_width + taken * width], where width = min(chunk_width - num_opening, chunk_window), and their
        number.
    """
    width = min(chunks.shape[1] - num_opening, chunk_window)
    bodies = chunks[:, num_opening : num_opening + width]
    body_lengths = jnp.minimum(chunk_lengths - num_opening, width)
    last = jnp.arange(width, dtype=body_lengths.dtype) == body_lengths[:, None] - 1
    bodies = jnp.where(last, sep_id, bodies)
    starts = question_length + jnp.cumsum(body_lengths) - body_lengths
    total = question_length + body_lengths.sum()
    place = jnp.arange(question.shape[0] + chunks.shape[0] * width, dtype=question_length.dtype)
    segment = jnp.sum(place[:, None] >= starts[None, :], axis=1) - 1
    offset = place - starts[segment]
    from_chunk = bodies[segment, jnp.clip(offset, 0, width - 1)]
    from_question = question[jnp.minimum(place, question.shape[0] - 1)]
    tokens = jnp.where(place < question_length, from_question, from_chunk)
    return jnp.where(place < total, tokens, 0), total


def make_text_network(
    config: EncoderConfig,
    init: Callable[[Array], PyTree],
    sep_id: int,
    scale: float = 1.0,
    chunk_window: int = 64,
    tokens_per_block: int = 1024,
    compute: Compute = FLOAT32,
    num_opening: int = 1,
) -> Network:
    """Text towers over one encoder architecture, each with its own weights.

    Args:
        config: the encoder, pooling included.
        init: key -> encoder parameters that both towers start from (pre-trained ones ignore the key).
        sep_id: id of [SEP].
        scale: constant that divides every tower's vectors (the authors: 10).
        chunk_window: most tokens that one taken chunk adds to the state.
        tokens_per_block: inner batch of the encoder; about 1,024 on CPU, large on accelerators.
        compute: precision and recomputation.
        num_opening: as in `assemble_state`.
    """
    factor = 1.0 / scale

    def encode_rows(params: PyTree, tokens: Array, lengths: Array) -> Array:
        return factor * encode_in_blocks(config, params, tokens, lengths, tokens_per_block, compute)

    def encode(params: PyTree, tokens: Array, lengths: Array) -> Array:
        return map_rows(encode_rows, params, tokens, lengths)

    def make_params(key: Array) -> PyTree:
        start = init(key)
        return {"state": start, "action": jax.tree.map(jnp.array, start)}

    def actions(params: PyTree, table: TokenRows) -> Array:
        return encode(params["action"], table.tokens, table.lengths)

    def states(params: PyTree, questions: TokenRows, table: TokenRows, taken: Int[Array, "batch taken"]) -> Array:
        tokens, lengths = questions.tokens, questions.lengths
        if taken.shape[1]:
            pack = lambda q, n, c, m: assemble_state(q, n, c, m, chunk_window, sep_id, num_opening)  # noqa: E731
            tokens, lengths = jax.vmap(pack)(tokens, lengths, table.tokens[taken], table.lengths[taken])
        if tokens.shape[1] > config.max_positions:
            raise UsageError(
                f"a state of {taken.shape[1]} chunks takes up to {tokens.shape[1]} tokens, the encoder has "
                f"{config.max_positions} positions: lower env.num_steps or model.state_chunk_window"
            )
        return encode(params["state"], tokens, lengths)

    return Network(make_params, actions, states, config.output_size)
