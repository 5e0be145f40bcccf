"""Threads for slow requests."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeVar

from anyio import (
    BrokenResourceError,
    CapacityLimiter,
    ClosedResourceError,
    create_memory_object_stream,
    from_thread,
    move_on_after,
    to_thread,
)

from sluiceway_gateway.core.errors import TooManyWaiters

_T = TypeVar("_T")
#: What a stream sends ahead of its recipient.
_UNREAD_LINES = 16
_SEND_S = 60.0


class BoundedThreads:
    """Separate threads for a few slow calls at a time; a few more wait, and others are refused."""

    def __init__(self, what: str, *, running: int, waiting: int) -> None:
        """Bound the calls of requests `what`, such as "for messages"."""
        self._what = what
        self._limiter = CapacityLimiter(running)
        self._most = running + waiting
        self._present = 0

    @property
    def present(self) -> int:
        """The number of calls that run or wait."""
        return self._present

    async def run(self, call: Callable[[], _T]) -> _T:
        """Return what the call returns, on the event loop. Raises TooManyWaiters.

        A running call is not cancelled, even if nobody waits for it any more.
        """
        if self._present >= self._most:
            raise TooManyWaiters(
                f"Too many requests {self._what} run and wait at this gateway; send it again in "
                "some seconds."
            )
        self._present += 1
        try:
            return await to_thread.run_sync(call, limiter=self._limiter)
        finally:
            self._present -= 1

    async def stream(
        self,
        call: Callable[[Callable[[bytes], None], Callable[[], bool]], None],
        *,
        send_s: float = _SEND_S,
    ) -> AsyncGenerator[bytes]:
        """Yield what the call sends, until it returns, and raise its error. Raises TooManyWaiters.

        `call` gets a function that sends, and waits for a slow recipient, and one that returns
        whether the generator was closed. After that, what it sends is dropped. A recipient that
        takes no line for `send_s` seconds gets only those that were sent before, so that it does
        not hold a thread for ever.
        """
        sender, receiver = create_memory_object_stream[bytes](_UNREAD_LINES)
        closed = threading.Event()

        async def send_in_time(line: bytes) -> None:
            with move_on_after(send_s) as bound:
                await sender.send(line)
            if bound.cancelled_caught:
                closed.set()
                sender.close()

        def send(line: bytes) -> None:
            with suppress(BrokenResourceError, ClosedResourceError):
                from_thread.run(send_in_time, line)

        task = asyncio.ensure_future(self.run(lambda: call(send, closed.is_set)))
        task.add_done_callback(lambda _: sender.close())
        try:
            async for line in receiver:
                yield line
            await task
        finally:
            # The thread ends by itself, soon.
            closed.set()
            receiver.close()
            task.add_done_callback(_ignore)


def _ignore(task: asyncio.Task[None]) -> None:
    """Look at the error of a call that nobody waits for, which asyncio would log."""
    if not task.cancelled():
        task.exception()
