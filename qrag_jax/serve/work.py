"""A bounded queue of work in threads, so that a server refuses what it cannot answer soon."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


class Busy(Exception):
    """The queue is full, or work was not done in time."""


class WorkQueue:
    """Runs work in threads, in the order of arrival.

    Args:
        workers: threads.
        max_waiting: most requests that wait or run; more are refused.
        seconds: longest time from arrival to the result.
    """

    def __init__(self, workers: int, max_waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="qrag")
        self.max_waiting, self.seconds, self.num_waiting = max_waiting, seconds, 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of work.

        Raises:
            Busy: the queue is full, or the result took too long. Work that has not begun is then dropped; work that
                runs keeps its place until it ends.
        """
        if self.num_waiting >= self.max_waiting:
            raise Busy(f"{self.num_waiting} requests are waiting; try again soon")
        self.num_waiting += 1
        loop = asyncio.get_running_loop()
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._leave(loop))
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            if not limit.expired():  # of the work itself
                raise
            raise Busy(f"no answer within {self.seconds:g} seconds; try again, or ask less at a time") from error

    def close(self) -> None:
        """Drops work that has not begun; does not wait for work that runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        def leave() -> None:
            self.num_waiting -= 1

        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(leave)
