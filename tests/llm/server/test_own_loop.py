"""Work on a loop of its own: reports in the calling thread, also inside of a running loop; ends and exceptions."""

import asyncio
import threading

import pytest

from qrag_jax.llm.server.http import run_in_own_loop


async def _three(report):
    for number in range(3):
        await asyncio.sleep(0)
        report(number)


def _handled(work):
    seen = []
    run_in_own_loop(work, lambda report: seen.append((report, threading.get_ident())))
    return seen


def test_reports_come_in_order_in_the_calling_thread():
    assert _handled(_three) == [(number, threading.get_ident()) for number in range(3)]


def test_a_report_is_handled_before_the_work_ends():
    handled = threading.Event()

    async def work(report):
        report(1)
        await asyncio.to_thread(handled.wait, 30)

    run_in_own_loop(work, lambda report: handled.set())
    assert handled.is_set()


def test_it_runs_inside_of_a_running_loop():
    async def caller():
        return _handled(_three)

    assert [number for number, _ in asyncio.run(caller())] == [0, 1, 2]


def test_what_the_work_raises_goes_on_after_its_reports():
    async def work(report):
        report(1)
        raise LookupError("gone")

    seen = []
    with pytest.raises(LookupError, match="gone"):
        run_in_own_loop(work, seen.append)
    assert seen == [1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_the_handler_raises_cancels_the_work_and_goes_on(error):
    ended = []

    async def work(report):
        try:
            report(1)
            await asyncio.sleep(1000)
        finally:
            ended.append(threading.current_thread())

    def handle(report):
        raise error

    with pytest.raises(error):
        run_in_own_loop(work, handle)
    assert not ended[0].is_alive()


def test_a_handler_that_raises_at_the_last_report_is_heard():
    done = threading.Event()

    async def work(report):
        report(1)
        done.set()

    def handle(report):
        done.wait()
        raise LookupError("late")

    with pytest.raises(LookupError, match="late"):
        run_in_own_loop(work, handle)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_was_reported_before_the_end_is_kept_and_not_handled(error):
    """Three reports wait while the first one is handled; that one may have been handled in part, so it is kept too."""
    reported, handled, kept = threading.Event(), [], []

    async def work(report):
        for number in range(4):
            report(number)
        reported.set()
        await asyncio.sleep(1000)

    def handle(report):
        reported.wait()
        handled.append(report)
        raise error

    with pytest.raises(error):
        run_in_own_loop(work, handle, kept.append)
    assert (handled, kept) == ([0], [0, 1, 2, 3])


def test_nothing_is_kept_where_all_was_handled():
    kept = []
    run_in_own_loop(_three, lambda report: None, kept.append)
    assert kept == []


def test_what_keeping_raises_is_heard():
    def handle(report):
        raise KeyboardInterrupt

    def keep(report):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run_in_own_loop(_three, handle, keep)
