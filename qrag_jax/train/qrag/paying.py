"""Pays episodes by a language model's answer from their chunks, on the host, between the picks and the update."""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qrag_jax.llm.wrappers import WatchedGenerator
from qrag_jax.qrag.batching import Sample
from qrag_jax.qrag.tasks import Task
from qrag_jax.train.answer_rewards import AnswerReward, Asked, Measure, answer_reward, checked_values
from qrag_jax.train.qrag.learner import Paid, RewardSource
from qrag_jax.types import Arg, Generation, InputError, InputWarning, TextGenerator, UsageError

_NAMED = 3  # questions in an error message
_MOST_SILENT = 3  # updates in a row that nobody paid


class Reader:
    """A language model that pays, and what it read; it is asked once about a question with the same passages."""

    def __init__(self, reward: AnswerReward) -> None:
        """Args: reward, which may be any function."""
        self._reward, self._known = reward, dict[Asked, float]()
        self._seconds, self._tokens, self._silent, self._warned = 0.0, 0, 0, False
        self._earlier: Mapping[str, int | float] = {}
        self.fault = ""  # the reason of the last failed call, as the end of a message

    @classmethod
    def of(cls, measure: Measure, model: TextGenerator) -> "Reader":
        """A reader that counts the new tokens of a model, and keeps the reasons of its failures."""
        watched = WatchedGenerator(model, lambda done, of, said: reader.count(said))
        reader = cls(answer_reward(measure, watched))
        return reader

    def count(self, said: Generation | None) -> None:
        """Counts a call; those in the journal cost nothing."""
        if said is not None:
            self._tokens += 0 if said.from_journal else said.prompt_tokens + said.completion_tokens
            self.fault = self.fault if said.error is None else f": {said.error}"

    def values(self, asked: Sequence[Asked]) -> list[float | None]:
        """The reward of each; None where a call failed. The first failure is told as a warning.

        Raises:
            InputError: the reward gave something else than a finite number or None for each.
        """
        new = [one for one in dict.fromkeys(asked) if one not in self._known]
        if new:
            begun = time.perf_counter()
            named = [one.question for one in new]
            found = checked_values("answers", self._reward(new), len(new), "questions", named)
            self._seconds += time.perf_counter() - begun
            self._known |= {one: value for one, value in zip(new, found, strict=True) if value is not None}
        values = [self._known.get(one) for one in asked]
        if None in values and not self._warned:
            self._warned = True
            first = asked[values.index(None)].question
            message = f"answers: no reward for {first!r}{self.fault}; such episodes are left out and counted (`unpaid`)"
            warnings.warn(InputWarning(message), stacklevel=2)
        return values

    def heard(self, paid: Paid) -> None:
        """Counts updates that nobody paid.

        Raises:
            InputError: there were several in a row.
        """
        self._silent = 0 if paid.is_known.any() else self._silent + 1
        if self._silent == _MOST_SILENT:
            raise InputError(
                (
                    f"answers: all calls of {_MOST_SILENT} updates in a row failed{self.fault}; nothing can be learned "
                    "from them. Repair the language model; a run that has saved a checkpoint goes on with ",
                    Arg("resume"),
                )
            )

    def resume(self, earlier: Any) -> None:
        """Goes on counting from the `totals` of a checkpoint."""
        self._earlier = earlier if isinstance(earlier, Mapping) else {}

    def totals(self) -> dict[str, int | float]:
        """Counts of the whole run: sets of passages that it read, new tokens (0 for a function of yours), seconds."""
        told = {"read": len(self._known), "tokens": self._tokens, "seconds": round(self._seconds, 1)}
        return {name: value + self._earlier.get(name, 0) for name, value in told.items()}


def check_rewarded(task: Task, source: RewardSource) -> None:
    """Refuses questions that nothing rewards, before anything is loaded.

    Raises:
        UsageError: a language model would read vectors, not texts.
        InputError: a question has no gold, no answer, or neither, as the source needs.
    """
    if source != "gold" and (isinstance(task.texts, np.ndarray) or isinstance(task.questions, np.ndarray)):
        raise UsageError(f"learner.reward={source} reads texts, but {task.name} has vectors")
    silent = unrewarded(task, source)
    if len(silent):
        lacks = {"gold": "gold chunk", "answers": "answer", "mixed": "answer and no gold chunk"}[source]
        named = ", ".join(task.query_ids[int(i)] for i in silent[:_NAMED])
        raise InputError(
            f"{task.name}: {len(silent):,} of {len(task):,} questions have no {lacks}, so learner.reward={source} "
            f"cannot reward them (such as {named}): add it, or leave them out"
        )


def unrewarded(task: Task, source: RewardSource) -> np.ndarray:
    """Numbers of the questions that nothing rewards."""
    has_gold = np.ones(len(task), bool) if task.num_gold is None else np.asarray(task.num_gold) > 0
    has_answer = np.array([task.answers is not None and bool(task.answers[i]) for i in range(len(task))], bool)
    return np.flatnonzero(~{"gold": has_gold, "answers": has_answer, "mixed": has_gold | has_answer}[source])


@dataclass(frozen=True)
class Payer:
    """Pays the episodes of a task.

    Attributes:
        task: `check_rewarded` took it.
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
        """
        own = {name: np.asarray(getattr(sample, name)) for name in ("queries", "questions", "distinct", "chunks")}
        by_answer = np.ones(len(actions), bool)
        if self.source == "mixed":
            by_answer = ~(np.asarray(sample.gold) & np.asarray(sample.valid)).any(axis=1)
        places = np.flatnonzero(by_answer)
        values = self.reader.values([self._asked(own, int(row), actions[row]) for row in places])
        is_known, paid = np.logical_not(by_answer), np.zeros(len(actions), np.float32)
        is_known[places] = [value is not None for value in values]
        paid[places] = [0.0 if value is None else value for value in values]
        return Paid(np.asarray(actions), paid, is_known, by_answer)

    def _asked(self, sample: Mapping[str, np.ndarray], row: int, picks: np.ndarray) -> Asked:
        """The question of an episode, with its chunks in the order of the documents."""
        task, ids = self.task, np.sort(picks)
        if task.pool is None:
            ids = sample["distinct"][sample["chunks"][row, ids]]
        assert task.answers is not None
        question, right = task.questions[int(sample["questions"][row])], task.answers[int(sample["queries"][row])]
        return Asked(str(question), tuple(str(task.texts[int(i)]) for i in ids), tuple(right))


def with_queries(sample: Sample, queries: np.ndarray) -> Sample:
    """The sample with the numbers of its queries, for a `Payer`."""
    return replace(sample, queries=np.asarray(queries, np.int32))
