"""`qrag eval --answers` with scripted readers and judges."""

import json

import pytest
from support.answers import make_task

from qrag_jax.cli.main import main
from qrag_jax.eval.answers.records import read_answer_records
from qrag_jax.service.evaluating import AnswersRequest, make_reader
from qrag_jax.types import UsageError

QUESTIONS = [
    {"id": "a", "question": "Where is Ada?", "chunks": ["Ada is in Rome.", "x y", "z w", "u v"], "answer": "Rome"},
    {"id": "b", "question": "Where is Ben?", "chunks": ["x y", "z w", "Ben is in Oslo.", "u v"], "answer": "Oslo"},
    {"id": "c", "question": "Who is Cy?", "chunks": ["x", "Cy is a cook.", "y", "z"]},
]
SCRIPT = [
    {"match": "Where is Ada?", "answer": "in Rome"},
    {"match": "Where is Ben?", "error": "the server is down"},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory, save_untrained):
    folder = tmp_path_factory.mktemp("runs") / "run"
    save_untrained(folder, texts=("Ada is in Rome.", "Where is Ada?", "a story of a river"))
    return str(folder)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def questions(tmp_path):
    gold = {"a": [0], "b": [2], "c": [1]}
    return write_lines(tmp_path / "own.jsonl", [row | {"gold": gold[row["id"]]} for row in QUESTIONS])


def reader(tmp_path, script, name="script.jsonl"):
    return ["--llm", "scripted", "--llm_model", write_lines(tmp_path / name, script)]


def test_answer_rows_stand_beside_fact_rows(run, questions, tmp_path, capsys):
    out, rows, tests = (tmp_path / name for name in ("answers.jsonl", "answers.json", "tests.json"))
    flags = ["--methods", "trained,bm25", "--answers", str(out), "--answer_rows", str(rows), "--tests", str(tests)]
    command = ["eval", run, "--jsonl", questions, *flags, "--no_journal", *reader(tmp_path, SCRIPT)]
    assert main(command) == 0
    captured = capsys.readouterr()
    records = read_answer_records(out)
    assert [(r.setting.method, r.query_id) for r in records] == [
        ("trained", "a"),
        ("trained", "b"),
        ("bm25", "a"),
        ("bm25", "b"),
    ]
    assert [r.answer for r in records] == ["in Rome", None, "in Rome", None]
    assert records[1].error == "the server is down" and records[1].scores == {}
    assert all(list(r.chosen) == sorted(r.chosen) and len(r.chosen) == 3 for r in records)
    for row in json.loads(rows.read_text()):
        assert (row["n"], row["num_failed"], row["num_without_reference"], row["max_tokens"]) == (2, 1, 1, 32)
        assert row["scores"]["f1"]["mean"] == pytest.approx(2 / 3) and row["scores"]["f1"]["n"] == 1
        assert row["scores"]["em"]["mean"] == 0.0 and row["model"].startswith("scripted:")
    compared = [c for c in json.loads(tests.read_text()) if c["measure"] == "answer_f1"]
    assert [(c["first"], c["second"], c["n"]) for c in compared] == [("trained", "bm25", 1)]
    for text in (
        "fact EM",
        "answers of scripted:",
        "without a reference answer: 1 questions",
        "answer F1: trained - bm25",
    ):
        assert text in captured.out
    assert "calls, 0 from the journal" in captured.err
    assert "first failure: the server is down" in captured.err


def test_json_on_standard_output_holds_facts_and_answers(run, questions, tmp_path, capsys):
    flags = ["--methods", "bm25", "--answers", "--json", "-", "--no_journal", *reader(tmp_path, SCRIPT)]
    assert main(["eval", run, "--jsonl", questions, *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in found["facts"]] == [row["method"] for row in found["answers"]] == ["bm25"]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--judges", "m"], 2, "--judges: needs --answers"),
        (["--answer_bounds"], 2, "--answer_bounds: needs --answers"),
        (["--answers", "--judges", "m"], 2, "--judges: no measure needs judges; add"),
    ],
)
def test_flags_that_do_not_belong_together(run, questions, capsys, flags, code, message):
    assert main(["eval", run, "--jsonl", questions, "--methods", "bm25", *flags]) == code
    assert message in capsys.readouterr().err


def test_questions_without_any_answer_are_refused_before_anything_is_loaded(run, tmp_path, capsys):
    rows = [{"question": "Where?", "chunks": ["a", "b", "c"], "gold": [0]}]
    source = write_lines(tmp_path / "own.jsonl", rows)
    assert main(["eval", run, "--jsonl", source, "--methods", "bm25", "--answers", "--llm_model", "absent.gguf"]) == 1
    assert 'own: no question has a reference answer; give each one a field "answer"' in capsys.readouterr().err


def test_vectors_have_nothing_to_read():
    with pytest.raises(UsageError, match="needs texts, but questions over vectors have none"):
        make_reader(AnswersRequest(), "vectors", [make_task()])


def test_no_answer_at_all_is_exit_code_1_after_all_was_printed(run, questions, tmp_path, capsys):
    script = reader(tmp_path, [{"error": "the server is down"}])
    command = ["eval", run, "--jsonl", questions, "--methods", "bm25", "--no_journal", "--answers", *script]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert "fact EM" in captured.out and "answers of scripted:" in captured.out
    assert "qrag: error: the language model gave no answer to any of 2 questions" in captured.err
    assert main([*command, "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out)["answers"][0]["num_failed"] == 2


def test_the_fact_table_is_printed_before_the_model_is_asked(run, questions, tmp_path, capsys, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("qrag_jax.service.evaluating.read_answers", interrupted)
    command = ["eval", run, "--jsonl", questions, "--methods", "bm25", "--no_journal", "--answers"]
    assert main([*command, "--json", str(tmp_path / "rows.json"), *reader(tmp_path, SCRIPT)]) == 130
    assert "fact EM" in capsys.readouterr().out
    assert json.loads((tmp_path / "rows.json").read_text())[0]["method"] == "bm25"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--answers", "folder"], "--answers folder: is a folder; name a file"),
        (["--answers", "own.jsonl"], "--answers own.jsonl: is the input of --jsonl; name another file"),
        (["--answers", "script.jsonl"], "--answers script.jsonl: is the input of --llm_model"),
        (["--answers", "own.jsonl/a.jsonl"], "own.jsonl is not a folder; name another file"),
        (["--answers", "a", "--answer_rows", "a"], "--answer_rows a: is also the output of --answers"),
        (["--answers", "-"], "--answers -: only --json can print to standard output; name a file"),
        (["--answers", "--answer_rows", "-", "--json", "-"], "--answer_rows -: only --json can print"),
    ],
)
def test_output_paths_are_looked_at_before_anything_is_paid(
    run, questions, tmp_path, capsys, monkeypatch, flags, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("qrag_jax.service.evaluating.open_run", None)
    script = ["--llm", "scripted", "--llm_model", write_lines(tmp_path / "script.jsonl", SCRIPT)]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert main(["eval", run, "--jsonl", questions, "--methods", "bm25", *flags, *script]) == 2
    assert message in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


def test_answers_and_judges_show_how_far_they_are(run, questions, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("qrag_jax.cli.progress.Progress.answered", lambda self, *told: shown.append(told[:3]))
    names = [write_lines(tmp_path / f"{name}.jsonl", [{"answer": '{"correct": true}'}]) for name in ("one", "two")]
    flags = [
        "--methods",
        "bm25",
        "--answers",
        str(tmp_path / "out.jsonl"),
        "--answer_measures",
        "em,judge",
        "--no_journal",
    ]
    command = ["eval", run, "--jsonl", questions, *flags, *reader(tmp_path, SCRIPT), "--judges", ",".join(names)]
    assert main(command) == 0
    assert shown == [
        *[("answers", done, 2) for done in range(3)],
        *[("judge 1", done, 1) for done in range(2)],  # of the two answers one failed
        *[("judge 2", done, 1) for done in range(2)],
    ]
