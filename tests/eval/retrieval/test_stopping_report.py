import json
from dataclasses import replace

import numpy as np

from qrag_jax.eval.retrieval.stopping import Roc, StopPoint, analyse, auc, auc_within_reach
from qrag_jax.eval.retrieval.stopping_report import (
    format_budgets,
    format_stopping,
    plot_stopping,
    stopping_values,
    write_stopping,
)


def make_analysis(n=60, num_chunks=12, num_steps=4):
    rng = np.random.default_rng(0)
    gold = np.zeros((n, num_chunks), bool)
    for row in range(n):
        gold[row, rng.permutation(num_chunks)[:2]] = True
    useful = gold + rng.normal(scale=0.4, size=gold.shape)
    chosen = np.argsort(-useful, axis=1)[:, :num_steps]
    scores = np.take_along_axis(useful, chosen, axis=1)
    return analyse(chosen, scores, gold, np.full(n, num_chunks))


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


def test_without_complete_questions_the_shares_are_dashes():
    point = replace(POINT, early=0.0, late=0.0, perfect=0.0, num_complete=0, fpr=0.000025)
    table = format_stopping(replace(BY_HAND, curve=(point,), oracle=replace(point, threshold=None)))
    assert table.split("\n")[1].split()[:6] == ["0.25", "-", "-", "-", ".950", ".000025"]  # a small FPR has its digits


def test_budget_table_by_hand():
    row = replace(
        ANALYSIS.budgets[1], fact_em=0.832, em_low=0.81, em_high=0.85, fact_f1=0.903, f1_low=0.89, f1_high=0.915, n=1000
    )
    lines = format_budgets([row]).split("\n")
    assert lines[1].split() == ["2", ".832", ".810-.850", ".903", ".890-.915", "1.000"]
    assert lines[2].startswith("n = 1,000 questions; protocol: fixed")
    assert "| [.810, .850] |" in format_budgets([row], markdown=True)


def test_values_are_finite_json_and_a_long_roc_is_thinned():
    values = stopping_values(make_analysis(n=400, num_steps=2))
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    fpr, tpr = values["roc"]["fpr"], values["roc"]["tpr"]
    assert len(fpr) == len(tpr) == 500
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (fpr[-2], tpr[-2]) == (values["reach"]["fpr"], values["reach"]["tpr"])
    assert fpr == sorted(fpr) and tpr == sorted(tpr)
    short = stopping_values(BY_HAND)
    assert short["roc"] == {"fpr": [0.0, 0.25, 1.0], "tpr": [0.0, 0.8, 1.0]}
    assert (short["auc"], short["auc_within_reach"]) == (auc(BY_HAND.roc), auc_within_reach(BY_HAND.roc))
    assert short["curve"][0]["num_complete"] == 900 and short["oracle"]["threshold"] is None


def test_write_stopping(tmp_path):
    paths = write_stopping(tmp_path / "new", ANALYSIS, title="Dev")
    assert [path.name for path in paths] == ["stopping.json", "stopping.md", "stopping.png"]
    assert json.loads(paths[0].read_text()) == stopping_values(ANALYSIS)
    text = paths[1].read_text()
    assert text.startswith("# Dev\n\n## Stopping by a threshold on Q\n\n| threshold |")
    assert "](stopping.png)\n\n## By number of picks\n\n| picks |" in text
    assert all(line == line.rstrip() for line in text.split("\n"))
    assert paths[2].read_bytes().startswith(b"\x89PNG\r\n")
    plot_stopping(tmp_path / "plot.png", make_analysis(n=3, num_chunks=200), title="few picks of many chunks")
    for table in text.split("\n\n"):
        assert len({line.count("|") for line in table.split("\n") if line.startswith("|")}) <= 1
