import io
import sys

import pytest

from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say
from qrag_jax.types import Generation


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


def answer(read, written, **more):
    return Generation("yes", "stop", read, written, **more)


def test_answers_are_shown_with_tokens_a_second_and_time_left(clock, log):
    with Progress(stream=log, now=clock) as progress:
        told = progress.answers("answers")
        told(0, 10, None)
        for done in range(1, 5):
            clock.seconds += 5
            told(done, 10, answer(100, 20))
    assert log.getvalue() == (
        "answers 2/10  5.0 s each, 0:40 left, 20 tokens/s read and 4 written\n"
        "answers 4/10  5.0 s each, 0:30 left, 20 tokens/s read and 4 written\n"
    )


def test_answers_of_the_journal_make_nothing_quicker(clock, log):
    """Six are there at once; the seventh takes ten seconds, and so will the other three."""
    with Progress(stream=log, now=clock) as progress:
        told = progress.answers("answers")
        told(0, 10, None)
        for done in range(1, 7):
            told(done, 10, answer(1000, 1000, from_journal=True))
        clock.seconds += 10
        told(7, 10, answer(300, 50))
    assert log.getvalue() == "answers 7/10  10.0 s each, 0:30 left, 30 tokens/s read and 5 written\n"


def test_a_batch_that_begins_anew_counts_anew(clock, log):
    with Progress(stream=log, now=clock) as progress:
        for seconds, done, tokens in ((0, 0, 0), (1, 2, 500), (0, 0, 0), (10, 1, 30)):
            clock.seconds += seconds
            progress.answered("judge", done, 2, answer(tokens, tokens) if done else None)
    assert log.getvalue() == "judge 1/2  10.0 s each, 0:10 left, 3 tokens/s read and 3 written\n"


def test_it_may_be_opened_again_and_goes_on(clock, log):
    progress = Progress(stream=log, now=clock)
    for done in range(3):
        with progress:
            progress.answered("questions", done, 3)
            clock.seconds += 6
            progress.answered("questions", done + 1, 3, answer(60, 6))
    assert log.getvalue() == (
        "questions 2/3  6.0 s each, 0:06 left, 10 tokens/s read and 1 written\n"
        "questions 3/3  6.0 s each, 10 tokens/s read and 1 written\n"
    )


def test_bars_that_are_opened_again_are_there_again(clock, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    progress = Progress(stream=terminal, now=clock, transient=True)
    for done in range(2):
        with progress:
            progress.answered("questions", done, 2)
        terminal.write("AN ANSWER\n")
        clock.seconds += 4
    first, second, _ = terminal.getvalue().split("AN ANSWER")
    assert "questions" in first and "0/2" in first and "questions" in second and "1/2" in second
