"""Bounded thread pools: running, waiting and refused calls."""

import asyncio
import threading
from collections.abc import Callable

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


Send, Stopped = Callable[[bytes], None], Callable[[], bool]


def test_a_stream_yields_what_its_call_sends_and_then_its_error() -> None:
    def call(send: Send, _stopped: Stopped) -> None:
        for number in range(100):
            send(b"%d" % number)
        raise ValueError("a failure")

    async def read() -> None:
        lines = BoundedThreads("for tests", running=1, waiting=0).stream(call)
        for number in range(100):
            assert await anext(lines) == b"%d" % number
        with pytest.raises(ValueError, match="a failure"):
            await anext(lines)

    asyncio.run(read())


def test_a_stream_that_is_closed_stops_its_call_which_waits_for_the_recipient() -> None:
    stopped, sent = threading.Event(), []

    def call(send: Send, is_stopped: Stopped) -> None:
        while not is_stopped():
            send(b"a line")
            sent.append(1)
        stopped.set()

    async def read() -> None:
        threads = BoundedThreads("for tests", running=1, waiting=0)
        lines = threads.stream(call)
        assert await anext(lines) == b"a line"
        with pytest.raises(TooManyWaiters):
            await anext(threads.stream(call))
        await lines.aclose()
        assert await asyncio.to_thread(stopped.wait, 60)
        assert len(sent) < 100

    asyncio.run(read())


def test_a_recipient_that_takes_nothing_in_time_holds_no_thread() -> None:
    def call(send: Send, is_stopped: Stopped) -> None:
        while not is_stopped():
            send(b"a line")
        send(b"the end")

    async def read() -> None:
        threads = BoundedThreads("for tests", running=1, waiting=0)
        lines = threads.stream(call, send_s=0.01)
        assert await anext(lines) == b"a line"
        async with asyncio.timeout(60):
            while threads.present:
                await asyncio.sleep(0.01)
        assert {line async for line in lines} <= {b"a line"}

    asyncio.run(read())
