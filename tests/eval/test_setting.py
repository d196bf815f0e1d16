import json
from dataclasses import fields, replace

import pytest
from support.answers import ANSWERED, FAILED, LATENT, TRAINED

from qrag_jax.eval.answers.records import (
    AnswerRow,
    Score,
    answer_row_values,
    read_answer_records,
    write_answer_records,
)
from qrag_jax.eval.retrieval.records import (
    Row,
    read_records,
    read_rows,
    record_values,
    row_values,
    write_records,
    write_rows,
)
from qrag_jax.eval.setting import Setting, nested_values
from qrag_jax.types import InputError

ODD = Setting(method="bm25", mode="text", positions="none", protocol="oracle", beam_width=8, seed=3, num_chunks=40)
ROW = Row("t", ODD, 2.0, 0.5, 0.5, 0.4, 0.6, 9, 1.0, 0.8, 0, 0.3, 0.6, 2.0, None)
ANSWER_ROW = AnswerRow(
    "t", ODD, 3, 2, 1, 0, 0, 0.5, 0.5, {"em": Score(0.5, 0.1, 0.9, 2, 0)}, 100, 5, "m", "0" * 64, 32, 0.0, "squad"
)
# As files had them before a setting was a field of its own.
ROW_FIELDS = (
    "task method mode positions seed num_chunks length_factor fact_em fact_f1 em_low em_high n seconds f1_ceiling "
    "num_left_out protocol beam_width f1_low f1_high num_taken threshold em_ceiling"
)
RECORD_FIELDS = (
    "query_id question method mode positions seed num_chunks chosen q_values gold fact_em fact_f1 texts protocol "
    "beam_width"
)
ANSWER_FIELDS = (
    "query_id question method mode positions protocol beam_width seed num_chunks chosen references answer error "
    "finish_reason prompt_tokens completion_tokens scores errors model prompt_sha256"
)
ANSWER_ROW_FIELDS = (
    "task method mode positions protocol beam_width seed num_chunks n num_answered num_failed num_cut "
    "num_without_reference fact_em fact_f1 scores prompt_tokens completion_tokens model prompt_sha256 max_tokens "
    "temperature convention judges agreement"
)


def test_files_keep_their_flat_fields_in_their_order():
    record = replace(TRAINED[0], setting=ODD)
    (answer_row,) = answer_row_values([ANSWER_ROW])
    for values, names in (
        (row_values([ROW])[0], ROW_FIELDS),
        (record_values(record), RECORD_FIELDS),
        (answer_row, ANSWER_ROW_FIELDS),
    ):
        assert list(values) == names.split()
        assert {one.name: values[one.name] for one in fields(Setting)} == vars(ODD)
    assert answer_row["scores"] == {"em": {"mean": 0.5, "low": 0.1, "high": 0.9, "n": 2, "num_failed": 0}}


def test_settings_come_back_from_every_file(tmp_path):
    rows = [ROW, replace(ROW, setting=LATENT)]
    write_rows(tmp_path / "rows.json", rows)
    assert read_rows(tmp_path / "rows.json") == rows
    records = [replace(TRAINED[0], setting=ODD), TRAINED[1]]
    write_records(tmp_path / "q.jsonl", records)
    assert read_records(tmp_path / "q.jsonl") == records
    answers = [replace(ANSWERED, setting=ODD), FAILED]
    write_answer_records(tmp_path / "a.jsonl", answers)
    assert read_answer_records(tmp_path / "a.jsonl") == answers
    assert list(json.loads((tmp_path / "a.jsonl").read_text().split("\n")[0])) == ANSWER_FIELDS.split()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": 3}, "method = 3 must be a text"),
        ({"positions": None}, "positions = None must be a text"),
        ({"seed": "0"}, "seed = '0' must be a whole number"),
        ({"seed": True}, "seed = True must be a whole number"),
        ({"num_chunks": 0}, "num_chunks 0: at least 1"),
        ({"beam_width": 0}, "beam_width 0: at least 1"),
    ],
)
def test_impossible_settings_name_their_field(change, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        nested_values(vars(ODD) | change)


def test_a_file_that_is_wrong_in_its_setting_is_named_with_line_and_field(tmp_path):
    for change, message in (
        ({"num_chunks": 0}, "num_chunks 0: at least 1"),
        ({"method": "best"}, "method = 'best' must"),
    ):
        values = row_values([ROW])[0] | change
        (tmp_path / "r.json").write_text(json.dumps([values]))
        with pytest.raises(InputError, match=f"r.json: row 1: {message}"):
            read_rows(tmp_path / "r.json")
        values = record_values(replace(TRAINED[0], setting=ODD)) | change
        (tmp_path / "q.jsonl").write_text(json.dumps(values))
        with pytest.raises(InputError, match=f"q.jsonl:1: {message}"):
            read_records(tmp_path / "q.jsonl")


def test_what_one_line_of_a_table_shares():
    assert LATENT.line == replace(LATENT, seed=7, num_chunks=80).line
    others = [{"method": "bm25"}, {"mode": "text"}, {"positions": "none"}, {"protocol": "stop"}, {"beam_width": 2}]
    assert len({LATENT.line, *(replace(LATENT, **change).line for change in others)}) == 6
