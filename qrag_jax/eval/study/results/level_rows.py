"""Rows of levels: fixed ones, the full range, what dev questions choose, routers, and the bound.

    each     every level alone
    all      the full range
    dev      the range, of all, that is best on dev questions at the budget
    router   trained on dev questions at the budget, on vectors or profiles, as cross-validation among them says
    classifier  the same, trained to tell the best range of a question
    planner:RUN  a planner that was trained before
    bound    of each question the level alone that is best for it, which no planner knows

A plan that differs between questions costs as much as the range that contains all of its ranges.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges, full_range
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.costs import with_dollars
from qrag_jax.eval.study.config import StudyConfig
from qrag_jax.eval.study.records import LevelCell, LevelRow, Page
from qrag_jax.eval.study.results.summary import describe_config
from qrag_jax.eval.tables import interval, share
from qrag_jax.llm.prices import Prices
from qrag_jax.measures.aggregate import mean_interval
from qrag_jax.names import FeaturesName, RouterMethod
from qrag_jax.search.levels.planner_runs import ask_trained, read_planner
from qrag_jax.search.levels.planners import check_levels, plan_cost
from qrag_jax.search.levels.router import Router, route
from qrag_jax.search.levels.router_training import fit_best_router
from qrag_jax.types import Cost, InputError


@dataclass(frozen=True)
class LevelOutcome:
    """The results of a strategy of levels on a task, for one kind of parents.

    Attributes:
        config: of its trees.
        test: the part that is reported.
        dev: the part that chooses; None where there are too few questions.
        cell, dev_cell: what each range found on them.
        vectors, dev_vectors: of their questions.
        fingerprint: of the encoder.
    """

    config: ChunkConfig
    test: StudyTask
    dev: StudyTask | None
    cell: LevelCell
    dev_cell: LevelCell | None
    vectors: np.ndarray
    dev_vectors: np.ndarray | None
    fingerprint: str


@dataclass(frozen=True)
class _Plan:
    """The place among all ranges of the one of each question."""

    name: str
    chosen: Int[np.ndarray, " questions"]
    scores: dict[str, float]
    was_chosen: bool = False


def level_rows(outcome: LevelOutcome, study: StudyConfig, prices: Prices | None) -> Iterator[LevelRow]:
    """The rows of all plans of a study, at every budget."""
    of_run = cache(partial(_plan_of_run, outcome))  # a language model is asked once for all budgets
    for number, budget in enumerate(study.budgets):
        for plan in _plans(outcome, study, number, of_run):
            yield _row(outcome, plan, study, number, budget, prices)


def level_notes(outcome: LevelOutcome, study: StudyConfig) -> Iterator[str]:
    """Notes for readers of these rows."""
    missing = [name for name in study.levels if name in ("dev", "router", "classifier")]
    if outcome.dev_cell is None and missing:
        yield f"{outcome.cell.task}: no row of levels {' and '.join(missing)}: too few dev questions to choose by"


def _plans(outcome: LevelOutcome, study: StudyConfig, number: int, of_run: Callable[[str], _Plan]) -> Iterator[_Plan]:
    ranges, rows = all_ranges(outcome.cell.names), len(outcome.cell.recall)
    recall = np.array(outcome.cell.recall)[:, :, number]
    alone = np.array([place for place, one in enumerate(ranges) if one.least == one.most])
    for name in study.levels:
        kind, _, run = name.partition(":")
        if kind == "each":
            yield from (_Plan(name, np.full(rows, place), {}) for place in alone)
        elif kind == "all":
            yield _Plan(name, np.full(rows, ranges.index(full_range(outcome.cell.names))), {})
        elif kind == "bound":
            yield _Plan(name, alone[recall[:, alone].argmax(axis=1)], {})
        elif run:
            yield of_run(name)
        elif outcome.dev_cell is not None:
            on_dev = np.array(outcome.dev_cell.recall)[:, :, number]
            if kind == "dev":
                yield _Plan(name, np.full(rows, on_dev.mean(axis=0).argmax()), {}, True)
            else:
                method: RouterMethod = "classifier" if kind == "classifier" else "regression"
                yield _routed(name, outcome, _train(outcome, on_dev, study.seed, method), True)


def _train(
    outcome: LevelOutcome, on_dev: Float[np.ndarray, "questions ranges"], seed: int, method: RouterMethod
) -> Router:
    """The better router of both kinds of features; the best fixed range where questions are about one document."""
    assert outcome.dev is not None and outcome.dev_cell is not None and outcome.dev_vectors is not None
    groups = [question.relevant[0] for question in outcome.dev.questions]
    if len(set(groups)) < 2 * _FOLDS_OF_GROUPS:
        groups = [question.id for question in outcome.dev.questions]
    features: dict[FeaturesName, np.ndarray] = {
        "profiles": np.array(outcome.dev_cell.profiles),
        "vectors": outcome.dev_vectors,
    }
    how = {"names": outcome.cell.names, "fingerprint": outcome.fingerprint, "seed": seed, "method": method}
    return fit_best_router(features, on_dev, groups, **how).router


_FOLDS_OF_GROUPS = 5  # with fewer than twice as many documents, single questions are held out


def _plan_of_run(outcome: LevelOutcome, name: str) -> _Plan:
    """The plan of `planner:RUN`."""
    found, cell = read_planner(name.partition(":")[2]), outcome.cell
    if isinstance(found, Router):
        check_levels(found.names, cell.names, f"levels {name}", f"strategy {cell.strategy}")
        if found.fingerprint != outcome.fingerprint:
            raise InputError(
                f"levels {name}: trained on vectors of another encoder: give one that was trained with this study's "
                "model (qrag train router)"
            )
        return _routed(name, outcome, found, False)
    questions = [question.text for question in outcome.test.questions]
    plans = ask_trained(found, cell.names, f"strategy {cell.strategy}")(questions, ())
    ranges, num, reading = all_ranges(cell.names), len(plans.ranges), plans.reading
    scores = {
        "share_planned": 1 - sum(plans.fallbacks.values()) / num,
        "plan_prompt_tokens": reading.prompt_tokens / num,
        "plan_completion_tokens": reading.completion_tokens / num,
    }
    return _Plan(name, np.array([ranges.index(one) for one in plans.ranges]), scores)


def _routed(name: str, outcome: LevelOutcome, router: Router, was_chosen: bool) -> _Plan:
    features = outcome.vectors if router.features == "vectors" else np.array(outcome.cell.profiles)
    places, ranges = route(router, features), all_ranges(outcome.cell.names)
    known = np.array([ranges.index(one) for one in router.ranges])
    return _Plan(name, known[places], {"share_routed": float((places != router.fallback).mean())}, was_chosen)


def _row(
    outcome: LevelOutcome, plan: _Plan, study: StudyConfig, number: int, budget: int, prices: Prices | None
) -> LevelRow:
    cell, questions = outcome.cell, np.arange(len(plan.chosen))
    ranges = all_ranges(cell.names)
    used = [ranges[place] for place in np.unique(plan.chosen).tolist()]
    around = LevelRange(min(one.least for one in used), max(one.most for one in used))
    place, full = ranges.index(around), ranges.index(full_range(cell.names))
    erec = mean_interval(np.array(cell.recall)[questions, plan.chosen, number], seed=study.seed)
    all_sent = np.array(cell.sent)[:, :, number]
    sent, full_sent = float(all_sent[questions, plan.chosen].mean()), float(all_sent[:, full].mean())
    built = cell.built_tokens[place]
    cost = plan_cost(built, sent, cell.built_tokens[full] + full_sent)
    return LevelRow(
        task=cell.task,
        kind=outcome.test.kind,
        strategy=cell.strategy,
        number=cell.number,
        config=describe_config(outcome.config, cell.strategy),
        num_documents=cell.num_documents,
        n=erec.n,
        plan=plan.name,
        level_min=cell.names[around.least],
        level_max=cell.names[around.most],
        parents=cell.parents,
        budget=budget,
        erec=erec.mean,
        erec_low=erec.low,
        erec_high=erec.high,
        num_vectors=cell.num_vectors[place],
        built_tokens=built,
        sent_tokens=sent,
        scores={"plan_cost": float(cost), **plan.scores},
        cost=with_dollars(_shared(cell, place, full), prices),
        was_chosen=plan.was_chosen,
    )


def _shared(cell: LevelCell, place: int, full: int) -> Cost:
    """The cost of the vectors of a range: its share of all embedded tokens."""
    part = cell.built_tokens[place] / max(1, cell.built_tokens[full])
    vectors = cell.num_vectors[place] / max(1, cell.num_vectors[full])
    seconds = {name: spent if name == "chunk" else part * spent for name, spent in cell.cost.seconds.items()}
    return replace(
        cell.cost,
        seconds=seconds,
        embedder_tokens=round(part * cell.cost.embedder_tokens),
        flops=part * cell.cost.flops,
        index_bytes=round(vectors * cell.cost.index_bytes),
    )


def level_table(rows: Sequence[LevelRow], task: str) -> list[list[str]]:
    """Heading and lines of a task: a line a plan and way of parents, a column a budget; empty where it has no rows."""
    own = [row for row in rows if row.task == task]
    budgets = list(dict.fromkeys(row.budget for row in own))
    lines: dict[tuple[str, ...], dict[int, LevelRow]] = {}
    for row in own:
        level = f"{row.level_min}:{row.level_max}" if row.plan == "each" else ""
        lines.setdefault((row.strategy, row.parents, row.plan, level), {})[row.budget] = row
    body = [
        [*key[:3], key[3].partition(":")[0], *(_cell(of_each[n]) for n in budgets)] for key, of_each in lines.items()
    ]
    return [["strategy", "parents", "plan", "level", *(f"{n:,}" for n in budgets)], *body] if body else []


def _cell(row: LevelRow) -> str:
    return f"{share(row.erec)} {interval(row.erec_low, row.erec_high)}"


LEVELS = Page(
    lambda task: f"{task}: evidence found by levels (ERec), by tokens",
    lambda result, task: level_table(result.levels, task),
    num_text_columns=4,
)
