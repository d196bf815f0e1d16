"""Pays episodes by a language model's answer from their chunks, on the host, between the picks and the update."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from qrag_jax.qrag.batching import Sample
from qrag_jax.qrag.tasks import Task
from qrag_jax.train.answer_rewards import AnswerReward, AnswerRewardConfig, Asked, answer_reward, checked_values
from qrag_jax.train.qrag.learner import Paid, RewardSource
from qrag_jax.types import Arg, Cost, InputError, UsageError

_NAMED = 3  # questions in an error message


@dataclass
class Reader:
    """A language model that pays, with what it cost so far.

    Attributes:
        reward: its reward; yours may be any function.
        cost: so far; None counts nothing.
        seconds: spent in it.
        known: values so far; each question is asked once with the same passages.
    """

    reward: AnswerReward
    cost: Callable[[], Cost] | None = None
    seconds: float = 0.0
    known: dict[Asked, float] = field(default_factory=dict)

    @classmethod
    def of(cls, config: AnswerRewardConfig) -> "Reader":
        """Loads the model of a config."""
        generator = config.load()
        return cls(answer_reward(config.measure, generator), lambda: generator.cost)

    def values(self, asked: Sequence[Asked]) -> list[float | None]:
        """The reward of each; None where a call failed."""
        new = [one for one in dict.fromkeys(asked) if one not in self.known]
        if new:
            begun = time.perf_counter()
            found = checked_values("answers", self.reward(new), len(new), of="questions")
            self.seconds += time.perf_counter() - begun
            self.known |= {one: value for one, value in zip(new, found, strict=True) if value is not None}
        return [self.known.get(one) for one in asked]

    def metrics(self) -> dict[str, float]:
        """What it read so far in this process: questions with passages, tokens and seconds."""
        told = {"read": float(len(self.known)), "read_seconds": self.seconds}
        if self.cost is not None:
            cost = self.cost()
            told["read_tokens"] = float(cost.prompt_tokens + cost.completion_tokens)
        return told


def check_payable(task: Task, source: RewardSource) -> None:
    """Refuses questions that nobody can pay for, before anything is loaded.

    Raises:
        UsageError: the task has vectors, not texts.
        InputError: a question has no answer and, unless gold is not read, no gold.
    """
    if isinstance(task.texts, np.ndarray) or isinstance(task.questions, np.ndarray):
        raise UsageError(f"learner.reward={source} reads texts, but {task.name} has vectors")
    silent = unpayable(task, source)
    if len(silent):
        what = "no answer and no gold" if source == "mixed" else "no answer"
        named = ", ".join(task.query_ids[int(i)] for i in silent[:_NAMED])
        raise InputError(
            f"{task.name}: {len(silent):,} of {len(task):,} questions have {what}, so nobody can pay for their "
            f"passages (such as {named}): add `answer`, or leave them out"
        )


def unpayable(task: Task, source: RewardSource) -> np.ndarray:
    """Numbers of the questions without an answer and, where gold is read too, without gold."""
    silent = np.array([task.answers is None or not task.answers[i] for i in range(len(task))])
    if source == "mixed" and task.num_gold is not None:
        silent &= task.num_gold == 0
    return np.flatnonzero(silent)


@dataclass(frozen=True)
class Payer:
    """Pays the episodes of a task.

    Attributes:
        task: `check_payable` took it.
        reader: pays.
        source: `answers` pays all episodes, `mixed` those without gold.
    """

    task: Task
    reader: Reader
    source: RewardSource

    def __call__(self, sample: Sample, actions: np.ndarray) -> Paid:
        """The rewards of a batch.

        Args:
            sample: with `queries`.
            actions: int32 [batch, T]: slots of contexts, or chunks of the pool.

        Raises:
            InputError: no episode was paid, because all calls failed.
        """
        host = jax.tree.map(np.asarray, sample)
        by_answer = np.ones(len(actions), bool)
        if self.source == "mixed":
            by_answer = ~(host.gold & host.valid).any(axis=1)
        places = np.flatnonzero(by_answer)
        values = self.reader.values([self._asked(host, int(row), actions[row]) for row in places])
        is_known = ~by_answer
        is_known[places] = [value is not None for value in values]
        if not is_known.any():
            raise InputError(
                (
                    "answers: every call of this update failed, so nothing can be learned from it; check the language "
                    "model, then continue with ",
                    Arg("resume"),
                )
            )
        paid = np.zeros(len(actions), np.float32)
        paid[places] = [0.0 if value is None else value for value in values]
        return Paid(np.asarray(actions), paid, is_known, by_answer)

    def _asked(self, sample: Sample, row: int, picks: np.ndarray) -> Asked:
        """The question of an episode, with its chunks in the order of the documents."""
        task, query = self.task, int(sample.queries[row])
        ids = np.sort(picks)
        if task.pool is None:
            ids = sample.distinct[sample.chunks[row, ids]]
        assert task.answers is not None
        question = str(task.questions[int(sample.questions[row])])
        return Asked(question, tuple(str(task.texts[int(i)]) for i in ids), tuple(task.answers[query]))


def with_queries(sample: Sample, queries: np.ndarray) -> Sample:
    """The sample with the numbers of its queries, for a `Payer`."""
    return replace(sample, queries=np.asarray(queries, np.int32))
