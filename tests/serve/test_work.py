"""The queue of work: order, bounds, and what happens to work that nobody waits for."""

import asyncio
import threading

import pytest
from support.tiers import PATIENCE

from qrag_jax.serve.work import Busy, WorkQueue


def test_work_is_done_in_order_and_errors_come_through():
    done = []

    async def run():
        queue = WorkQueue(1, 9, PATIENCE)
        await asyncio.gather(*(queue.run(lambda number=number: done.append(number)) for number in range(5)))
        with pytest.raises(TimeoutError, match="its own"):  # not that of the queue
            await queue.run(lambda: (_ for _ in ()).throw(TimeoutError("its own")))
        await asyncio.sleep(0)
        assert queue.num_waiting == 0
        queue.close()

    asyncio.run(run())
    assert done == [0, 1, 2, 3, 4]


def test_more_than_may_wait_are_refused_and_late_work_keeps_its_place_until_it_ends():
    free, begun, dropped = threading.Event(), threading.Event(), []

    def hold():
        begun.set()
        free.wait(PATIENCE)

    async def run():
        queue = WorkQueue(1, 2, 0.05)
        first = asyncio.create_task(queue.run(hold))
        await asyncio.to_thread(begun.wait, PATIENCE)
        second = asyncio.create_task(queue.run(lambda: dropped.append("was done")))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 requests"):
            await queue.run(hold)
        for late in (first, second):
            with pytest.raises(Busy, match="no answer within"):
                await late
        while queue.num_waiting > 1:  # work that had not begun has left
            await asyncio.sleep(0.01)
        free.set()
        while queue.num_waiting:
            await asyncio.sleep(0.01)
        queue.close()

    asyncio.run(run())
    assert dropped == []


def test_work_that_nobody_waits_for_any_longer_leaves_the_queue():
    free, begun = threading.Event(), threading.Event()

    def hold():
        begun.set()
        free.wait(PATIENCE)

    async def run():
        queue = WorkQueue(1, 9, PATIENCE)
        first = asyncio.create_task(queue.run(hold))
        await asyncio.to_thread(begun.wait, PATIENCE)
        second = asyncio.create_task(queue.run(hold))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await asyncio.sleep(0)
        assert queue.num_waiting == 1
        free.set()
        await first
        queue.close()

    asyncio.run(run())
