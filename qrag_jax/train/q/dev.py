"""Scores of held-out questions during training: they say which update's parameters are kept."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

from qrag_jax.models.towers.network import PyTree
from qrag_jax.retrieval.index.retriever import Retriever
from qrag_jax.retrieval.mdp.batching import Packer, Sample, materialise
from qrag_jax.retrieval.mdp.env import rollout
from qrag_jax.retrieval.mdp.linking import Link, make_linker
from qrag_jax.retrieval.mdp.policy import make_greedy
from qrag_jax.retrieval.mdp.tasks import Task
from qrag_jax.sharding import MeshConfig, make_mesh, place, replicated, split_rows
from qrag_jax.types import InputError

_ROWS_MULTIPLE = 128
DevScore = Callable[[PyTree], float]


def make_dev_score(retriever: Retriever, task: Task, batch_size: int, seed: int, mesh: Mesh | None = None) -> DevScore:
    """Parameters -> mean return of a greedy episode over all queries of a task: completion, and how early.

    The contexts are drawn once, so that scores of different updates compare; one shape, compiled once.

    Args:
        retriever: whose towers are scored; its own parameters are not used.
        mesh: devices that the parameters live on; None is the first one.
    """
    if not len(task):
        raise InputError(
            f"{task.name}: no question is left to hold out: those that were drawn are all in the training data too; "
            "raise dev.share, or set it to 0"
        )
    task.check_steps(retriever.env.num_steps)
    mesh = make_mesh(MeshConfig()) if mesh is None else mesh
    rows, _ = retriever.rows(task.texts, "chunk")
    questions, _ = retriever.rows(task.questions, "question")
    link = make_linker(retriever.env, task.texts, task.questions)
    samples = _samples(task, link, min(batch_size, len(task)), seed, mesh)
    pools = place((rows, questions), replicated(mesh))

    @partial(jax.jit, out_shardings=replicated(mesh))
    def play(params: PyTree, pools: PyTree, sample: Sample) -> jax.Array:
        batch = materialise(pools[0], pools[1], sample)
        played = rollout(retriever.network, params, batch, jax.random.key(0), make_greedy(), retriever.env)
        return played.rewards.sum(1)

    def score(params: PyTree) -> float:
        with jax.set_mesh(mesh):
            returns = np.concatenate([np.asarray(play(params, pools, sample)) for sample in samples])
        return float(returns[: len(task)].mean())

    return score


def rows_multiple(mesh: Mesh) -> int:
    """What the number of a batch's distinct chunks is rounded up to: every device has as many."""
    return math.lcm(_ROWS_MULTIPLE, mesh.size)


def _samples(task: Task, link: Link, size: int, seed: int, mesh: Mesh) -> Sequence[Sample]:
    """All queries in batches of one shape, the last one filled up with the last query."""
    contexts = link(task.contexts(np.arange(len(task)), np.random.default_rng([seed, 6])))
    parts = [np.minimum(np.arange(first, first + size), len(task) - 1) for first in range(0, len(task), size)]
    cut = [jax.tree.map(lambda x, part=part: x[part], contexts) for part in parts]
    packer = Packer(rows_multiple(mesh))
    for part in cut:  # until the shape holds every batch
        packer(part)
    sharding = replicated(mesh) if size % mesh.size else split_rows(mesh)
    return [place(packer(part), sharding) for part in cut]
