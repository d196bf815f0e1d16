import json
from dataclasses import replace

import numpy as np
import pytest
from support.tiers import slow_but

from qrag_jax.eval.retrieval.stopping import Roc, StopPoint, analyse, auc, auc_within_reach
from qrag_jax.eval.retrieval.stopping_report import (
    format_budgets,
    format_stopping,
    plot_stopping,
    stopping_values,
    write_stopping,
)
from qrag_jax.types import InputError, UsageError


def make_analysis(n=60, num_chunks=12, num_steps=4, **settings):
    rng = np.random.default_rng(0)
    gold = np.zeros((n, num_chunks), bool)
    for row in range(n):
        gold[row, rng.permutation(num_chunks)[:2]] = True
    useful = gold + rng.normal(scale=0.4, size=gold.shape)
    chosen = np.argsort(-useful, axis=1)[:, :num_steps]
    scores = np.take_along_axis(useful, chosen, axis=1)
    return analyse(chosen, scores, gold, np.full(n, num_chunks), **settings)


ANALYSIS = make_analysis()
POINT = StopPoint(0.25, 0.1, 0.2, 0.7, 0.95, 0.125, 2.5, 0.81, 0.905, 1000, 900)
BY_HAND = replace(
    ANALYSIS,
    curve=(POINT,),
    oracle=replace(POINT, threshold=None, early=0.0, late=0.0, perfect=1.0, fpr=0.05),
    roc=Roc(np.array([0.5]), np.array([0.0, 0.25, 1.0]), np.array([0.0, 0.8, 1.0])),
)


def test_stopping_table_by_hand():
    lines = format_stopping(BY_HAND).split("\n")
    assert lines[0].split() == ["threshold", "early", "perfect", "late", "TPR", "FPR", "picks", "EM", "F1"]
    assert lines[1].split() == ["0.25", ".100", ".700", ".200", ".950", ".125", "2.50", ".810", ".905"]
    assert lines[2].split() == ["oracle", ".000", "1.000", ".000", ".950", ".050", "2.50", ".810", ".905"]
    assert len({len(line) for line in lines[:3]}) == 1
    notes = "\n".join(lines[3:])
    assert "n = 1,000 questions" in notes and "shares of the 900 whose gold is complete" in notes
    assert "AUC .775" in notes and "straight line from FPR .25" in notes  # .25 * .4 + .75 * .9
    assert "mean TPR up to .25: .400" in notes


def test_tables_fit_a_terminal_and_pipe():
    for table in (format_stopping(ANALYSIS), format_budgets(ANALYSIS.budgets)):
        assert table.isascii() and table.endswith("\n")
        assert max(len(line) for line in table.split("\n")[:6]) <= 80
        assert all(line == line.rstrip() for line in table.split("\n"))


def test_without_complete_questions_the_shares_are_dashes():
    point = replace(POINT, early=0.0, late=0.0, perfect=0.0, num_complete=0)
    table = format_stopping(replace(BY_HAND, curve=(point,), oracle=replace(point, threshold=None)))
    assert table.split("\n")[1].split()[:4] == ["0.25", "-", "-", "-"]


def test_small_fprs_keep_their_digits():
    point = replace(POINT, fpr=0.000025)
    table = format_stopping(replace(BY_HAND, curve=(point,), oracle=replace(point, threshold=None)))
    assert ".000025" in table


def test_markdown_tables_have_the_same_columns_in_every_line():
    for text, columns in (
        (format_stopping(ANALYSIS, markdown=True), 9),
        (format_budgets(ANALYSIS.budgets, markdown=True), 6),
    ):
        rows = [line for line in text.split("\n") if line.startswith("|")]
        assert {row.count("|") for row in rows} == {columns + 1}
        assert set(rows[1]) == set("|-:") and "\n\n- " in text


def test_budget_table_by_hand():
    row = replace(
        ANALYSIS.budgets[1], fact_em=0.832, em_low=0.81, em_high=0.85, fact_f1=0.903, f1_low=0.89, f1_high=0.915, n=1000
    )
    lines = format_budgets([row]).split("\n")
    assert lines[1].split() == ["2", ".832", ".810-.850", ".903", ".890-.915", "1.000"]
    assert lines[2].startswith("n = 1,000 questions; protocol: fixed")
    assert "| [.810, .850] |" in format_budgets([row], markdown=True)
    with pytest.raises(InputError, match="at least one row"):
        format_budgets([])


def test_values_are_finite_json_and_a_long_roc_is_thinned():
    values = stopping_values(make_analysis(n=400, budgets=(2,)))
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    fpr, tpr = values["roc"]["fpr"], values["roc"]["tpr"]
    assert len(fpr) == len(tpr) == 500
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (fpr[-2], tpr[-2]) == (values["reach"]["fpr"], values["reach"]["tpr"])
    assert fpr == sorted(fpr) and tpr == sorted(tpr)


def test_values_of_a_short_roc_are_whole():
    values = stopping_values(BY_HAND)
    assert values["roc"] == {"fpr": [0.0, 0.25, 1.0], "tpr": [0.0, 0.8, 1.0]}
    assert (values["auc"], values["auc_within_reach"]) == (auc(BY_HAND.roc), auc_within_reach(BY_HAND.roc))
    assert values["curve"][0]["num_complete"] == 900 and values["oracle"]["threshold"] is None


def test_write_stopping(tmp_path):
    paths = write_stopping(tmp_path / "new", ANALYSIS, title="Dev", notes=["command: `qrag eval`"])
    assert [path.name for path in paths] == ["stopping.json", "stopping.md", "stopping.png"]
    assert json.loads(paths[0].read_text()) == stopping_values(ANALYSIS)
    text = paths[1].read_text()
    assert text.startswith("# Dev\n\n- command: `qrag eval`\n\n## Stopping by a threshold on Q\n\n| threshold |")
    assert "](stopping.png)\n\n## By number of picks\n\n| picks |" in text
    assert all(line == line.rstrip() for line in text.split("\n"))
    assert paths[2].read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in paths)


def test_write_stopping_without_budgets_or_notes(tmp_path):
    _, markdown, _ = write_stopping(tmp_path, replace(ANALYSIS, budgets=()), title="Dev")
    assert markdown.read_text().startswith("# Dev\n\n## Stopping")
    assert "By number of picks" not in markdown.read_text()


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_stopping(tmp_path / "file", ANALYSIS, title="Dev")
    with pytest.raises(UsageError, match="cannot be written"):
        plot_stopping(tmp_path / "file" / "plot.png", ANALYSIS)
    with pytest.raises(UsageError, match="written as .png"):
        plot_stopping(tmp_path / "plot.svg", ANALYSIS)


@pytest.mark.parametrize("shape", slow_but(["many points"], ["one point", "many points", "long context"]))
def test_plot_is_a_png(tmp_path, shape):
    analysis = {
        "one point": BY_HAND,
        "many points": make_analysis(thresholds=np.linspace(-1, 2, 60).tolist(), budgets=(1,)),
        "long context": make_analysis(num_chunks=200, budgets=(1,)),
    }[shape]
    path = tmp_path / "plots" / "plot.png"
    plot_stopping(path, analysis, title="a title")
    assert path.read_bytes().startswith(b"\x89PNG\r\n") and path.stat().st_size > 20_000
