"""`qrag fit router`: trains a router of levels on the questions of a study, and says what to expect of it."""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.chunking.tree.level_ranges import all_ranges, format_levels, full_range
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.config import is_override, load_config, to_dict
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.level_cells import run_levels
from qrag_jax.eval.study.cells.run_cell import Tools, embed_questions
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.eval.study.cells.study_encoder import load_study_encoder
from qrag_jax.eval.study.config import DefaultStudy, StudyConfig
from qrag_jax.eval.study.load_tasks import load_task
from qrag_jax.eval.study.records import LevelCell
from qrag_jax.eval.tables import share
from qrag_jax.names import FEATURES
from qrag_jax.search.corpus import ReportProgress
from qrag_jax.search.levels.planners import plan_cost, save_router
from qrag_jax.search.levels.router_training import FittedRouter, PlanLabels, cheapest_ranges, fit_router
from qrag_jax.train.run_folder import check_out
from qrag_jax.types import InputError, UsageError


def run(args: argparse.Namespace) -> int:
    """Runs `qrag fit router`; see `qrag fit router --help`."""
    out = Path(args.out)
    check_out(out, resumes=False)
    if wrong := [word for word in args.overrides if not is_override(word)]:
        raise UsageError(f"{wrong[0]}: give one config; a change to it is field=value, as data=DATA")
    config = load_config(DefaultStudy, args.config, args.overrides)
    tasks = _load_tasks(config)
    encoder = load_study_encoder(config.model, config.window)
    split = make_splitter(config.splitter, config.language)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tools = Tools(encoder, SentenceCache(Path(folder)), split)
        vectors = [embed_questions(task.questions, tools) for task in tasks]
        with Progress() as progress:
            told = progress.stage("levels")
            cells = [
                _cell(config, task, own, args.budget, tools, told) for task, own in zip(tasks, vectors, strict=True)
            ]
    fitted = _fit(cells, vectors, tasks, args.features, encoder.fingerprint, args.seed)
    save_router(fitted.router, out, {"budget": args.budget, "seed": args.seed, "study": to_dict(config)})
    row = _row(fitted, _labels(cells), args, time.perf_counter() - start)
    if args.json:
        write_json(row)
    else:
        print(_format(row))
    return 0


def level_config(config: StudyConfig) -> ChunkConfig:
    """The first config of strategy levels of a study; by headings where it has none."""
    configs = [one for own in config.strategies.values() for one in own if one.strategy == "levels"]
    return configs[0] if configs else ChunkConfig("levels")


def _load_tasks(config: StudyConfig) -> list[StudyTask]:
    split = make_splitter(config.splitter, config.language)
    tasks = [load_task(name, how, config.data, config.seed, split) for name, how in config.tasks.items()]
    found = [task for task in tasks if task.kind == "evidence"]
    if not found:
        raise InputError(f"tasks {', '.join(config.tasks)}: none has evidence, which a router learns from")
    for task in found:
        say(f"{task.name}: {len(task.questions):,} questions about {len(task.documents):,} documents")
    return found


def _cell(
    config: StudyConfig, task: StudyTask, vectors: np.ndarray, budget: int, tools: Tools, told: ReportProgress
) -> LevelCell:
    scope = config.tasks[task.name].scope
    how, way = level_config(config), config.parents[0]
    (cell,) = run_levels("levels", 0, how, way, {"test": task}, scope, (budget,), tools, {"test": vectors}, told)
    return cell


def _fit(
    cells: Sequence[LevelCell],
    vectors: Sequence[np.ndarray],
    tasks: Sequence[StudyTask],
    features: str | None,
    fingerprint: str,
    seed: int,
) -> FittedRouter:
    """The router on the features that were asked for, or on those whose held-out recall is the higher one."""
    known = {
        "profiles": np.concatenate([np.array(cell.profiles) for cell in cells]),
        "vectors": np.concatenate(vectors),
    }
    recall = np.concatenate([np.array(cell.recall)[:, :, 0] for cell in cells])
    groups = [f"{task.name}/{question.relevant[0]}" for task in tasks for question in task.questions]
    names = cells[0].names
    fitted = [
        fit_router(
            known[kind], recall, groups, all_ranges(names), names=names, kind=kind, fingerprint=fingerprint, seed=seed
        )
        for kind in FEATURES
        if features in (None, kind)
    ]
    return max(fitted, key=lambda one: one.held_out)


def _labels(cells: Sequence[LevelCell]) -> list[PlanLabels]:
    """The cheapest range of each question that holds its evidence, task by task."""
    found = []
    for cell in cells:
        ranges, sent, built = all_ranges(cell.names), np.array(cell.sent)[:, :, 0], cell.built_tokens
        full = ranges.index(full_range(cell.names))
        costs = [
            [
                plan_cost(float(own), float(of), float(built[full]), float(row[full]))
                for own, of in zip(built, row, strict=True)
            ]
            for row in sent
        ]
        found.append(cheapest_ranges(np.array(cell.recall)[:, :, 0], np.array(costs), ranges))
    return found


def _row(
    fitted: FittedRouter, labels: Sequence[PlanLabels], args: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    router = fitted.router
    return {
        "run": args.out,
        "features": router.features,
        "levels": list(router.names),
        "budget": args.budget,
        "n": fitted.n,
        "n_labelled": sum(one is not None for own in labels for one in own.ranges),
        "n_dropped": sum(sum(own.dropped.values()) for own in labels),
        "fallback": format_levels(router.ranges[router.fallback], router.names),
        "leaves_fallback": bool(np.isfinite(router.margin)),
        "strength": fitted.strength,
        "erec_held_out": fitted.held_out,
        "erec_fallback": fitted.fallback_held_out,
        "seconds": seconds,
    }


def _format(row: dict[str, Any]) -> str:
    lines = [
        f"trained: {row['run']}, {row['seconds']:,.0f} s, on {row['features']}",
        f"held out: ERec {share(row['erec_held_out'])} at {row['budget']:,} tokens, best fixed range "
        f"{share(row['erec_fallback'])}; {row['n']:,} questions",
        f"labels: {row['n_labelled']:,} questions, {row['n_dropped']:,} dropped, since no context holds their evidence",
    ]
    if not row["leaves_fallback"]:
        lines.append(f"nothing was gained on held-out questions: it always searches {row['fallback']}")
    return "\n".join(lines)
