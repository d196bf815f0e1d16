"""Asynchronous work on an event loop and a thread of its own, so that it runs inside of a running loop too."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_own_loop(
    work: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]],
    handle: Callable[[T], None],
    keep: Callable[[T], None] = lambda report: None,
) -> None:
    """Runs `work(report)` to its end; what it reports is handled in the calling thread, as it comes and in its order.

    Args:
        work: gets a function that it calls with what it has to report; that function never waits.
        handle: called with each report. Where it raises, or the caller is interrupted, the work is cancelled, waited
            for, and the exception goes on.
        keep: called then, and only then, with every report that was waiting, and once more with the last one that was
            taken: it may have been handled in part.

    Raises:
        BaseException: what `work`, `handle` or `keep` raises.
    """
    reports: SimpleQueue[tuple[T] | None] = SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(lambda report: reports.put((report,))))

    def run() -> None:
        try:
            loop.run_until_complete(asyncio.wait({task}))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            # Not `asyncio.run`: at its end that waits for a look-up of a host's name, however long it hangs.
            loop.close()
            reports.put(None)

    thread = Thread(target=run, daemon=True)
    thread.start()
    report: tuple[T] | None = None
    try:
        while (report := reports.get()) is not None:
            handle(report[0])
    except BaseException:  # Ctrl-C too: what was paid for is kept, then the exception goes on
        with suppress(RuntimeError):  # the loop is closed: it had ended already
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        left = [report]
        while not reports.empty():  # nobody adds to it any more
            left.append(reports.get())
        for report in left:
            if report is not None:
                keep(report[0])
        raise
    thread.join()
    task.result()
