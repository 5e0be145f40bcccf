"""Threads for slow requests."""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from sluiceway_gateway.core.errors import TooManyWaiters

_T = TypeVar("_T")


class BoundedThreads:
    """Separate threads for a few slow calls at a time; a few more wait, and others are refused."""

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
