"""Every fault of a server, at the first, a middle and the last prompt of a batch, one call at a time or four."""

import re

import pytest
from support.fault_cells import CANARY, CONCURRENCIES, NUM_PROMPTS, POSITIONS, run_cell
from support.faults import FAULTS
from support.tiers import of_tier

SLACK = 1.0  # seconds: a loaded machine is late
GRID = [(position, concurrency) for position in POSITIONS for concurrency in CONCURRENCIES]
NUM_WITNESSES = 2  # of a kind


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_has_a_defined_end_and_loses_nothing(kind, tmp_path, figures):
    cells = []
    for number, (fault, position, concurrency) in enumerate(_chosen(kind)):
        folder = tmp_path / str(number)
        folder.mkdir()
        cell = run_cell(fault, position, concurrency, folder)
        cells.append(cell)
        try:
            _check(fault, position, concurrency, cell)
        except AssertionError as error:
            error.add_note(f"{fault.name!r} at prompt {position}, {concurrency} at once: {cell.generations}")
            raise
    figures(5, f"faults of a server: {kind}", len(cells), _outcome(cells))


def _chosen(kind):
    """(fault, position, concurrency): all, or each fault once, or a few that are over at once."""
    a_fault = of_tier(0, len(GRID))
    if a_fault:
        each = [(number, turn) for number in range(len(FAULTS[kind])) for turn in range(a_fault)]
        return [(FAULTS[kind][number], *GRID[(number + turn) % len(GRID)]) for number, turn in each]
    fast = [fault for fault in FAULTS[kind] if fault.attempts == 1 and not fault.is_slow]
    return [(fault, *GRID[2 + number]) for number, fault in enumerate(fast[:NUM_WITNESSES])]


def _outcome(cells):
    """What was counted, for the page of figures."""
    finished = sum(len(cell.finished) for cell in cells)
    lost = sum(len(cell.finished - cell.kept) for cell in cells)
    again = sum(len(cell.finished & cell.asked_again) for cell in cells)
    wrong = sum(cell.num_wrong for cell in cells)
    calls = NUM_PROMPTS * len(cells)
    return f"{wrong} of {calls:,} calls wrong; of {finished:,} finished ones {lost} lost, {again} asked for again"


def _check(fault, position, concurrency, cell):
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
