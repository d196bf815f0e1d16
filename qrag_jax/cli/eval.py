"""`qrag eval`: scores a trained retriever and its baselines on questions with known chunks."""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.cli import say, write_json
from qrag_jax.cli.eval_answers import make_reader, read_answers
from qrag_jax.cli.eval_outputs import STDOUT, check_outputs
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.questions import calibration_task, report_tasks, source
from qrag_jax.eval.answer_records import answer_row_values
from qrag_jax.eval.answer_report import format_answers
from qrag_jax.eval.calibration import calibrate, stored_threshold
from qrag_jax.eval.compare import compare, comparison_values, format_comparisons
from qrag_jax.eval.harness import Labels, Threshold, asked, draw_contexts, evaluate, pick_all
from qrag_jax.eval.pickers import Picker, beam_picker, make_pickers
from qrag_jax.eval.protocols import check_apart, overlap
from qrag_jax.eval.records import METHODS, QueryRecord, Row, write_records, write_rows
from qrag_jax.eval.report import format_table
from qrag_jax.eval.stopping import analyse
from qrag_jax.eval.stopping_report import write_stopping
from qrag_jax.models.sources import is_installed
from qrag_jax.retrieval.batching import Contexts
from qrag_jax.retrieval.retriever import Retriever, load_retriever
from qrag_jax.retrieval.search import make_index, num_questions_cut
from qrag_jax.retrieval.tasks import Task
from qrag_jax.types import UsageError

_BASELINE_ENCODER = "minilm"


def run(args: argparse.Namespace) -> int:
    """Runs `qrag eval`; see `qrag eval --help`.

    Returns:
        0; 1 where `--answers` got no answer at all, after all was printed.
    """
    check_outputs(args)
    saved = load_checkpoint(args.run, groups=())
    retriever = load_retriever(saved.folder)
    labels = run_labels(saved, retriever)
    options = Options(
        methods=args.methods or default_methods(vectors=bool(args.vectors)),
        num_steps=args.num_steps or retriever.env.num_steps,
        num_questions=args.num_questions,
        seed=args.seed,
        protocols=args.protocol or (),
        beam_widths=args.beam_width,
        threshold=stored_threshold(saved.metadata),
        stopping=args.stopping,
    )
    check_protocols(options, retriever, calibrated=bool(args.calibrate))
    data = saved.config.get("data", {})
    tasks = list(report_tasks(args, labels.training_chunks, data))
    reader = make_reader(args, source(args)[0], tasks)
    held_out = calibration_task(args, labels.training_chunks, data) if args.calibrate else None
    rows, records = score(retriever, tasks, labels, options, held_out)
    if args.per_query:
        write_records(args.per_query, [record for _, own in records for record in own])
    if args.json and args.json != STDOUT:
        write_rows(args.json, rows)
    if args.json != STDOUT:
        print(format_table(rows), flush=True)  # before a language model is asked, which takes long and may fail
    answered = None if reader is None else read_answers(reader, args, tasks, [own for _, own in records])
    if args.json == STDOUT:
        facts = [asdict(row) for row in rows]
        write_json(facts if answered is None else {"facts": facts, "answers": answer_row_values(answered.rows)})
    elif answered is not None:
        print(format_answers(answered.rows))
    if args.tests:
        found = [comparison for name, own in records for comparison in compare(name, own)]
        found += answered.comparisons if answered is not None else ()
        write_json(comparison_values(found), args.tests)
        if args.json != STDOUT:
            print(format_comparisons(found))
    if answered is not None and answered.all_failed:
        say(f"qrag: error: the language model gave no answer to any of {len(answered.records):,} questions")
        return 1
    return 0


@dataclass(frozen=True)
class Options:
    """How `score` scores.

    Attributes:
        methods: rows to compute.
        num_steps: T.
        num_questions: questions a task; None is all.
        seed: of the choice of questions and of their contexts.
        protocols: of `eval.protocols.PROTOCOLS`; none stands for `fixed` and what the methods have besides, without the
            oracle.
        beam_widths: of the trained method; 1 is the greedy search.
        threshold: the run's own.
        stopping: folder for the analysis of the trained method's stops.
    """

    methods: tuple[str, ...]
    num_steps: int
    num_questions: int | None = None
    seed: int = 0
    protocols: tuple[str, ...] = ()
    beam_widths: tuple[int, ...] = (1,)
    threshold: Threshold | None = None
    stopping: str | None = None


def check_protocols(options: Options, retriever: Retriever, calibrated: bool) -> None:
    """Refuses protocols that no row could be of, before anything is embedded.

    Raises:
        UsageError: says what the protocol needs.
    """
    if "threshold" in options.protocols and options.threshold is None and not calibrated:
        raise UsageError(
            "--protocol threshold: this run has no threshold of its own; train it with dev.share=0.1, or give "
            "questions that are not reported with --calibrate FILE"
        )
    if "stop" in options.protocols and not retriever.env.stop:
        raise UsageError(
            "--protocol stop: this run has not learned to stop; train it with env.stop=true env.reward=at_end, or "
            "choose --protocol threshold"
        )
    if len(set(options.beam_widths)) != len(options.beam_widths):
        raise UsageError(f"--beam_width {','.join(map(str, options.beam_widths))}: a width stands twice")
    if "trained" in options.methods:
        return
    if max(options.beam_widths) > 1:
        raise UsageError("--beam_width searches with the trained retriever: name trained in --methods")
    if options.stopping:
        raise UsageError("--stopping looks at the trained retriever: name trained in --methods")
    if options.protocols and set(options.protocols) <= ({"stop"} if calibrated else {"stop", "threshold"}):
        raise UsageError(
            f"--protocol {','.join(options.protocols)}: of all methods trained alone has it; name it in --methods"
        )


def run_labels(saved: Checkpoint, retriever: Retriever) -> Labels:
    """What rows say of a run, from its checkpoint."""
    seed, training_chunks = saved.config.get("seed", 0), saved.metadata.get("num_chunks", 1)
    return Labels(retriever.model.mode, retriever.env.positions, seed, training_chunks)


def default_methods(vectors: bool = False) -> tuple[str, ...]:
    """All methods that this task and this machine allow; what is left out is said."""
    if vectors:
        return ("trained", "single_step")
    if not is_installed():
        say(
            "the embedded encoder is not installed: no rows untrained and single_step; name them in --methods to insist"
        )
        return ("trained", "bm25")
    return METHODS


def score(
    retriever: Retriever, tasks: list[Task], labels: Labels, options: Options, held_out: Task | None = None
) -> tuple[list[Row], list[tuple[str, list[QueryRecord]]]]:
    """Scores methods over tasks; tasks over the same pool of texts share one index.

    Args:
        retriever: the trained one.
        tasks: at one length each.
        labels: of the rows.
        options: what to score.
        held_out: queries to fit the thresholds of all methods on, in place of the run's own threshold.

    Returns:
        (rows, (task name, records) of every task).
    """
    rows, records, indexed = [], [], None
    pickers, beams = {}, {}
    with Progress() as progress:
        if _used(tasks, options, fitted_on(options, held_out)):
            thresholds = {}
        elif held_out is not None:
            thresholds = _fit(retriever, held_out, options, progress)
        else:
            thresholds = {} if options.threshold is None else {"trained": options.threshold}
        protocols = options.protocols or ("fixed", "threshold", "stop")
        for task in tasks:
            if task.texts is not indexed:
                pickers, beams = _pickers(retriever, task, options, thresholds.get("trained"), progress)
                indexed = task.texts
            found: list[QueryRecord] = []
            for width in (1, *(w for w in options.beam_widths if w > 1)):
                own = pickers if width == 1 else {"trained": beams[width]}
                new_rows, new_records = evaluate(
                    task,
                    own,
                    options.num_steps,
                    labels,
                    options.num_questions,
                    options.seed,
                    progress.note,
                    keep_texts=True,
                    protocols=protocols,
                    thresholds=thresholds,
                    beam_width=width,
                )
                rows += new_rows
                found += new_records
            records.append((task.name, found))
            if options.stopping:
                _write_stopping(task, pickers["trained"], options)
    return rows, records


def fitted_on(options: Options, held_out: Task | None) -> frozenset[str]:
    """Fingerprints of the questions that the thresholds of an evaluation are, or will be, fitted on."""
    if held_out is not None:
        return frozenset(held_out.fingerprint(query) for query in range(len(held_out)))
    return frozenset() if options.threshold is None else options.threshold.fitted_on


def _used(tasks: list[Task], options: Options, questions: frozenset[str]) -> bool:
    """Whether a question to report is one of those that thresholds are fitted on: before anything is embedded.

    A beam is searched with the threshold, whatever protocol then counts its picks.

    Raises:
        UsageError: it is, and rows that need a threshold were asked for; if not, they are left out, which is said.
    """
    wanted = "threshold" in options.protocols or max(options.beam_widths) > 1
    if not questions or (options.protocols and not wanted):
        return False
    for task in tasks:
        reported = asked(task, options.num_questions, options.seed)
        if not (shared := overlap(questions, reported)):
            continue
        if wanted:
            check_apart(questions, reported)
        say(f"{task.name}: no threshold rows, {shared:,} of its questions were used to fit the threshold")
        return True
    return False


def _pickers(
    retriever: Retriever, task: Task, options: Options, threshold: Threshold | None, progress: Progress
) -> tuple[dict[str, Picker], dict[int, Picker]]:
    """Pickers by method, and of the trained method by beam width, over one index."""
    index = None
    if "trained" in options.methods:
        index = make_index(retriever, task.texts, progress.stage("embed"))
        say_what_is_cut(retriever, task, index.num_texts_cut)
    pickers = make_pickers(
        retriever, task.texts, task.questions, options.methods, _BASELINE_ENCODER, progress.stage("embed"), index
    )
    lowest = None if threshold is None else threshold.value
    widths = [width for width in options.beam_widths if width > 1]
    beams = {} if index is None else {w: beam_picker(index, task.questions, w, lowest) for w in widths}
    return pickers, beams


def say_what_is_cut(retriever: Retriever, task: Task, num_texts_cut: int) -> None:
    """Says how many chunks and questions of a task the run reads the beginning of only."""
    spec = retriever.model.encoder
    questions = num_questions_cut(retriever, task.questions)
    for count, what, of, window in (
        (num_texts_cut, "chunks", len(task.texts), spec.window),
        (questions, "questions", len(task.questions), spec.question_window),
    ):
        if count:
            say(f"{task.name}: {count:,} of {of:,} {what} are longer than the {window} tokens this run reads")


def _fit(retriever: Retriever, held_out: Task, options: Options, progress: Progress) -> dict[str, Threshold]:
    """A threshold for every method, fitted on held-out queries."""
    pickers, _ = _pickers(retriever, held_out, options, None, progress)
    fitted = {}
    for name, picker in pickers.items():
        fitted[name], reached = calibrate(held_out, picker, options.num_steps, seed=options.seed)
        say(
            f"{name}: threshold {fitted[name].value:.4g}, fitted on {reached.n:,} questions of {held_out.name} "
            f"(F1 {reached.fact_f1:.3f} there)"
        )
    return fitted


def _write_stopping(task: Task, picker: Picker, options: Options) -> None:
    """Appendix B and C for the trained method on one task; questions with fewer chunks than picks are left out."""
    _, contexts = draw_contexts(task, options.num_questions, options.seed)
    sizes = (contexts.chunks >= 0).sum(axis=1)
    full = sizes >= options.num_steps
    if not full.any():
        say(f"{task.name}: every context has fewer than {options.num_steps} chunks: no analysis of its stops")
        return
    contexts = Contexts(contexts.questions[full], contexts.chunks[full], contexts.gold[full])
    if (contexts.gold.sum(axis=1) == sizes[full]).all():
        say(f"{task.name}: every chunk is gold: no analysis of its stops")
        return
    picked, gold = pick_all(picker, contexts, options.num_steps)
    analysis = analyse(picked.chosen, picked.scores, gold, sizes[full])
    folder = Path(str(options.stopping)) / f"{task.name}_{contexts.chunks.shape[1]}"
    write_stopping(folder, analysis, title=f"{task.name}, {contexts.chunks.shape[1]:,} chunks: when to stop")
    say(f"wrote {folder}")
