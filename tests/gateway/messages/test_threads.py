"""Bounded thread pools: running, waiting and refused calls."""

import asyncio
import threading

import pytest

from sluiceway_gateway.core.errors import TooManyWaiters
from sluiceway_gateway.messages.threads import BoundedThreads


def test_calls_beyond_those_that_run_and_wait_are_refused() -> None:
    async def calls() -> None:
        threads, end = BoundedThreads("for tests", running=2, waiting=1), threading.Event()
        present = [asyncio.create_task(threads.run(end.wait)) for _ in range(3)]
        # Each task has begun once another one of the loop has run.
        await asyncio.sleep(0)
        with pytest.raises(TooManyWaiters, match="for tests"):
            await threads.run(end.wait)
        end.set()
        assert await asyncio.gather(*present) == [True] * 3
        assert await threads.run(lambda: "room again") == "room again"

    asyncio.run(calls())
