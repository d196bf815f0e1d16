import json
from dataclasses import replace

import pytest
from support.answers import ANSWERED, FAILED

from qrag_jax.eval.answers.records import AnswerRow, Score, read_answer_records, write_answer_records
from qrag_jax.types import InputError


def test_records_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "new" / "answers.jsonl"
    write_answer_records(path, [ANSWERED, FAILED])
    assert read_answer_records(path) == [ANSWERED, FAILED]
    first = json.loads(path.read_text().split("\n")[0])
    assert first["question"] == "Où ?" and first["answer"] == "In Rome"
    write_answer_records(path, [])
    assert read_answer_records(path) == []


@pytest.mark.parametrize(
    "change",
    [{"answer": None}, {"error": "429"}, {"scores": {"em": 1.5}}, {"scores": {"bleu": 0.5}}, {"errors": {"bleu": "?"}}],
)
def test_impossible_records_are_refused(change):
    with pytest.raises(InputError):
        replace(ANSWERED, **change)


def test_a_failed_call_has_no_score_not_even_zero():
    with pytest.raises(InputError, match="a call that failed has no score"):
        replace(FAILED, scores={"em": 0.0})


def test_rows_must_add_up():
    row = AnswerRow(
        "t", ANSWERED.setting, 3, 2, 1, 0, 0, 0.5, 0.5,
        {"em": Score(0.5, 0.1, 0.9, 2, 0)}, 100, 5, "m", "0" * 64, 32, 0.0, "squad",
    )  # fmt: skip
    with pytest.raises(InputError, match="bm25: 2 answered . 0 failed must be the n = 3 asked"):
        replace(row, num_failed=0)
    with pytest.raises(InputError, match="no such name"):
        replace(row, scores={"bleu": Score(None, None, None, 0, 0)})
