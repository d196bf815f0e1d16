"""Levels in a study: rows of plans against their definitions, the same on resume, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.planner_runs import save_planner
from support.study import WordEmbedder, fixed, make_config, make_encoder, make_task

from qrag_jax.chunking.chunker import ChunkConfig, make_tree_builder
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges
from qrag_jax.eval.study.cells import level_cells as levels_module
from qrag_jax.eval.study.config import StudyConfig, TaskConfig
from qrag_jax.eval.study.results.report import format_markdown, format_table, summary_values
from qrag_jax.eval.study.runner import run_study
from qrag_jax.search.corpus import tree_corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.levels.router import Router, save_router
from qrag_jax.types import UsageError

NAMES = ("document", "24", "12", "6")
PLANS = ("each", "all", "dev", "router", "classifier", "bound")


def config(**changes):
    known = {
        "tasks": {"facts": TaskConfig("files", "facts", "facts.jsonl")},
        "strategies": {
            "fixed": (fixed(16),),
            "sizes": (ChunkConfig("levels", levels=LevelsConfig(sizes=(24, 12, 6))),),
        },
        "budgets": (10, 30),
        "levels": PLANS,
        "parents": ("best_child", "mean"),
    }
    return make_config(**{**known, **changes})


def run(out, embedder=None, **changes):
    return run_study(config(**changes), [make_task("facts")], make_encoder(embedder), out)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    return run(out), out


def rows_of(result, plan, parents="best_child", budget=30):
    return [one for one in result.levels if (one.plan, one.parents, one.budget) == (plan, parents, budget)]


def test_every_plan_has_its_rows(study):
    result, _ = study
    assert len(result.levels) == 2 * 2 * (len(NAMES) + 5)
    each = rows_of(result, "each")
    assert [one.level_min for one in each] == [one.level_max for one in each] == list(NAMES)
    (everything,) = rows_of(result, "all")
    assert (everything.level_min, everything.level_max) == ("document", "6")
    assert all(one.erec_low <= one.erec <= one.erec_high and one.n > 0 for one in result.levels)


def test_the_bound_is_above_every_level_and_dev_is_one_of_the_ranges(study):
    result, out = study
    for parents in ("best_child", "mean"):
        (bound,) = rows_of(result, "bound", parents)
        assert bound.erec >= max(one.erec for one in rows_of(result, "each", parents))
        (dev,) = rows_of(result, "dev", parents)
        cell = json.loads((out / f"levels/facts/sizes-0-{parents}-dev.json").read_text().split("\n", 1)[1])["result"]
        best = all_ranges(NAMES)[int(np.array(cell["recall"])[:, :, 1].mean(axis=0).argmax())]
        assert (dev.level_min, dev.level_max) == (NAMES[best.least], NAMES[best.most])
        assert dev.was_chosen


def test_cost_grows_with_the_range_and_is_1_of_all(study):
    result, _ = study
    (everything,) = rows_of(result, "all")
    assert everything.scores["plan_cost"] == 1.0
    for one in result.levels:
        assert 0 < one.scores["plan_cost"] <= 1.05  # a narrower range may send a few tokens more
        assert one.sent_tokens <= one.budget
        assert one.cost.index_bytes == one.num_vectors * 16 * 4
    (fine,) = [one for one in rows_of(result, "each", "mean") if one.level_min == "6"]
    assert fine.num_vectors < rows_of(result, "all", "mean")[0].num_vectors


def test_a_context_is_filled_to_the_budget_and_found_evidence_counts():
    """The sentence that is asked for is in the context of its leaf, and in no smaller one."""
    task = make_task("facts")
    count = WordEmbedder().count_tokens
    build = make_tree_builder(config().strategies["sizes"][0], count)
    corpus = tree_corpus(task.documents, [build(document) for document in task.documents], count)
    contexts = levels_module.LevelContexts(corpus, task, (3, 200), count)
    question = task.questions[0]
    leaves = corpus.leaves.tolist()
    place = next(node for node in leaves if corpus.nodes[node].spans[0][0] == question.evidence[0].start)
    ranked = Ranked(np.array([place, *(node for node in leaves if node != place)]), np.zeros(len(leaves)))
    recall, sent = contexts.recalls(question, ranked)
    assert recall == [0.0, 1.0] and sent == [3, 200]


def test_the_same_study_again_reads_its_cells(study):
    result, out = study
    embedder = WordEmbedder()
    again = run(out, embedder)
    assert not embedder.calls
    assert again.levels == result.levels


def test_a_damaged_cell_is_run_again(study):
    result, out = study
    path = out / "levels/facts/sizes-0-mean-test.json"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="damaged"):
        again = run(out)
    assert [replace(one, cost=None) for one in again.levels] == [replace(one, cost=None) for one in result.levels]


def test_rows_of_both_kinds_have_the_same_fields(study):
    result, _ = study
    rows = summary_values(result)["rows"]
    assert len({tuple(sorted(row)) for row in rows}) == 1
    plain, level = rows[0], rows[-1]
    assert plain["level_min"] is None and plain["fill"] == "plain"
    assert level["fill"] is None and level["level_min"] == "document" and level["plan"] == "bound"


def test_tables_show_levels(study):
    result, _ = study
    assert "evidence found by levels" in format_table(result)
    assert "| sizes | best_child | each | 12 |" in format_markdown(result)


@pytest.mark.slow
def test_a_router_of_a_run_chooses(study, tmp_path):
    _, out = study
    router = Router(
        "vectors",
        NAMES,
        (LevelRange(2, 2), LevelRange(3, 3)),
        0,
        0.0,
        np.zeros(16),
        np.ones(16),
        np.zeros((16, 2)),
        np.array([0.1, 0.9]),
        "words",
    )
    save_router(router, tmp_path / "run")
    result = run(tmp_path / "out", levels=("each", f"planner:{tmp_path / 'run'}"), parents=("best_child",))
    (one,) = rows_of(result, f"planner:{tmp_path / 'run'}")
    (fine,) = [row for row in rows_of(result, "each") if row.level_min == "6"]
    assert (one.level_min, one.level_max, one.erec) == ("6", "6", fine.erec)
    assert one.scores["share_routed"] == 1.0
    save_router(replace(router, names=("a", *NAMES[1:])), tmp_path / "other")
    with pytest.raises(UsageError, match="trained on the levels a, 24, 12, 6"):
        run(tmp_path / "out2", levels=(f"planner:{tmp_path / 'other'}",), parents=("best_child",))


@pytest.mark.slow
def test_a_language_model_of_a_run_is_asked_once_for_all_budgets(tmp_path):
    plan = f"planner:{save_planner(tmp_path / 'run', NAMES[1:])}"
    result = run(tmp_path / "out", levels=("each", plan), parents=("best_child",))
    first, second = (rows_of(result, plan, budget=budget)[0] for budget in (10, 30))
    assert first.level_min != "document" and (first.level_min, first.level_max) == (second.level_min, second.level_max)
    assert first.scores["share_planned"] == 1.0 and first.scores["plan_completion_tokens"] > 0
    assert {name: second.scores[name] for name in first.scores if name != "plan_cost"} == {
        name: value for name, value in first.scores.items() if name != "plan_cost"
    }
    save_planner(tmp_path / "other", ("a", "b"))
    with pytest.raises(UsageError, match="trained on the levels a, b, but strategy sizes has document, 24, 12, 6"):
        run(tmp_path / "out2", levels=(f"planner:{tmp_path / 'other'}",), parents=("best_child",))


def test_too_few_dev_questions_choose_nothing(tmp_path):
    result = run(tmp_path, min_dev_questions=1_000, levels=("dev", "all"), parents=("best_child",))
    assert {one.plan for one in result.levels} == {"all"}
    assert "facts: no row of levels dev: too few dev questions to choose by" in result.notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": ("best",)}, "levels 'best': choose from each, all, dev, router, classifier, bound, planner:RUN"),
        ({"levels": ("planner:",)}, "levels 'planner:'"),
        ({"parents": ("summary",)}, "parents 'summary': choose from best_child, mean, direct, windows, compressor:RUN"),
        ({"parents": ()}, "at least one"),
        ({"levels": ("all", "all")}, "each once"),
        ({"budgets": ()}, "give budgets too"),
    ],
)
def test_wrong_names_are_refused(changes, message):
    with pytest.raises(ValueError) as refused:
        config(**changes)
    assert message in str(refused.value)


def test_a_run_that_is_not_there_is_refused_before_any_work(tmp_path):
    embedder = WordEmbedder()
    with pytest.raises(UsageError):
        run(tmp_path, embedder, levels=(f"planner:{tmp_path / 'no'}",))
    with pytest.raises(UsageError):
        run(tmp_path, embedder, parents=(f"compressor:{tmp_path / 'no'}",))
    assert not embedder.calls


def test_a_study_without_levels_has_no_such_rows():
    assert StudyConfig.levels == () and StudyConfig.parents == ("best_child",)
