"""A network whose Q values a test writes down: one row of numbers for every set of taken chunks."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import jax.numpy as jnp
import numpy as np

from qrag_jax.models.towers.q_network import Network, VectorRows
from qrag_jax.qrag.env import Batch, EnvConfig, Rollout

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
