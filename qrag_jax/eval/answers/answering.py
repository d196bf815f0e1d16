"""Answers of a language model to all questions of an evaluation, from the chunks that its methods chose.

scored = score_run("runs/demo", tasks)
reader = Reader(LocalGenerator("smollm2"), tuple(choose_measures(task) for task in tasks))
print(format_answers(read_answers(reader, tasks, scored.records).rows))

Paired tests between methods on the answers that both gave: the same reader, other chunks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qrag_jax.eval.answers.answer_rows import SHORT_ANSWER, Reading, answer_rows, bound_readings, make_readings
from qrag_jax.eval.answers.measure_answers import MeasureOptions, check_measures
from qrag_jax.eval.answers.records import AnswerRecord, AnswerRow
from qrag_jax.eval.retrieval.compare import Comparison, holm, make_comparison, name_of
from qrag_jax.eval.retrieval.records import QueryRecord
from qrag_jax.eval.retrieval.score import Options
from qrag_jax.llm.judges import JudgeOptions
from qrag_jax.llm.prompts import load_prompt
from qrag_jax.measures.aggregate import paired_difference
from qrag_jax.measures.answer_scores import labels_of
from qrag_jax.qrag.tasks import Task
from qrag_jax.types import Generation, InputError, Sampling, TextGenerator

_Group = tuple[str, str, int]  # protocol, method, beam width


def compare_answers(task: str, records: Sequence[AnswerRecord], score: str = "f1") -> list[Comparison]:
    """The trained greedy search against every other method, and each beam width against it, under each protocol.

    As `compare.py:compare`, but over the questions that both methods have a score of: a failed call is no 0, so it can
    be no difference. `n` says how many that are; two methods without a common question are not compared.

    Args:
        records: of one task at one length and seed.
        score: of `records.SCORES`.

    Returns:
        Comparisons of the measure `answer_SCORE`, Holm's correction counting all of them together.
    """
    groups: dict[_Group, dict[str, float]] = {}
    for record in records:
        own = record.setting
        group = (own.protocol, own.method, own.beam_width)
        values = groups.setdefault(group, {})
        if score in record.scores:
            values[record.query_id] = record.scores[score]
    num_chunks = records[0].setting.num_chunks if records else 0
    rows = [
        row
        for base in groups
        if base[1:] == ("trained", 1)
        for other in groups
        if other[0] == base[0] and other != base
        if (row := _compare(task, num_chunks, score, groups, base, other)) is not None
    ]
    return holm(rows)


def _compare(
    task: str, num_chunks: int, score: str, groups: dict[_Group, dict[str, float]], base: _Group, other: _Group
) -> Comparison | None:
    """The trained greedy search minus another method; a beam search minus the greedy one."""
    first, second = (other, base) if other[1] == "trained" else (base, other)
    both = [query for query in groups[first] if query in groups[second]]
    if not both:
        return None
    values = (np.array([groups[group][query] for query in both], np.float64) for group in (first, second))
    difference = paired_difference(*values)
    names = [name_of(method, width) for _, method, width in (first, second)]
    return make_comparison(task, num_chunks, base[0], f"answer_{score}", names, difference)


# Whose official score gives a yes or no that is wrong an F1 of 0.
_HOTPOT_CONVENTION = ("hotpot", "2wiki")
_JUDGED = {"claims", "judge"}
_JUDGES_PROMPTS = ("claims", "entailment", "judge", "again")


@dataclass(frozen=True)
class Reader:
    """Who answers, who judges, and by what.

    Attributes:
        generator: answers.
        measures: for every task, in order (`choose_measures`).
        judges: of the measures that need them.
        sampling: how the generator answers.
        prompts: folder of the user's templates; None takes ours.
    """

    generator: TextGenerator
    measures: tuple[MeasureOptions, ...]
    judges: tuple[TextGenerator, ...] = ()
    sampling: Sampling = SHORT_ANSWER
    prompts: Path | None = None


@dataclass(frozen=True)
class Answered:
    """All answers of an evaluation.

    Attributes:
        rows, records: of all tasks.
        comparisons: paired tests of answer F1, or EM where F1 is not measured.
        calls: of the language models, to tell what they cost.
    """

    rows: tuple[AnswerRow, ...]
    records: tuple[AnswerRecord, ...]
    comparisons: tuple[Comparison, ...]
    calls: tuple[Generation, ...]

    @property
    def all_failed(self) -> bool:
        """True if there is no answer at all."""
        return all(record.error is not None for record in self.records)


def choose_measures(
    task: Task,
    names: tuple[str, ...] | None = None,
    kind: str = "jsonl",
    prompts: Path | None = None,
    note: Callable[[str], None] | None = None,
) -> MeasureOptions:
    """The measures of a task's answers: those that are named, or EM and F1, and for bAbI BabiLong's rule if it applies.

    Args:
        task: with reference answers.
        names: of `records.MEASURES`; None takes the defaults.
        kind: of the questions: `babi`, `jsonl`, `hotpot`, ...; decides on the convention of F1.
        prompts: folder of the judges' templates; None takes ours.
        note: called with the reason if there is no row by BabiLong's rule.

    Raises:
        InputError: BabiLong's rule is named, and cannot be applied.
    """
    chosen = names or ("em", "f1")
    labels: frozenset[str] = frozenset()
    if kind == "babi" and (names is None or "babilong" in chosen):
        try:
            labels = labels_of(answer for answers in task.answers or () for answer in answers)
            chosen = chosen if "babilong" in chosen else (*chosen, "babilong")
        except InputError as error:
            if "babilong" in chosen:
                raise
            if note is not None:
                note(f"{task.name}: no row by BabiLong's rule: {error}")
    convention = "hotpot" if kind in _HOTPOT_CONVENTION else "squad"
    return MeasureOptions(chosen, convention, labels, JudgeOptions(prompts=prompts))


def needs_judges(measures: Sequence[MeasureOptions]) -> bool:
    """True if one of the measures needs a language model as judge."""
    return any(_JUDGED & set(options.measures) for options in measures)


def check_reader(measures: Sequence[MeasureOptions], prompts: Path | None = None) -> None:
    """Refuses measures and templates before a model is loaded or paid for."""
    judged = needs_judges(measures)
    for name in ("short_answer", *(_JUDGES_PROMPTS if judged else ())):
        load_prompt(name, prompts)
    for options in measures:
        check_measures(options, int(judged))


def read_answers(
    reader: Reader,
    tasks: Sequence[Task],
    records: Sequence[Sequence[QueryRecord]],
    bounds: Options | None = None,
) -> Answered:
    """Answers all questions of all tasks from the chunks that were chosen for them.

    Args:
        reader: who answers, and by what answers are scored; a `WatchedGenerator` tells how far it is.
        tasks: of the evaluation.
        records: of every task, with the texts of the chosen chunks (`score.score`).
        bounds: how the evaluation scored; its questions are then also answered from the gold chunks alone and from
            none. None leaves that.

    Raises:
        InputError: as `answer_rows.answer_rows`.
    """
    rows, answers, comparisons, calls = [], [], [], []
    for task, own, measures in zip(tasks, records, reader.measures, strict=True):
        result = answer_rows(
            task,
            [*make_readings(own), *_bounds(task, own, bounds)],
            reader.generator,
            judges=reader.judges,
            sampling=reader.sampling,
            measures=measures,
            prompts=reader.prompts,
        )
        score = "f1" if "f1" in measures.measures else measures.measures[0]
        rows += result.rows
        answers += result.records
        calls += result.calls
        if score in ("f1", "em"):
            comparisons += compare_answers(task.name, result.records, score)
    return Answered(tuple(rows), tuple(answers), tuple(comparisons), tuple(calls))


def _bounds(task: Task, records: Sequence[QueryRecord], options: Options | None) -> list[Reading]:
    """The bounds of the questions of one row: all rows are of the same."""
    if options is None:
        return []
    first = [record for record in records if record.setting == records[0].setting]
    return bound_readings(task, first, options.num_questions, options.seed)
