import json
import os

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
from qrag_jax.names import METHODS
from qrag_jax.types import InputError, UsageError

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


def test_row_has_exactly_the_promised_fields():
    assert list(row_values([ROW])[0]) == FIELDS
    assert METHODS == ("trained", "untrained", "single_step", "bm25")


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


def test_no_rows_is_a_valid_file(tmp_path):
    write_rows(tmp_path / "r.json", [])
    assert read_rows(tmp_path / "r.json") == []


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


def test_summarise_counts_the_picks_that_a_protocol_kept():
    """Two facts; 1, 2 and 3 of the picks count: F1 2/3, 1 and 4/5, ceilings the same."""
    gold = np.zeros((3, 6), bool)
    gold[:, [1, 4]] = True
    chosen = np.array([[1, NOT_TAKEN, NOT_TAKEN], [1, 4, NOT_TAKEN], [4, 0, 1]], np.int32)
    row = summarise(
        score_facts(chosen, gold),
        "t",
        replace(LATENT, num_chunks=6, protocol="threshold", beam_width=2),
        length_factor=2.0,
        seconds=0.5,
        threshold=-0.5,
    )
    assert row.fact_f1 == pytest.approx((2 / 3 + 1 + 4 / 5) / 3) == pytest.approx(row.f1_ceiling)
    assert (row.setting.protocol, row.setting.beam_width, row.num_taken, row.threshold) == ("threshold", 2, 2.0, -0.5)


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


def test_paired_values_refuse_other_questions():
    other = replace(RECORD, query_id="z")
    with pytest.raises(InputError, match="2 queries have one record only, 'q1' first"):
        paired_values([RECORD], [other])
    with pytest.raises(InputError, match="occurs twice in one list"):
        paired_values([RECORD, RECORD], [RECORD])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("fact_em", float("nan"), "fact_em = nan must be a finite number"),
        ("seconds", float("inf"), "seconds = inf must be a finite number"),
        ("seconds", -1.0, "seconds -1.0: at least 0"),
        ("method", "random", "method = 'random' must be one of trained, untrained, single_step, bm25"),
        ("task", " ", "task = ' ' must not be empty"),
        ("n", 0, "n 0: at least 1"),
        ("n", True, "n = True must be a whole number"),
        ("num_chunks", 20.0, "num_chunks = 20.0 must be a whole number"),
        ("num_chunks", np.int64(20), "num_chunks"),
        ("length_factor", 0.0, "length_factor 0.0: must lie in"),
        ("em_high", 1.2, r"em_high 1.2: must lie in \[0, 1\]"),
        ("fact_em", 0.99, "fact_em = 0.99 lies outside its interval"),
        ("fact_f1", 0.9, "fact_f1 = 0.9 exceeds its ceiling 0.8"),
        ("protocol", "first", "protocol = 'first' must be one of fixed, threshold, stop, oracle"),
        ("protocol", None, "protocol = None must be a text"),
        ("beam_width", 0, "beam_width 0: at least 1"),
        ("beam_width", 2.0, "beam_width = 2.0 must be a whole number"),
        ("f1_low", -0.1, r"f1_low -0.1: must lie in \[0, 1\]"),
        ("f1_high", 1.1, r"f1_high 1.1: must lie in \[0, 1\]"),
        ("f1_high", "high", "f1_high = 'high' must be a finite number"),
        ("num_taken", float("inf"), "num_taken = inf must be a finite number"),
        ("threshold", float("nan"), "threshold = nan must be a finite number"),
    ],
)
def test_impossible_rows_are_refused(field, value, message):
    with pytest.raises(InputError, match=message):
        replace(ROW, **{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_values": (1.0, float("nan"), 0.0)}, "q_values = nan must hold a finite number each"),
        ({"q_values": (1.0,)}, "needs one value a chosen chunk"),
        ({"texts": ("a",)}, "needs one text a chosen chunk"),
        ({"chosen": (3, 3, 7)}, "chosen = .* must hold distinct indices below num_chunks = 20"),
        ({"gold": (20,)}, "gold = .* must hold distinct indices"),
        ({"fact_f1": 1.5}, "fact_f1 1.5: must lie in"),
        ({"method": "BM25"}, "method = 'BM25'"),
        ({"protocol": "Oracle"}, "protocol = 'Oracle' must be one of fixed, threshold, stop, oracle"),
        ({"beam_width": 0}, "beam_width 0: at least 1"),
        ({"beam_width": True}, "beam_width = True must be a whole number"),
    ],
)
def test_impossible_records_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        replace(RECORD, **changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "r.json: not valid JSON"),
        ("[" * 100_000, "r.json: not valid JSON"),
        ("9" * 5_000, "r.json: not valid JSON"),
        ("{}", "r.json: a results file is a JSON list of rows, got dict"),
        ("[3]", "r.json: row 1: expected a JSON object, got int"),
        ('[{"n": NaN}]', "r.json: NaN is not a number"),
        ('[{"n": 1, "n": 2}]', "r.json: the field 'n' is there twice"),
        ('[{"n": 1}]', r"row 1: missing fields \['em_high', .*unknown fields \[\]"),
    ],
)
def test_damaged_results_are_refused(tmp_path, text, message):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_rows(path)


def test_wrong_fields_are_refused_by_row(tmp_path):
    path = write_json(tmp_path / "r.json", [row_values([ROW])[0], row_values([ROW])[0] | {"fact_em": "high"}])
    with pytest.raises(InputError, match="row 2: fact_em = 'high' must be a finite number"):
        read_rows(path)
    path = write_json(path, [row_values([ROW])[0] | {"seconds": 10**400}])
    with pytest.raises(InputError, match="row 1: seconds = 1000.* must be a finite number"):
        read_rows(path)
    path = write_json(path, [row_values([ROW])[0] | {"extra": 1}])
    with pytest.raises(InputError, match=r"row 1: missing fields \[\], unknown fields \['extra'\]"):
        read_rows(path)


def test_damaged_records_are_refused_by_line(tmp_path):
    path = tmp_path / "r.jsonl"
    write_records(path, [RECORD, RECORD])
    path.write_text(path.read_text(encoding="utf-8")[:-30], encoding="utf-8")
    with pytest.raises(InputError, match="r.jsonl:2: not valid JSON .* may have been cut off"):
        read_records(path)
    path.write_text(json.dumps(record_values(RECORD) | {"chosen": "3, 11"}))
    with pytest.raises(InputError, match="r.jsonl:1: chosen = '3, 11' must be a list"):
        read_records(path)
    path.write_text(json.dumps(record_values(RECORD) | {"q_values": [10**400, 0, 0]}))
    with pytest.raises(InputError, match="r.jsonl:1: q_values = 1000.* must hold a finite number"):
        read_records(path)
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="not UTF-8 at byte 0"):
        read_records(path)


def test_missing_files_and_folders_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_rows(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="no such file"):
        read_records(tmp_path)
    with pytest.raises(UsageError, match="is a folder"):
        write_rows(tmp_path, [ROW])
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_rows(tmp_path / "file" / "r.json", [ROW])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    write_rows(path, [ROW])

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_rows(path, [ROW, ROW])
    assert read_rows(path) == [ROW]
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]
