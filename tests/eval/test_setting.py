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
from qrag_jax.eval.setting import Setting
from qrag_jax.types import InputError, UsageError

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


def one_file(folder, kind):
    """A record as its file has it, what writes a text into the file, and what reads it."""
    path = folder / kind
    record, write, read = {
        "rows": (ROW, write_rows, read_rows),
        "records": (replace(TRAINED[0], setting=ODD), write_records, read_records),
        "answers": (replace(ANSWERED, setting=ODD), write_answer_records, read_answer_records),
    }[kind]
    write(path, [record])
    text = path.read_text(encoding="utf-8")
    values = json.loads(text)[0] if kind == "rows" else json.loads(text)

    def reread(content):
        content = content if isinstance(content, str | bytes) else json.dumps([content] if kind == "rows" else content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read(path)

    return values, reread


FILES = pytest.mark.parametrize("kind", ["rows", "records", "answers"])


@FILES
def test_a_field_of_another_kind_is_named_with_its_place(tmp_path, kind):
    values, reread = one_file(tmp_path, kind)
    assert len(reread(values)) == 1
    for name, value in values.items():
        is_number = isinstance(value, int | float) or (kind == "rows" and value is None)
        wrong_ones = ["3" if is_number else 3, True, [None]]
        for wrong in wrong_ones if name != "q_values" else [*wrong_ones, [10**400]]:
            with pytest.raises(InputError) as caught:
                reread(values | {name: wrong})
            assert caught.value.field == name and kind in str(caught.value), (name, wrong)


@FILES
@pytest.mark.parametrize("number", [10**400, float("nan")])
def test_numbers_that_no_float_holds_are_refused(tmp_path, kind, number):
    values, reread = one_file(tmp_path, kind)
    change = {"scores": {"em": number}} if kind == "answers" else {"fact_em": number}
    with pytest.raises(InputError) as caught:
        reread(json.dumps([values | change] if kind == "rows" else values | change))
    assert kind in str(caught.value)


@FILES
def test_files_that_are_none_of_ours_are_refused(tmp_path, kind):
    values, reread = one_file(tmp_path, kind)
    less = {name: value for name, value in values.items() if name != "seed"}
    for content in ("{", "[" * 100_000, "9" * 5_000, "[3]", '{"seed": 1, "seed": 2}', b"\xff", less, values | {"x": 1}):
        with pytest.raises(InputError) as caught:
            reread(content)
        assert kind in str(caught.value)
    (tmp_path / kind).unlink()
    read = {"rows": read_rows, "records": read_records, "answers": read_answer_records}[kind]
    for path in (tmp_path / kind, tmp_path):
        with pytest.raises(UsageError):
            read(path)


def test_what_one_line_of_a_table_shares():
    assert LATENT.line == replace(LATENT, seed=7, num_chunks=80).line
    others = [{"method": "bm25"}, {"mode": "text"}, {"positions": "none"}, {"protocol": "stop"}, {"beam_width": 2}]
    assert len({LATENT.line, *(replace(LATENT, **change).line for change in others)}) == 6
