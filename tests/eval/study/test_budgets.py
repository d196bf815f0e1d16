"""A study with budgets: rows of evidence recall, fills compared with the plain one, cells that are kept."""

import csv
import io
import json

import numpy as np
import pytest
from support.study import WordEmbedder, make_config, make_encoder, make_tasks

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.clusters import LinkageConfig
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.eval.study.results.report import format_csv, format_markdown, format_table, summary_values
from qrag_jax.eval.study.runner import run_study
from qrag_jax.measures.aggregate import holm_p_values, mean_interval, paired_difference
from qrag_jax.types import UsageError

BUDGETS, FILLS = (8, 30), ("plain", "widen", "merge")
STRATEGIES = {
    "fixed": make_config().strategies["fixed"],
    "paragraphs": (ChunkConfig("hierarchy", 12, hierarchy=HierarchyConfig("paragraphs")),),
    "apart": (ChunkConfig("linkage", linkage=LinkageConfig(num_clusters=3, lambda_=0.0)),),
}


def study(out, **changes):
    config = make_config(**{"budgets": BUDGETS, "fills": FILLS, "strategies": STRATEGIES, **changes})
    return run_study(config, make_tasks(), make_encoder(), out)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("budgets")
    return out, study(out)


def of(result, task, strategy):
    return {(row.fill, row.budget): row for row in result.rows if (row.task, row.strategy) == (task, strategy)}


def test_a_row_for_each_budget_and_fill(done):
    _, result = done
    rows = of(result, "facts", "fixed")
    assert list(rows) == [(fill, budget) for fill in FILLS for budget in BUDGETS]
    for (fill, budget), row in rows.items():
        assert row.erec_low <= row.erec <= row.erec_high and row.scores[f"erec_{fill}@{budget}"] == row.erec
        assert rows[fill, 30].erec >= rows[fill, 8].erec
    values = [one for one in result.questions if (one["task"], one["strategy"]) == ("facts", "fixed")]
    each = {name: np.array([one["scores"][f"erec_{name}@30"] for one in values]) for name in FILLS}
    summary = mean_interval(each["plain"], seed=0)
    row = rows["plain", 30]
    assert (row.erec, row.erec_low, row.erec_high) == (summary.mean, summary.low, summary.high)


def test_tasks_of_documents_have_no_evidence_to_find(done):
    _, result = done
    rows = of(result, "pages", "fixed")
    assert list(rows) == [(None, None)] and rows[None, None].erec is None


def test_chunks_that_have_no_tree_are_filled_plainly_and_a_note_says_so(done):
    _, result = done
    assert {fill for fill, _ in of(result, "facts", "apart")} == {"plain"}
    assert any(
        "facts, apart: its chunks have several spans" in note and "widen and merge" in note for note in result.notes
    )


def test_fills_are_compared_with_the_plain_one(done):
    _, result = done
    found = {(one.strategy, one.fill, one.budget): one for one in result.comparisons if one.measure == "erec"}
    assert set(found) == {(s, f, b) for s in ("fixed", "paragraphs") for f in ("widen", "merge") for b in BUDGETS}
    values = [one["scores"] for one in result.questions if (one["task"], one["strategy"]) == ("facts", "paragraphs")]
    merged, plain = (np.array([one[f"erec_{fill}@30"] for one in values]) for fill in ("merge", "plain"))
    expected, one = paired_difference(merged, plain, seed=0), found["paragraphs", "merge", 30]
    assert (one.difference, one.low, one.high, one.p_value) == (
        expected.mean,
        expected.low,
        expected.high,
        expected.p_value,
    )
    assert [one.p_holm for one in found.values()] == holm_p_values([one.p_value for one in found.values()])
    assert one.baseline == "plain"


def test_what_is_kept_is_not_filled_again_and_other_budgets_are_another_study(done):
    out, result = done
    embedder = WordEmbedder()
    config = make_config(budgets=BUDGETS, fills=FILLS, strategies=STRATEGIES)
    assert run_study(config, make_tasks(), make_encoder(embedder), out).rows == result.rows
    assert not embedder.calls
    with pytest.raises(UsageError, match="differs from this study in budgets"):
        study(out, budgets=(9,))


def test_tables(done):
    _, result = done
    text = format_table(result)
    assert "facts: evidence found in contexts (ERec), by tokens" in text and "pages: evidence" not in text
    row = of(result, "facts", "fixed")["plain", 30]
    assert f"{row.erec:.3f}".lstrip("0") in text and "minus plain" in text
    assert "**facts: evidence found in contexts (ERec), by tokens**" in format_markdown(result)
    lines = list(csv.DictReader(io.StringIO(format_csv(result))))
    assert [(line["task"], line["strategy"]) for line in lines] == [
        (task, strategy) for task in ("facts", "pages") for strategy in STRATEGIES
    ]
    assert float(lines[0]["erec_merge@30"]) == of(result, "facts", "fixed")["merge", 30].erec
    assert lines[-1]["erec_merge@30"] == ""


def test_without_budgets_nothing_is_there(tmp_path):
    result = study(tmp_path, budgets=(), fills=("plain",))
    assert all(row.budget is None and row.fill is None for row in result.rows)
    assert not any("erec" in json.dumps(one["scores"]) for one in result.questions)
    assert "erec" not in json.dumps(summary_values(result)) and "budget" not in json.dumps(summary_values(result))


def test_a_study_of_documents_alone_has_no_budgets(tmp_path):
    config = make_config(budgets=(5,), tasks={"pages": make_config().tasks["pages"]})
    with pytest.raises(UsageError, match=r"budgets \[5\]: no task has evidence"):
        run_study(config, make_tasks()[1:], make_encoder(), tmp_path)
