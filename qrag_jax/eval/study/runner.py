"""A study from start to end: every config on dev, the best of each strategy on test; each cell is stored when it is
done. The report reads the stored cells, so an interrupted and resumed study gives the same report except for times.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.cell_files import CellStore, claim_folder, made_of, with_config
from qrag_jax.eval.study.cells.costs import Meter
from qrag_jax.eval.study.cells.filled_contexts import Contexts, known_points
from qrag_jax.eval.study.cells.level_cells import LevelStore, make_parents, run_levels
from qrag_jax.eval.study.cells.run_cell import NUM_RERANKED, Tools, embed_questions, run_config
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder
from qrag_jax.eval.study.cells.work import Report, Sides, Work
from qrag_jax.eval.study.config import StudyConfig
from qrag_jax.eval.study.load_tasks import split_task
from qrag_jax.eval.study.records import CellResult, LevelCell, Part, StudyResult
from qrag_jax.eval.study.results.level_rows import LevelOutcome, level_notes, level_rows
from qrag_jax.eval.study.results.question_scores import score_questions
from qrag_jax.eval.study.results.study_answers import StudyAnswer, answer_questions
from qrag_jax.eval.study.results.summary import (
    Outcome,
    choose,
    compare_all,
    compare_fills,
    make_rows,
    question_objects,
    write_trec,
)
from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.prices import load_prices
from qrag_jax.names import CHUNKERS
from qrag_jax.search.levels.planner_runs import read_planner
from qrag_jax.types import InputError, Reranker, TextGenerator, UsageError


@dataclass(frozen=True)
class _Study:
    """Shared by all tasks of a study."""

    config: StudyConfig
    tools: Tools
    store: CellStore
    work: Work
    warm_up: Callable[[], None]
    generator: TextGenerator | None
    report: Report | None


def run_study(
    config: StudyConfig,
    tasks: Sequence[StudyTask],
    encoder: StudyEncoder,
    out: Path,
    report: Report | None = None,
    generator: TextGenerator | None = None,
    reranker: Reranker | None = None,
) -> StudyResult:
    """Runs the missing cells of a study, and reports all of it.

    Task by task and strategy by strategy: each config on dev, the choice, the chosen one on test. Where dev and test
    search the same corpus, one pass over it gives both. Vectors of questions are charged to no strategy.

    In `out`: `config.yaml`, `cells/`, `sentences/` (vectors that were kept), `trec/`, and `answers/journal.sqlite`
    where a language model was asked. One study writes there at a time.

    Args:
        config: of the study.
        tasks: as `tasks.load_task` gives them, in the order of `config.tasks`.
        encoder: of sentences, chunks and questions.
        out: folder; one that holds a part of the same study is gone on with.
        report: called with ("warm-up", done, of) and ("study", done, of): characters of documents cut and embedded; and
            with ("levels", done, of): questions that searched all ranges.
        generator: language model that answers the test questions of tasks with reference answers, from the `report_k`
            chunks of each chosen config; None asks none. Answered questions are not asked again.
        reranker: that of `config.rerank` (`load_reranker`); None without one.

    Raises:
        UsageError: tasks that are not those of the config, a value of a strategy out of range, a price file that is
            none, or an `out` that holds another study or is in use.
        InputError: a blank document, or data that a task cannot be split or scored by.
    """
    if bool(config.rerank) != (reranker is not None):
        raise UsageError("goes with a loaded reranker; give both, or neither", field="rerank", value=config.rerank)
    if [task.name for task in tasks] != list(config.tasks):
        raise UsageError(f"tasks {[task.name for task in tasks]}: the config has {list(config.tasks)}, in this order")
    if config.budgets and all(task.kind == "documents" for task in tasks):
        raise UsageError(
            f"budgets {list(config.budgets)}: no task has evidence that a context could contain; leave it out"
        )
    prices = load_prices(config.prices) if config.prices else None
    split, told = make_splitter(config.splitter, config.language), None if report is None else partial(report, "rerank")
    tools = Tools(encoder, SentenceCache(out / "sentences"), split, reranker, told)
    _check_strategies(config, encoder)
    _check_levels(config, tools)
    sides = [_split(config, task) for task in tasks]
    with lock_folder(out, "a study"):
        claim_folder(out, config)
        store = CellStore(out)
        work = Work(config, sides, store, report)
        study = _Study(config, tools, store, work, _warm_up_once(encoder, report), generator, report)
        outcomes, levels = [], []
        for side in sides:
            cells = _Cells(study, side)
            found = list(_run_task(study, side, cells))
            outcomes += found
            if config.levels and side.test.kind == "evidence":
                levels += _run_levels(study, side, cells, found)
        work.finish()
        level_lines = tuple(row for outcome in levels for row in level_rows(outcome, config, prices))
    return StudyResult(
        report_k=config.report_k,
        ks=config.ks,
        baseline=config.baseline,
        rows=tuple(row for outcome in outcomes for row in make_rows(outcome, config, prices)),
        comparisons=(*compare_all(outcomes, config), *compare_fills(outcomes, config)),
        questions=tuple(one for outcome in outcomes for one in question_objects(outcome)),
        levels=level_lines,
        notes=(
            *_notes(config, tasks, sides, outcomes, encoder),
            *dict.fromkeys(note for outcome in levels for note in level_notes(outcome, config)),
        ),
    )


def _check_strategies(config: StudyConfig, encoder: StudyEncoder) -> None:
    """Finds a wrong value before hours of work, not after them."""

    def blank(texts: Sequence[str]) -> np.ndarray:
        return np.zeros((len(texts), encoder.dim), np.float32)

    for name, configs in config.strategies.items():
        for number, one in enumerate(configs):
            try:
                points = known_points(one, None, blank, encoder.fingerprint)
                make_chunker(one, encoder.count, blank, predict=points)
                if one.strategy == "late":
                    encoder.check_late(one.late)
            except UsageError as error:
                raise UsageError(f"strategies.{name}, config {number}: {error}") from error


def _check_levels(config: StudyConfig, tools: Tools) -> None:
    """Finds a run that is not there, or of another encoder, before hours of work."""
    if not config.levels:
        return
    for way in config.parents:
        make_parents(way, tools.encoder.sentence_embed(tools.cache, Meter()), tools)
    for name in config.levels:
        _, _, run = name.partition(":")
        if run:
            read_planner(run)


def _split(config: StudyConfig, task: StudyTask) -> Sides:
    for document in task.documents:
        if not document.text.strip():
            raise InputError(f"{task.name}: document {document.id!r} is blank: leave it out")
    how = config.tasks[task.name]
    dev, test = split_task(task, how, config.dev_share, config.min_dev_questions, config.seed)
    return Sides(dev, test, share_corpus=how.split == "questions")


def _warm_up_once(encoder: StudyEncoder, report: Report | None) -> Callable[[], None]:
    """Before the first pass, and not at all where all is stored."""
    progress = None if report is None else lambda done, of: report("warm-up", done, of)
    return cache(lambda: encoder.warm_up(progress))


def _run_task(study: _Study, sides: Sides, cells: "_Cells") -> Iterator[Outcome]:
    """The outcome of every strategy on one task."""
    for strategy, configs in study.config.strategies.items():
        dev_scores = None
        if sides.dev is not None:
            found = [cells.get(strategy, number, "dev") for number in range(len(configs))]
            dev_scores = [_score(study, sides.dev, cell) for cell in found]
        choice = choose(dev_scores, study.config.ks)
        cell = cells.get(strategy, choice.number, "test")
        outcome = Outcome(
            task=sides.test,
            config=configs[choice.number],
            choice=choice,
            cell=cell,
            scores=_score(study, sides.test, cell),
            answers=_answers(study, sides.test, cell),
        )
        write_trec(outcome, study.store.out / "trec")
        yield outcome


def _run_levels(study: _Study, sides: Sides, cells: "_Cells", outcomes: Sequence[Outcome]) -> Iterator[LevelOutcome]:
    """The results of ranges of levels, for every strategy with levels, or for one by headings if there is none."""
    config = study.config
    chosen = [
        (one.cell.strategy, one.cell.number, one.config)
        for one in outcomes
        if one.config.strategy in CHUNKERS.choices("levels")
    ]
    for strategy, number, how in chosen or [("levels", 0, ChunkConfig("levels"))]:
        for way in config.parents:
            cell = cells.get_levels(strategy, number, how, way, "test")
            dev_cell = None if sides.dev is None else cells.get_levels(strategy, number, how, way, "dev")
            yield LevelOutcome(
                config=how,
                test=sides.test,
                dev=sides.dev,
                cell=cell,
                dev_cell=dev_cell,
                vectors=cells.questions("test"),
                dev_vectors=None if sides.dev is None else cells.questions("dev"),
                fingerprint=study.tools.encoder.fingerprint,
            )


class _Cells:
    """The cells of one task, run where they are not stored; documents are hashed and questions embedded once."""

    def __init__(self, study: _Study, sides: Sides) -> None:
        fingerprint = study.tools.encoder.fingerprint
        parts = {**sides.together("dev"), **sides.together("test")} if sides.dev else sides.together("test")
        self._study, self._sides = study, sides
        self._origins = {part: made_of(study.config, task, fingerprint) for part, task in parts.items()}
        self.questions = cache(lambda part: embed_questions(parts[part].questions, study.tools))

    def get(self, strategy: str, number: int, part: Part) -> CellResult:
        """A stored cell; it is run first if it is missing."""
        parts = list(self._sides.together(part))
        if any(self._read(strategy, number, one) is None for one in parts):  # all of a pass again: it has one cost
            self._run(strategy, number, part)
        cell = self._read(strategy, number, part)
        if cell is None:
            path = self._study.store.path(self._sides.test.name, strategy, number, part)
            raise InputError(f"{path}: damaged or removed while the study ran: start it again")
        return cell

    def _read(self, strategy: str, number: int, part: Part) -> CellResult | None:
        origin = with_config(self._origins[part], self._study.config.strategies[strategy][number])
        return self._study.store.read(self._sides.test.name, strategy, number, part, origin)

    def _run(self, strategy: str, number: int, part: Part) -> None:
        study, parts = self._study, self._sides.together(part)
        study.warm_up()
        config = study.config.strategies[strategy][number]
        results = run_config(
            strategy,
            number,
            config,
            parts,
            study.config.tasks[self._sides.test.name].scope,
            max(study.config.ks),
            study.tools,
            {one: self.questions(one) for one in parts},
            study.work.begin(self._sides, strategy, number, part),
            Contexts(study.config.budgets, study.config.fills) if study.config.budgets else None,
        )
        for result in results:
            study.store.write(result, with_config(self._origins[result.part], config))

    def get_levels(self, strategy: str, number: int, config: ChunkConfig, way: str, part: Part) -> LevelCell:
        """A stored cell of levels; it is run first if it is missing."""
        study, parts = self._study, self._sides.together(part)
        store, name = LevelStore(study.store.out), self._sides.test.name
        origins = {one: with_config({**self._origins[one], "parents": self._parents(way)}, config) for one in parts}
        found = {one: store.read(name, strategy, number, way, one, origins[one]) for one in parts}
        if any(cell is None for cell in found.values()):
            study.warm_up()
            made = run_levels(
                strategy,
                number,
                config,
                way,
                parts,
                study.config.tasks[name].scope,
                study.config.budgets,
                study.tools,
                {one: self.questions(one) for one in parts},
                None if study.report is None else partial(study.report, "levels"),
            )
            for cell in made:
                store.write(cell, origins[cell.part])
        cell = store.read(name, strategy, number, way, part, origins[part])
        if cell is None:
            path = store.path(name, strategy, number, way, part)
            raise InputError(f"{path}: damaged or removed while the study ran: start it again")
        return cell

    def _parents(self, way: str) -> str:
        """An identity of the way to make the vectors of parents, for the origin of cells."""
        tools = self._study.tools
        return f"{way} {make_parents(way, tools.encoder.sentence_embed(tools.cache, Meter()), tools).fingerprint}"


def _score(study: _Study, task: StudyTask, cell: CellResult) -> dict[str, np.ndarray]:
    return score_questions(task, cell.found, study.config.ks, study.tools.encoder.count)


def _answers(study: _Study, test: StudyTask, cell: CellResult) -> Sequence[StudyAnswer] | None:
    if study.generator is None or not any(question.answers for question in test.questions):
        return None
    journal = Journal(study.store.out / "answers" / "journal.sqlite")
    encoder = study.tools.encoder
    return answer_questions(
        test,
        cell.found,
        JournaledGenerator(study.generator, journal),
        num_chunks=study.config.report_k,
        embed=encoder.sentence_embed(study.tools.cache, Meter()),
        embed_tokens=encoder.tokens,
    )


def _notes(
    config: StudyConfig,
    tasks: Sequence[StudyTask],
    sides: Sequence[Sides],
    outcomes: Sequence[Outcome],
    encoder: StudyEncoder,
) -> Iterator[str]:
    """Notes for readers of the table."""
    if config.rerank:
        yield f"{config.rerank} orders the nearest {NUM_RERANKED} chunks of every question; s is without its seconds"
    for task, side in zip(tasks, sides, strict=True):
        for reason, number in {**task.left_out, **side.test.left_out}.items():
            yield f"{task.name}: left out, {reason}: {number:,}"
        if num_long := sum(not encoder.holds(question.text) for question in side.test.questions):
            yield f"{task.name}: questions of which only the beginning fits into the encoder's window: {num_long:,}"
        if side.dev is None:
            yield (
                f"{task.name}: {len(side.test.questions):,} questions are too few to choose configs by a part of them "
                f"(at least {config.min_dev_questions} on dev): the first config of each strategy is reported"
            )
        else:
            yield f"{task.name}: configs chosen on {len(side.dev.questions):,} other questions"
    for outcome in outcomes:
        cell, missing = outcome.cell, []
        if cell.num_reranked_cut:
            yield (
                f"{cell.task}, {cell.strategy}: {config.rerank} read only the beginning of a chunk "
                f"{cell.num_reranked_cut:,} times, because it reads no more"
            )
        if cell.recall:
            missing = [fill for fill in config.fills if f"{fill}@{config.budgets[0]}" not in cell.recall]
        if missing:
            yield (
                f"{cell.task}, {cell.strategy}: its chunks have several spans or overlap, so they have no tree: no "
                f"fill by {' and '.join(missing)}"
            )
        answers = outcome.answers or ()
        if failed := sum(answer.generation.error is not None for answer in answers):
            yield f"{cell.task}, {cell.strategy}: {failed:,} of {len(answers):,} answers failed"
