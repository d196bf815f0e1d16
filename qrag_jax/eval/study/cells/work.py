"""Progress of a study: its passes over documents, each with its share of the work."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.cell_files import CellStore
from qrag_jax.eval.study.cells.run_cell import ReportShare
from qrag_jax.eval.study.config import StudyConfig
from qrag_jax.eval.study.records import Part
from qrag_jax.names import CHUNKERS

Report = Callable[[str, int, int], None]
STAGE = "study"  # of the report; its unit is a character


@dataclass(frozen=True)
class Sides:
    """The parts of a task.

    Attributes:
        dev: chooses configs; None where there are too few questions.
        test: is reported.
        share_corpus: both search the same documents, so that one pass over these gives both results.
    """

    dev: StudyTask | None
    test: StudyTask
    share_corpus: bool

    def together(self, part: Part) -> dict[Part, StudyTask]:
        """The parts of the pass that gives the result of `part`."""
        parts: dict[Part, StudyTask] = {"test": self.test} if self.dev is None else {"dev": self.dev, "test": self.test}
        return parts if self.share_corpus else {part: parts[part]}


@dataclass(frozen=True)
class Pass:
    """One config over one corpus; `number` is None of the pass on test whose config dev has yet to choose."""

    task: str
    strategy: str
    number: int | None


class Work:
    """Reports the characters of documents that are done.

    A pass counts the characters that it embeds; the first pass of a corpus that compares sentences counts them twice,
    because later ones find the vectors in the cache. Stored cells count as done from the start, so they do not raise
    the rate.
    """

    def __init__(self, config: StudyConfig, sides: Sequence[Sides], store: CellStore, report: Report | None) -> None:
        """Finds the stored cells.

        Args:
            report: called with ("study", done, of).
        """
        self._report = report
        weights = [one for side in sides for one in _weights(config, side)]
        self._left = {key: weight for key, weight in weights if not _is_stored(store, key)}
        self._of = sum(weight for _, weight in weights)
        self._done = self._of - sum(self._left.values())
        self._say(self._done)

    def begin(self, sides: Sides, strategy: str, number: int, part: Part) -> ReportShare:
        """Takes the share of a pass that is done; a pass that is run again, since it was damaged, counts nothing."""
        known = number if part == "dev" or (sides.share_corpus and sides.dev is not None) else None
        weight = self._left.pop(Pass(sides.test.name, strategy, known), 0)
        start = self._done
        self._done += weight
        return lambda share: self._say(start + round(share * weight))

    def finish(self) -> None:
        """Says that all is done."""
        self._say(self._of)

    def _say(self, done: int) -> None:
        if self._report is not None:
            self._report(STAGE, done, self._of)


def _weights(config: StudyConfig, sides: Sides) -> Iterator[tuple[Pass, int]]:
    seen: set[bool] = set()  # corpora (True: of dev alone) whose sentences are embedded by then

    def weigh(strategy: str, number: int | None, is_dev: bool, task: StudyTask) -> tuple[Pass, int]:
        embeds = config.strategies[strategy][number or 0].strategy in CHUNKERS.choices("vectors")
        times = 2 if embeds and is_dev not in seen else 1
        if embeds:
            seen.add(is_dev)
        return Pass(task.name, strategy, number), times * sum(len(document.text) for document in task.documents)

    for strategy, configs in config.strategies.items():
        for number in range(len(configs) if sides.dev is not None else 0):
            yield weigh(strategy, number, not sides.share_corpus, sides.dev or sides.test)
        if sides.dev is None or not sides.share_corpus:
            yield weigh(strategy, None, False, sides.test)


def _is_stored(store: CellStore, key: Pass) -> bool:
    """By its files alone: they are read later."""
    folder = store.out / "cells" / key.task
    number = "*" if key.number is None else key.number
    part = "test" if key.number is None else "dev"
    return any(folder.glob(f"{key.strategy}-{number}-{part}.json"))
