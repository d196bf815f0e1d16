"""A training run as a config: data, towers, decision process, learner; and the pieces that the loop is made of."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from qrag_jax.data.babi import read_babi
from qrag_jax.data.haystack import limit_haystack, load_haystack
from qrag_jax.data.jsonl import read_examples
from qrag_jax.data.stories import Stories, concatenate
from qrag_jax.data.vector_task import read_vector_task
from qrag_jax.data.worlds import simulate_stories
from qrag_jax.retrieval.batching import Packer, Sample, stretched_indices
from qrag_jax.retrieval.env import EnvConfig
from qrag_jax.retrieval.retriever import ModelConfig
from qrag_jax.retrieval.tasks import Task, examples_task, hidden_stories_tasks, vectors_task
from qrag_jax.train.q_learner import LearnerConfig
from qrag_jax.types import UsageError


@dataclass(frozen=True)
class DataConfig:
    """What a retriever is trained on.

    Attributes:
        task: `worlds` simulates stories, `babi` reads bAbI files, both hidden in a haystack; `jsonl` reads questions
            with chunks of their own; `vectors` reads a folder of chunk and question vectors.
        num_facts: worlds: facts that a question needs.
        num_questions: worlds: questions to simulate.
        paths: babi, jsonl, vectors: files or the folder.
        haystack: `sotu`, a folder of .txt and .md, or novels .jsonl[.gz].
        haystack_split: `train` keeps a fifth of the haystack's documents back for evaluation, `all` uses every one.
        max_haystack_sentences: embed at most this many sentences of the haystack; null is all of them.
        num_chunks: chunks of a training context (worlds, babi).
        shared_haystack: the contexts of a batch share a pool of this many noise sentences, so that fewer distinct
            chunks are embedded; null draws freely.
        stretch: positions are drawn as if a context were a sample of a document up to this many times as long.
        batch_size: environments of an update.
    """

    task: Literal["worlds", "babi", "jsonl", "vectors"] = "worlds"
    num_facts: int = 2
    num_questions: int = 50_000
    paths: tuple[str, ...] = ()
    haystack: str = "sotu"
    haystack_split: Literal["train", "all"] = "train"
    max_haystack_sentences: int | None = 12_000
    num_chunks: int = 20
    shared_haystack: int | None = None
    stretch: float = 16.0
    batch_size: int = 128

    def __post_init__(self) -> None:
        if self.stretch < 1:
            raise ValueError(f"data.stretch={self.stretch} must be at least 1 (1 = every chunk at its own place)")
        if min(self.batch_size, self.num_chunks, self.num_questions) < 1:
            raise ValueError("data.batch_size, data.num_chunks and data.num_questions must be at least 1")


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on.

    Attributes:
        seed: root of all randomness: parameters, worlds, contexts, exploration.
        num_updates: optimiser steps.
        log_every: updates between two lines of metrics.jsonl.
        save_every: updates between two checkpoints; null saves at the end only.
        data: what to train on.
        model: the towers.
        env: the decision process.
        learner: hyper-parameters of the update.
    """

    seed: int = 0
    num_updates: int = 5000
    log_every: int = 50
    save_every: int | None = None
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"seed={self.seed} must be at least 0")
        if self.num_updates < 1 or self.log_every < 1:
            raise UsageError(f"num_updates={self.num_updates} and log_every={self.log_every} must be at least 1")
        if self.save_every is not None and self.save_every < 1:
            raise UsageError(f"save_every={self.save_every} must be at least 1, or null to save at the end only")


def training_task(config: RunConfig) -> Task:
    """Reads or simulates the training data.

    Raises:
        UsageError: a path is missing or superfluous, or the data do not fit the config.
        InputError: a file is malformed.
    """
    data = config.data
    if (data.task == "worlds") != (not data.paths):
        raise UsageError(
            f"data.paths={list(data.paths)} does not fit data.task={data.task}: worlds takes none, others need one"
        )
    if data.task == "jsonl":
        examples = [example for path in data.paths for example in read_examples(path)]
        return examples_task("jsonl", examples)
    if data.task == "vectors":
        if len(data.paths) != 1:
            raise UsageError(f"data.task=vectors takes one folder, data.paths has {len(data.paths)}")
        return vectors_task("vectors", read_vector_task(data.paths[0]))
    if data.task == "worlds":
        name = f"worlds{data.num_facts}"
        stories = simulate_stories(data.num_facts, data.num_questions, config.seed, "train", max_facts=data.num_chunks)
    else:
        name = "+".join(Path(path).name.split(".")[0] for path in data.paths)
        stories = _read_stories(data.paths)
    haystack = limit_haystack(
        load_haystack(data.haystack, data.haystack_split), data.max_haystack_sentences, config.seed
    )
    (task,) = hidden_stories_tasks(name, stories, haystack, (data.num_chunks,), data.shared_haystack)
    return task


def _read_stories(paths: tuple[str, ...]) -> Stories:
    return concatenate([read_babi(path) for path in paths])


def make_sampler(task: Task, packer: Packer, config: RunConfig) -> Callable[[int], Sample]:
    """Step number -> its batch: a function of the seed and the step alone, so that a resumed run draws the same."""
    data = config.data

    def sample(step: int) -> Sample:
        rng = np.random.default_rng([config.seed, 2, step])
        contexts = task.contexts(rng.integers(len(task), size=data.batch_size), rng)
        return packer(contexts, *stretched_indices(rng, contexts.chunks >= 0, data.stretch))

    return sample
