import json

import numpy as np
import pytest
from support.answers import LATENT, replace

from qrag_jax.eval.retrieval.records import (
    QueryRecord,
    Row,
    make_records,
    paired_values,
    read_records,
    read_rows,
    record_values,
    row_values,
    summarise,
    write_records,
    write_rows,
)
from qrag_jax.measures.facts import NOT_TAKEN, score_facts
from qrag_jax.types import InputError

ROW = Row(
    task="two facts",
    setting=LATENT,
    length_factor=1.0,
    fact_em=0.95,
    fact_f1=0.78,
    em_low=0.93,
    em_high=0.97,
    n=1000,
    seconds=1.5,
    f1_ceiling=0.8,
    num_left_out=0,
)
RECORD = QueryRecord(
    query_id="q1",
    question="Where is the \u201cmilk\u201d?\u2028",
    setting=replace(LATENT, method="bm25"),
    chosen=(3, 11, 7),
    q_values=(2.5, 1.25, 0.0),
    gold=(3, 11),
    fact_em=1.0,
    fact_f1=0.8,
    texts=("Mary took the milk.", "Mary went home.", "A\nB"),
)
THRESHOLD_ROW = replace(ROW, protocol="threshold", beam_width=4, f1_low=0.7, f1_high=0.79, num_taken=2.4, threshold=0.3)
OLD_FIELDS = (
    "task method mode positions seed num_chunks length_factor fact_em fact_f1 em_low em_high n seconds f1_ceiling "
    "num_left_out"
).split()
FIELDS = [*OLD_FIELDS, "protocol", "beam_width", "f1_low", "f1_high", "num_taken", "threshold", "em_ceiling"]


def write_json(path, values):
    path.write_text(json.dumps(values))
    return path


def test_rows_survive_the_file(tmp_path):
    rows = [ROW, replace(ROW, method="bm25", seed=3, num_chunks=1280, length_factor=64.0), THRESHOLD_ROW]
    path = tmp_path / "new" / "folder" / "results.json"
    write_rows(path, rows)
    assert read_rows(path) == rows
    assert [list(row) for row in json.loads(path.read_text())] == [FIELDS] * 3
    assert path.read_text().count("\n") == 5  # brackets and one line a row


def test_rows_of_before_protocols_are_read_as_fixed(tmp_path):
    """Files that an earlier version wrote have none of the new fields, in rows as in records."""
    old = {name: value for name, value in row_values([ROW])[0].items() if name in OLD_FIELDS}
    (row,) = read_rows(write_json(tmp_path / "r.json", [old]))
    assert row == ROW
    assert (row.setting.protocol, row.setting.beam_width, row.f1_low, row.f1_high, row.num_taken, row.threshold) == (
        "fixed", 1, None, None, None, None
    )  # fmt: skip
    record = {name: value for name, value in record_values(RECORD).items() if name not in ("protocol", "beam_width")}
    (tmp_path / "r.jsonl").write_text(json.dumps(record))
    assert read_records(tmp_path / "r.jsonl") == [RECORD]
    assert (RECORD.setting.protocol, RECORD.setting.beam_width) == ("fixed", 1)


def test_whole_numbers_are_read_as_floats(tmp_path):
    path = write_json(tmp_path / "r.json", [row_values([ROW])[0] | {"length_factor": 1, "seconds": 2}])
    assert read_rows(path)[0].seconds == 2.0


def test_records_survive_the_file(tmp_path):
    records = [
        RECORD,
        replace(RECORD, query_id="q2", texts=None, chosen=(), q_values=(), fact_em=0.0, fact_f1=0.0),
        replace(RECORD, protocol="stop", beam_width=8),
    ]
    write_records(tmp_path / "r.jsonl", records)
    assert read_records(tmp_path / "r.jsonl") == records
    lines = (tmp_path / "r.jsonl").read_text(encoding="utf-8").split("\n")
    assert "texts" in json.loads(lines[0]) and "texts" not in json.loads(lines[1])
    assert lines[3:] == [""]


def test_summarise_by_hand():
    gold = np.zeros((4, 6), bool)
    gold[:, [1, 4]] = True
    chosen = np.array([[1, 4, 0], [4, 1, 5], [1, 0, 2], [0, 2, 3]], np.int32)
    row = summarise(
        score_facts(chosen, gold),
        "t",
        replace(LATENT, num_chunks=6),
        length_factor=2.0,
        seconds=0.5,
        num_left_out=3,
    )
    assert (row.fact_em, row.n, row.num_left_out, row.length_factor) == (0.5, 4, 3, 2.0)
    assert row.fact_f1 == pytest.approx((0.8 + 0.8 + 0.4 + 0) / 4)
    assert row.f1_ceiling == pytest.approx(0.8)
    assert 0 <= row.em_low <= 0.5 <= row.em_high <= 1
    assert 0 <= row.f1_low <= row.fact_f1 <= row.f1_high <= 1
    assert (row.setting.protocol, row.setting.beam_width, row.num_taken, row.threshold) == ("fixed", 1, 3.0, None)
    # Of the first 1, 2 and 3 picks the ceilings are 2/3, 1 and 4/5.
    kept = score_facts(np.where(np.arange(3) < np.array([[1], [2], [3]]), chosen[:3], NOT_TAKEN), gold[:3])
    stopped = summarise(kept, "t", row.setting, length_factor=2.0, seconds=0.5, threshold=-0.5)
    assert stopped.f1_ceiling == pytest.approx((2 / 3 + 1 + 4 / 5) / 3)
    assert (stopped.num_taken, stopped.threshold) == (2.0, -0.5)


def test_make_records_drops_picks_that_were_not_taken():
    gold = np.zeros((2, 6), bool)
    gold[:, [1, 4]] = True
    chosen = np.array([[4, 1, 0], [2, NOT_TAKEN, NOT_TAKEN]], np.int32)
    q_values = np.array([[3, 2, 1], [0.5, np.nan, np.nan]], np.float32)
    records = make_records(
        score_facts(chosen, gold),
        replace(LATENT, num_chunks=6),
        [("a", "A?"), ("b", "B?")],
        chosen=chosen,
        q_values=q_values,
        gold=gold,
        texts=[["x", "y", "z"], ["w"]],
    )
    assert (records[0].chosen, records[0].gold, records[0].fact_em) == ((4, 1, 0), (1, 4), 1.0)
    assert (records[1].chosen, records[1].q_values, records[1].texts) == ((2,), (0.5,), ("w",))


def test_paired_values_match_by_query():
    first = [replace(RECORD, query_id=name, fact_f1=value) for name, value in (("a", 0.1), ("b", 0.2))]
    second = [replace(RECORD, query_id=name, fact_f1=value) for name, value in (("b", 0.4), ("a", 0.3))]
    left, right = paired_values(first, second, "fact_f1")
    np.testing.assert_array_equal(left, [0.1, 0.2])
    np.testing.assert_array_equal(right, [0.3, 0.4])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", -1.0),
        ("method", "random"),
        ("protocol", "first"),
        ("task", " "),
        ("mode", ""),
        ("n", 0),
        ("num_left_out", -1),
        ("num_chunks", 0),
        ("beam_width", 0),
        ("length_factor", 0.0),
        ("em_high", 1.2),
        ("f1_low", -0.1),
        ("em_ceiling", 1.1),
        ("fact_em", 0.99),  # outside its interval
        ("fact_f1", 0.9),  # above its ceiling
    ],
)
def test_impossible_rows_are_refused(field, value):
    with pytest.raises(InputError) as caught:
        replace(ROW, **{field: value})
    assert (caught.value.field, caught.value.value) == (field, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("q_values", (1.0,)),
        ("texts", ("a",)),
        ("chosen", (3, 3, 7)),
        ("gold", (20,)),
        ("fact_f1", 1.5),
        ("method", "BM25"),
        ("protocol", "Oracle"),
    ],
)
def test_impossible_records_are_refused(field, value):
    with pytest.raises(InputError) as caught:
        replace(RECORD, **{field: value})
    assert caught.value.field == field


def test_paired_values_refuse_other_questions():
    other = replace(RECORD, query_id="z")
    with pytest.raises(InputError, match="2 queries have one record only, 'q1' first"):
        paired_values([RECORD], [other])
    with pytest.raises(InputError, match="occurs twice in one list"):
        paired_values([RECORD, RECORD], [RECORD])
