"""The part of `qrag eval --answers` that asks a language model: from flags to a reader, and what becomes of answers."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from qrag_jax.cli.llm_flags import llm_config
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.eval.answers.answering import Answered, Reader, check_reader, choose_measures, needs_judges
from qrag_jax.eval.answers.records import answer_row_values, write_answer_records
from qrag_jax.llm.config import LlmConfig, make_generator
from qrag_jax.llm.prices import spent
from qrag_jax.llm.wrappers import WatchedGenerator
from qrag_jax.qrag.tasks import Task
from qrag_jax.types import InputError, TextGenerator, UsageError


def make_reader(args: argparse.Namespace, kind: str, tasks: Sequence[Task]) -> Reader | None:
    """The language models of `--answers`, loaded before anything else is paid for; None without `--answers`.

    Args:
        args: flags of `qrag eval`.
        kind: of the questions: `babi`, `jsonl`, `hotpot`, ...
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
    llm = llm_config(vars(args))
    prompts = llm.prompts
    measures = tuple(choose_measures(task, args.answer_measures, kind, prompts, say) for task in tasks)
    judged = needs_judges(measures)
    if args.judges and not judged:
        raise UsageError("--judges: name a measure that they judge: --answer_measures claims or judge")
    check_reader(measures, prompts)
    generator = make_generator(llm)
    judges = _judges(args.judges, llm, generator) if judged else ()
    return Reader(generator, measures, judges, llm.sampling, prompts)


def watched(reader: Reader, progress: Progress) -> Reader:
    """The reader whose models show how far they are, each as a stage of its own."""
    names = ["judge"] if len(reader.judges) == 1 else [f"judge {number + 1}" for number in range(len(reader.judges))]
    return replace(
        reader,
        generator=WatchedGenerator(reader.generator, progress.answers("answers")),
        judges=tuple(
            WatchedGenerator(judge, progress.answers(name)) for name, judge in zip(names, reader.judges, strict=True)
        ),
    )


def write_answers(answered: Answered, args: argparse.Namespace) -> None:
    """Files of the flags, and what was spent, on standard error."""
    if args.answers:
        write_answer_records(args.answers, answered.records)
    if args.answer_rows:
        write_json(answer_row_values(answered.rows), args.answer_rows)
    cost = spent(answered.calls, llm_config(vars(args)).load_prices())
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


def _judges(names: Sequence[str] | None, llm: LlmConfig, generator: TextGenerator) -> tuple[TextGenerator, ...]:
    """One model a name of `--judges`, by the other flags of the answering one; without the flag the answering one."""
    return tuple(
        generator if name == llm.llm_model else make_generator(replace(llm, llm_model=name))
        for name in names or (llm.llm_model,)
    )
