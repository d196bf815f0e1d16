import io
import sys

import pytest

from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log():
    return io.StringIO()


def test_a_log_gets_a_line_every_ten_seconds_with_rate_and_time_left(clock, log):
    with Progress(stream=log, now=clock) as progress:
        for step in range(10, 61, 10):  # 10 updates in 4 seconds: lines are due at 12 and 24 seconds
            clock.seconds += 4
            progress.report("train", step, 100, {"q": 9.0, "loss": 0.00312, "complete": 0.9312})
    # the rate counts from the first report on: 20 updates in 8 s, then 50 in 20 s
    assert log.getvalue() == (
        "train 30/100  2.5/s, 0:28 left, complete 0.931, loss 0.00312\n"
        "train 60/100  2.5/s, 0:16 left, complete 0.931, loss 0.00312\n"
    )


@pytest.mark.parametrize(
    ("steps", "seconds", "shown"),
    [
        (300, 1.0, "300/s"),
        (3_000, 2.0, "1,500/s"),
        (20, 10.0, "2.0/s"),
        (5, 20.0, "4.0 s each"),
    ],
)
def test_rates(clock, log, steps, seconds, shown):
    with Progress(interval=0.5, stream=log, now=clock) as progress:
        progress.report("train", 0, steps)
        clock.seconds += seconds
        progress.report("train", steps, steps)
    assert log.getvalue() == f"train {steps:,}/{steps:,}  {shown}\n"


@pytest.mark.parametrize(("left", "shown"), [(8, "0:08"), (725, "12:05"), (3723, "1:02:03")])
def test_time_left(clock, log, left, shown):
    with Progress(stream=log, now=clock) as progress:
        progress.report("train", 0, left + 20)
        clock.seconds += 20
        progress.report("train", 20, left + 20)
    assert f"1.0/s, {shown} left" in log.getvalue()


def test_what_is_quick_leaves_a_log_alone(clock, log):
    with Progress(stream=log, now=clock) as progress:
        progress.note("reading")
        clock.seconds += 9
        progress.stage("embed")(500, 500)
    assert log.getvalue() == ""


def test_the_end_of_a_stage_that_was_shown_is_shown(clock, log):
    with Progress(stream=log, now=clock) as progress:
        embed = progress.stage("embed")
        for done in (0, 110, 150):
            clock.seconds += 11 if done == 110 else 1
            embed(done, 150)
    assert log.getvalue() == "embed 110/150  10/s, 0:04 left\nembed 150/150  12/s\n"


def test_a_stage_starts_anew(clock, log):
    with Progress(interval=5, stream=log, now=clock) as progress:
        embed = progress.stage("embed")
        for done, of in ((0, 10), (10, 10), (0, 10), (5, 10), (0, 300), (150, 300)):
            clock.seconds += 5
            embed(done, of)
    rates = [line.partition("  ")[2] for line in log.getvalue().splitlines()]
    assert rates == ["", "2.0/s", "", "1.0/s, 0:05 left", "", "30/s, 0:05 left"]


def test_notes(clock, log):
    with Progress(stream=log, now=clock) as progress:
        clock.seconds += 10
        progress.note("qa2: trained at 50 chunks")
        progress.note("qa2: bm25 at 50 chunks")
    assert log.getvalue() == "qa2: trained at 50 chunks\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_quiet(stream, clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = stream()
    with Progress(quiet=True, stream=stream, now=clock) as progress:
        clock.seconds += 100
        progress.note("here")
        progress.report("train", 5, 10, {})
    assert stream.getvalue() == ""


def test_a_terminal_gets_bars_and_standard_output_nothing(clock, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    with Progress(stream=terminal, now=clock) as progress:
        progress.note("qa2 [1/2]: trained")  # brackets are no markup
        progress.report("train", 0, 10)
        clock.seconds += 2
        progress.report("train", 10, 10, {"complete": 0.5})
        print("the answer")
        assert sys.stdout is not terminal
    assert "10/10  5.0/s, complete 0.5" in terminal.getvalue()
    assert capsys.readouterr().out == "the answer\n"


def test_what_a_terminal_cannot_move_is_written_in_lines(clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    with Progress(stream=terminal, now=clock) as progress:
        clock.seconds += 10
        progress.report("train", 1, 10)
    assert terminal.getvalue() == "train 1/10\n"


def test_colour_that_is_forced_makes_no_bars_in_a_log(clock, log, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(stream=log, now=clock) as progress:
        progress.report("train", 1, 10)
    assert log.getvalue() == ""


def test_the_default_stream_is_standard_error(clock, capsys):
    with Progress(now=clock) as progress:
        clock.seconds += 10
        progress.report("train", 1, 10)
        say("a message")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "train 1/10\na message\n")


def test_an_error_closes_the_bars(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with pytest.raises(KeyError), Progress(stream=terminal) as progress:
        progress.report("train", 1, 10)
        raise KeyError("x")
    assert terminal.getvalue().endswith("\x1b[?25h")  # the cursor is back
