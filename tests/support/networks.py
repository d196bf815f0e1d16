"""Tiny networks and environments that tests share, and a network whose Q values a test writes down."""

from dataclasses import replace
from functools import cache, partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.models.encoder.text_encoder import EncoderConfig, init_encoder
from qrag_jax.models.towers.latent import LatentConfig, make_latent_network
from qrag_jax.models.towers.positions import inverse_frequencies, rotation_table, turn_back
from qrag_jax.models.towers.q_network import Network, TokenRows, VectorRows
from qrag_jax.models.towers.text import make_text_network
from qrag_jax.qrag.env import Batch, EnvConfig, Rollout

VECTOR = 6  # components of a given vector
DIM = 8  # where states and actions meet
SEP = 3
LATENT = LatentConfig(width=8, num_layers=1, num_heads=2, action_hidden=8, dim=DIM)
ENCODER = EncoderConfig(
    vocab_size=20, hidden_size=DIM, num_layers=1, num_heads=2, intermediate_size=8, max_positions=40
)


def rotate(x, positions, num_heads=1, theta=1e4):
    """Turns every component pair of `x` by its angle at `positions`."""
    cos, sin = rotation_table(positions, inverse_frequencies(x.shape[-1], num_heads, theta))
    return turn_back(x, cos, -sin)


@cache  # one object, so that what is compiled for it is compiled once
def linear_network() -> Network:
    """States and actions that a test can write down in NumPy; a state depends on the order of its chunks."""

    def init(key):
        del key
        rng = np.random.default_rng(0)
        draw = lambda: jnp.asarray(rng.normal(size=(VECTOR, DIM)) * 0.5, jnp.float32)  # noqa: E731
        return {"state": {"question": draw(), "chunk": draw()}, "action": draw()}

    def actions(params, table):
        return table.vectors @ params["action"]

    def states(params, questions, table, taken):
        rank = jnp.arange(1, taken.shape[1] + 1, dtype=jnp.float32)
        chunks = jnp.einsum("btv,t->bv", table.vectors[taken], rank)
        return questions.vectors @ params["state"]["question"] + chunks @ params["state"]["chunk"]

    return Network(init, actions, states, DIM)


@cache
def latent_network() -> Network:
    return make_latent_network(LATENT, np.full(VECTOR, 0.1, np.float32), np.full(VECTOR, 0.9, np.float32))


def text_network(**options) -> Network:
    return make_text_network(ENCODER, partial(init_encoder, config=ENCODER), SEP, **options)


def np_jit(function, **options):
    """`function` as one program, with NumPy arrays out: what a test then does with them compiles nothing."""
    compiled = jax.jit(function, **options)
    return lambda *given, **named: jax.tree.map(np.asarray, compiled(*given, **named))


NETWORKS = {"linear": linear_network, "latent": latent_network, "text": text_network}


@cache
def shapes_of(network: Network):
    return jax.eval_shape(network.init, jax.random.key(0))


def random_params(network: Network, seed: int = 0, scale: float = 0.4):
    """Parameters in which nothing is trivial: towers differ, biases and norms are no zeros and ones."""
    rng = np.random.default_rng(seed)
    draw = lambda leaf: jnp.asarray(rng.normal(0.1, scale, leaf.shape), leaf.dtype)  # noqa: E731
    return jax.tree.map(draw, shapes_of(network))


def vector_rows(rng: np.random.Generator, num_rows: int) -> VectorRows:
    return VectorRows(jnp.asarray(rng.normal(size=(num_rows, VECTOR)), jnp.float32))


def token_rows(rng: np.random.Generator, num_rows: int, width: int) -> TokenRows:
    """Rows `[CLS] words [SEP]` of random lengths; padding is no zero, so that reading it would show."""
    lengths = rng.integers(2, width + 1, num_rows).astype(np.int32)
    lengths[0] = width
    tokens = rng.integers(4, ENCODER.vocab_size, (num_rows, width)).astype(np.int32)
    tokens[:, 0] = 2
    tokens[np.arange(num_rows), lengths - 1] = SEP
    return TokenRows(jnp.asarray(tokens), jnp.asarray(lengths))


def make_batch(
    kind: str = "linear", seed: int = 0, size: int = 4, chunks: int = 7, num_gold: int = 2, shortest: int = 4
) -> Batch:
    """Random environments over one table of distinct chunks; documents of unequal length, padded on the right.

    Environment 0 is full, and stands in a longer document: its indices have gaps.
    """
    rng = np.random.default_rng(seed)
    num_rows = 2 * chunks
    if kind == "text":
        table, questions = token_rows(rng, num_rows, 6), token_rows(rng, size, 5)
    else:
        table, questions = vector_rows(rng, num_rows), vector_rows(rng, size)
    lengths = rng.integers(shortest, chunks + 1, size)
    lengths[0] = chunks
    valid = np.arange(chunks) < lengths[:, None]
    gold = np.zeros((size, chunks), bool)
    for row, length in enumerate(lengths):
        gold[row, rng.choice(length, num_gold, replace=False)] = True
    indices = np.tile(np.arange(chunks), (size, 1))
    indices[0] = np.sort(rng.choice(3 * chunks, chunks, replace=False))
    document = lengths.copy()
    document[0] = 3 * chunks
    rows = np.stack([rng.permutation(num_rows)[:chunks] for _ in range(size)])
    as_int = lambda x: jnp.asarray(x, jnp.int32)  # noqa: E731
    return Batch(
        table, questions, as_int(rows), as_int(indices), as_int(document), jnp.asarray(valid), jnp.asarray(gold),
        as_int(np.arange(size)),
    )  # fmt: skip


def select_environments(batch: Batch, rows) -> Batch:
    """The given environments of a batch, over the same table."""
    chosen = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[np.asarray(rows)]), batch.replace(table=None))
    return chosen.replace(table=batch.table)


def position_by_definition(mode: str, index: int, taken, length: int, delta: float = 10.0, ell: float = 9.0) -> float:
    """rho(i) in Python's floats: find the interval [b_j, b_j+1) that holds i."""
    if mode != "relative":
        return float(index) if mode == "absolute" else 0.0
    bounds = [0, *sorted(taken), length]
    (j,) = [j for j in range(len(bounds) - 1) if bounds[j] <= index < bounds[j + 1]]
    return j * delta + ell * (index - bounds[j]) / (bounds[j + 1] - bounds[j])


def rotated_by_definition(vector, position: float, num_heads: int = 1, theta: float = 1e4) -> np.ndarray:
    """R(p) a in float64; each head has the frequencies of its own width."""
    heads = np.asarray(vector, np.float64).reshape(num_heads, -1, 2)
    width = 2 * heads.shape[1]
    angle = position * theta ** (-2 * np.arange(width // 2) / width)
    cos, sin = np.cos(angle), np.sin(angle)
    turned = np.stack([heads[..., 0] * cos - heads[..., 1] * sin, heads[..., 0] * sin + heads[..., 1] * cos], -1)
    return turned.reshape(-1)


NUM_CHUNKS = 6  # at most, in a table
STOP = NUM_CHUNKS  # the component of a state that `params["stop"]` reads
WIDTH = 8


@cache
def table_network() -> Network:
    """Q(s, a) = params["q"][question, s, a] with s the sum of 2^chunk over taken chunks; positions must be "none"."""

    def actions(params, table):
        del params
        return table.vectors

    def states(params, questions, table, taken):
        ids = jnp.argmax(table.vectors[taken], axis=-1).astype(jnp.int32)
        return params["q"][questions.vectors[:, 0].astype(jnp.int32), jnp.left_shift(1, ids).sum(1)]

    return Network(lambda key: {}, actions, states, WIDTH)


def table_env(**options) -> EnvConfig:
    return replace(EnvConfig(positions="none"), **options)


def table_params(*tables):
    """Parameters of one or several questions; a table is {taken chunks: {chunk or STOP: Q}}, 0 where it is silent."""
    q = np.zeros((len(tables), 2**NUM_CHUNKS, WIDTH), np.float32)
    for number, table in enumerate(tables):
        for taken, row in table.items():
            for action, value in row.items():
                q[number, sum(2**chunk for chunk in taken), action] = value
    return {"q": jnp.asarray(q), "stop": jnp.asarray(np.eye(WIDTH, dtype=np.float32)[STOP])}


def random_table(seed: int, num_chunks: int, num_steps: int, fall: float = 0.0):
    """A Q of its own for every set of fewer than `num_steps` chunks and every action, lower by `fall` each step."""
    rng = np.random.default_rng(seed)
    sets = (set_ for size in range(num_steps) for set_ in combinations(range(num_chunks), size))
    draw = lambda taken: (rng.normal(size=STOP + 1) - fall * len(taken)).astype(np.float32)  # noqa: E731
    return {taken: dict(enumerate(draw(taken).tolist())) for taken in sets}


def table_batch(num_chunks, num_questions: int = 1, gold=(0,)) -> Batch:
    """Question i is asked of table i; `num_chunks` is one number, or one for each question (padded on the right)."""
    lengths = np.broadcast_to(num_chunks, num_questions).astype(np.int32)
    width = int(lengths.max())
    places = jnp.asarray(np.tile(np.arange(width, dtype=np.int32), (num_questions, 1)))
    numbers = np.arange(num_questions, dtype=np.int32)
    return Batch(
        table=VectorRows(jnp.asarray(np.eye(NUM_CHUNKS, WIDTH, dtype=np.float32))),
        questions=VectorRows(jnp.asarray(numbers[:, None].astype(np.float32))),
        chunks=places,
        indices=places,
        lengths=jnp.asarray(lengths),
        valid=jnp.asarray(np.arange(width) < lengths[:, None]),
        gold=jnp.asarray(np.tile(np.isin(np.arange(width), gold), (num_questions, 1))),
        env=jnp.asarray(numbers),
    )


def trajectory(actions, alive=None) -> Rollout:
    """A rollout that took these chunks; what reads its states reads nothing but its actions and its end."""
    actions = np.asarray(actions, np.int32)
    alive = np.ones(actions.shape, np.float32) if alive is None else np.asarray(alive, np.float32)
    none = np.zeros(actions.shape, np.float32)
    fields = actions, none, none[..., None], none[..., None], none, none, none > 0, alive, none, none
    return Rollout(*map(jnp.asarray, fields))
