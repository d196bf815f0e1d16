"""Scores of held-out questions during training: they say which update's parameters are kept."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from qrag_jax.models.network import PyTree
from qrag_jax.retrieval.batching import Contexts, Packer, Sample, materialise
from qrag_jax.retrieval.env import rollout
from qrag_jax.retrieval.policy import make_greedy
from qrag_jax.retrieval.retriever import Retriever
from qrag_jax.retrieval.tasks import Task
from qrag_jax.types import InputError

DevScore = Callable[[PyTree], float]


def make_dev_score(retriever: Retriever, task: Task, batch_size: int, seed: int) -> DevScore:
    """Parameters -> mean return of a greedy episode over all queries of a task: completion, and how early.

    The contexts are drawn once, so that scores of different updates compare; one shape, compiled once.

    Args:
        retriever: whose towers are scored; its own parameters are not used.
        task: held-out queries.
        batch_size: environments of one call.
        seed: of the contexts.

    Raises:
        InputError: no query, or a context with fewer chunks than picks.
    """
    if not len(task):
        raise InputError(
            f"{task.name}: no question is left to hold out: those that were drawn are all in the training data too; "
            "raise dev.share, or set it to 0"
        )
    task.check_steps(retriever.env.num_steps)
    rows, _ = retriever.rows(task.texts, "chunk")
    questions, _ = retriever.rows(task.questions, "question")
    samples = _samples(task, min(batch_size, len(task)), seed)
    pools = jax.device_put((rows, questions))

    @jax.jit
    def play(params: PyTree, pools: PyTree, sample: Sample) -> jax.Array:
        batch = materialise(pools[0], pools[1], sample)
        played = rollout(retriever.network, params, batch, jax.random.key(0), make_greedy(), retriever.env)
        return played.rewards.sum(1)

    def score(params: PyTree) -> float:
        returns = np.concatenate([play(params, pools, sample) for sample in samples])
        return float(returns[: len(task)].mean())

    return score


def _samples(task: Task, size: int, seed: int) -> Sequence[Sample]:
    """All queries in batches of one shape, the last one filled up with the last query."""
    contexts = task.contexts(np.arange(len(task)), np.random.default_rng([seed, 6]))
    parts = [np.minimum(np.arange(first, first + size), len(task) - 1) for first in range(0, len(task), size)]
    cut = [Contexts(contexts.questions[part], contexts.chunks[part], contexts.gold[part]) for part in parts]
    packer = Packer()
    for part in cut:  # until the shape holds every batch
        packer(part)
    return [packer(part) for part in cut]
