"""Bounded threads: few slow calls run at a time, few wait, and others are refused."""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from sluiceway_gateway.errors import TooManyWaiters

__all__ = ["BoundedThreads"]

_T = TypeVar("_T")


class BoundedThreads:
    """Runs calls on separate threads, so that other requests do not wait for them."""

    def __init__(self, what: str, *, running: int, waiting: int) -> None:
        """Bound the calls of requests `what`, such as "for messages"."""
        self._what = what
        self._limiter = CapacityLimiter(running)
        self._most = running + waiting
        self._present = 0

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
