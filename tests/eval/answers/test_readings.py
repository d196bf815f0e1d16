from dataclasses import replace

import pytest
from support.answers import CHUNKS, EXAMPLES, make_record, make_task

from qrag_jax.eval.answers.answer_rows import BOUNDS, bound_readings, make_readings
from qrag_jax.eval.retrieval.harness import draw_contexts
from qrag_jax.types import InputError


def test_chosen_chunks_stand_in_document_order():
    (reading,) = make_readings([make_record(1, (3, 0, 2))])
    assert reading.chosen == (0, 2, 3) and reading.texts == (CHUNKS[0], CHUNKS[2], CHUNKS[3])
    assert (reading.query_id, reading.setting.method, reading.setting.num_chunks, reading.fact_em) == (
        "q1",
        "trained",
        4,
        1.0,
    )


def test_texts_that_are_equal_stay_where_they_were():
    record = replace(make_record(0, (2, 1)), texts=("late", "early"))
    assert make_readings([record])[0].texts == ("early", "late")


def test_a_record_without_texts_is_refused():
    with pytest.raises(InputError, match="query q0, trained: its record has no texts"):
        make_readings([make_record(0, (1,), texts=False)])


def test_bounds_are_the_gold_chunks_and_none():
    records = [make_record(query, (1,), method="bm25", beam_width=1) for query in range(3)]
    readings = bound_readings(make_task(), records)
    assert (
        [reading.setting.method for reading in readings]
        == ["gold_chunks"] * 3 + ["no_chunks"] * 3
        == sorted(BOUNDS * 3)
    )
    assert [reading.texts for reading in readings] == [(CHUNKS[0],), (CHUNKS[2],), (CHUNKS[3],), (), (), ()]
    assert [reading.chosen for reading in readings[:3]] == [example.gold for example in EXAMPLES]
    assert {(r.setting.protocol, r.setting.mode, r.setting.positions) for r in readings} == {("none", "none", "none")}
    assert [reading.fact_f1 for reading in readings] == [1.0] * 3 + [0.0] * 3


def test_bounds_follow_the_questions_that_were_drawn():
    queries, _ = draw_contexts(make_task(), 2, seed=1)
    records = [make_record(int(query), (1,)) for query in queries]
    readings = bound_readings(make_task(), records, 2, seed=1)
    assert [reading.query_id for reading in readings] == [record.query_id for record in records] * 2


def test_records_of_other_contexts_are_refused():
    records = [make_record(query, (1,)) for query in range(3)]
    moved = [replace(records[0], gold=(1,)), *records[1:]]
    for wrong in (records[:2], records[::-1], moved):
        with pytest.raises(InputError, match="tiny: the records have other contexts than the task has with seed 0"):
            bound_readings(make_task(), wrong)
