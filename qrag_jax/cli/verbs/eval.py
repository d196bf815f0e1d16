"""`qrag eval`: scores a trained retriever and its baselines on questions with known chunks."""

import argparse
from collections.abc import Sequence

from qrag_jax.cli.progress import Progress
from qrag_jax.cli.questions import calibration_task, report_tasks, source
from qrag_jax.cli.terminal import say, shown_lines, write_json
from qrag_jax.cli.verbs.eval_answers import make_reader, watched, write_answers
from qrag_jax.cli.verbs.eval_outputs import STDOUT, check_outputs
from qrag_jax.eval.answers.answering import Answered, Reader, read_answers
from qrag_jax.eval.answers.records import answer_row_values
from qrag_jax.eval.answers.report import format_answers
from qrag_jax.eval.retrieval.compare import compare, comparison_values, format_comparisons
from qrag_jax.eval.retrieval.records import row_values, write_records, write_rows
from qrag_jax.eval.retrieval.report import format_table
from qrag_jax.eval.retrieval.score import Options, Scored, Watch, check_protocols, default_methods, open_run, score
from qrag_jax.qrag.tasks import Task


def run(args: argparse.Namespace) -> int:
    """Runs `qrag eval`; see `qrag eval --help`.

    Returns:
        0; 1 where `--answers` got no answer at all, after all was printed.
    """
    check_outputs(args)
    trained = open_run(args.run)
    options = _options(args)
    check_protocols(options, trained, calibrated=bool(args.calibrate))
    training_chunks = trained.labels.training_chunks
    tasks = list(report_tasks(args, training_chunks, trained.data))
    reader = make_reader(args, source(args)[0], tasks)
    held_out = calibration_task(args, training_chunks, trained.data) if args.calibrate else None
    with Progress() as progress:
        scored = score(trained, tasks, options, held_out, watch(progress))
    _write_facts(scored, args)
    answered = None if reader is None else _answers(reader, tasks, scored, options, args)
    _print_rows(scored, answered, args)
    if args.tests:
        _write_tests(tasks, scored, answered, args)
    if answered is not None and answered.all_failed:
        say(f"qrag: error: the language model gave no answer to any of {len(answered.records):,} questions")
        return 1
    return 0


def watch(progress: Progress) -> Watch:
    """Shows on standard error what goes on while methods are scored."""
    return Watch(say, progress.note, progress.stage("embed"))


def _options(args: argparse.Namespace) -> Options:
    return Options(
        methods=args.methods or default_methods(vectors=bool(args.vectors), note=say),
        num_steps=args.num_steps,
        num_questions=args.num_questions,
        seed=args.seed,
        protocols=args.protocol or (),
        beam_widths=args.beam_width,
        stopping=args.stopping,
    )


def _write_facts(scored: Scored, args: argparse.Namespace) -> None:
    """All that is known before a language model is asked, which takes long and may fail."""
    if args.per_query:
        write_records(args.per_query, [record for own in scored.records for record in own])
    if args.json and args.json != STDOUT:
        write_rows(args.json, scored.rows)
    if args.json != STDOUT:
        print(shown_lines(format_table(scored.rows)), flush=True)


def _answers(
    reader: Reader, tasks: Sequence[Task], scored: Scored, options: Options, args: argparse.Namespace
) -> Answered:
    bounds = options if args.answer_bounds else None
    with Progress() as progress:
        answered = read_answers(watched(reader, progress), tasks, scored.records, bounds)
    write_answers(answered, args)
    return answered


def _print_rows(scored: Scored, answered: Answered | None, args: argparse.Namespace) -> None:
    if args.json == STDOUT:
        facts = row_values(scored.rows)
        write_json(facts if answered is None else {"facts": facts, "answers": answer_row_values(answered.rows)})
    elif answered is not None:
        print(shown_lines(format_answers(answered.rows)))


def _write_tests(tasks: Sequence[Task], scored: Scored, answered: Answered | None, args: argparse.Namespace) -> None:
    pairs = zip(tasks, scored.records, strict=True)
    found = [comparison for task, own in pairs for comparison in compare(task.name, own)]
    found += answered.comparisons if answered is not None else ()
    write_json(comparison_values(found), args.tests)
    if args.json != STDOUT:
        print(shown_lines(format_comparisons(found)))
