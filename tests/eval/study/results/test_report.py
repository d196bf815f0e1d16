import csv
import io
import json
from dataclasses import asdict, replace

import pytest

from qrag_jax.eval.study.records import StudyComparison, StudyResult, StudyRow
from qrag_jax.eval.study.results import report
from qrag_jax.eval.study.results.report import format_csv, format_markdown, format_table, summary_values, write_report
from qrag_jax.eval.study.results.study_tables import significant_sign, study_lines, total_seconds
from qrag_jax.names import PAGES
from qrag_jax.registry import Registry
from qrag_jax.types import Cost

COST = Cost({"chunk": 0.25, "embed_sentences": 4.0, "embed_chunks": 8.0}, 61_000, 2.5e12, 3 * 2**20, 9_000, 70)
SCORES = {
    "f1@1": 0.5,
    "f1@5": 0.41236,
    "recall@5": 1.0,
    "precision@5": 0.25,
    "iou@5": 0.0625,
    "context_tokens@5": 612.4,
}
_NOT_PLAIN = ("scores", "cost", "low", "high", "budget", "fill", "erec", "erec_low", "erec_high")


def row(strategy="fixed", task="notes", f1=0.41236, **changes):
    made = StudyRow(
        task=task, kind="evidence", strategy=strategy, number=0, config=f"strategy={strategy}", was_chosen=True,
        dev_score=0.375, n=1200, scores=SCORES | {"f1@5": f1}, low=f1 - 0.03, high=f1 + 0.03, context_tokens=612.4,
        num_documents=31, num_chunks=4321, mean_tokens=118.6, most_tokens=128, share_beyond_window=0.125, cost=COST,
    )  # fmt: skip
    return replace(made, **changes)


def against(strategy, difference, task="notes", half=0.02, **changes):
    made = StudyComparison(
        task, strategy, "fixed", "f1@5", difference, difference - half, difference + half, 0.01, 0.02, 1200
    )
    return replace(made, **changes)


def study(rows, comparisons=(), **changes):
    return replace(StudyResult(5, (1, 5), "fixed", tuple(rows), tuple(comparisons)), **changes)


TWO = study(
    [row(), row("late", f1=0.45)], [against("late", 0.03764)], notes=("notes: 2 questions left out: no evidence",)
)


@pytest.fixture(autouse=True)
def own_pages(monkeypatch):
    """The tables that the expected texts have, whatever else there is."""
    monkeypatch.setattr(report, "PAGES", Registry("page", (PAGES["contexts"], PAGES["levels"])))


def table_rows(markdown):
    """Cells of the first Markdown table by its headings, one dict a row."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], one, strict=True)) for one in cells[2:]]


def test_a_terminal_table_by_hand():
    block, notes = format_table(TWO).split("\n\n")
    heading, columns, fixed, late = block.splitlines()
    assert heading == "notes (evidence): 1,200 questions, 31 documents; configs chosen on other questions"
    assert columns.split() == ("strategy F1 - fixed p recall prec. IoU context chunks tokens beyond s config").split()
    common = "1.000 .250 .062 612 4,321 119 12% 12.2".split()
    assert fixed.split() == ["fixed", ".412", "[.382,", ".442]", *common, "strategy=fixed"]
    assert late.split() == (
        ["late", ".450", "[.420,", ".480]", "+.038", "[+.018,", "+.058]", ".020", *common, "strategy=late"]
    )
    assert notes.splitlines()[-1] == "notes: 2 questions left out: no evidence"


def test_a_markdown_table_by_hand():
    markdown = format_markdown(TWO, "plot.png")
    fixed, late = table_rows(markdown)
    assert fixed == {
        "strategy": "fixed", "config": "`strategy=fixed`", "n": "1,200", "F1@5 [95%]": ".412 [.382, .442]",
        "minus fixed [95%]": "", "p (Holm)": "", "recall@5": "1.000", "precision@5": ".250", "IoU@5": ".062",
        "context tokens": "612", "chunks": "4,321", "tokens a chunk": "119", "beyond window": "12.5%", "s": "12.2",
        "s: cutting": "0.25", "s: sentences": "4.00", "s: chunks": "8.00", "embedder tokens": "61,000",
        "TFLOP": "2.50", "index MiB": "3.00",
    }  # fmt: skip
    assert (late["F1@5 [95%]"], late["minus fixed [95%]"]) == ("**.450** [.420, .480]", "+.038 [+.018, +.058]")
    assert late["p (Holm)"] == ".020"
    assert markdown.rstrip().endswith("](plot.png)") and "](" not in format_markdown(TWO)
    assert "- notes: 2 questions left out: no evidence" in markdown


@pytest.mark.parametrize(
    ("f1", "differences", "bold"),
    [
        ((0.40, 0.45, 0.47), (0.05, 0.07), "clustering"),
        ((0.40, 0.45, 0.41), (0.05, 0.01), "late"),
        ((0.40, 0.41, 0.39), (0.01, -0.01), None),  # the best is not told apart from the baseline
        ((0.40, 0.42, 0.39), (0.02, -0.01), None),  # its interval begins at 0
        ((0.40, 0.30, 0.35), (-0.10, -0.05), "fixed"),
        ((0.40, 0.30, 0.39), (-0.10, -0.01), None),  # the baseline is not told apart from all others
    ],
)
def test_the_best_is_bold_where_it_is_told_apart(f1, differences, bold):
    names = ("fixed", "late", "clustering")
    rows = [row(name, f1=value) for name, value in zip(names, f1, strict=True)]
    comparisons = [against(name, value) for name, value in zip(names[1:], differences, strict=True)]
    result = study(rows, comparisons)
    assert [line.row.strategy for line in study_lines(result)["notes"] if line.is_best] == ([bold] if bold else [])
    assert [one["strategy"] for one in table_rows(format_markdown(result)) if "**" in one["F1@5 [95%]"]] == (
        [bold] if bold else []
    )
    assert "Bold: the best F1@5 of a task" in format_markdown(result)


def test_an_interval_without_a_corrected_p_is_not_enough():
    rows = [row(f1=0.40), row("late", f1=0.45)]
    assert [study_lines(study(rows, [against("late", 0.05, p_holm=p)]))["notes"][1].is_best for p in (0.04, 0.06)] == [
        True, False,
    ]  # fmt: skip
    worse = [row(f1=0.40), row("late", f1=0.30)]
    assert [study_lines(study(worse, [against("late", -0.1, p_holm=p)]))["notes"][0].is_best for p in (0.04, 0.06)] == [
        True, False,
    ]  # fmt: skip


BY_DOCUMENT = {"low_by_document": 0.01, "high_by_document": 0.06, "p_by_document": 0.015, "p_holm_by_document": 0.03}


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        ({}, 1),
        (BY_DOCUMENT, 1),
        (BY_DOCUMENT | {"low_by_document": -0.01}, 0),  # by question told apart, by document not
        (BY_DOCUMENT | {"p_holm_by_document": 0.06}, 0),
        (BY_DOCUMENT | {"low_by_document": -0.06, "high_by_document": -0.01}, -1),
        ({"low": -0.01, "p_holm": 0.5} | BY_DOCUMENT, 1),
    ],
)
def test_a_difference_is_told_apart_by_document_where_it_has_that(changes, sign):
    one = against("late", 0.05, **changes)
    assert significant_sign(one) == sign
    assert study_lines(study([row(f1=0.40), row("late", f1=0.45)], [one]))["notes"][1].is_best == (sign > 0)


def test_columns_by_document_stand_where_there_are_any():
    rows = [row(), row("late", f1=0.45), row(task="other"), row("late", task="other", f1=0.45)]
    result = study(rows, [against("late", 0.05, num_groups=31, **BY_DOCUMENT), against("late", 0.05, task="other")])
    own, other = format_markdown(result).split("**other (")
    fixed, late = table_rows(own)
    assert "by document |" not in other
    assert (fixed["by document"], fixed["p by doc."]) == ("", "")
    assert (late["by document"], late["p by doc."]) == ("[+.010, +.060]", ".030")
    first, second, notes = format_table(result).split("\n\n")
    assert "p by doc." in first and "p by doc." not in second
    assert "Holm-corrected for all 2 comparisons of the study" in notes and "by document: the same, but whole" in notes
    assert "by document: the same, but whole" not in format_table(TWO)
    values = list(csv.DictReader(io.StringIO(format_csv(result))))
    names = (*BY_DOCUMENT, "num_groups")
    assert [values[1][f"difference_{name}"] for name in names] == ["0.01", "0.06", "0.015", "0.03", "31"]
    assert [values[3][f"difference_{name}"] for name in names] == [""] * 5
    assert summary_values(result)["comparisons"][0].items() >= BY_DOCUMENT.items()


def test_tasks_have_blocks_of_their_own_and_the_columns_that_they_measure():
    documents = {name: value for name, value in SCORES.items() if not name.startswith("iou")}
    other = row(task="abstracts", kind="documents", scores=documents, was_chosen=False, dev_score=None)
    result = study([row(), other])
    first, second, _ = format_table(result).split("\n\n")
    assert "IoU" in first and "IoU" not in second
    assert second.splitlines()[0].endswith("first config of each, nothing was chosen")
    assert format_markdown(result).count("| strategy |") == 2
    values = list(csv.DictReader(io.StringIO(format_csv(result))))
    assert [one["iou@5"] for one in values] == ["0.0625", ""]


def test_dollars_are_shown_where_there_are_prices():
    assert "dollars" not in format_table(TWO) + format_markdown(TWO)
    priced = study([row(cost=replace(COST, dollars=0.01234))])
    assert table_rows(format_markdown(priced))[0]["dollars"] == "0.012"
    assert "dollars" in format_table(priced)
    free = study([row(cost=replace(COST, dollars=0.0)), row(task="big", cost=replace(COST, dollars=1234.5))])
    assert [line["dollars"] for line in csv.DictReader(io.StringIO(format_csv(free)))] == ["0.0", "1234.5"]
    assert table_rows(format_markdown(free))[0]["dollars"] == "0"


def test_csv_holds_every_number_unrounded():
    values = list(csv.DictReader(io.StringIO(format_csv(TWO))))
    for one, made in zip(values, TWO.rows, strict=True):
        plain = {name: value for name, value in asdict(made).items() if name not in _NOT_PLAIN}
        assert {name: one[name] for name in plain} == {name: str(value) for name, value in plain.items()}
        assert {name: float(one[name]) for name in made.scores} == made.scores
        assert (float(one["f1@5_low"]), float(one["f1@5_high"])) == (made.low, made.high)
        assert float(one["seconds"]) == total_seconds(made) == 12.25
        assert [float(one[f"seconds_{stage}"]) for stage in COST.seconds] == [0.25, 4.0, 8.0]
        numbers = (int(one["embedder_tokens"]), float(one["flops"]), int(one["index_bytes"]), one["dollars"])
        assert numbers == (61_000, 2.5e12, 3 * 2**20, "")
        assert (one["prompt_tokens"], one["completion_tokens"]) == ("9000", "70")
    compared = ("difference", "difference_low", "difference_high", "difference_p", "difference_p_holm")
    assert [values[0][name] for name in compared] == [""] * 5
    expected = [getattr(TWO.comparisons[0], name) for name in ("difference", "low", "high", "p_value", "p_holm")]
    assert [float(values[1][name]) for name in compared] == expected


def test_files_of_a_report(tmp_path):
    questions = (
        {"task": "notes", "strategy": "fixed", "question": "wer? \u00e9"},
        {"task": "notes", "strategy": "late"},
    )
    result = replace(TWO, questions=questions)
    paths = write_report(result, tmp_path / "new" / "study")
    names = ["table.md", "table.csv", "results.json", "per_query.jsonl", "plot.png"]
    assert paths == [tmp_path / "new" / "study" / name for name in names] and all(path.is_file() for path in paths)
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths[:4]}
    assert texts["table.md"] == format_markdown(result, "plot.png") and texts["table.csv"] == format_csv(result)
    assert [json.loads(line) for line in texts["per_query.jsonl"].splitlines()] == list(questions)
    summary = json.loads(texts["results.json"])
    assert summary == json.loads(json.dumps(summary_values(result)))
    assert list(summary) == ["report_k", "ks", "baseline", "rows", "comparisons", "notes"]
    assert summary["rows"][1]["scores"] == dict(result.rows[1].scores)
    assert paths[4].read_bytes().startswith(b"\x89PNG")


def test_names_of_files_that_are_not_utf8_can_be_written(tmp_path):
    """Python reads such bytes of a name as lone surrogates, which no encoding takes; U+2028 would end a line."""
    name = "caf\udce9\u2028.txt"
    question = {"task": "notes", "hits": [{"id": name, "document": name}]}
    result = replace(TWO, rows=(row(config=name), TWO.rows[1]), notes=(f"{name}: left out",), questions=(question,) * 2)
    paths = {path.name: path for path in write_report(result, tmp_path)}
    lines = paths["per_query.jsonl"].read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [question] * 2
    assert json.loads(paths["results.json"].read_text(encoding="utf-8"))["notes"] == [f"{name}: left out"]
    for text in (paths["table.md"].read_text(encoding="utf-8"), format_table(result)):
        assert "caf\ufffd\u2028.txt: left out" in text and text.encode()
    assert "caf\ufffd\u2028.txt" in paths["table.csv"].read_text(encoding="utf-8")


def test_a_number_that_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_report(study([row(dev_score=float("nan"))]), tmp_path)
