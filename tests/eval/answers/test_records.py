import json
from dataclasses import replace

import pytest
from support.answers import ANSWERED, FAILED

from qrag_jax.eval.answers.records import AnswerRow, Score, read_answer_records, write_answer_records
from qrag_jax.types import InputError, UsageError


def test_records_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "new" / "answers.jsonl"
    write_answer_records(path, [ANSWERED, FAILED])
    assert read_answer_records(path) == [ANSWERED, FAILED]
    first = json.loads(path.read_text().split("\n")[0])
    assert first["question"] == "Où ?" and first["answer"] == "In Rome"
    write_answer_records(path, [])
    assert read_answer_records(path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, "there is exactly one of them"),
        ({"error": "429"}, "there is exactly one of them"),
        ({"scores": {"em": 1.5}}, "scores .*1.5.*must lie in"),
        ({"scores": {"em": float("nan")}}, "scores = nan must hold a finite number each"),
        ({"scores": {"bleu": 0.5}}, "scores bleu: no such name; they are em, f1, contains"),
        ({"errors": {"bleu": "?"}}, "errors bleu: no such name"),
    ],
)
def test_impossible_records_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        replace(ANSWERED, **change)


def test_a_failed_call_has_no_score_not_even_zero():
    with pytest.raises(InputError, match="a call that failed has no score"):
        replace(FAILED, scores={"em": 0.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("model"), "missing fields .'model'."),
        (lambda values: values.update(more=1), "unknown fields .'more'."),
        (lambda values: values.update(seed="0"), "seed = '0' must be a whole number"),
        (lambda values: values.update(seed=True), "seed = True must be a whole number"),
        (lambda values: values.update(chosen=[1.5]), "chosen = 1.5 must hold a whole number each"),
        (lambda values: values.update(references=[None]), "references = None must hold a text each"),
        (lambda values: values.update(scores={"em": "1"}), "scores = '1' must hold a finite number"),
        (lambda values: values.update(scores={"em": 2}), "scores .*2.0.*must lie in"),
        (lambda values: values.update(scores={"em": 10**400}), "scores = 1000.* must hold a finite number"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, change, message):
    path = tmp_path / "answers.jsonl"
    write_answer_records(path, [FAILED, ANSWERED])
    first, second = path.read_text().splitlines()
    values = json.loads(second)
    change(values)
    path.write_text(f"{first}\n{json.dumps(values)}\n")
    with pytest.raises(InputError, match=f"answers.jsonl:2: .*{message}"):
        read_answer_records(path)


def test_files_that_are_none_of_ours_are_refused(tmp_path):
    path = tmp_path / "answers.jsonl"
    for text, message in (
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "expected a JSON object"),
        ('{"seed": NaN}', "NaN is not a number"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=f"answers.jsonl:1: .*{message}"):
            read_answer_records(path)
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        read_answer_records(path)
    with pytest.raises(UsageError, match="no such file"):
        read_answer_records(tmp_path / "missing.jsonl")


def test_rows_must_add_up():
    row = AnswerRow(
        "t", ANSWERED.setting, 3, 2, 1, 0, 0, 0.5, 0.5,
        {"em": Score(0.5, 0.1, 0.9, 2, 0)}, 100, 5, "m", "0" * 64, 32, 0.0, "squad",
    )  # fmt: skip
    with pytest.raises(InputError, match="bm25: 2 answered . 0 failed must be the n = 3 asked"):
        replace(row, num_failed=0)
    with pytest.raises(InputError, match="no such name"):
        replace(row, scores={"bleu": Score(None, None, None, 0, 0)})
