"""Every fault of a server, at the first, a middle and the last prompt of a batch, one call at a time or four.

Half of the cells, so that each fault meets each position and each number of calls: `benchmarks/llm_faults.py` runs all.
"""

import re

import pytest
from fault_cells import CANARY, CONCURRENCIES, FAULTS, NUM_PROMPTS, POSITIONS, run_cell

SLACK = 1.0  # seconds: a loaded machine is late
_MIDDLE = POSITIONS[1]


def _is_fast(fault, position):
    return position == _MIDDLE and fault.attempts == 1 and not fault.is_slow


CELLS = [
    pytest.param(
        fault,
        position,
        concurrency,
        id=f"{fault.name}-{position}-{concurrency}",
        marks=() if _is_fast(fault, position) else pytest.mark.slow,
    )
    for number, fault in enumerate(FAULTS)
    for place, position in enumerate(POSITIONS)
    for concurrency in (CONCURRENCIES[(number + place) % len(CONCURRENCIES)],)
]


@pytest.mark.parametrize(("fault", "position", "concurrency"), CELLS)
def test_a_fault_has_a_defined_end_and_loses_nothing(fault, position, concurrency, tmp_path):
    cell = run_cell(fault, position, concurrency, tmp_path)

    _check_fault(fault, position, cell)
    _check_others(fault, position, concurrency, cell)
    assert cell.attempts <= cell.allowed
    assert cell.seconds <= 1.1 * cell.deadline + SLACK
    assert sorted(cell.heard) == [(place, True) for place in range(NUM_PROMPTS)]
    assert cell.num_wrong == 0
    _check_second_run(cell)
    assert CANARY.encode() not in cell.sinks


def _check_fault(fault, position, cell):
    """The prompt at which the server misbehaves."""
    answer = cell.generations[position]
    if fault.ends in ("answer", "length"):
        assert answer.error is None
        assert answer.text == f"Answer {position}."
        assert answer.finish_reason == {"answer": "stop", "length": "length"}[fault.ends]
    else:
        assert answer.finish_reason == "error"
        assert answer.text == ""
        assert fault.ends in answer.error
    assert cell.attempts == (fault.attempts or cell.allowed)
    if fault.waits:
        assert cell.waited >= fault.waits


def _check_others(fault, position, concurrency, cell):
    """All other prompts: answered, unless nothing more can be had of the server."""
    others = [place for place in range(NUM_PROMPTS) if place != position]
    if not fault.is_fatal:
        assert all(cell.generations[place].error is None for place in others)
        return
    assert {place for place, answer in enumerate(cell.generations) if answer.error is None} == cell.finished
    if concurrency == 1:
        assert cell.finished == set(range(position))
        reason = re.escape(cell.generations[position].error)
        assert all(
            re.fullmatch(f"not asked, since another call failed: {reason}", cell.generations[place].error)
            for place in range(position + 1, NUM_PROMPTS)
        )


def _check_second_run(cell):
    """What was finished is not asked for again; the rest is, and answered."""
    assert cell.finished <= cell.kept
    assert cell.kept.isdisjoint(cell.asked_again)
    assert cell.kept | cell.asked_again == set(range(NUM_PROMPTS))
    assert [answer.text for answer in cell.resumed] == [f"Answer {place}." for place in range(NUM_PROMPTS)]
