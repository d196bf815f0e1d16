"""The part of `qrag eval --answers` that asks a language model: from flags to answer rows."""

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qrag_jax.cli import say, write_json
from qrag_jax.cli.generators import make_generator, prices_of, prompts_folder, sampling_of, spent
from qrag_jax.cli.progress import Progress
from qrag_jax.eval.answer_compare import compare_answers
from qrag_jax.eval.answer_measures import MeasureOptions, check_measures
from qrag_jax.eval.answer_records import AnswerRecord, AnswerRow, answer_row_values, write_answer_records
from qrag_jax.eval.answer_rows import answer_rows
from qrag_jax.eval.asking import JudgeOptions
from qrag_jax.eval.babilong_rule import labels_of
from qrag_jax.eval.compare import Comparison
from qrag_jax.eval.readings import bound_readings, make_readings
from qrag_jax.eval.records import QueryRecord
from qrag_jax.llm.prompts import load_prompt
from qrag_jax.retrieval.tasks import Task
from qrag_jax.types import Generation, InputError, TextGenerator, UsageError

# Whose official score gives a yes or no that is wrong an F1 of 0.
_HOTPOT_CONVENTION = ("hotpot", "2wiki")
_JUDGED = {"claims", "judge"}
_JUDGES_PROMPTS = ("claims", "entailment", "judge", "again")


@dataclass(frozen=True)
class Reader:
    """Who answers, who judges, and by what.

    Attributes:
        generator: of the answers.
        judges: of the measures that need them.
        measures: for every task, in order.
    """

    generator: TextGenerator
    judges: tuple[TextGenerator, ...]
    measures: tuple[MeasureOptions, ...]


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
        """Whether there is not a single answer."""
        return all(record.error is not None for record in self.records)


def make_reader(args: argparse.Namespace, kind: str, tasks: Sequence[Task]) -> Reader | None:
    """The language models of `--answers`, loaded before anything else is paid for; None without `--answers`.

    Args:
        args: flags of `qrag eval`.
        kind: of the questions: `babi`, `jsonl`, `hotpot`, ...
        tasks: to report.

    Raises:
        UsageError: flags that do not belong together, or no such model.
        InputError: a task without reference answers.
    """
    if args.answers is None:
        for flag in ("answer_measures", "judges", "answer_rows", "answer_bounds"):
            if getattr(args, flag):
                raise UsageError(f"--{flag}: belongs to --answers, which is not given")
        return None
    if kind == "vectors":
        raise UsageError("--answers: a language model reads texts, and questions over vectors have none")
    for task in tasks:
        if task.answers is None:
            raise InputError(f'{task.name}: no question has a reference answer: give them a field "answer"')
    measures = tuple(_measures(args, kind, task) for task in tasks)
    judged = any(_JUDGED & set(options.measures) for options in measures)
    for name in ("short_answer", *(_JUDGES_PROMPTS if judged else ())):
        load_prompt(name, prompts_folder(args))  # a wrong template is found before anything is paid for
    if args.judges and not judged:
        raise UsageError("--judges: name a measure that they judge: --answer_measures claims or judge")
    for options in measures:
        check_measures(options, int(judged))
    generator = make_generator(args)
    judges = _judges(args, generator) if judged else ()
    return Reader(generator, judges, measures)


def read_answers(
    reader: Reader, args: argparse.Namespace, tasks: Sequence[Task], records: Sequence[Sequence[QueryRecord]]
) -> Answered:
    """Answers all questions of all tasks from the chunks that were chosen for them.

    Args:
        reader: of `make_reader`.
        args: flags of `qrag eval`.
        tasks: to report.
        records: of every task, with the texts of the chosen chunks.

    Raises:
        InputError: as `answer_rows`.
    """
    rows, answers, comparisons, calls = [], [], [], []
    for task, own, measures in zip(tasks, records, reader.measures, strict=True):
        readings = make_readings(own)
        if args.answer_bounds:
            first = [r for r in own if (r.method, r.protocol, r.beam_width) == _first_row(own)]
            readings += bound_readings(task, first, args.num_questions, args.seed)
        with Progress() as progress:
            result = answer_rows(
                task,
                readings,
                reader.generator,
                judges=reader.judges,
                sampling=sampling_of(args),
                measures=measures,
                prompts=prompts_folder(args),
                progress=progress.stage("answers"),
            )
        score = "f1" if "f1" in measures.measures else measures.measures[0]
        rows += result.rows
        answers += result.records
        calls += result.calls
        if score in ("f1", "em"):
            comparisons += compare_answers(task.name, result.records, score)
    answered = Answered(tuple(rows), tuple(answers), tuple(comparisons), tuple(calls))
    _write(answered, args)
    return answered


def _first_row(records: Sequence[QueryRecord]) -> tuple[str, str, int]:
    return records[0].method, records[0].protocol, records[0].beam_width


def _write(answered: Answered, args: argparse.Namespace) -> None:
    """Files, and what was spent, on standard error."""
    if args.answers:
        write_answer_records(args.answers, answered.records)
    if args.answer_rows:
        write_json(answer_row_values(answered.rows), args.answer_rows)
    cost = spent(answered.calls, prices_of(args))
    kept = sum(call.from_journal for call in answered.calls)
    failed = sum(call.error is not None for call in answered.calls)
    say(
        f"language model: {len(answered.calls):,} calls, {kept:,} of them from the journal, {failed:,} failed; "
        f"{cost.prompt_tokens:,} prompt and {cost.completion_tokens:,} completion tokens"
        + ("" if cost.dollars is None else f", ${cost.dollars:.6f}")
    )
    error = next((call.error for call in answered.calls if call.error is not None), None)
    if error is not None:
        say(f"the first failure: {error}")


def _measures(args: argparse.Namespace, kind: str, task: Task) -> MeasureOptions:
    """The measures of a task: those of the flag, or EM and F1, and for bAbI BabiLong's rule where it can be applied."""
    names: tuple[str, ...] = args.answer_measures or ("em", "f1")
    labels: frozenset[str] = frozenset()
    if kind == "babi" and (args.answer_measures is None or "babilong" in names):
        try:
            labels = labels_of(answer for answers in task.answers or () for answer in answers)
            names = names if "babilong" in names else (*names, "babilong")
        except InputError as error:
            if "babilong" in names:
                raise
            say(f"{task.name}: no row by BabiLong's rule: {error}")
    convention = "hotpot" if kind in _HOTPOT_CONVENTION else "squad"
    return MeasureOptions(names, convention, labels, JudgeOptions(prompts=prompts_folder(args)))


def _judges(args: argparse.Namespace, generator: TextGenerator) -> tuple[TextGenerator, ...]:
    """One model a name of `--judges`, by the other flags of the answering one; without the flag the answering one."""
    judges = []
    for name in args.judges or (args.llm_model,):
        own: Any = copy.copy(args)
        own.llm_model = name
        judges.append(generator if name == args.llm_model else make_generator(own))
    return tuple(judges)
