"""Scores a trained run and its baselines over tasks: what `qrag eval` does, as functions that print nothing.

task = examples_task("mine", read_examples("questions.jsonl"))
rows, records = score_run("runs/demo", [task])
print(format_table(rows))
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.eval.retrieval.calibration import calibrate, stored_threshold
from qrag_jax.eval.retrieval.harness import Labels, Scoring, Threshold, asked, draw_contexts, evaluate, pick_all
from qrag_jax.eval.retrieval.long_contexts import has_long
from qrag_jax.eval.retrieval.pickers import Picker, beam_picker, make_pickers
from qrag_jax.eval.retrieval.protocols import check_apart
from qrag_jax.eval.retrieval.records import QueryRecord, Row
from qrag_jax.eval.retrieval.stopping import analyse
from qrag_jax.eval.retrieval.stopping_report import write_stopping
from qrag_jax.index.rerankers import load_reranker
from qrag_jax.models.encoder.sources import is_installed
from qrag_jax.names import METHODS, POOL_METHODS, PROTOCOLS
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.multi_step_search import make_action_bank, num_questions_cut
from qrag_jax.qrag.retriever import QRagRetriever, load_retriever
from qrag_jax.qrag.tasks import Task
from qrag_jax.types import NOBODY, Arg, Reranker, UsageError, Watch

_BASELINE_ENCODER = "minilm"
_DEFAULT_PROTOCOLS = ("fixed", "threshold", "stop")


@dataclass(frozen=True)
class Run:
    """A trained run, as an evaluation needs it.

    Attributes:
        retriever: the trained one.
        labels: of the run in the rows.
        threshold: fitted on questions that training held out; None where there were none.
        data: the `data` section of its config.
    """

    retriever: QRagRetriever
    labels: Labels
    threshold: Threshold | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How `score` scores.

    Attributes:
        methods: rows to compute; None: all that the tasks and this machine allow.
        num_steps: T, picks a question; None: as in training.
        num_questions: size of a random subset of each task; None is all.
        seed: draws the subset and the contexts.
        protocols: of `protocols.PROTOCOLS`; none means `fixed` and all other protocols that the methods have, except
            the oracle.
        beam_widths: of the trained method; 1 is the greedy search, which is scored in any case.
        stopping: folder for the analysis of the trained method's stops; None makes none.
        rerank: reranker of the method `reranked`, or its name as `load_reranker` takes it; adds that method.

    Raises:
        UsageError: a method or protocol that there is not, a protocol twice, or a number out of range.
    """

    methods: tuple[str, ...] | None = None
    num_steps: int | None = None
    num_questions: int | None = None
    seed: int = 0
    protocols: tuple[str, ...] = ()
    beam_widths: tuple[int, ...] = (1,)
    stopping: str | Path | None = None
    rerank: Reranker | str | None = None

    def __post_init__(self) -> None:
        if self.methods is not None:
            _check_names("methods", self.methods, tuple(dict.fromkeys((*METHODS, *POOL_METHODS))))
            if "reranked" in self.methods and self.rerank is None:
                raise UsageError(("needs a reranker; name one with ", Arg("rerank")), field="methods", value="reranked")
        _check_names("protocols", self.protocols, PROTOCOLS)
        if len(set(self.protocols)) != len(self.protocols):
            raise UsageError(f"protocols={self.protocols!r}: one is given twice")
        for name, least in (("num_steps", 1), ("num_questions", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not _is_whole(value, least):
                raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")
        if not self.beam_widths or not all(_is_whole(width, 1) for width in self.beam_widths):
            raise UsageError(f"beam_widths={self.beam_widths!r}: give widths of at least 1; 1 is the greedy search")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int | np.integer) and int(value) >= least


def _check_names(field_name: str, names: Sequence[str], choices: Sequence[str]) -> None:
    wrong = [names] if isinstance(names, str) else [name for name in names if name not in choices]
    if wrong or (field_name == "methods" and not names):
        raise UsageError(f"{field_name}={names!r}: give a tuple of names out of {', '.join(choices)}")


class Scored(NamedTuple):
    """The result of an evaluation.

    Attributes:
        rows: a row a task, method, protocol and beam width.
        records: of every task a list, a record a row and question.
    """

    rows: list[Row]
    records: list[list[QueryRecord]]


def open_run(folder: str | Path) -> Run:
    """A run from its newest whole checkpoint.

    Raises:
        UsageError: no run there.
        InputError: no checkpoint in it is whole.
    """
    saved = load_checkpoint(folder, groups=())
    retriever = load_retriever(saved.folder)
    seed, training_chunks = saved.config.get("seed", 0), saved.metadata.get("num_chunks", 1)
    labels = Labels(retriever.model.mode, retriever.env.positions, seed, training_chunks)
    return Run(retriever, labels, stored_threshold(saved.metadata), saved.config.get("data", {}))


def score_run(
    folder: str | Path,
    tasks: Sequence[Task],
    options: Options | None = None,
    held_out: Task | None = None,
    watch: Watch = NOBODY,
) -> Scored:
    """`score` of the run in a folder.

    Raises:
        UsageError, InputError: as `open_run` and `score`.
    """
    return score(open_run(folder), tasks, options, held_out, watch)


def score(
    run: Run,
    tasks: Sequence[Task],
    options: Options | None = None,
    held_out: Task | None = None,
    watch: Watch = NOBODY,
) -> Scored:
    """Scores methods over tasks; tasks over the same pool of texts share one index.

    Args:
        run: the trained one.
        tasks: at one length each.
        options: what to score; None takes the defaults.
        held_out: queries to fit the thresholds of all methods on, instead of the threshold of the run.
        watch: receives progress and notes.

    Raises:
        UsageError: as `check_protocols`; a question to report is one that a threshold was fitted on, and rows that need
            it were asked for.
    """
    options = options or Options()
    check_protocols(options, run, calibrated=held_out is not None)
    methods = options.methods or default_methods(any(isinstance(x.texts, np.ndarray) for x in tasks), watch.note)
    options = replace(
        options,
        methods=methods if options.rerank is None else tuple(dict.fromkeys((*methods, "reranked"))),
        rerank=load_reranker(options.rerank) if isinstance(options.rerank, str) else options.rerank,
        num_steps=options.num_steps or run.retriever.env.num_steps,
    )
    mapped = any(map(has_long, tasks))
    if mapped and max(options.beam_widths) > 1:
        longest = max(int(task.sizes.max()) for task in tasks)
        reason = f": contexts of {longest:,} chunks are searched greedily only; leave it out, or take fewer chunks"
        raise UsageError((Arg("beam_widths", options.beam_widths), reason), field="beam_widths")
    thresholds = _thresholds(run, tasks, options, held_out, watch)
    rows, records, indexed, pickers, seconds = [], [], None, {}, None
    for task in tasks:
        if task.texts is not indexed:
            pickers, seconds = _pickers(run.retriever, task, options, thresholds.get("trained"), watch, mapped)
            indexed = task.texts
        new_rows, found = _score_task(task, pickers, run.labels, options, thresholds, watch)
        if has_long(task):
            new_rows = [replace(x, embed_seconds=seconds) if x.setting.method == "trained" else x for x in new_rows]
            for row in new_rows[:1]:
                watch.note(_told(row))
        rows += new_rows
        records.append(found)
        if options.stopping:
            _write_stopping(task, pickers[1]["trained"], options, watch.note)
    return Scored(rows, records)


def check_protocols(options: Options, run: Run, calibrated: bool) -> None:
    """Refuses protocols that no row could be of, before anything is embedded.

    Args:
        calibrated: thresholds will be fitted on held-out questions.
    """
    if "threshold" in options.protocols and run.threshold is None and not calibrated:
        raise UsageError(
            (Arg("protocols", "threshold"), ": this run has no threshold"),
            field="protocols",
            value="threshold",
            remedy=(
                "train it with dev.share=0.1, or give questions that are not reported with ",
                Arg("held_out", "FILE", python="held_out"),
            ),
        )
    if "stop" in options.protocols and not run.retriever.env.stop:
        raise UsageError(
            (Arg("protocols", "stop"), ": this run has not learned to stop"),
            field="protocols",
            value="stop",
            remedy=("train it with env.stop=true env.reward=at_end, or choose ", Arg("protocols", "threshold")),
        )
    if len(set(options.beam_widths)) != len(options.beam_widths):
        widths = options.beam_widths
        raise UsageError((Arg("beam_widths", widths), ": a width is given twice"), field="beam_widths", value=widths)
    if options.methods is not None and "trained" not in options.methods:
        _check_without_trained(options, calibrated)


def _check_without_trained(options: Options, calibrated: bool) -> None:
    if max(options.beam_widths) > 1:
        raise UsageError(
            (Arg("beam_widths"), " works only with the method 'trained'"),
            field="beam_widths",
            value=options.beam_widths,
            remedy=("add it to ", Arg("methods")),
        )
    if options.stopping:
        raise UsageError(
            (Arg("stopping"), " works only with the method 'trained'"),
            field="stopping",
            remedy=("add it to ", Arg("methods")),
        )
    if options.protocols and set(options.protocols) <= ({"stop"} if calibrated else {"stop", "threshold"}):
        raise UsageError(
            (Arg("protocols", options.protocols), ": only the method 'trained' supports it"),
            field="protocols",
            value=options.protocols,
            remedy=("add trained to ", Arg("methods")),
        )


def default_methods(vectors: bool = False, note: Callable[[str], None] = NOBODY.note) -> tuple[str, ...]:
    """All methods that a task and this machine allow.

    Args:
        vectors: the task is made of vectors, not of texts.
        note: called with the omitted methods.
    """
    if vectors:
        return ("trained", "single_step")
    if not is_installed():
        note("MiniLM is not installed, so the rows untrained and single_step are omitted; see docs/start.md")
        return ("trained", "bm25")
    return tuple(method for method in METHODS if method != "reranked")


def _told(row: Row) -> str:
    """The costs of a task with contexts that are scored in blocks, and how often its noise repeats."""
    embedded = "" if row.embed_seconds is None else f"embedded in {row.embed_seconds:,.1f} s, "
    peak = "" if row.peak_gib is None else f", peak memory {row.peak_gib:.2f} GiB with mapped files"
    told = f"{row.task}, {row.setting.num_chunks:,} chunks: {embedded}{row.step_ms or 0:,.1f} ms a pick{peak}"
    if row.noise_texts is None:
        return told
    return (
        f"{told}; a context has {row.noise_texts:,.0f} different sentences of the haystack, each "
        f"{row.noise_repeats:.1f} times on average and up to {row.most_repeats:,} times"
    )


def _score_task(
    task: Task,
    pickers: Mapping[int, Mapping[str, Picker]],
    labels: Labels,
    options: Options,
    thresholds: Mapping[str, Threshold],
    watch: Watch,
) -> tuple[list[Row], list[QueryRecord]]:
    """Rows and records of one task, the greedy search of all methods first, then the beams."""
    assert options.num_steps is not None
    protocols = options.protocols or _DEFAULT_PROTOCOLS
    how = Scoring(options.num_steps, options.num_questions, options.seed, protocols, thresholds, keep_texts=True)
    rows, records = [], []
    for width, own in pickers.items():
        new_rows, new_records = evaluate(task, own, labels, replace(how, beam_width=width), watch.doing)
        rows += new_rows
        records += new_records
    return rows, records


def _thresholds(
    run: Run, tasks: Sequence[Task], options: Options, held_out: Task | None, watch: Watch
) -> dict[str, Threshold]:
    """By method: fitted on held-out queries, else the run's own; none where a question to report was used for them."""
    if _used(tasks, options, _fitted_on(run, held_out), watch.note):
        return {}
    if held_out is not None:
        return _fit(run.retriever, held_out, options, watch)
    return {} if run.threshold is None else {"trained": run.threshold}


def _fitted_on(run: Run, held_out: Task | None) -> frozenset[str]:
    """Fingerprints of the questions that the thresholds of an evaluation are, or will be, fitted on."""
    if held_out is not None:
        return frozenset(held_out.fingerprint(query) for query in range(len(held_out)))
    return frozenset() if run.threshold is None else run.threshold.fitted_on


def _used(tasks: Sequence[Task], options: Options, questions: frozenset[str], note: Callable[[str], None]) -> bool:
    """True if a question to report is also used to fit thresholds; checked before anything is embedded.

    A beam is searched with the threshold, whatever protocol then counts its picks.
    """
    wanted = "threshold" in options.protocols or max(options.beam_widths) > 1
    if not questions or (options.protocols and not wanted):
        return False
    for task in tasks:
        reported = asked(task, options.num_questions, options.seed)
        if not (shared := sum(one in questions for one in reported)):
            continue
        if wanted:
            check_apart(questions, reported)
        note(f"{task.name}: no threshold rows, {shared:,} of its questions were used to fit the threshold")
        return True
    return False


def _pickers(
    retriever: QRagRetriever,
    task: Task,
    options: Options,
    threshold: Threshold | None,
    watch: Watch,
    mapped: bool = False,
) -> tuple[dict[int, dict[str, Picker]], float | None]:
    """By beam width and method, over one index: all methods under width 1, under the others the trained one.

    With it the seconds in which the trained method embedded the texts.
    """
    index, seconds, methods, embedded = None, None, options.methods or (), watch.stage("embed")
    if "trained" in methods:
        start = time.perf_counter()
        index = make_action_bank(retriever, task.texts, embedded, mapped=mapped)
        seconds = time.perf_counter() - start
        _note_what_is_cut(retriever, task, index.num_texts_cut, watch.note)
    assert not isinstance(options.rerank, str)  # `score` has loaded it
    greedy = make_pickers(
        retriever, task.texts, task.questions, methods, _BASELINE_ENCODER, embedded, index, options.rerank, mapped
    )
    lowest = None if threshold is None else threshold.value
    if index is None:
        return {1: greedy}, None
    widths = [width for width in options.beam_widths if width > 1]
    beams = {w: {"trained": beam_picker(index, task.questions, w, lowest)} for w in widths}
    return {1: greedy} | beams, seconds


def _note_what_is_cut(retriever: QRagRetriever, task: Task, num_texts_cut: int, note: Callable[[str], None]) -> None:
    """Says how many chunks and questions of a task the run reads the beginning of only."""
    spec = retriever.model.encoder
    questions = num_questions_cut(retriever, task.questions)
    for count, what, of, window in (
        (num_texts_cut, "chunks", len(task.texts), spec.window),
        (questions, "questions", len(task.questions), spec.question_window),
    ):
        if count:
            note(f"{task.name}: {count:,} of {of:,} {what} are longer than the {window} tokens this run reads")


def _fit(retriever: QRagRetriever, held_out: Task, options: Options, watch: Watch) -> dict[str, Threshold]:
    """A threshold for every method, fitted on held-out queries."""
    assert options.num_steps is not None
    pickers = _pickers(retriever, held_out, replace(options, beam_widths=(1,)), None, watch)[0][1]
    fitted = {}
    for name, picker in pickers.items():
        fitted[name], reached = calibrate(held_out, picker, options.num_steps, seed=options.seed)
        watch.note(
            f"{name}: threshold {fitted[name].value:.4g}, fitted on {reached.n:,} questions of {held_out.name} "
            f"(F1 {reached.fact_f1:.3f} there)"
        )
    return fitted


def _write_stopping(task: Task, picker: Picker, options: Options, note: Callable[[str], None]) -> None:
    """Appendix B and C for the trained method on one task; questions with fewer chunks than picks are left out."""
    assert options.num_steps is not None
    _, contexts = draw_contexts(task, options.num_questions, options.seed)
    sizes = (contexts.chunks >= 0).sum(axis=1)
    full = sizes >= options.num_steps
    if not full.any():
        note(f"{task.name}: every context has fewer than {options.num_steps} chunks: no analysis of its stops")
        return
    contexts = Contexts(contexts.questions[full], contexts.chunks[full], contexts.gold[full])
    if (contexts.gold.sum(axis=1) == sizes[full]).all():
        note(f"{task.name}: every chunk is gold: no analysis of its stops")
        return
    picked, gold = pick_all(picker, contexts, options.num_steps)
    analysis = analyse(picked.chosen, picked.scores, gold, sizes[full])
    folder = Path(str(options.stopping)) / f"{task.name}_{contexts.chunks.shape[1]}".replace(" ", "_")
    write_stopping(folder, analysis, title=f"{task.name}, {contexts.chunks.shape[1]:,} chunks: when to stop")
    note(f"wrote {folder}")
