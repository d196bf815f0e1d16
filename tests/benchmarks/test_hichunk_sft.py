"""The benchmark that trains a decoder to find sections: its conversations, its curve, and all of it at a tiny size."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from support.headed_documents import headed_document
from support.passages import count

from benchmarks.hichunk import sft

SETTING = replace(sft.SMOKE, window_tokens=100, row_tokens=400, tokens=None)


def made(groups, **changes):
    return sft.examples_of(groups, count, replace(SETTING, **changes))


def size_of(example):
    return sum(count(message.content) + sft.TURN_TOKENS for message in example.messages)


def test_conversations_come_from_each_group_in_turn():
    groups = [[headed_document(number)] for number in range(2)] + [[headed_document(number) for number in range(2, 9)]]
    some = made(groups)
    assert {one.document for one in some} == {f"d{number}" for number in range(9)} and some == made(groups)
    place = lambda one: min(int(one.document[1:]), 2)  # noqa: E731
    assert [place(one) for one in some[:6]] == [0, 1, 2] * 2


def test_conversations_end_at_the_tokens_and_none_is_too_long(capsys):
    group = [headed_document(number) for number in range(6)]
    everything = made([group])
    total = sum(map(size_of, everything))
    some = made([group], tokens=total // 2)
    assert some == everything[: len(some)] and total // 4 < sum(map(size_of, some)) <= total // 2
    sizes = sorted(map(size_of, everything))
    limit = sizes[len(sizes) // 2]
    short = made([group], row_tokens=limit)
    assert short == [one for one in everything if size_of(one) <= limit]
    assert f"{len(everything) - len(short)} too long" in capsys.readouterr().out


def test_few_windows_have_no_row(monkeypatch):
    group = [headed_document(number) for number in range(12)]
    with_rows = lambda some: [one for one in some if one.rows]  # noqa: E731
    monkeypatch.setattr(sft, "EMPTY_SHARE", 1.0)
    everything = made([group], window_tokens=64)
    monkeypatch.setattr(sft, "EMPTY_SHARE", 0.0)
    some = made([group], window_tokens=64)
    assert len(some) == len(with_rows(everything)) < len(everything) and len(with_rows(some)) == len(some)


def test_the_curve_by_hand(tmp_path):
    losses = [{"step": step, "imitation": float(step)} for step in range(1, 41)]
    rows = [{"data": {}}, *losses, {"step": 40, "score": 1}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curve = sft.read_curve(tmp_path)
    assert curve == [(step, float(step)) for step in range(1, 41)]
    table = sft.curve_table(curve)
    assert len(table) == 2 + sft.CURVE_POINTS and table[2].split() == ["|", "1", "to", "2", "|", "1.500", "|"]
    assert sft.curve_table(curve[:3])[-1].split() == ["|", "3", "to", "3", "|", "3.000", "|"]
    sft.draw_curve(curve, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1_000


@pytest.mark.filterwarnings("ignore:.*without a section are left out")  # true of the examples, and said
def test_held_out_documents_are_the_same_in_each_view_and_none_is_trained_on():
    training, held = sft.read_documents(None)
    assert [one.id for one in held["removed"]] == [one.id for one in held["plain"]] and len(held["plain"]) == 3
    trained = {one.id for group in training for one in group}
    assert len(training) == 2 and trained and not trained & {one.id for one in held["plain"]}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*without a section are left out")  # true of the examples, and said
def test_all_of_it_at_a_tiny_size(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sft", "--out", str(tmp_path), "--smoke"])
    sft.main()
    result = json.loads((tmp_path / "sft.json").read_text())
    losses = np.array(result["curve"])[:, 1]
    assert len(losses) >= 3 and np.isfinite(losses).all()
    methods = [row["method"] for row in result["tables"]["removed"]]
    assert methods[-3:] == [sft.BEFORE, sft.BEFORE_LONG, sft.AFTER]
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) > 5
